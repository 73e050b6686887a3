//! Nodes behind a load balancer configured as in `deploy/haproxy.cfg`: the loss of a node affects only its own requests.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use super::{QUIET, load, settle, wait_for_writes};
use crate::support::{Cluster, Connection, History, Server, Site, free_port, wait_for};

/// The balancer, ended with the test.
struct Balancer {
    child: Child,
    address: SocketAddr,
    log: Arc<Mutex<String>>,
}

impl Balancer {
    fn start(site: &Site, nodes: [SocketAddr; 2]) -> Self {
        // Another process may take the port first.
        let balancer = (0..10).find_map(|_| Self::try_start(site, nodes, free_port()));
        balancer.expect("HAProxy, which scripts/test installs, runs")
    }

    fn try_start(site: &Site, nodes: [SocketAddr; 2], port: u16) -> Option<Self> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut text = include_str!("../../../../deploy/haproxy.cfg").to_owned();
        for (in_file, here) in [("*:8080", address), ("10.0.0.1:8080", nodes[0]), ("10.0.0.2:8080", nodes[1])] {
            assert_eq!(text.matches(in_file).count(), 1, "{in_file}");
            text = text.replace(in_file, &here.to_string());
        }
        let file = site.directory().join("haproxy.cfg");
        std::fs::write(&file, text).expect("its configuration");
        // Should the tests be killed, it ends as well.
        let mut child = Command::new("setpriv")
            .args(["--pdeathsig=KILL", "haproxy", "-db", "-f"])
            .arg(file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("setpriv runs");
        let log = Arc::new(Mutex::new(String::new()));
        let (errors, shared) = (child.stderr.take().expect("its log"), Arc::clone(&log));
        std::thread::spawn(move || {
            for line in BufReader::new(errors).lines().map_while(Result::ok) {
                shared.lock().expect("the log").push_str(&(line + "\n"));
            }
        });
        let mut balancer = Self { child, address, log };
        let listens = wait_for("the balancer", || {
            let ended = balancer.child.try_wait().expect("its state").is_some();
            let listens = !ended && Connection::try_open(address).is_ok();
            (ended || listens).then_some(listens)
        });
        listens.then_some(balancer)
    }

    /// Waits until it has noticed something, and forgets it.
    #[track_caller]
    fn wait_for(&self, notice: &str) {
        wait_for(notice, || {
            let mut log = self.log.lock().expect("the log");
            let noticed = log.contains(notice);
            if noticed {
                log.clear();
            }
            noticed.then_some(())
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
    let site = Site::on(&cluster);
    // The database is there all the time, however busy the machine.
    let options = [QUIET, &["--store-timeout", "20s"]].concat();
    let mut nodes = [site.serve(&options), site.serve(&options)];
    let addresses = [nodes[0].address(), nodes[1].address()];
    let balancer = Balancer::start(&site, addresses);
    let mut workload = load(&site, &nodes);
    workload.nodes = vec![balancer.address];
    // Each connection of the balancer to the lost node fails once: those in use, and the idle ones that it reuses before
    // it notices the end. It never has more of them than there are clients.
    let felt_max = 2 * (workload.writers + workload.listers);
    let history = History::new();
    let failed = || {
        let summary = history.check().unwrap();
        assert_eq!(summary.rejected, 0, "there was always a node to turn to");
        summary.unknown + summary.failed_lists
    };
    let mut failed_before = 0;
    for (victim, name) in [(0, "one"), (1, "two"), (0, "one")] {
        workload.run(&history, || {
            wait_for_writes(&history, 200);
            nodes[victim].kill();
            balancer.wait_for(&format!("Server nodes/{name} is DOWN"));
        });
        settle(&history, &site);
        workload.look(&history);
        let failed_now = failed();
        assert!(
            failed_now - failed_before <= felt_max,
            "only requests of that node fail: {failed_before}, {failed_now}"
        );
        failed_before = failed_now;
        // One node is enough, and the return of the other is not noticed either.
        workload.run(&history, || {
            wait_for_writes(&history, 200);
            let listen = addresses[victim].to_string();
            let again = [&["serve", "--no-first-token", "--listen", &listen], &options[..]].concat();
            nodes[victim] = Server::start(site.command(&again));
            balancer.wait_for(&format!("Server nodes/{name} is UP"));
            wait_for_writes(&history, 200);
        });
        assert_eq!(failed(), failed_before, "all requests succeed");
    }
    assert!(failed_before > 0, "the deaths were felt");
}
