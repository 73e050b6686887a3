//! Metrics of the PostgreSQL engine.

use super::connection_role::ConnectionRole;
use crate::metrics::{SweepMetrics, WriteMetrics};
use plantstore_telemetry::metrics::{Counter, Exposition, Gauge, Histogram, TIMES};

#[derive(Default)]
pub(crate) struct PostgresMetrics {
    pub(super) writes: WriteMetrics,
    pub(super) database: DatabaseMetrics,
    pub(super) sweeps: SweepMetrics,
}

impl PostgresMetrics {
    pub(super) fn write(&self, exposition: &mut Exposition) {
        self.writes.write(exposition);
        self.database.write(exposition);
        self.sweeps.write(exposition);
    }
}

/// Metrics of connections and queries.
pub(super) struct DatabaseMetrics {
    /// Indexed by the role.
    roles: [RoleMetrics; 4],
    /// Durations of read queries.
    pub(super) queries: Histogram,
}

#[derive(Default)]
struct RoleMetrics {
    open: Gauge,
    opened: Counter,
    failed: Counter,
}

impl Default for DatabaseMetrics {
    fn default() -> Self {
        Self { roles: Default::default(), queries: Histogram::new(&TIMES) }
    }
}

impl DatabaseMetrics {
    /// Counts a connection, which is open until the result is dropped.
    pub(super) fn connected(&self, role: ConnectionRole) -> impl Drop + '_ {
        let metrics = &self.roles[role as usize];
        metrics.opened.count();
        metrics.open.hold()
    }

    /// Counts an attempt to connect that failed.
    pub(super) fn failed(&self, role: ConnectionRole) {
        self.roles[role as usize].failed.count();
    }

    pub(super) fn write(&self, exposition: &mut Exposition) {
        let roles = || {
            ConnectionRole::PERSISTENT.iter().map(|role| ([("role", role.name().into())], &self.roles[*role as usize]))
        };
        let mut open =
            exposition.gauge("plantstore_database_connections", "Open connections to the database, by role.");
        for (labels, role) in roles() {
            open.sample(&labels, role.open.get());
        }
        let mut opened = exposition.counter(
            "plantstore_database_connections_opened_total",
            "Connections to the database that were opened, by role.",
        );
        for (labels, role) in roles() {
            opened.sample(&labels, role.opened.get());
        }
        let failures = "plantstore_database_connection_failures_total";
        let mut failed = exposition.counter(failures, "Failed attempts to connect to the database, by role.");
        for (labels, role) in roles() {
            failed.sample(&labels, role.failed.get());
        }
        exposition
            .histogram("plantstore_database_query_duration_seconds", "Time from sending a read query to its last row.")
            .distribution(&[], &self.queries);
    }
}
