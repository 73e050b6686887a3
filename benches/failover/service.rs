//! The nodes of the service, in front of the database.

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

/// How long the service may take until it answers again when the cluster is whole.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Service {
    nodes: Vec<Child>,
    /// One for each user.
    pub(crate) tokens: Vec<String>,
}

impl Service {
    /// Starts the nodes, with so many users. Their logs go to the directory.
    pub(crate) fn start(directory: &Path, users: usize) -> Result<Self> {
        let mut service = Self { nodes: Vec::new(), tokens: Vec::new() };
        let create = |user| {
            let output = plantstore(&["token", "create", "--user", &format!("user-{user}")]).output()?;
            ensure!(output.status.success(), "no token: {}", String::from_utf8_lossy(&output.stderr));
            Ok(String::from_utf8(output.stdout)?.trim_end().to_owned())
        };
        // The proxy may need a moment until it has found the leader.
        plantstore(&["migrate"]).output().context("plantstore runs")?;
        service.tokens =
            (0..users).map(|user| wait("a token", PATIENCE, || create(user))).collect::<Result<Vec<String>>>()?;
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

    /// All plants of a user, by id.
    pub(crate) fn plants(&self, node: SocketAddr, user: usize) -> Result<BTreeMap<i64, String>> {
        let client = Client { address: node, token: Some(self.tokens[user].clone()) };
        let bytes = client.bytes("GET", "/plants?include=id", &[], None);
        wait(&format!("an answer of {node}"), PATIENCE, || {
            let mut connection = Connection::try_open(node)?;
            connection.try_send(&bytes)?;
            let answer = connection.try_read_response(false)?;
            ensure!(answer.status == 200, "{}", answer.text());
            let json = answer.json();
            let plants = json.as_array().context("an array")?.iter();
            plants
                .map(|plant| Some((plant["id"].as_i64()?, plant["name"].as_str()?.to_owned())))
                .collect::<Option<_>>()
                .context("plants with ids and names")
        })
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            let _ = node.kill();
            let _ = node.wait();
        }
    }
}

/// Where the nodes listen.
pub(crate) fn addresses() -> Result<Vec<SocketAddr>> {
    SERVICE.iter().map(|address| Ok(address.parse()?)).collect()
}

/// The service's own command, on the database behind the proxy, untouched by the environment.
fn plantstore(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_plantstore"));
    command.args(arguments).env_clear().env("PLANTSTORE_STORE", settings::store()).stdin(Stdio::null());
    command
}
