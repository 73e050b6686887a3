//! Cluster of three nodes with PostgreSQL, Patroni and etcd behind a proxy, and the faults that are injected into it.

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

/// Timeout for the cluster to start, to fail over, and to recover.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Fault that is injected into the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(crate) enum ClusterFault {
    PrimaryKilled,
    NodeDead,
    Partitioned,
    Frozen,
}

impl ClusterFault {
    /// Returns the minimum duration. A frozen leader resumes after its lease has expired, when another node leads.
    pub(crate) fn min_duration(self) -> Duration {
        match self {
            Self::PrimaryKilled | Self::NodeDead | Self::Partitioned => Duration::ZERO,
            Self::Frozen => Duration::from_secs(settings::TTL + 5),
        }
    }
}

impl fmt::Display for ClusterFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::PrimaryKilled => "primary killed",
            Self::NodeDead => "node dead",
            Self::Partitioned => "partitioned",
            Self::Frozen => "frozen",
        })
    }
}

pub(crate) struct FailoverCluster {
    directory: PathBuf,
    replication: Replication,
    /// `None` for a node that is down.
    nodes: [Option<Machine>; NODES],
    /// Number of node starts so far.
    boots: usize,
    proxy: Child,
}

impl FailoverCluster {
    /// Starts a cluster in an empty directory and waits until it is ready.
    pub(crate) fn start(directory: &Path, replication: Replication) -> Result<Self> {
        machine::create_network(settings::CLIENTS)?;
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
            let directory = cluster.directory_of(node);
            fs::create_dir(&directory)?;
            run("chown", &["postgres:postgres", &directory.display().to_string()])?;
            fs::write(directory.join("patroni.json"), settings::patroni(node, &directory, replication).to_string())?;
            cluster.boot(node)?;
        }
        let leader = cluster.wait_until_healthy()?;
        for statement in settings::setup_statements() {
            cluster.query(leader, &statement)?;
        }
        Ok(cluster)
    }

    /// Returns the directory of a node.
    fn directory_of(&self, node: usize) -> PathBuf {
        self.directory.join(settings::name(node))
    }

    fn boot(&mut self, node: usize) -> Result<()> {
        self.boots += 1;
        let port = format!("port{}", self.boots);
        let machine = Machine::boot(&self.directory_of(node), &port, settings::address(node), &settings::script(node))?;
        self.nodes[node] = Some(machine);
        Ok(())
    }

    fn machine(&self, node: usize) -> Result<&Machine> {
        self.nodes[node].as_ref().with_context(|| format!("{} is down", settings::name(node)))
    }

    /// Waits for a leader, its standbys and all members of etcd. Returns the leader.
    pub(crate) fn wait_until_healthy(&self) -> Result<usize> {
        wait("a healthy cluster", TIMEOUT, || {
            for node in 0..NODES {
                let health = get(node, ETCD, "/health")?;
                ensure!(health.contains(r#""health":"true""#), "etcd on {}: {health}", settings::name(node));
            }
            let leader = leader(None)?;
            let streaming =
                "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming' AND application_name ~ '^n'";
            let standbys = self.query(leader, streaming)?;
            ensure!(standbys == (NODES - 1).to_string(), "{standbys} standbys are streaming");
            if self.replication == Replication::Synchronous {
                let synchronous = self.query(leader, &format!("{streaming} AND sync_state = 'sync'"))?;
                ensure!(synchronous == "1", "{synchronous} standbys are synchronous");
                // Patroni records in etcd that the standby may be promoted, after it is synchronous.
                ensure!((0..NODES).any(|node| get(node, PATRONI, "/synchronous").is_ok()), "no synchronous standby");
            }
            Ok(leader)
        })
    }

    /// Runs a statement on one node, through its Unix socket.
    fn query(&self, node: usize, statement: &str) -> Result<String> {
        let socket = self.directory_of(node).display().to_string();
        let database = "dbname=postgres options='-c search_path=plantstore,pg_temp'";
        run("psql", &["-XAtq", "-h", &socket, "-U", "postgres", "-d", database, "-c", statement])
    }

    pub(crate) fn inject(&mut self, fault: ClusterFault, node: usize) -> Result<()> {
        let machine = self.machine(node)?;
        match fault {
            ClusterFault::PrimaryKilled => {
                ensure!(machine.signal(&["postgres"], Signal::KILL)? > 0, "no PostgreSQL to kill");
            }
            ClusterFault::NodeDead => {
                let machine = self.nodes[node].take().context("the node is down")?;
                machine.kill()?;
            }
            ClusterFault::Partitioned => machine.disconnect()?,
            ClusterFault::Frozen => {
                // Patroni first, so that it does not react to the stopped PostgreSQL.
                let stopped = machine.signal(&["patroni"], Signal::STOP)?;
                ensure!(stopped > 0 && machine.signal(&["postgres"], Signal::STOP)? > 0, "nothing to freeze");
            }
        }
        Ok(())
    }

    pub(crate) fn heal(&mut self, fault: ClusterFault, node: usize) -> Result<()> {
        match fault {
            // Patroni restarts it.
            ClusterFault::PrimaryKilled => {}
            ClusterFault::NodeDead => self.boot(node)?,
            ClusterFault::Partitioned => self.machine(node)?.connect()?,
            ClusterFault::Frozen => {
                self.machine(node)?.signal(&["postgres", "patroni"], Signal::CONT)?;
            }
        }
        Ok(())
    }

    /// Blocks replication from this node, but not its clients and etcd.
    pub(crate) fn block_replication(&self, node: usize) -> Result<()> {
        // Patroni can still connect to PostgreSQL on its own node.
        let rules = format!(
            "table ip blocked {{ chain output {{ type filter hook output priority 0; \
             oifname eth0 tcp sport {} ip daddr != {} drop; }}; }}",
            settings::POSTGRES,
            settings::CLIENTS
        );
        self.machine(node)?.run("nft", &[&rules]).map(drop)
    }

    pub(crate) fn unblock_replication(&self, node: usize) -> Result<()> {
        // A node that is down has lost its rules with its network namespace.
        if let Some(machine) = &self.nodes[node] {
            machine.run("nft", &["delete table ip blocked"])?;
        }
        Ok(())
    }
}

impl Drop for FailoverCluster {
    fn drop(&mut self) {
        for machine in self.nodes.iter_mut().filter_map(Option::take) {
            let _ = machine.kill();
        }
        let _ = self.proxy.kill();
        let _ = self.proxy.wait();
    }
}

/// Returns the node that holds the leader lock, unless it is `except`.
fn leader(except: Option<usize>) -> Result<usize> {
    let mut others = (0..NODES).filter(|node| except != Some(*node));
    others.find(|node| get(*node, PATRONI, "/primary").is_ok()).context("no leader")
}

/// Waits until another node is the leader.
pub(crate) fn wait_for_successor(of: usize) -> Result<usize> {
    wait("another leader", TIMEOUT, || leader(Some(of)))
}

/// Returns the body of a response with status 200.
fn get(node: usize, port: u16, path: &str) -> Result<String> {
    const LIMIT: Duration = Duration::from_secs(1);
    let mut stream = TcpStream::connect_timeout(&SocketAddr::from((settings::address(node), port)), LIMIT)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes())?;
    let mut response = String::new();
    stream.read_to_string(&mut response)?;
    let (head, body) = response.split_once("\r\n\r\n").context("an incomplete response")?;
    let status = head.lines().next().unwrap_or_default();
    if status.split(' ').nth(1) != Some("200") {
        bail!("{} responds to {path} with {status}", settings::name(node));
    }
    Ok(body.to_owned())
}
