//! Opens connections to a database server, of either kind, and configures their sessions.

use std::error::Error as _;
use std::future::Future;
use std::io::{self, ErrorKind::InvalidData};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::{join_all, try_join_all};
use futures_util::stream::{self, FuturesUnordered};
use futures_util::{StreamExt, TryStreamExt};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_postgres::config::{Host, SslMode, SslNegotiation, TargetSessionAttrs};
use tokio_postgres::error::Severity;
use tokio_postgres::tls::TlsStream;
use tokio_postgres::{AsyncMessage, Client, Config, Connection, Error, Socket};

use super::error::{NO_RESPONSE, describe};
use super::metrics::{ConnectionRole, PostgresMetrics};
use super::tls::{Negotiator, negotiator};
use crate::url::{PostgresUrl, TlsMode};

/// Minimum and maximum of the timeout of one attempt to connect, including authentication. In between, the timeout of requests
/// is used.
const CONNECT_TIMEOUT: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(10));
/// Time without an acknowledgement of sent data after which the connection is considered lost.
const TCP_TIMEOUT: Duration = Duration::from_secs(3);
/// Idle time after which TCP keepalive probes are sent.
const KEEPALIVE: Duration = Duration::from_secs(5);
/// Minimum and maximum of the delay between attempts to connect.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// Timeout of idle write transactions, so that a node that has crashed does not hold locks.
const IDLE_TRANSACTION: Duration = Duration::from_secs(2);

/// First setting of every session. Operators and functions that another role creates in `public` would otherwise run with the
/// rights of this one if their types match better than those of PostgreSQL's own. Temporary tables come last.
pub(crate) const SEARCH_PATH: &str = "search_path = plantstore, pg_temp";

/// Settings with which the server detects within about 10 seconds that a node is gone, and releases its locks.
pub(crate) const KEEPALIVES: [&str; 3] =
    ["tcp_keepalives_idle = 4", "tcp_keepalives_interval = 2", "tcp_keepalives_count = 3"];

/// Settings of the planner. All statements must use the indexes, even if the tables are empty or their statistics outdated when
/// the statements are planned. The high cost estimates that result would trigger the JIT compiler, which is off.
pub(crate) const PLANNER_SETTINGS: &[&str] = &[
    "enable_seqscan = off",
    "enable_bitmapscan = off",
    "enable_hashjoin = off",
    "enable_mergejoin = off",
    "jit = off",
];

/// Future that performs the I/O of a connection. It must be polled while the connection is used.
pub(crate) type Driver = Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>;

/// A connection that is configured for its role.
pub(crate) struct OpenConnection {
    pub(crate) client: Client,
    pub(crate) driver: Driver,
    pub(crate) dialect: Dialect,
    /// Number of warnings that the server has sent.
    pub(crate) warnings: Arc<AtomicU64>,
}

pub(crate) struct Connector {
    hosts: Vec<Config>,
    tls: Negotiator,
    pub(crate) timeout: Duration,
    pub(crate) metrics: Arc<PostgresMetrics>,
    /// Time at which the last connection to this server was opened. Others then do not wait longer for their next attempt.
    pub(crate) opened: watch::Sender<Option<Instant>>,
}

impl Connector {
    pub(crate) fn new(url: &PostgresUrl, timeout: Duration, metrics: &Arc<PostgresMetrics>) -> Result<Self, String> {
        let hosts = url.hosts().map(|(host, port)| config_of(url, host, port)).collect();
        let metrics = Arc::clone(metrics);
        Ok(Self { hosts, tls: negotiator(url)?, timeout, metrics, opened: watch::Sender::default() })
    }

    /// Returns a connector for another server, with everything else of this URL.
    pub(crate) fn for_server(&self, url: &PostgresUrl, host: &str, port: u16) -> Self {
        let hosts = vec![config_of(url, &Host::Tcp(host.to_owned()), port)];
        let (timeout, metrics) = (self.timeout, Arc::clone(&self.metrics));
        Self { hosts, tls: self.tls.clone(), timeout, metrics, opened: watch::Sender::default() }
    }

    /// Returns true if a connection was opened within the timeout.
    pub(crate) fn has_opened(&self) -> bool {
        self.opened.borrow().is_some_and(|opened| opened.elapsed() <= self.timeout)
    }

    pub(crate) fn connect_timeout(&self) -> Duration {
        self.timeout.clamp(CONNECT_TIMEOUT.0, CONNECT_TIMEOUT.1)
    }

    /// Connects to the primary. Tries all hosts concurrently, so that a host that hangs does not delay the others.
    pub(crate) async fn connect(&self, role: ConnectionRole) -> Result<OpenConnection, ConnectFailure> {
        let mut attempts: FuturesUnordered<_> = self.hosts.iter().map(|config| self.connect_to(config, role)).collect();
        let mut worst = ConnectFailure::TimedOut;
        while let Some(attempt) = attempts.next().await {
            match attempt {
                Ok(connected) => return Ok(connected),
                // An error that an operator must fix is more useful than a transient one.
                Err(failure) if worst.is_transient() => worst = failure,
                Err(_) => {}
            }
        }
        Err(worst)
    }

    async fn connect_to(&self, config: &Config, role: ConnectionRole) -> Result<OpenConnection, ConnectFailure> {
        let connecting = async {
            let (client, connection) = config.connect(self.tls.clone()).await?;
            let warnings = Arc::<AtomicU64>::default();
            let mut driver = driver_of(connection, Arc::clone(&warnings));
            let dialect = run_with_driver(&mut driver, self.configure(&client, role)).await?;
            Ok(OpenConnection { client, driver, dialect, warnings })
        };
        match timeout(self.connect_timeout(), connecting).await {
            Ok(connected) => connected.map_err(ConnectFailure::Error),
            Err(_) => Err(ConnectFailure::TimedOut),
        }
    }

    /// Configures the session. A commit that waits for a standby must not be cancelled, because the server would then report
    /// success without the standby. So writers have no statement timeout, only a lock timeout.
    async fn configure(&self, client: &Client, role: ConnectionRole) -> Result<Dialect, Error> {
        let timeout = setting(self.timeout);
        let (statement, lock) = match role {
            ConnectionRole::Read | ConnectionRole::KeyLock => (timeout, timeout),
            ConnectionRole::Write => (0, lock_timeout(self.timeout)),
            ConnectionRole::Admin => (0, timeout),
        };
        let idle = if role == ConnectionRole::Write { setting(IDLE_TRANSACTION) } else { timeout };
        client
            .batch_execute(&format!(
                "SET {SEARCH_PATH}; SET statement_timeout = {statement}; SET lock_timeout = {lock};
                 SET idle_in_transaction_session_timeout = {idle}"
            ))
            .await?;
        if role == ConnectionRole::Write {
            // Only explicit READ WRITE transactions can write: if a BEGIN fails, the statements that were sent after it must not
            // be executed on their own.
            client.batch_execute("SET default_transaction_read_only = on").await?;
        }
        // Acknowledged writes must be durable, whatever the server's default.
        client
            .execute(
                "SELECT set_config('synchronous_commit', 'on', false)
                 WHERE current_setting('synchronous_commit') IN ('off', 'local')",
                &[],
            )
            .await?;
        let dialect = Dialect::detect(client).await?;
        // The locks of a node that is gone are released soon.
        let keepalives: &[&str] = match role {
            ConnectionRole::KeyLock => &KEEPALIVES,
            ConnectionRole::Read | ConnectionRole::Write | ConnectionRole::Admin => &[],
        };
        // Compatible databases may not know these settings; their errors are ignored.
        let settings: Vec<_> = dialect.settings().chain(keepalives).map(|setting| format!("SET {setting}")).collect();
        join_all(settings.iter().map(|setting| client.batch_execute(setting))).await;
        Ok(dialect)
    }
}

fn config_of(url: &PostgresUrl, host: &Host, port: u16) -> Config {
    let mut config = Config::new();
    match host {
        // `Direct`, because the negotiator asks for TLS itself.
        Host::Tcp(name) if url.tls_mode != TlsMode::Disable => {
            config.host(name).ssl_mode(SslMode::Require).ssl_negotiation(SslNegotiation::Direct)
        }
        Host::Tcp(name) => config.host(name).ssl_mode(SslMode::Disable),
        Host::Unix(path) => config.host_path(path).ssl_mode(SslMode::Disable),
    };
    config.port(port);
    let from = &url.config;
    from.get_user().map(|user| config.user(user));
    from.get_password().map(|password| config.password(password));
    from.get_dbname().map(|name| config.dbname(name));
    from.get_options().map(|options| config.options(options));
    config
        .application_name(from.get_application_name().unwrap_or("plantstore"))
        .channel_binding(from.get_channel_binding())
        .target_session_attrs(TargetSessionAttrs::ReadWrite)
        // A host name may have several addresses, and the first may not respond.
        .connect_timeout(CONNECT_TIMEOUT.0 / 2)
        .tcp_user_timeout(TCP_TIMEOUT)
        .keepalives_idle(KEEPALIVE)
        .keepalives_interval(Duration::from_secs(1))
        .keepalives_retries(3);
    config
}

/// Returns the setting `lock_timeout` of writers.
pub(crate) fn lock_timeout(timeout: Duration) -> i32 {
    setting(timeout * 4 / 5)
}

/// Converts a time to a session setting: milliseconds, at least 1, because 0 means no limit.
fn setting(time: Duration) -> i32 {
    i32::try_from(time.as_millis()).unwrap_or(i32::MAX).max(1)
}

/// Returns the future that performs the I/O of a connection and counts the warnings of the server.
fn driver_of<T: TlsStream + Unpin + Send + 'static>(
    mut connection: Connection<Socket, T>,
    warnings: Arc<AtomicU64>,
) -> Driver {
    Box::pin(async move {
        let mut messages = stream::poll_fn(move |context| connection.poll_message(context));
        while let Some(message) = messages.try_next().await? {
            if let AsyncMessage::Notice(notice) = message
                && notice.parsed_severity() == Some(Severity::Warning)
            {
                tracing::debug!(warning = notice.message(), "warning of the database");
                warnings.fetch_add(1, Ordering::Release);
            }
        }
        Ok(())
    })
}

/// Runs `work` on the connection, and polls the driver meanwhile.
pub(crate) async fn run_with_driver<T>(
    driver: &mut Driver,
    work: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let mut work = std::pin::pin!(work);
    tokio::select! {
        done = &mut work => done,
        ended = driver => match ended {
            Err(error) => Err(error),
            // The last responses may have arrived before the end.
            Ok(()) => work.await,
        },
    }
}

/// Kind of a database, found out once for each connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    Postgres,
    /// PostgreSQL with the extension Citus, whose plants are distributed.
    Citus,
}

impl Dialect {
    pub(crate) async fn detect(client: &Client) -> Result<Self, Error> {
        const INSTALLED: &str = "SELECT count(*) > 0 FROM pg_catalog.pg_extension WHERE extname = 'citus'";
        const DISTRIBUTED: &str = "
            SELECT count(*) > 0 FROM pg_catalog.pg_dist_partition
            WHERE logicalrelid = to_regclass('plantstore.plants') AND partmethod = 'h'";
        // Without the extension there is no such catalog.
        let is_citus = is_true(client, INSTALLED).await? && is_true(client, DISTRIBUTED).await?;
        Ok(if is_citus { Self::Citus } else { Self::Postgres })
    }

    /// Returns the settings of every session. A server that does not know one of them ignores it.
    pub(crate) fn settings(self) -> impl Iterator<Item = &'static &'static str> {
        let settings: &[&str] = match self {
            Self::Postgres => &["plan_cache_mode = force_generic_plan", "idle_session_timeout = 0"],
            // Workers plan each statement with its values. One connection to each worker, and one shard after the other in the
            // order of shards: so transactions lock rows in the same order on all nodes, and a worker has one snapshot for all
            // statements of a transaction. `SET LOCAL` also applies to workers.
            Self::Citus => &[
                "idle_session_timeout = 0",
                // Workers parse values in the text of statements with their own defaults.
                "standard_conforming_strings = on",
                "bytea_output = hex",
                "citus.multi_shard_modify_mode = 'sequential'",
                "citus.max_adaptive_executor_pool_size = 1",
                "citus.propagate_set_commands = 'local'",
                // Citus 13.2 plans local statements of this kind on every execution, and keeps all plans in memory.
                "citus.enable_fast_path_router_planner = off",
            ],
        };
        PLANNER_SETTINGS.iter().chain(settings)
    }
}

/// Executes statements without results in one round trip, each in its own message. Citus sends the whole message that contains a
/// `SET LOCAL` to its workers, which must not execute the other statements.
pub(crate) async fn execute_each(client: &Client, statements: &[&str]) -> Result<(), Error> {
    try_join_all(statements.iter().map(|statement| client.batch_execute(statement))).await.map(|_| ())
}

async fn is_true(client: &Client, statement: &str) -> Result<bool, Error> {
    client.query_one(statement, &[]).await?.try_get(0)
}

pub(crate) enum ConnectFailure {
    Error(Error),
    TimedOut,
}

impl ConnectFailure {
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Error(error) => describe(error),
            Self::TimedOut => NO_RESPONSE.to_owned(),
        }
    }

    /// Returns true if the server itself rejected the connection.
    pub(crate) fn is_from_server(&self) -> bool {
        matches!(self, Self::Error(error) if error.code().is_some())
    }

    /// Returns true if another attempt may succeed without a change by an operator.
    pub(crate) fn is_transient(&self) -> bool {
        let Self::Error(error) = self else { return true };
        match (error.code(), error.source()) {
            (Some(code), _) => matches!(code.code(), "57P03" | "53300"),
            (None, None) => true,
            // The network may recover. An untrusted certificate, a server without TLS and a missing password are permanent.
            (None, Some(source)) => source.downcast_ref().is_some_and(|error: &io::Error| error.kind() != InvalidData),
        }
    }
}

/// Returns the delay after a number of consecutive failures: exponential backoff with jitter of up to a half, so that nodes do
/// not reconnect simultaneously.
pub(crate) fn backoff(failures: u32) -> Duration {
    let (first, longest) = BACKOFF;
    let pause = first.saturating_mul(1 << failures.min(10)).min(longest);
    // Without a random number there is no jitter.
    let random = f64::from(getrandom::u32().unwrap_or(0)) / f64::from(u32::MAX);
    pause.mul_f64(1.0 - random / 2.0)
}
