//! Opens connections to the database.

use std::error::Error as _;
use std::future::Future;
use std::io::{self, ErrorKind::InvalidData};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use tokio::time::timeout;
use tokio_postgres::config::{Host, TargetSessionAttrs};
use tokio_postgres::{Client, Config, Error};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::database_error::{NO_RESPONSE, describe};
use super::metrics::PostgresMetrics;
use super::role::ConnectionRole;
use super::tls;
use crate::url::PostgresUrl;

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

/// Settings with which the server detects within about 10 seconds that a node is gone, and releases its locks.
pub(super) const KEEPALIVES: [&str; 3] =
    ["tcp_keepalives_idle = 4", "tcp_keepalives_interval = 2", "tcp_keepalives_count = 3"];

/// Future that performs the I/O of a connection. It must be polled while the connection is used.
pub(super) type Driver = Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>;

pub(super) struct Connector {
    hosts: Vec<Config>,
    tls: MakeRustlsConnect,
    /// Timeout of requests.
    pub(super) timeout: Duration,
    pub(super) metrics: Arc<PostgresMetrics>,
}

impl Connector {
    pub(super) fn new(url: &PostgresUrl, timeout: Duration, metrics: &Arc<PostgresMetrics>) -> Result<Self, String> {
        let hosts = url.hosts().map(|(host, port)| {
            let mut config = Config::new();
            match host {
                Host::Tcp(name) => config.host(name),
                Host::Unix(path) => config.host_path(path),
            };
            config.port(port);
            let from = &url.config;
            from.get_user().map(|user| config.user(user));
            from.get_password().map(|password| config.password(password));
            from.get_dbname().map(|name| config.dbname(name));
            from.get_options().map(|options| config.options(options));
            config
                .application_name(from.get_application_name().unwrap_or("plantstore"))
                .ssl_mode(from.get_ssl_mode())
                .channel_binding(from.get_channel_binding())
                .target_session_attrs(TargetSessionAttrs::ReadWrite)
                // A host name may have several addresses, and the first may not respond.
                .connect_timeout(CONNECT_TIMEOUT.0 / 2)
                .tcp_user_timeout(TCP_TIMEOUT)
                .keepalives_idle(KEEPALIVE)
                .keepalives_interval(Duration::from_secs(1))
                .keepalives_retries(3);
            config
        });
        Ok(Self { hosts: hosts.collect(), tls: tls::connector(url)?, timeout, metrics: Arc::clone(metrics) })
    }

    pub(super) fn connect_timeout(&self) -> Duration {
        self.timeout.clamp(CONNECT_TIMEOUT.0, CONNECT_TIMEOUT.1)
    }

    /// Connects to the primary. Tries all hosts concurrently, so that a host that hangs does not delay the others.
    pub(super) async fn connect(&self, role: ConnectionRole) -> Result<(Client, Driver), ConnectFailure> {
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

    async fn connect_to(&self, config: &Config, role: ConnectionRole) -> Result<(Client, Driver), ConnectFailure> {
        let connecting = async {
            let (client, connection) = config.connect(self.tls.clone()).await?;
            let mut driver: Driver = Box::pin(connection);
            driven(&mut driver, self.configure(&client, role)).await?;
            Ok((client, driver))
        };
        match timeout(self.connect_timeout(), connecting).await {
            Ok(connected) => connected.map_err(ConnectFailure::Error),
            Err(_) => Err(ConnectFailure::TimedOut),
        }
    }

    /// Configures the session. A commit that waits for a standby must not be cancelled, because the server would then report
    /// success without the standby. So writers have no statement timeout, only a lock timeout.
    async fn configure(&self, client: &Client, role: ConnectionRole) -> Result<(), Error> {
        let timeout = setting(self.timeout);
        let (statement, lock) = match role {
            ConnectionRole::Read | ConnectionRole::KeyLock => (timeout, timeout),
            ConnectionRole::Write => (0, setting(self.timeout * 4 / 5)),
            ConnectionRole::Admin => (0, timeout),
        };
        let idle = if role == ConnectionRole::Write { setting(IDLE_TRANSACTION) } else { timeout };
        client
            .batch_execute(&format!(
                "SET statement_timeout = {statement}; SET lock_timeout = {lock};
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
        // All statements must use the indexes, even if the tables are empty when the statements are planned. The high cost
        // estimates that result would trigger the JIT compiler, which is off. Idle connections stay open. Compatible
        // databases may not know these settings; their errors are ignored.
        let settings = [
            "plan_cache_mode = force_generic_plan",
            "enable_seqscan = off",
            "enable_bitmapscan = off",
            "enable_hashjoin = off",
            "enable_mergejoin = off",
            "jit = off",
            "idle_session_timeout = 0",
        ]
        .into_iter();
        // The locks of a node that is gone are released soon.
        let keepalives: &[&str] = match role {
            ConnectionRole::KeyLock => &KEEPALIVES,
            ConnectionRole::Read | ConnectionRole::Write | ConnectionRole::Admin => &[],
        };
        let settings: Vec<_> =
            settings.chain(keepalives.iter().copied()).map(|setting| format!("SET {setting}")).collect();
        join_all(settings.iter().map(|setting| client.batch_execute(setting))).await;
        Ok(())
    }
}

/// Converts a time to a session setting: milliseconds, at least 1, because 0 means no limit.
fn setting(time: Duration) -> i32 {
    i32::try_from(time.as_millis()).unwrap_or(i32::MAX).max(1)
}

/// Runs `work` on the connection while driving its I/O.
pub(super) async fn driven<T>(driver: &mut Driver, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
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

/// Errors of connecting.
pub(super) enum ConnectFailure {
    Error(Error),
    TimedOut,
}

impl ConnectFailure {
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Error(error) => describe(error),
            Self::TimedOut => NO_RESPONSE.to_owned(),
        }
    }

    /// Returns true if the server itself rejected the connection.
    pub(super) fn is_from_server(&self) -> bool {
        matches!(self, Self::Error(error) if error.code().is_some())
    }

    /// Returns true if another attempt may succeed without a change by an operator.
    pub(super) fn is_transient(&self) -> bool {
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
pub(super) fn backoff(failures: u32) -> Duration {
    let (first, most) = BACKOFF;
    let pause = first.saturating_mul(1 << failures.min(10)).min(most);
    // Without a random number there is no jitter.
    let random = f64::from(getrandom::u32().unwrap_or(0)) / f64::from(u32::MAX);
    pause.mul_f64(1.0 - random / 2.0)
}
