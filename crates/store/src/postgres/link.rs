//! Connections to the database that are kept up: whoever needs one waits for it, until a deadline and no longer.

use std::error::Error as _;
use std::future::Future;
use std::io::{self, ErrorKind::InvalidData};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_postgres::config::{Host, TargetSessionAttrs};
use tokio_postgres::{Client, Config, Error};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::PostgresMetrics;
use super::fault::{Fault, describe};
use super::statements::{Prepared, Statements};
use super::tls;
use super::url::PostgresUrl;
use crate::StoreError;

/// How long one attempt to connect may take, sign-in included: as long as a request waits, within these bounds.
const CONNECT_PATIENCE: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(10));
/// Data that is sent and not acknowledged for this long means that the connection is dead, even to an idle reader.
const TCP_PATIENCE: Duration = Duration::from_secs(3);
/// Silence after which the system asks whether the other end is still there.
const KEEPALIVE: Duration = Duration::from_secs(5);
/// Pauses between attempts, growing from the first to the second; each is shortened at random.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// A transaction that its node has left alone for this long is rolled back, so that a node that vanished holds no locks.
const IDLE_TRANSACTION: Duration = Duration::from_secs(2);

/// Settings with which a server notices within about 10 seconds that a node vanished without a word, and frees its locks.
pub(super) const KEEPALIVES: [&str; 3] =
    ["tcp_keepalives_idle = 4", "tcp_keepalives_interval = 2", "tcp_keepalives_count = 3"];

/// What is said of a database that says nothing.
pub(super) const SILENT: &str = "the database did not answer in time";

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Statements that change nothing; several share the connection at the same time.
    Read,
    /// Transactions of the writer.
    Write,
    /// The rare changes of operators, which may take long.
    Operate,
    /// Holds the locks of the keys at work.
    Claim,
}

impl Role {
    /// Those whose connections are kept open.
    pub(crate) const KEPT: [Self; 3] = [Self::Read, Self::Write, Self::Claim];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Operate => "operate",
            Self::Claim => "claim",
        }
    }
}

/// What moves the bytes of a connection; has to be polled for as long as the connection is used.
pub(super) type Driver = Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>;

/// Makes connections.
pub(super) struct Connector {
    hosts: Vec<Config>,
    tls: MakeRustlsConnect,
    /// How long a request waits for the database.
    pub(super) patience: Duration,
    metrics: Arc<PostgresMetrics>,
}

impl Connector {
    pub(super) fn new(url: &PostgresUrl, patience: Duration, metrics: &Arc<PostgresMetrics>) -> Result<Self, String> {
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
                .connect_timeout(CONNECT_PATIENCE.0 / 2)
                .tcp_user_timeout(TCP_PATIENCE)
                .keepalives_idle(KEEPALIVE)
                .keepalives_interval(Duration::from_secs(1))
                .keepalives_retries(3);
            config
        });
        Ok(Self { hosts: hosts.collect(), tls: tls::connector(url)?, patience, metrics: Arc::clone(metrics) })
    }

    fn connect_patience(&self) -> Duration {
        self.patience.clamp(CONNECT_PATIENCE.0, CONNECT_PATIENCE.1)
    }

    /// Connects to the primary. All hosts are asked at once: one that hangs must not keep us from the one that answers.
    pub(super) async fn connect(&self, role: Role) -> Result<(Client, Driver), Failure> {
        let mut attempts: FuturesUnordered<_> = self.hosts.iter().map(|config| self.connect_to(config, role)).collect();
        let mut worst = Failure::Silent;
        while let Some(attempt) = attempts.next().await {
            match attempt {
                Ok(connected) => return Ok(connected),
                // What somebody has to change tells more than what may pass.
                Err(failure) if worst.may_pass() => worst = failure,
                Err(_) => {}
            }
        }
        Err(worst)
    }

    async fn connect_to(&self, config: &Config, role: Role) -> Result<(Client, Driver), Failure> {
        let connecting = async {
            let (client, connection) = config.connect(self.tls.clone()).await?;
            let mut driver: Driver = Box::pin(connection);
            driven(&mut driver, self.set_up(&client, role)).await?;
            Ok((client, driver))
        };
        match timeout(self.connect_patience(), connecting).await {
            Ok(connected) => connected.map_err(Failure::Error),
            Err(_) => Err(Failure::Silent),
        }
    }

    /// The settings of a session. A write is never to be cancelled while it waits for a standby: that would report a
    /// commit that the standby does not have. So writers have no limit on statements, only on waits for locks.
    async fn set_up(&self, client: &Client, role: Role) -> Result<(), Error> {
        let patience = setting(self.patience);
        let (statement, lock) = match role {
            Role::Read | Role::Claim => (patience, patience),
            Role::Write => (0, setting(self.patience * 4 / 5)),
            Role::Operate => (0, patience),
        };
        let idle = if role == Role::Write { setting(IDLE_TRANSACTION) } else { patience };
        client
            .batch_execute(&format!(
                "SET statement_timeout = {statement}; SET lock_timeout = {lock};
                 SET idle_in_transaction_session_timeout = {idle}"
            ))
            .await?;
        if role == Role::Write {
            // Whatever is not in a transaction that says it writes is refused: should a BEGIN fail, what was sent along
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
        // price that makes another plan unwelcome would also make it worth compiling: no. And a connection that nobody
        // needs at the moment is kept all the same. Engines that speak the protocol without knowing these settings do
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
            Role::Claim => &KEEPALIVES,
            Role::Read | Role::Write | Role::Operate => &[],
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
async fn driven<T>(driver: &mut Driver, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let mut work = std::pin::pin!(work);
    tokio::select! {
        done = &mut work => done,
        ended = driver => match ended {
            Err(error) => Err(error),
            // The last answers may have come with the end.
            Ok(()) => work.await,
        },
    }
}

/// Why there is no connection.
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

    /// Whether another attempt may succeed without anybody changing anything.
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

/// A connection that is ready for use.
pub(super) struct Session<S = Statements> {
    pub(super) client: Client,
    pub(super) statements: S,
    answers: AtomicU64,
    condemned: AtomicBool,
    end: Notify,
}

impl<S> Session<S> {
    /// Gives the connection up: it is closed, and another one is made.
    pub(super) fn condemn(&self) {
        self.condemned.store(true, Ordering::Relaxed);
        self.end.notify_one();
    }

    fn is_usable(&self) -> bool {
        !self.condemned.load(Ordering::Relaxed) && !self.client.is_closed()
    }

    /// How many answers have come so far.
    fn answers(&self) -> u64 {
        self.answers.load(Ordering::Relaxed)
    }

    fn answered(&self) {
        self.answers.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits until the deadline for what a query of this connection finds; `None` when it is to be asked again.
    pub(super) async fn answer<T>(
        &self,
        query: impl Future<Output = Result<T, Error>>,
        deadline: Instant,
    ) -> Result<Option<T>, StoreError> {
        let answers = self.answers();
        match timeout_at(deadline, query).await {
            Ok(Ok(found)) => {
                self.answered();
                Ok(Some(found))
            }
            Ok(Err(error)) => match Fault::of(&error) {
                Fault::Lost(_) => {
                    self.condemn();
                    Ok(None)
                }
                Fault::Again(_) => Ok(None),
                Fault::Lasting(error) => Err(error),
            },
            Err(_) => {
                // Slow is not dead: a connection that has answered others meanwhile is kept.
                if self.answers() == answers {
                    self.condemn();
                }
                Err(StoreError::Unavailable(SILENT.to_owned()))
            }
        }
    }
}

enum State<S> {
    Up(Arc<Session<S>>),
    Down {
        since: Instant,
        /// Empty until an attempt has failed.
        why: String,
    },
}

/// One connection that is made again whenever it breaks.
pub(super) struct Link<S = Statements> {
    connector: Arc<Connector>,
    role: Role,
    state: watch::Sender<State<S>>,
    keeper: OnceLock<JoinHandle<()>>,
}

impl<S: Prepared> Link<S> {
    /// A link that connects when it is first needed.
    pub(super) fn new(connector: &Arc<Connector>, role: Role) -> Self {
        let (state, _) = watch::channel(State::Down { since: Instant::now(), why: String::new() });
        Self { connector: Arc::clone(connector), role, state, keeper: OnceLock::new() }
    }

    /// The session, if there is one at this moment.
    pub(super) fn ready(&self) -> Option<Arc<Session<S>>> {
        match &*self.state.borrow() {
            State::Up(session) if session.is_usable() => Some(Arc::clone(session)),
            _ => None,
        }
    }

    /// Connects, unless it has begun to.
    pub(super) fn start(&self) {
        self.keeper.get_or_init(|| tokio::spawn(keep(Arc::clone(&self.connector), self.role, self.state.clone())));
    }

    pub(super) fn is_started(&self) -> bool {
        self.keeper.get().is_some()
    }

    /// Waits for a session until the deadline; not at all when there has been none for long.
    pub(super) async fn session(&self, deadline: Instant) -> Result<Arc<Session<S>>, StoreError> {
        self.start();
        let mut state = self.state.subscribe();
        loop {
            let mut reason = String::new();
            match &*state.borrow_and_update() {
                State::Up(session) if session.is_usable() => return Ok(Arc::clone(session)),
                State::Up(_) => {}
                State::Down { since, why } => {
                    if !why.is_empty() && since.elapsed() > self.connector.patience {
                        return Err(StoreError::Unavailable(why.clone()));
                    }
                    reason.clone_from(why);
                }
            }
            if !matches!(timeout_at(deadline, state.changed()).await, Ok(Ok(()))) {
                let reason = if reason.is_empty() { "no connection in time".to_owned() } else { reason };
                return Err(StoreError::Unavailable(reason));
            }
        }
    }
}

impl<S> Drop for Link<S> {
    fn drop(&mut self) {
        if let Some(keeper) = self.keeper.get() {
            keeper.abort();
        }
    }
}

/// Connects, drives the connection until it ends, and starts again.
async fn keep<S: Prepared>(connector: Arc<Connector>, role: Role, state: watch::Sender<State<S>>) {
    let mut since = Instant::now();
    let mut failures = 0;
    loop {
        match establish(&connector, role).await {
            Ok((session, mut driver)) => {
                if failures > 0 {
                    tracing::info!(?role, "connected to the database again");
                }
                failures = 0;
                let _open = connector.metrics.database.connected(role);
                state.send_replace(State::Up(Arc::clone(&session)));
                let ended = tokio::select! {
                    ended = &mut driver => ended,
                    () = session.end.notified() => Ok(()),
                };
                since = Instant::now();
                state.send_replace(State::Down { since, why: String::new() });
                let error = ended.err().map(|error| describe(&error));
                tracing::warn!(?role, error, "a connection to the database was lost");
            }
            Err(failure) => {
                let why = failure.describe();
                connector.metrics.database.refused(role);
                if failures == 0 {
                    tracing::warn!(?role, error = why, "cannot connect to the database: retrying");
                }
                state.send_replace(State::Down { since, why });
                sleep(backoff(failures)).await;
                failures += 1;
            }
        }
    }
}

async fn establish<S: Prepared>(connector: &Connector, role: Role) -> Result<(Arc<Session<S>>, Driver), Failure> {
    let (client, mut driver) = connector.connect(role).await?;
    let preparing = driven(&mut driver, S::prepare(&client));
    let statements = match timeout(connector.connect_patience(), preparing).await {
        Ok(prepared) => prepared.map_err(Failure::Error)?,
        Err(_) => return Err(Failure::Silent),
    };
    let session = Session {
        client,
        statements,
        answers: AtomicU64::new(0),
        condemned: AtomicBool::new(false),
        end: Notify::new(),
    };
    Ok((Arc::new(session), driver))
}

/// The pause after so many failures in a row: doubled each time, and shortened at random by up to a half, so that many
/// nodes do not come back in step.
pub(super) fn backoff(failures: u32) -> Duration {
    let (first, most) = BACKOFF;
    let pause = first.saturating_mul(1 << failures.min(10)).min(most);
    // Without randomness the nodes are merely in step.
    let random = f64::from(getrandom::u32().unwrap_or(0)) / f64::from(u32::MAX);
    pause.mul_f64(1.0 - random / 2.0)
}
