//! Configuration of Patroni, etcd and the proxy for a cluster that must not lose data.

use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::path::Path;

use serde_json::{Value, json};

/// Replication mode of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Replication {
    /// A commit is acknowledged when a standby has it, and only that standby can be promoted.
    Synchronous,
    /// The control: a commit is acknowledged at once, and any standby can be promoted.
    Asynchronous,
}

pub(crate) const NODES: usize = 3;

/// Address of the clients, the service and the proxy.
pub(crate) const CLIENTS: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
/// Address of the proxy in front of the database.
pub(crate) const PROXY: &str = "127.0.0.1:5000";
/// Addresses of the nodes of the service.
pub(crate) const SERVICE: [&str; 2] = ["127.0.0.1:8081", "127.0.0.1:8082"];

pub(crate) const POSTGRES: u16 = 5432;
pub(crate) const PATRONI: u16 = 8008;
pub(crate) const ETCD: u16 = 2379;
const ETCD_PEERS: u16 = 2380;

const BINARIES: &str = "/usr/lib/postgresql/15/bin";
/// Password of the temporary cluster, which is reachable from its own namespaces only.
const PASSWORD: &str = "secret";

/// Lease of the leader in seconds: the minimum that Patroni allows.
pub(crate) const TTL: u64 = 20;
const LOOP_WAIT: u64 = 2;
/// Patroni requires `LOOP_WAIT + 2 * RETRY_TIMEOUT <= TTL`.
const RETRY_TIMEOUT: u64 = 8;

pub(crate) fn name(node: usize) -> String {
    format!("n{}", node + 1)
}

pub(crate) fn address(node: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, 11 + u8::try_from(node).unwrap_or(u8::MAX))
}

/// Returns the value of `--store`.
pub(crate) fn store() -> String {
    format!("postgres://plantstore:{PASSWORD}@{PROXY}/plantstore")
}

/// Returns the statements that create the role and database of the service.
pub(crate) fn setup_statements() -> [String; 2] {
    [
        format!("CREATE ROLE plantstore LOGIN PASSWORD '{PASSWORD}'"),
        "CREATE DATABASE plantstore OWNER plantstore".to_owned(),
    ]
}

/// Returns the script of a node. It runs nothing as root.
pub(crate) fn script(node: usize) -> String {
    let (name, address) = (name(node), address(node));
    let members: Vec<String> =
        (0..NODES).map(|node| format!("{}=http://{}:{ETCD_PEERS}", self::name(node), self::address(node))).collect();
    let user = "setpriv --reuid postgres --regid postgres --init-groups";
    format!(
        "{user} etcd --enable-v2 --name {name} --data-dir etcd --initial-cluster {} \
            --listen-peer-urls http://{address}:{ETCD_PEERS} --initial-advertise-peer-urls http://{address}:{ETCD_PEERS} \
            --listen-client-urls http://{address}:{ETCD} --advertise-client-urls http://{address}:{ETCD} \
            --heartbeat-interval 200 --election-timeout 2000 >> etcd.log 2>&1 &
        {user} patroni patroni.json >> patroni.log 2>&1 &
        wait",
        members.join(",")
    )
}

/// Returns Patroni's configuration as JSON, which is valid YAML.
pub(crate) fn patroni(node: usize, directory: &Path, replication: Replication) -> Value {
    let address = address(node);
    let etcd: Vec<String> = (0..NODES).map(|node| format!("{}:{ETCD}", self::address(node))).collect();
    let synchronous = replication == Replication::Synchronous;
    json!({
        "scope": "plantstore",
        "name": name(node),
        "restapi": { "listen": format!("{address}:{PATRONI}"), "connect_address": format!("{address}:{PATRONI}") },
        // Not "etcd3": with it, a leader of Patroni 3.0.2 with an expired lease was observed to overwrite the leader key of its
        // successor unconditionally, and writes that the successor had acknowledged were lost. The older protocol uses
        // compare-and-swap. Check that your version does so before you use "etcd3".
        "etcd": { "hosts": etcd },
        "watchdog": { "mode": "off" },
        "bootstrap": {
            "dcs": {
                "ttl": TTL,
                "loop_wait": LOOP_WAIT,
                "retry_timeout": RETRY_TIMEOUT,
                "maximum_lag_on_failover": if synchronous { 0_u64 } else { 1 << 40 },
                "primary_start_timeout": 0,
                "synchronous_mode": synchronous,
                "synchronous_mode_strict": synchronous,
                "postgresql": {
                    "use_pg_rewind": true,
                    "parameters": {
                        "max_connections": 100,
                        "wal_keep_size": "256MB",
                        "wal_sender_timeout": "5s",
                        "wal_receiver_timeout": "5s",
                        "tcp_user_timeout": "5s",
                    },
                },
            },
            "initdb": ["data-checksums", { "encoding": "UTF8" }, { "locale": "C.UTF-8" }],
        },
        "postgresql": {
            "listen": format!("{address}:{POSTGRES}"),
            "connect_address": format!("{address}:{POSTGRES}"),
            "data_dir": directory.join("data"),
            "bin_dir": BINARIES,
            "pgpass": directory.join("pgpass"),
            "authentication": {
                "superuser": { "username": "postgres", "password": PASSWORD },
                "replication": { "username": "replicator", "password": PASSWORD },
            },
            "parameters": { "unix_socket_directories": directory },
            "pg_hba": [
                "local all postgres trust",
                "host all all samenet scram-sha-256",
                "host replication replicator samenet scram-sha-256",
            ],
            // If pg_rewind fails, the data is copied again without confirmation.
            "remove_data_directory_on_rewind_failure": true,
            "remove_data_directory_on_diverged_timelines": true,
        },
    })
}

/// Returns the configuration of the proxy. It routes to the leader, and closes connections to a
/// node that is no longer the leader.
pub(crate) fn haproxy() -> String {
    let mut text = format!(
        "global
    log stdout format raw local0
defaults
    log global
    mode tcp
    timeout connect 2s
    timeout client 1h
    timeout server 1h
listen postgres
    bind {PROXY}
    option httpchk OPTIONS /primary
    http-check expect status 200
    default-server inter 500ms fall 2 on-marked-down shutdown-sessions
"
    );
    for node in 0..NODES {
        let _ = writeln!(text, "    server {} {}:{POSTGRES} check port {PATRONI}", name(node), address(node));
    }
    text
}
