//! A machine made of namespaces: a network with one cable, process ids, shared memory and mounts of its own.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

/// What every machine does first, and the campaign too: nothing it makes is seen outside, and all of it goes with it.
/// The shell is the machine's first process: it also takes leave of the processes that lost their parents.
const BOOT: &str = "
    set -eu
    mount -t tmpfs tmpfs /dev/shm
    ip link set lo up
";

/// A command that runs a shell in namespaces of its own. They end with this process, however it ends.
pub(crate) fn isolated(script: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "unshare", "--net", "--pid", "--ipc", "--mount-proc", "--fork"]);
    command.args(["--kill-child", "sh", "-c", &format!("{BOOT}{script}"), "sh"]);
    // No tools but the system's: what else stands in a user's path may be of another version.
    command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("LC_ALL", "C.UTF-8");
    command
}

/// Ends all that runs in the namespaces which this `unshare` made, by ending their first process. `unshare` itself ends
/// when nothing of it is left.
pub(crate) fn end(unshare: &Child) -> Result<()> {
    let parent = format!("PPid:\t{}", unshare.id());
    let first = processes()?.into_iter().find(|id| about(*id, "status").lines().any(|line| line == parent));
    kill_process(first.context("nothing runs in these namespaces")?, Signal::KILL)?;
    Ok(())
}

/// All processes that are seen from here, oldest first.
fn processes() -> Result<Vec<Pid>> {
    let names =
        fs::read_dir("/proc")?.map(|entry| entry.map(|entry| entry.file_name())).collect::<Result<Vec<_>, _>>()?;
    let mut ids: Vec<i32> = names.iter().filter_map(|name| name.to_str()?.parse().ok()).collect();
    ids.sort_unstable();
    Ok(ids.into_iter().filter_map(Pid::from_raw).collect())
}

/// What the kernel says about a process in one of its files; nothing about one that has ended.
fn about(process: Pid, file: &str) -> String {
    fs::read_to_string(format!("/proc/{process}/{file}")).unwrap_or_default()
}

/// The network of a process, as the kernel names it.
fn network_of(process: impl fmt::Display) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{process}/ns/net")).ok()
}

/// Runs a command to its end, which must be a good one, and gives what it printed.
pub(crate) fn run(program: &str, arguments: &[&str]) -> Result<String> {
    let output = Command::new("timeout").arg("10").arg(program).args(arguments).stdin(Stdio::null()).output()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} {}: {} {}", arguments.join(" "), output.status, errors.trim_end());
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}

/// Asks until the answer is good; after `limit` says what was still wrong.
pub(crate) fn wait<T>(what: &str, limit: Duration, mut ask: impl FnMut() -> Result<T>) -> Result<T> {
    let start = Instant::now();
    loop {
        match ask() {
            Ok(answer) => return Ok(answer),
            Err(error) if start.elapsed() > limit => {
                return Err(error.context(format!("waited {} s in vain for {what}", limit.as_secs())));
            }
            Err(_) => pause(Duration::from_millis(50)),
        }
    }
}

/// Lets time pass: between two looks at a condition, or because a fault has to last.
pub(crate) fn pause(time: Duration) {
    #[expect(clippy::disallowed_methods, reason = "the one place of the campaign where time passes by itself")]
    std::thread::sleep(time);
}

/// The bridge that the machines are plugged into.
const BRIDGE: &str = "lan";

/// Lays the network, with ourselves at this address.
pub(crate) fn lay_network(address: Ipv4Addr) -> Result<()> {
    run("ip", &["link", "add", BRIDGE, "type", "bridge"])?;
    run("ip", &["address", "add", &format!("{address}/24"), "dev", BRIDGE])?;
    run("ip", &["link", "set", BRIDGE, "up"])?;
    Ok(())
}

/// A machine that runs.
pub(crate) struct Machine {
    unshare: Child,
    /// What the kernel calls its network: every process of the machine has it.
    network: PathBuf,
    /// The end of its cable at the bridge.
    port: String,
}

impl Machine {
    /// Starts a machine whose only work is `script`, in `directory`, where its output goes to `machine.log`. The name of
    /// the port must be new: the cable of a machine that died is removed a little later.
    pub(crate) fn boot(directory: &Path, port: &str, address: Ipv4Addr, script: &str) -> Result<Self> {
        let log = OpenOptions::new().create(true).append(true).open(directory.join("machine.log"))?;
        // The cable comes from outside, as soon as there is a network to plug it into.
        let plug = format!(
            "until ip link set eth0 up 2> /dev/null; do sleep 0.02; done\nip address add {address}/24 dev eth0\n{script}"
        );
        let mut command = isolated(&plug);
        command.current_dir(directory).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let unshare = command.spawn().context("setpriv runs")?;
        let ours = network_of("self").context("a network of our own")?;
        let id = unshare.id().to_string();
        let network = wait("the namespaces of a machine", Duration::from_secs(10), || {
            network_of(&id).filter(|network| *network != ours).context("there are none")
        })?;
        let machine = Self { unshare, network, port: port.to_owned() };
        run("ip", &["link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", &id])?;
        run("ip", &["link", "set", port, "up"])?;
        machine.plug_in()?;
        Ok(machine)
    }

    /// Ends everything on it at once.
    pub(crate) fn kill(mut self) -> Result<()> {
        end(&self.unshare)?;
        self.unshare.wait()?;
        Ok(())
    }

    /// Puts the cable into the bridge.
    pub(crate) fn plug_in(&self) -> Result<()> {
        run("ip", &["link", "set", &self.port, "master", BRIDGE]).map(drop)
    }

    /// Takes the cable out of the bridge. Nobody is told: what is sent is not answered, not even refused.
    pub(crate) fn unplug(&self) -> Result<()> {
        run("ip", &["link", "set", &self.port, "nomaster"]).map(drop)
    }

    /// Runs a command in the machine's network.
    pub(crate) fn run(&self, program: &str, arguments: &[&str]) -> Result<String> {
        let id = self.unshare.id().to_string();
        run("nsenter", &[&["--net", "--target", &id, program], arguments].concat())
    }

    /// The processes of these names, oldest first.
    fn processes(&self, names: &[&str]) -> Result<Vec<Pid>> {
        let mut found = processes()?;
        found.retain(|id| {
            network_of(id).as_ref() == Some(&self.network) && names.contains(&about(*id, "comm").trim_end())
        });
        Ok(found)
    }

    /// Sends a signal to all processes of these names, also to those that they start meanwhile, and says how many got it.
    pub(crate) fn signal(&self, names: &[&str], signal: Signal) -> Result<usize> {
        let mut reached = Vec::new();
        loop {
            let new: Vec<Pid> = self.processes(names)?.into_iter().filter(|id| !reached.contains(id)).collect();
            if new.is_empty() {
                break;
            }
            for id in &new {
                // One that has just ended needs no signal.
                match kill_process(*id, signal) {
                    Ok(()) | Err(rustix::io::Errno::SRCH) => reached.push(*id),
                    Err(error) => bail!("a signal to process {id}: {error}"),
                }
            }
        }
        Ok(reached.len())
    }
}
