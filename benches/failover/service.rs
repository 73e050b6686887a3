//! The nodes of the service.

use std::collections::BTreeMap;
use std::fs::File;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::machine::wait;
use crate::settings::{self, SERVICE};
use crate::support::{Client, Connection};

/// Timeout for the service to respond after the cluster is healthy.
const TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) struct ServiceNodes {
    nodes: Vec<Child>,
    /// One per user.
    pub(crate) tokens: Vec<String>,
}

impl ServiceNodes {
    /// Creates users and starts the nodes, with their logs in `directory`.
    pub(crate) fn start(directory: &Path, users: usize) -> Result<Self> {
        let mut service = Self { nodes: Vec::new(), tokens: Vec::new() };
        let create = |user| {
            let output = plantstore(&["token", "create", "--user", &format!("user-{user}")]).output()?;
            ensure!(output.status.success(), "no token: {}", String::from_utf8_lossy(&output.stderr));
            Ok(String::from_utf8(output.stdout)?.trim_end().to_owned())
        };
        // The first attempts may fail until the proxy has found the leader.
        plantstore(&["migrate"]).output().context("plantstore runs")?;
        service.tokens =
            (0..users).map(|user| wait("a token", TIMEOUT, || create(user))).collect::<Result<Vec<String>>>()?;
        for (number, address) in (1..).zip(SERVICE) {
            let log = File::create(directory.join(format!("plantstore{number}.log")))?;
            let mut command = plantstore(&["serve", "--no-first-token", "--log-level", "warn", "--listen", address]);
            command.stdout(log.try_clone()?).stderr(log);
            service.nodes.push(command.spawn().context("plantstore runs")?);
        }
        for node in addresses()? {
            service.plants(node, 0)?;
        }
        Ok(service)
    }

    /// Returns the names of all plants of a user by id.
    pub(crate) fn plants(&self, node: SocketAddr, user: usize) -> Result<BTreeMap<i64, String>> {
        let client = Client { address: node, token: Some(self.tokens[user].clone()) };
        let bytes = client.bytes("GET", "/plants?include=id", &[], None);
        wait(&format!("a response of {node}"), TIMEOUT, || {
            let mut connection = Connection::try_open(node)?;
            connection.try_send(&bytes)?;
            let response = connection.try_read_response(false)?;
            ensure!(response.status == 200, "{}", response.text());
            let json = response.json();
            let plants = json.as_array().context("an array")?.iter();
            plants
                .map(|plant| Some((plant["id"].as_i64()?, plant["name"].as_str()?.to_owned())))
                .collect::<Option<_>>()
                .context("plants with ids and names")
        })
    }
}

impl Drop for ServiceNodes {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            let _ = node.kill();
            let _ = node.wait();
        }
    }
}

/// Returns the addresses of the nodes.
pub(crate) fn addresses() -> Result<Vec<SocketAddr>> {
    SERVICE.iter().map(|address| Ok(address.parse()?)).collect()
}

/// Returns a plantstore command for the database behind the proxy, with an empty environment.
fn plantstore(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_plantstore"));
    command.args(arguments).env_clear().env("PLANTSTORE_STORE", settings::store()).stdin(Stdio::null());
    command
}
