//! Plants that are created once and never changed. A missing one was lost: later writes cannot hide that, and no ordering of
//! operations has to be reconstructed to detect it.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::machine::pause;
use crate::support::{Client, Connection, Response};

/// Pause between two creates.
const PAUSE: Duration = Duration::from_millis(5);

#[derive(Default)]
pub(crate) struct Journal {
    last: i64,
    /// Names by id.
    acknowledged: BTreeMap<i64, String>,
    lost: usize,
}

impl Journal {
    /// Creates plants through all nodes in turn until `stop` is set.
    pub(crate) fn write(&mut self, nodes: &[SocketAddr], token: &str, stop: &AtomicBool) {
        for node in nodes.iter().cycle() {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            self.last += 1;
            let name = format!("entry {}", self.last);
            if create(*node, token, self.last, &name).is_ok_and(|response| response.status == 200) {
                self.acknowledged.insert(self.last, name);
            }
            pause(PAUSE);
        }
    }

    /// Counts acknowledged plants that are not among `plants`, each once.
    pub(crate) fn compare(&mut self, plants: &BTreeMap<i64, String>) {
        let before = self.acknowledged.len();
        self.acknowledged.retain(|id, name| plants.get(id) == Some(name));
        self.lost += before - self.acknowledged.len();
    }

    pub(crate) fn lost(&self) -> usize {
        self.lost
    }

    /// Returns the number of acknowledged creates.
    pub(crate) fn acknowledged(&self) -> usize {
        self.acknowledged.len() + self.lost
    }
}

fn create(node: SocketAddr, token: &str, id: i64, name: &str) -> io::Result<Response> {
    let client = Client { address: node, token: Some(token.to_owned()) };
    let body = serde_json::json!({ "id": id, "name": name }).to_string();
    let mut connection = Connection::try_open(node)?;
    connection.try_send(client.bytes(
        "POST",
        "/plants",
        &[("Content-Type", "application/json")],
        Some(body.as_bytes()),
    ))?;
    connection.try_read_response(false)
}
