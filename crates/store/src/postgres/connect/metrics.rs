//! Roles of connections, and metrics of the PostgreSQL engine.

use crate::plants::WriteMetrics;
use plantstore_telemetry::metrics::{Counter, Exposition, Gauge, Histogram, Labels, TIMES};

/// The purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionRole {
    /// Read queries, which are pipelined.
    Read,
    /// Transactions of the writer.
    Write,
    /// Locks of the keys in flight.
    KeyLock,
    /// Administrative operations, which may take long.
    Admin,
}

impl ConnectionRole {
    /// Roles whose connections stay open.
    const PERSISTENT: [Self; 3] = [Self::Read, Self::Write, Self::KeyLock];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::KeyLock => "key_lock",
            Self::Admin => "admin",
        }
    }
}

pub(crate) struct PostgresMetrics {
    pub(crate) writes: WriteMetrics,
    pub(crate) queries: Histogram,
    /// Indexed by the role.
    roles: [RoleMetrics; 4],
}

#[derive(Default)]
struct RoleMetrics {
    open: Gauge,
    opened: Counter,
    failed: Counter,
}

impl Default for PostgresMetrics {
    fn default() -> Self {
        Self { writes: WriteMetrics::default(), queries: Histogram::new(&TIMES), roles: Default::default() }
    }
}

impl PostgresMetrics {
    /// Counts a connection, which is open until the result is dropped.
    pub(crate) fn connected(&self, role: ConnectionRole) -> impl Drop + '_ {
        let metrics = &self.roles[role as usize];
        metrics.opened.count();
        metrics.open.hold()
    }

    pub(crate) fn failed(&self, role: ConnectionRole) {
        self.roles[role as usize].failed.count();
    }

    pub(crate) fn write(&self, exposition: &mut Exposition) {
        self.writes.write(exposition);
        let mut open =
            exposition.gauge("plantstore_database_connections", "Open connections to the database, by role.");
        self.each_role(|labels, role| _ = open.sample(labels, role.open.get()));
        let mut opened = exposition.counter(
            "plantstore_database_connections_opened_total",
            "Connections to the database that were opened, by role.",
        );
        self.each_role(|labels, role| _ = opened.sample(labels, role.opened.get()));
        let failures = "plantstore_database_connection_failures_total";
        let mut failed = exposition.counter(failures, "Failed attempts to connect to the database, by role.");
        self.each_role(|labels, role| _ = failed.sample(labels, role.failed.get()));
        exposition
            .histogram("plantstore_database_query_duration_seconds", "Time from sending a read query to its last row.")
            .distribution(&[], &self.queries);
    }

    fn each_role(&self, mut write: impl FnMut(Labels<'_>, &RoleMetrics)) {
        for role in ConnectionRole::PERSISTENT {
            write(&[("role", role.name().into())], &self.roles[role as usize]);
        }
    }
}
