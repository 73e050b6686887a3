//! `plantstore serve`: the service itself.

mod cors;
mod first_token;
mod monitoring;
mod notify;
mod oidc;
mod rate;
mod stop;
mod sweeper;
mod tls;

use std::io::{self, IsTerminal, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;
use clap::builder::FalseyValueParser;
use jiff::Timestamp;
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::net::TcpListener;
use tracing::Level;

use self::cors::CorsOptions;
use self::first_token::FirstToken;
use self::monitoring::{MetricsListener, MonitoringOptions};
use self::notify::Supervisor;
use self::oidc::OidcOptions;
use self::rate::RateOptions;
use self::stop::stop_signal;
use self::sweeper::Sweeper;
use self::tls::TlsOptions;
use super::WrongUse;
use super::colour::{Colours, Style};
use super::environment::{self, origin};
use super::value::{listen_address, number};
use crate::cli::options::{LogFormat, LogLevel, LogOptions, StoreOption, duration};
use plantstore_server::{self, App, Limits, Settings, Tls};
use plantstore_store::{OpenOptions, Store, StoreUrl};
use plantstore_telemetry::logging;

/// What the store gets to finish its writes when nothing is left of the grace.
const CLOSE_PATIENCE: Duration = Duration::from_millis(500);
/// How long the first token waits for others that write.
const PATIENCE: Duration = Duration::from_secs(5);
/// Tasks that a worker runs before it takes one from the runtime's global queue. Every completed write is in that queue,
/// because the writer is a thread of its own; with the runtime's default, a worker whose own queue never runs empty takes
/// only a few of them, and completed writes wait behind new requests.
const GLOBAL_QUEUE_INTERVAL: u32 = 2;
/// File descriptors needed besides those of connections.
const OTHER_FILES: u64 = 128;

/// Run the service
#[derive(Args)]
#[command(after_help = "Examples:
  plantstore serve
  plantstore serve --listen 8081 --store sqlite:/var/lib/plantstore/plants.db
  plantstore serve --listen 0.0.0.0:8443 --tls-cert cert.pem --tls-key key.pem
  PLANTSTORE_STORE=postgres://plantstore@db.example/plants plantstore serve --metrics-listen 9464")]
pub(super) struct Options {
    /// The address to listen on; a PORT alone is on this machine, and port 0 takes a free one
    #[arg(long, value_name = "[HOST:]PORT", env = "PLANTSTORE_LISTEN", default_value = "127.0.0.1:8080", value_parser = listen_address)]
    listen: String,
    #[command(flatten)]
    store: StoreOption,
    /// Do not make the user `gardener` and a token in a store that has never had a user
    #[arg(long, env = "PLANTSTORE_NO_FIRST_TOKEN", value_parser = FalseyValueParser::new())]
    no_first_token: bool,
    /// Refuse a database whose schema is not up to date instead of changing it
    #[arg(long, env = "PLANTSTORE_NO_MIGRATE", value_parser = FalseyValueParser::new())]
    no_migrate: bool,
    /// Do not serve the web console at `/`
    #[arg(long, env = "PLANTSTORE_NO_CONSOLE", value_parser = FalseyValueParser::new())]
    no_console: bool,
    #[command(flatten)]
    log: LogOptions,
    // From here on under headings, which last until the next.
    #[command(flatten)]
    tls: TlsOptions,
    #[command(flatten)]
    oidc: OidcOptions,
    #[command(flatten)]
    limits: LimitOptions,
    #[command(flatten)]
    cors: CorsOptions,
    #[command(flatten)]
    monitoring: MonitoringOptions,
}

#[derive(Args)]
#[command(next_help_heading = "Limits")]
struct LimitOptions {
    /// For the head of a request to arrive
    #[arg(long, value_name = "TIME", env = "PLANTSTORE_HEADER_TIMEOUT", default_value = "10s", value_parser = duration)]
    header_timeout: Duration,
    /// For a whole request to arrive
    #[arg(long, value_name = "TIME", env = "PLANTSTORE_REQUEST_TIMEOUT", default_value = "30s", value_parser = duration)]
    request_timeout: Duration,
    /// Between two requests of a connection
    #[arg(long, value_name = "TIME", env = "PLANTSTORE_IDLE_TIMEOUT", default_value = "75s", value_parser = duration)]
    idle_timeout: Duration,
    /// For a client to take some of its answer
    #[arg(long, value_name = "TIME", env = "PLANTSTORE_WRITE_TIMEOUT", default_value = "30s", value_parser = duration)]
    write_timeout: Duration,
    /// Bytes of a request's head
    #[arg(long, value_name = "BYTES", env = "PLANTSTORE_MAX_HEADER_BYTES", default_value_t = 16_384, value_parser = number::<u32>(1_024..=262_144))]
    max_header_bytes: u32,
    /// Header fields of a request
    #[arg(long, value_name = "NUMBER", env = "PLANTSTORE_MAX_HEADERS", default_value_t = 100, value_parser = number::<u32>(10..=10_000))]
    max_headers: u32,
    /// Bytes of a request's body
    #[arg(long, value_name = "BYTES", env = "PLANTSTORE_MAX_BODY_BYTES", default_value_t = 16_384, value_parser = number::<u32>(1..=16_777_216))]
    max_body_bytes: u32,
    /// Connections open at the same time
    #[arg(long, value_name = "NUMBER", env = "PLANTSTORE_MAX_CONNECTIONS", default_value_t = 10_000, value_parser = number::<u32>(1..=1_000_000))]
    max_connections: u32,
    /// Those of one client address (IPv6: one /64); half of them by default, and from this machine all
    #[arg(long, value_name = "NUMBER", env = "PLANTSTORE_MAX_CONNECTIONS_PER_ADDRESS", value_parser = number::<u32>(1..=1_000_000))]
    max_connections_per_address: Option<u32>,
    /// Lists that may read the store concurrently
    #[arg(long, value_name = "NUMBER", env = "PLANTSTORE_MAX_IN_FLIGHT", default_value_t = 512, value_parser = number::<u32>(1..=100_000))]
    max_in_flight: u32,
    /// Lists that may wait for one of those to finish; others get 503
    #[arg(long, value_name = "NUMBER", env = "PLANTSTORE_MAX_WAITING", default_value_t = 512, value_parser = number::<u32>(0..=100_000))]
    max_waiting: u32,
    /// How long they wait
    #[arg(long, value_name = "TIME", env = "PLANTSTORE_WAITING_TIMEOUT", default_value = "1s", value_parser = duration)]
    waiting_timeout: Duration,
    /// Creates and deletes that may wait for their commit; others get 503
    #[arg(long, value_name = "NUMBER", env = "PLANTSTORE_WRITE_QUEUE", default_value_t = 1_024, value_parser = number::<u32>(1..=1_000_000))]
    write_queue: u32,
    /// How long a request waits for a database server, or for the write lock of a file; then it is answered 503
    #[arg(long, value_name = "TIME", env = "PLANTSTORE_STORE_TIMEOUT", default_value = "2s", value_parser = duration)]
    store_timeout: Duration,
    /// Failed authentications a second of one client address; others are answered 429
    #[arg(long, value_name = "NUMBER", env = "PLANTSTORE_AUTH_FAILURE_RATE", default_value_t = 10, value_parser = number::<u32>(1..=1_000_000))]
    auth_failure_rate: u32,
    /// Failed authentications at once of one client address
    #[arg(long, value_name = "NUMBER", env = "PLANTSTORE_AUTH_FAILURE_BURST", default_value_t = 100, value_parser = number::<u32>(1..=1_000_000))]
    auth_failure_burst: u32,
    /// Bytes of lists that are remembered until they change, on an embedded store; 0 for none
    #[arg(long, value_name = "BYTES", env = "PLANTSTORE_LIST_CACHE_BYTES", default_value_t = 16_777_216, value_parser = number::<u32>(0..=u32::MAX))]
    list_cache_bytes: u32,
    #[command(flatten)]
    rate: RateOptions,
    /// From the signal to stop until what is unfinished is cut
    #[arg(long, value_name = "TIME", env = "PLANTSTORE_SHUTDOWN_GRACE", default_value = "10s", value_parser = duration)]
    shutdown_grace: Duration,
}

impl LimitOptions {
    fn limits(&self) -> Result<Limits, WrongUse> {
        Ok(Limits {
            header_timeout: self.header_timeout,
            request_timeout: self.request_timeout,
            idle_timeout: self.idle_timeout,
            write_timeout: self.write_timeout,
            header_bytes: self.max_header_bytes as usize,
            header_fields: self.max_headers as usize,
            body_bytes: self.max_body_bytes as usize,
            connections: self.max_connections as usize,
            connections_per_address: self.max_connections_per_address.map(|most| most as usize),
            in_flight: self.max_in_flight as usize,
            waiting: self.max_waiting as usize,
            waiting_timeout: self.waiting_timeout,
            auth_failures_per_second: self.auth_failure_rate,
            auth_failures_burst: self.auth_failure_burst,
            list_cache_bytes: self.list_cache_bytes as usize,
            user_quota: self.rate.quota()?,
            shutdown_grace: self.shutdown_grace,
        })
    }
}

impl Options {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let url = self.store.url()?;
        let (settings, tls) = (self.settings()?, self.tls.tls()?);
        let log = logging::start(log_format(self.log.log_format), log_level(self.log.log_level));
        for warning in environment::warnings() {
            tracing::warn!("{warning}");
        }
        self.store.warn_of_visible_password();
        raise_file_limit(u64::from(self.limits.max_connections));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .global_queue_interval(GLOBAL_QUEUE_INTERVAL)
            .build()
            .context("cannot start")?;
        let served = runtime.block_on(self.serve(&url, settings, tls, log.dropped()));
        // Cuts the connections that outlived the grace, and waits for nobody: a name that is being looked up may take long.
        runtime.shutdown_background();
        served
    }

    /// What the options come to, once they are found to make sense.
    fn settings(&self) -> anyhow::Result<Settings> {
        Ok(Settings {
            limits: self.limits.limits()?,
            issuer: self.oidc.issuer()?,
            cors: self.cors.cors()?,
            console: !self.no_console,
            collector: self.monitoring.collector()?,
        })
    }

    async fn serve(
        &self,
        url: &StoreUrl,
        settings: Settings,
        tls: Option<Arc<Tls>>,
        lines_dropped: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> anyhow::Result<()> {
        // The ports first: a store is not made for a server that cannot start.
        let listener = bind(&self.listen, "--listen").await?;
        let metrics = self.monitoring.listen().await?;
        let address = listener.local_addr().context("cannot tell the address in use")?;
        let readers = tokio::runtime::Handle::current().metrics().num_workers();
        let write_queue = self.limits.write_queue as usize;
        let options = OpenOptions {
            create: true,
            migrate: !self.no_migrate,
            write_queue,
            readers,
            operator_timeout: PATIENCE,
            timeout: self.limits.store_timeout,
            await_server: true,
        };
        let (store, _) = Store::open(url, options).await?;
        let store = Arc::new(store);
        if let Err(error) = store.ping().await {
            tracing::warn!(%error, "the store does not answer yet: not ready");
        }
        let shutdown = stop_signal()?;
        tls::keep(tls.as_ref())?;
        let first = if self.no_first_token { None } else { first_token::issue(&store, url).await? };
        if let Err(error) = announce(address, &self.tls, url, first.as_ref(), settings.console, metrics.as_ref()) {
            // A token that is neither shown nor in a file must not stay valid.
            if let Some(first) = first.filter(|first| first.file.is_none()) {
                store.revoke_token(first.id, Timestamp::now()).await?;
            }
            return Err(error);
        }
        let sweeper = Sweeper::start(&store);
        let shutdown = Supervisor::of_this_process().ready_until(shutdown);

        let app = App::new(Arc::clone(&store), settings);
        let scraped = metrics.map(|metrics| metrics.serve(app, tls.clone(), lines_dropped));
        let stopped = plantstore_server::serve(listener, tls, app, shutdown).await;
        // Whatever is left of the grace, and a moment in any case.
        let deadline = stopped.deadline.max(Instant::now() + CLOSE_PATIENCE);
        let closing = async { tokio::join!(sweeper.finish(), store.close()) };
        let store_closed = tokio::time::timeout_at(deadline.into(), closing).await.is_ok();
        if stopped.cut > 0 || !store_closed {
            let connections = stopped.cut;
            tracing::warn!(connections, store_closed, "stopped; the grace was over before everything had finished");
        } else {
            tracing::info!("stopped");
        }
        if tokio::time::timeout_at(deadline.into(), app.flush_traces()).await.is_err() {
            tracing::warn!("the collector did not take the last spans before the grace was over");
        }
        if let Some(scraped) = scraped {
            // Until now, so that the end can be watched.
            scraped.abort();
            let _ = scraped.await;
        }
        Ok(())
    }
}

/// Takes an address that was given with this option.
async fn bind(listen: &str, option: &str) -> anyhow::Result<TcpListener> {
    let option = origin(option);
    TcpListener::bind(listen).await.map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => {
            anyhow::anyhow!("{listen} is in use: stop what listens there, or choose another address with {option}")
        }
        io::ErrorKind::PermissionDenied => {
            anyhow::anyhow!("this user may not listen on {listen}: choose a port above 1023 with {option}")
        }
        io::ErrorKind::AddrNotAvailable => {
            anyhow::anyhow!("this machine has no address {listen}: choose one it has with {option}")
        }
        _ => anyhow::anyhow!("cannot listen on {listen}: {error}; choose another address with {option}"),
    })
}

fn log_format(format: LogFormat) -> logging::Format {
    match format {
        LogFormat::Auto if io::stderr().is_terminal() => logging::Format::Human,
        LogFormat::Human => logging::Format::Human,
        LogFormat::Auto | LogFormat::Json => logging::Format::Json,
    }
}

fn log_level(level: LogLevel) -> Level {
    match level {
        LogLevel::Error => Level::ERROR,
        LogLevel::Warn => Level::WARN,
        LogLevel::Info => Level::INFO,
        LogLevel::Debug => Level::DEBUG,
        LogLevel::Trace => Level::TRACE,
    }
}

/// Lets the process open as many connections as its limits allow, as far as the system does.
fn raise_file_limit(connections: u64) {
    let mut limit = getrlimit(Resource::Nofile);
    let wanted = connections + OTHER_FILES;
    if limit.current.is_none_or(|current| current >= wanted) {
        return;
    }
    let allowed = limit.maximum.map_or(wanted, |maximum| maximum.min(wanted));
    limit.current = Some(allowed);
    if setrlimit(Resource::Nofile, limit).is_err() || allowed < wanted {
        tracing::warn!(files = allowed, wanted, "the system allows fewer open files than --max-connections needs");
    }
}

/// Says where the service listens and where the first token is; on a terminal the banner shows it. The log never holds it.
fn announce(
    socket: SocketAddr,
    tls: &TlsOptions,
    url: &StoreUrl,
    first: Option<&FirstToken>,
    console: bool,
    metrics: Option<&MetricsListener>,
) -> anyhow::Result<()> {
    let address = format!("{}://{socket}", tls.scheme());
    let terminal = io::stderr().is_terminal();
    if terminal {
        let colours = Colours::of(&io::stderr());
        let name = colours.paint(Style::Strong, concat!("plantstore ", env!("CARGO_PKG_VERSION")));
        writeln!(io::stderr(), "{name} keeps its plants in {}", colours.paint(Style::Address, &url.to_string()))?;
        if console {
            let page = colours.paint(Style::Address, &format!("{address}/"));
            writeln!(io::stderr(), "and shows them in a browser at {page}")?;
        }
        if first.is_none() {
            writeln!(io::stderr(), "`plantstore token create --user NAME` issues tokens")?;
        }
    }
    let mut file_note = String::new();
    match first {
        Some(first) if terminal => io::stderr().write_all(banner(&address, tls, first).as_bytes())?,
        Some(FirstToken { user, file: Some(file), .. }) => {
            let file = file.display().to_string();
            file_note = format!("\nThe first token, for the user {user}, is in {file}");
            tracing::info!(user = user.as_str(), file, "a new store was made; its first token is in this file");
        }
        Some(FirstToken { file: None, .. }) | None => {}
    }
    // Last, because whoever waits for it goes on to use all of the above. Whether anybody does is not our concern.
    let metrics_note = metrics.map(MetricsListener::announcement).unwrap_or_default();
    let _ = writeln!(io::stdout(), "Listening on {address}{metrics_note}{file_note}");
    tracing::info!(address, store = %url, "listening");
    if !socket.ip().is_loopback() && !tls.given() {
        tracing::warn!(
            "listening beyond this machine without encryption: give --tls-cert and --tls-key, or put a proxy that speaks \
             TLS in front"
        );
    }
    if let Some(metrics) = metrics {
        metrics.log();
    }
    Ok(())
}

fn banner(address: &str, tls: &TlsOptions, first: &FirstToken) -> String {
    let file_note = first.file.as_ref().map_or_else(String::new, |file| {
        format!(
            "\nIt is also in the file {}, which only its owner can read.\n\
             Delete the file once the token is stored elsewhere.\n",
            file.display()
        )
    });
    format!(
        r#"
A new store was made, with the user {user} and this token, shown only this once:

  export TOKEN={token}
{file_note}
Create, list and delete a plant:

  curl {address}/plants -H "Authorization: Bearer $TOKEN" \
    -H 'Content-Type: application/json' -d '{{"id": 1, "name": "Monstera", "tag": "indoor"}}'
  curl '{address}/plants?include=id' -H "Authorization: Bearer $TOKEN"
  curl -X DELETE {address}/plants/1 -H "Authorization: Bearer $TOKEN"
{hint}
"#,
        user = first.user,
        token = first.token.reveal(),
        hint = tls.trust_hint(),
    )
}

#[cfg(test)]
mod tests {
    use clap::{Command, FromArgMatches};

    use super::*;

    /// The defaults stand twice, as options read them and as the server has them: they must be the same.
    #[test]
    fn the_options_start_from_the_limits_of_the_server() {
        let command = LimitOptions::augment_args(Command::new("serve"));
        let options = LimitOptions::from_arg_matches(&command.get_matches_from(["serve"])).expect("defaults");
        assert_eq!(options.limits().expect("limits"), Limits::default());
    }
}
