//! Simulated machines made of namespaces: each has its own network interface, process ids, shared memory and mounts.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

/// Commands that every machine runs first. Nothing that they create is visible outside of the namespaces. The shell is the
/// first process of the machine, so it also reaps orphaned processes.
const BOOT: &str = "
    set -eu
    mount -t tmpfs tmpfs /dev/shm
    ip link set lo up
";

/// Returns a command that runs a shell in new namespaces. They end with this process, even if it is killed.
pub(crate) fn isolated(script: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "unshare", "--net", "--pid", "--ipc", "--mount-proc", "--fork"]);
    command.args(["--kill-child", "sh", "-c", &format!("{BOOT}{script}"), "sh"]);
    // Only the system's tools: others in the user's path may have another version.
    command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("LC_ALL", "C.UTF-8");
    command
}

/// Kills the first process of the namespaces that this `unshare` created, and thereby all of them. `unshare` exits afterwards.
pub(crate) fn kill_namespaces(unshare: &Child) -> Result<()> {
    let parent = format!("PPid:\t{}", unshare.id());
    let first = processes()?.into_iter().find(|id| read_proc(*id, "status").lines().any(|line| line == parent));
    kill_process(first.context("nothing runs in these namespaces")?, Signal::KILL)?;
    Ok(())
}

/// Returns all visible processes, oldest first.
fn processes() -> Result<Vec<Pid>> {
    let names =
        fs::read_dir("/proc")?.map(|entry| entry.map(|entry| entry.file_name())).collect::<Result<Vec<_>, _>>()?;
    let mut ids: Vec<i32> = names.iter().filter_map(|name| name.to_str()?.parse().ok()).collect();
    ids.sort_unstable();
    Ok(ids.into_iter().filter_map(Pid::from_raw).collect())
}

/// Reads a file of a process in /proc; empty if the process has ended.
fn read_proc(process: Pid, file: &str) -> String {
    fs::read_to_string(format!("/proc/{process}/{file}")).unwrap_or_default()
}

/// Returns the network namespace of a process.
fn network_of(process: impl fmt::Display) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{process}/ns/net")).ok()
}

/// Runs a command, which must succeed, and returns its output.
pub(crate) fn run(program: &str, arguments: &[&str]) -> Result<String> {
    let output = Command::new("timeout").arg("10").arg(program).args(arguments).stdin(Stdio::null()).output()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} {}: {} {}", arguments.join(" "), output.status, errors.trim_end());
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}

/// Polls `ask` until it succeeds. After `limit` returns its last error.
pub(crate) fn wait<T>(what: &str, limit: Duration, mut ask: impl FnMut() -> Result<T>) -> Result<T> {
    let start = Instant::now();
    loop {
        match ask() {
            Ok(result) => return Ok(result),
            Err(error) if start.elapsed() > limit => {
                return Err(error.context(format!("{what}: timeout after {} s", limit.as_secs())));
            }
            Err(_) => pause(Duration::from_millis(50)),
        }
    }
}

/// Sleeps: between two polls, or for the duration of a fault.
pub(crate) fn pause(time: Duration) {
    #[expect(clippy::disallowed_methods, reason = "the only place where the campaign sleeps")]
    std::thread::sleep(time);
}

/// Name of the bridge that connects the machines.
const BRIDGE: &str = "lan";

/// Creates the bridge, with this process at the address.
pub(crate) fn create_network(address: Ipv4Addr) -> Result<()> {
    run("ip", &["link", "add", BRIDGE, "type", "bridge"])?;
    run("ip", &["address", "add", &format!("{address}/24"), "dev", BRIDGE])?;
    run("ip", &["link", "set", BRIDGE, "up"])?;
    Ok(())
}

pub(crate) struct Machine {
    unshare: Child,
    /// Network namespace of all processes of the machine.
    network: PathBuf,
    /// Name of its interface at the bridge.
    port: String,
}

impl Machine {
    /// Starts a machine that runs `script` in `directory`, with its output in `machine.log`. The name of the port must be new,
    /// because the interface of a killed machine is removed with a delay.
    pub(crate) fn boot(directory: &Path, port: &str, address: Ipv4Addr, script: &str) -> Result<Self> {
        let log = OpenOptions::new().create(true).append(true).open(directory.join("machine.log"))?;
        // This process creates the interface after the namespace exists.
        let script = format!(
            "until ip link set eth0 up 2> /dev/null; do sleep 0.02; done\nip address add {address}/24 dev eth0\n{script}"
        );
        let mut command = isolated(&script);
        command.current_dir(directory).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let unshare = command.spawn().context("setpriv runs")?;
        let ours = network_of("self").context("the network of this process")?;
        let id = unshare.id().to_string();
        let network = wait("the namespaces of a machine", Duration::from_secs(10), || {
            network_of(&id).filter(|network| *network != ours).context("there are none")
        })?;
        let machine = Self { unshare, network, port: port.to_owned() };
        run("ip", &["link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", &id])?;
        run("ip", &["link", "set", port, "up"])?;
        machine.connect()?;
        Ok(machine)
    }

    /// Kills all processes of the machine.
    pub(crate) fn kill(mut self) -> Result<()> {
        kill_namespaces(&self.unshare)?;
        self.unshare.wait()?;
        Ok(())
    }

    /// Connects the machine to the bridge.
    pub(crate) fn connect(&self) -> Result<()> {
        run("ip", &["link", "set", &self.port, "master", BRIDGE]).map(drop)
    }

    /// Disconnects the machine from the bridge. Packets are dropped without an error to either side.
    pub(crate) fn disconnect(&self) -> Result<()> {
        run("ip", &["link", "set", &self.port, "nomaster"]).map(drop)
    }

    /// Runs a command in the machine's network namespace.
    pub(crate) fn run(&self, program: &str, arguments: &[&str]) -> Result<String> {
        let id = self.unshare.id().to_string();
        run("nsenter", &[&["--net", "--target", &id, program], arguments].concat())
    }

    /// Returns the processes of these names, oldest first.
    fn processes(&self, names: &[&str]) -> Result<Vec<Pid>> {
        let mut found = processes()?;
        found.retain(|id| {
            network_of(id).as_ref() == Some(&self.network) && names.contains(&read_proc(*id, "comm").trim_end())
        });
        Ok(found)
    }

    /// Sends a signal to all processes of these names, including those started meanwhile, and returns their number.
    pub(crate) fn signal(&self, names: &[&str], signal: Signal) -> Result<usize> {
        let mut reached = Vec::new();
        loop {
            let new: Vec<Pid> = self.processes(names)?.into_iter().filter(|id| !reached.contains(id)).collect();
            if new.is_empty() {
                break;
            }
            for id in &new {
                // The process may have ended meanwhile.
                match kill_process(*id, signal) {
                    Ok(()) | Err(rustix::io::Errno::SRCH) => reached.push(*id),
                    Err(error) => bail!("a signal to process {id}: {error}"),
                }
            }
        }
        Ok(reached.len())
    }
}
