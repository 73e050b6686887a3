//! Makes connections to the database.

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

use super::database_error::{SILENT, describe};
use super::metrics::PostgresMetrics;
use super::role::ConnectionRole;
use super::tls;
use crate::url::PostgresUrl;

/// Bounds of the timeout of one attempt to connect, sign-in included, which is that of a request.
const CONNECT_TIMEOUT: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(10));
/// Data that is sent and not acknowledged for this long means that the connection is dead, even to an idle reader.
const TCP_TIMEOUT: Duration = Duration::from_secs(3);
/// Silence after which the system asks whether the other end is still there.
const KEEPALIVE: Duration = Duration::from_secs(5);
/// Pauses between attempts, growing from the first to the second; each is shortened at random.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// A transaction that its node has left alone for this long is rolled back, so that a node that vanished holds no locks.
const IDLE_TRANSACTION: Duration = Duration::from_secs(2);

/// Settings with which a server notices within about 10 seconds that a node vanished without a word, and frees its locks.
pub(super) const KEEPALIVES: [&str; 3] =
    ["tcp_keepalives_idle = 4", "tcp_keepalives_interval = 2", "tcp_keepalives_count = 3"];

/// Moves the bytes of a connection; has to be polled for as long as the connection is used.
pub(super) type Driver = Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>;

pub(super) struct Connector {
    hosts: Vec<Config>,
    tls: MakeRustlsConnect,
    /// Timeout of a request for the database.
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
                // A name may have several addresses, of which the first may be silent.
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

    /// Connects to the primary. All hosts are asked at once: one that hangs must not delay the one that responds.
    pub(super) async fn connect(&self, role: ConnectionRole) -> Result<(Client, Driver), Failure> {
        let mut attempts: FuturesUnordered<_> = self.hosts.iter().map(|config| self.connect_to(config, role)).collect();
        let mut worst = Failure::Silent;
        while let Some(attempt) = attempts.next().await {
            match attempt {
                Ok(connected) => return Ok(connected),
                // What an operator has to change says more than what may pass.
                Err(failure) if worst.may_pass() => worst = failure,
                Err(_) => {}
            }
        }
        Err(worst)
    }

    async fn connect_to(&self, config: &Config, role: ConnectionRole) -> Result<(Client, Driver), Failure> {
        let connecting = async {
            let (client, connection) = config.connect(self.tls.clone()).await?;
            let mut driver: Driver = Box::pin(connection);
            driven(&mut driver, self.set_up(&client, role)).await?;
            Ok((client, driver))
        };
        match timeout(self.connect_timeout(), connecting).await {
            Ok(connected) => connected.map_err(Failure::Error),
            Err(_) => Err(Failure::Silent),
        }
    }

    /// The settings of a session. A write is never to be cancelled while it waits for a standby: that would report a
    /// commit that the standby does not have. So writers have no limit on statements, only on waits for locks.
    async fn set_up(&self, client: &Client, role: ConnectionRole) -> Result<(), Error> {
        let timeout = setting(self.timeout);
        let (statement, lock) = match role {
            ConnectionRole::Read | ConnectionRole::Claim => (timeout, timeout),
            ConnectionRole::Write => (0, setting(self.timeout * 4 / 5)),
            ConnectionRole::Operate => (0, timeout),
        };
        let idle = if role == ConnectionRole::Write { setting(IDLE_TRANSACTION) } else { timeout };
        client
            .batch_execute(&format!(
                "SET statement_timeout = {statement}; SET lock_timeout = {lock};
                 SET idle_in_transaction_session_timeout = {idle}"
            ))
            .await?;
        if role == ConnectionRole::Write {
            // Whatever is not in a transaction that says it writes is rejected: should a BEGIN fail, what was sent along
            // with it must not happen by itself.
            client.batch_execute("SET default_transaction_read_only = on").await?;
        }
        // What is acknowledged is durable, whatever the server's default.
        client
            .execute(
                "SELECT set_config('synchronous_commit', 'on', false)
                 WHERE current_setting('synchronous_commit') IN ('off', 'local')",
                &[],
            )
            .await?;
        // All statements go by keys and in their order, however new and empty the tables are when they are planned. The
        // price that makes another plan unwelcome would also make it worth compiling: no. And an idle
        // connection stays open. Engines that speak the protocol without knowing these settings do
        // as they like.
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
        // A node that vanished without a word is missed soon, and the keys that it was at work with are free again.
        let alive: &[&str] = match role {
            ConnectionRole::Claim => &KEEPALIVES,
            ConnectionRole::Read | ConnectionRole::Write | ConnectionRole::Operate => &[],
        };
        let settings: Vec<_> = settings.chain(alive.iter().copied()).map(|setting| format!("SET {setting}")).collect();
        join_all(settings.iter().map(|setting| client.batch_execute(setting))).await;
        Ok(())
    }
}

/// A length of time as the settings of a session take it: milliseconds, of which there is a most, and 0 is for ever.
fn setting(time: Duration) -> i32 {
    i32::try_from(time.as_millis()).unwrap_or(i32::MAX).max(1)
}

/// Runs something that needs the connection while moving its bytes.
pub(super) async fn driven<T>(driver: &mut Driver, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let mut work = std::pin::pin!(work);
    tokio::select! {
        done = &mut work => done,
        ended = driver => match ended {
            Err(error) => Err(error),
            // The last responses may have come with the end.
            Ok(()) => work.await,
        },
    }
}

/// Reasons why there is no connection.
pub(super) enum Failure {
    Error(Error),
    Silent,
}

impl Failure {
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Error(error) => describe(error),
            Self::Silent => SILENT.to_owned(),
        }
    }

    /// Returns whether the server itself rejected the connection: it is there, and may accept another one later.
    pub(super) fn is_from_server(&self) -> bool {
        matches!(self, Self::Error(error) if error.code().is_some())
    }

    /// Returns whether another attempt may succeed although nothing is changed.
    pub(super) fn may_pass(&self) -> bool {
        let Self::Error(error) = self else { return true };
        match (error.code(), error.source()) {
            (Some(code), _) => matches!(code.code(), "57P03" | "53300"),
            (None, None) => true,
            // The network may recover; a certificate that is not trusted, a server without TLS and a password that is
            // missing stay as they are.
            (None, Some(source)) => source.downcast_ref().is_some_and(|error: &io::Error| error.kind() != InvalidData),
        }
    }
}

/// Returns the pause after so many failures in a row: doubled each time, and shortened at random by up to a half, so that many
/// nodes do not come back in step.
pub(super) fn backoff(failures: u32) -> Duration {
    let (first, most) = BACKOFF;
    let pause = first.saturating_mul(1 << failures.min(10)).min(most);
    // Without randomness the nodes are merely in step.
    let random = f64::from(getrandom::u32().unwrap_or(0)) / f64::from(u32::MAX);
    pause.mul_f64(1.0 - random / 2.0)
}
