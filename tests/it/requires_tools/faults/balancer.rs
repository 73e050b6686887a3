//! Nodes behind a load balancer with the configuration of `deploy/haproxy.cfg`: the loss of a node affects only its own
//! requests.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use super::{QUIET, load, settle, wait_for_writes};
use crate::support::{Cluster, Connection, Fault, History, Server, Store, free_port, wait_for, wait_until};

/// A process of `HAProxy`. It is killed when the test ends.
struct Balancer {
    child: Child,
    address: SocketAddr,
    log: Arc<Mutex<String>>,
}

impl Balancer {
    fn start(store: &Store, nodes: [SocketAddr; 2]) -> Self {
        // Another process may take the port first.
        let balancer = (0..10).find_map(|_| Self::try_start(store, nodes, free_port()));
        balancer.expect("HAProxy, which scripts/test installs, runs")
    }

    fn try_start(store: &Store, nodes: [SocketAddr; 2], port: u16) -> Option<Self> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut text = include_str!("../../../../deploy/haproxy.cfg").to_owned();
        for (in_file, here) in [("*:8080", address), ("10.0.0.1:8080", nodes[0]), ("10.0.0.2:8080", nodes[1])] {
            assert_eq!(text.matches(in_file).count(), 1, "{in_file}");
            text = text.replace(in_file, &here.to_string());
        }
        let file = store.directory().join("haproxy.cfg");
        std::fs::write(&file, text).expect("the configuration is written");
        // HAProxy also ends if the test process is killed.
        let mut child = Command::new("setpriv")
            .args(["--pdeathsig=KILL", "haproxy", "-db", "-f"])
            .arg(file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("setpriv runs");
        let log = Arc::new(Mutex::new(String::new()));
        let (errors, shared) = (child.stderr.take().expect("standard error is piped"), Arc::clone(&log));
        std::thread::spawn(move || {
            for line in BufReader::new(errors).lines().map_while(Result::ok) {
                shared.lock().expect("the log").push_str(&(line + "\n"));
            }
        });
        let mut balancer = Self { child, address, log };
        let listens = wait_for("the balancer to listen", || {
            let ended = balancer.child.try_wait().expect("the state of the process").is_some();
            let listens = !ended && Connection::try_open(address).is_ok();
            (ended || listens).then_some(listens)
        });
        listens.then_some(balancer)
    }

    /// Waits until the log contains `notice`, and clears the log.
    #[track_caller]
    fn wait_for(&self, notice: &str) {
        wait_until(notice, || {
            let mut log = self.log.lock().expect("the log");
            let noticed = log.contains(notice);
            if noticed {
                log.clear();
            }
            noticed
        });
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            #[expect(clippy::print_stderr, reason = "shown with the failure of the test")]
            {
                eprintln!(
                    "--- log of the balancer ---\n{}",
                    self.log.lock().map(|log| log.clone()).unwrap_or_default()
                );
            }
        }
    }
}

#[test]
fn loss_of_a_node_affects_only_its_own_requests() {
    let cluster = Cluster::start(&[]);
    let store = Store::on(&cluster);
    let mut nodes = [store.serve(QUIET), store.serve(QUIET)];
    let addresses = [nodes[0].address(), nodes[1].address()];
    let balancer = Balancer::start(&store, addresses);
    let mut workload = load(&store, &nodes);
    workload.nodes = vec![balancer.address];
    // Each connection of the balancer to the lost node fails at most once: those in use, and idle ones that it reuses
    // before it notices their end. Of each kind there are at most as many as clients.
    let failures_max = 2 * (workload.writers + workload.listers);
    let history = History::new();
    let failed = || {
        let summary = history.check().unwrap();
        assert_eq!(summary.rejected, 0, "one node was always available");
        summary.unknown + summary.failed_lists
    };
    let mut failed_before = 0;
    let fault = Fault::new("kill of a node behind a balancer", 2);
    for (lost, name) in [(0, "one"), (1, "two")].into_iter().cycle().take(fault.rounds) {
        fault.begin_round();
        workload.run(&history, || {
            wait_for_writes(&history, 200);
            nodes[lost].kill();
            balancer.wait_for(&format!("Server nodes/{name} is DOWN"));
        });
        settle(&history, &store);
        workload.record_final_lists(&history);
        let failed_now = failed();
        assert!(
            failed_now - failed_before <= failures_max,
            "requests of the other node failed: {failed_before}, {failed_now}"
        );
        failed_before = failed_now;
        // No request fails while one node is down, nor when it returns.
        workload.run(&history, || {
            wait_for_writes(&history, 200);
            let listen = addresses[lost].to_string();
            let again = [&["serve", "--no-first-token", "--listen", &listen], QUIET].concat();
            nodes[lost] = Server::start(store.command(&again));
            balancer.wait_for(&format!("Server nodes/{name} is UP"));
            wait_for_writes(&history, 200);
        });
        assert_eq!(failed(), failed_before, "a request failed while one node was available");
    }
    fault.count_history(&history.summary());
    assert!(failed_before > 0, "no request was in flight when a node was killed");
}
