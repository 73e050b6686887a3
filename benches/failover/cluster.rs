//! Three nodes with PostgreSQL, Patroni and etcd, the proxy in front of them, and the faults that strike them.

use std::fmt;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::Signal;

use crate::machine::{self, Machine, run, wait};
use crate::settings::{self, ETCD, NODES, PATRONI, Replication};

/// How long the cluster may take to come up, to fail over, and to be whole again.
const PATIENCE: Duration = Duration::from_secs(120);

/// What happens to the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(crate) enum Fault {
    PrimaryKilled,
    NodeDead,
    Partitioned,
    Frozen,
}

impl Fault {
    /// How long it lasts at least. A frozen leader wakes up after its time is over, or it would not be the old leader.
    pub(crate) fn lasts(self) -> Duration {
        match self {
            Self::PrimaryKilled | Self::NodeDead | Self::Partitioned => Duration::ZERO,
            Self::Frozen => Duration::from_secs(settings::TTL + 5),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::PrimaryKilled => "primary killed",
            Self::NodeDead => "node dead",
            Self::Partitioned => "partitioned",
            Self::Frozen => "frozen",
        })
    }
}

pub(crate) struct Cluster {
    directory: PathBuf,
    replication: Replication,
    /// None is a node that is dead.
    nodes: [Option<Machine>; NODES],
    /// How often a node was started so far.
    boots: usize,
    proxy: Child,
}

impl Cluster {
    /// Sets everything up in an empty directory and waits until it is ready.
    pub(crate) fn start(directory: &Path, replication: Replication) -> Result<Self> {
        machine::lay_network(settings::CLIENTS)?;
        let file = directory.join("haproxy.cfg");
        fs::write(&file, settings::haproxy())?;
        let log = File::create(directory.join("haproxy.log"))?;
        let proxy = Command::new("haproxy")
            .arg("-db")
            .arg("-f")
            .arg(file)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("haproxy runs")?;
        let mut cluster =
            Self { directory: directory.to_owned(), replication, nodes: [const { None }; NODES], boots: 0, proxy };
        for node in 0..NODES {
            let own = cluster.home(node);
            fs::create_dir(&own)?;
            run("chown", &["postgres:postgres", &own.display().to_string()])?;
            fs::write(own.join("patroni.json"), settings::patroni(node, &own, replication).to_string())?;
            cluster.boot(node)?;
        }
        let leader = cluster.wait_until_whole()?;
        for statement in settings::preparation() {
            cluster.query(leader, &statement)?;
        }
        Ok(cluster)
    }

    /// Where a node keeps everything.
    fn home(&self, node: usize) -> PathBuf {
        self.directory.join(settings::name(node))
    }

    fn boot(&mut self, node: usize) -> Result<()> {
        self.boots += 1;
        let port = format!("port{}", self.boots);
        let machine = Machine::boot(&self.home(node), &port, settings::address(node), &settings::script(node))?;
        self.nodes[node] = Some(machine);
        Ok(())
    }

    fn machine(&self, node: usize) -> Result<&Machine> {
        self.nodes[node].as_ref().with_context(|| format!("{} is dead", settings::name(node)))
    }

    /// Waits until nothing is missing: a leader, its standbys, every member of etcd. Gives the leader.
    pub(crate) fn wait_until_whole(&self) -> Result<usize> {
        wait("the whole cluster", PATIENCE, || {
            for node in 0..NODES {
                let health = get(node, ETCD, "/health")?;
                ensure!(health.contains(r#""health":"true""#), "etcd on {}: {health}", settings::name(node));
            }
            let leader = leader(None)?;
            let streaming =
                "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming' AND application_name ~ '^n'";
            let standbys = self.query(leader, streaming)?;
            ensure!(standbys == (NODES - 1).to_string(), "{standbys} standbys stream");
            if self.replication == Replication::Synchronous {
                let synchronous = self.query(leader, &format!("{streaming} AND sync_state = 'sync'"))?;
                ensure!(synchronous == "1", "{synchronous} standbys are synchronous");
                // That it may be promoted is written down in etcd, which comes after it is synchronous.
                ensure!((0..NODES).any(|node| get(node, PATRONI, "/synchronous").is_ok()), "no synchronous standby");
            }
            Ok(leader)
        })
    }

    /// Runs a statement on one node, past the proxy and the network.
    fn query(&self, node: usize, statement: &str) -> Result<String> {
        let socket = self.home(node).display().to_string();
        run("psql", &["-XAtq", "-h", &socket, "-U", "postgres", "-d", "postgres", "-c", statement])
    }

    pub(crate) fn strike(&mut self, fault: Fault, node: usize) -> Result<()> {
        let machine = self.machine(node)?;
        match fault {
            Fault::PrimaryKilled => {
                ensure!(machine.signal(&["postgres"], Signal::KILL)? > 0, "no PostgreSQL to kill");
            }
            Fault::NodeDead => {
                let machine = self.nodes[node].take().context("it is dead")?;
                machine.kill()?;
            }
            Fault::Partitioned => machine.unplug()?,
            Fault::Frozen => {
                // Patroni first, so that it does not see what happens to the other.
                let stopped = machine.signal(&["patroni"], Signal::STOP)?;
                ensure!(stopped > 0 && machine.signal(&["postgres"], Signal::STOP)? > 0, "nothing to freeze");
            }
        }
        Ok(())
    }

    pub(crate) fn heal(&mut self, fault: Fault, node: usize) -> Result<()> {
        match fault {
            // Patroni does it.
            Fault::PrimaryKilled => {}
            Fault::NodeDead => self.boot(node)?,
            Fault::Partitioned => self.machine(node)?.plug_in()?,
            Fault::Frozen => {
                self.machine(node)?.signal(&["postgres", "patroni"], Signal::CONT)?;
            }
        }
        Ok(())
    }

    /// Keeps what this node commits from the others, while clients and etcd notice nothing.
    pub(crate) fn hold_back_replication(&self, node: usize) -> Result<()> {
        // What stays on the node goes on: Patroni talks to its own PostgreSQL.
        let rules = format!(
            "table ip held {{ chain output {{ type filter hook output priority 0; \
             oifname eth0 tcp sport {} ip daddr != {} drop; }}; }}",
            settings::POSTGRES,
            settings::CLIENTS
        );
        self.machine(node)?.run("nft", &[&rules]).map(drop)
    }

    pub(crate) fn let_replication_go_on(&self, node: usize) -> Result<()> {
        // Of a node that died, the rules died too.
        if let Some(machine) = &self.nodes[node] {
            machine.run("nft", &["delete table ip held"])?;
        }
        Ok(())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for machine in self.nodes.iter_mut().filter_map(Option::take) {
            let _ = machine.kill();
        }
        let _ = self.proxy.kill();
        let _ = self.proxy.wait();
    }
}

/// The node that holds the leader's lock, other than the one that held it.
fn leader(but: Option<usize>) -> Result<usize> {
    let mut others = (0..NODES).filter(|node| but != Some(*node));
    others.find(|node| get(*node, PATRONI, "/primary").is_ok()).context("no leader")
}

/// Waits until another node leads.
pub(crate) fn wait_for_successor(of: usize) -> Result<usize> {
    wait("another leader", PATIENCE, || leader(Some(of)))
}

/// The body of an answer with status 200.
fn get(node: usize, port: u16, path: &str) -> Result<String> {
    const LIMIT: Duration = Duration::from_secs(1);
    let mut stream = TcpStream::connect_timeout(&SocketAddr::from((settings::address(node), port)), LIMIT)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("an answer cut short")?;
    let status = head.lines().next().unwrap_or_default();
    if status.split(' ').nth(1) != Some("200") {
        bail!("{} answers {path} with {status}", settings::name(node));
    }
    Ok(body.to_owned())
}
