//! `plantstore serve`: runs the service.

mod announcement;
mod cors;
mod first_token;
mod listener;
mod log_options;
mod monitoring;
mod notify;
mod oidc;
mod otel;
mod shutdown_signal;
mod sweeper;
mod tls;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;
use jiff::Timestamp;
use rustix::process::{Resource, getrlimit, setrlimit};

use self::announcement::{ServiceAddress, announce};
use self::cors::CorsOptions;
use self::listener::bind;
use self::log_options::LogOptions;
use self::monitoring::{MonitoringOptions, TraceExport};
use self::notify::Supervisor;
use self::oidc::OidcOptions;
use self::shutdown_signal::shutdown_signal;
use self::sweeper::Sweeper;
use self::tls::TlsOptions;
use super::environment::origin;
use super::exit::UsageError;
use super::store_options::StoreOption;
use super::value_parser::{duration, listen_address, number, switch};
use plantstore_server::{ApiLimits, AuthLimits, Server, ServerSettings, Tls, TransportLimits, TrustedProxies};
use plantstore_store::{OpenOptions, SchemaChange, Store, StoreUrl};

/// Minimum time for the store to finish its writes, also when the shutdown grace is used up.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);
/// Time limit for opening a store that other processes write to.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);
/// Number of tasks that a thread of the runtime runs before it takes one from the global queue. Completed writes are in that
/// queue, because the writer is a thread of its own. With the runtime's default, busy threads seldom look into it, and completed
/// writes wait behind new requests.
const GLOBAL_QUEUE_INTERVAL: u32 = 2;
/// File descriptors needed besides those of connections.
const OTHER_FILES: u64 = 128;

/// Run the service
#[derive(Args)]
#[command(after_help = "Examples:
  plantstore serve
  plantstore serve --listen 8081 --store sqlite:/var/lib/plantstore/plants.db
  plantstore serve --listen 0.0.0.0:8443 --tls-cert cert.pem --tls-key key.pem
  plantstore serve --store 'postgres://plantstore@db.example/plants?sslmode=verify-full'")]
pub(super) struct Options {
    /// The address to listen on. PORT alone means 127.0.0.1:PORT, and port 0 a free port
    #[arg(long, value_name = "[HOST:]PORT", env = "PLANTSTORE_LISTEN", default_value = "127.0.0.1:8080", value_parser = listen_address)]
    listen: String,
    #[command(flatten)]
    store: StoreOption,
    /// Do not create the user `gardener` and a token in a new store
    #[arg(long, env = "PLANTSTORE_NO_FIRST_TOKEN", value_parser = switch)]
    no_first_token: bool,
    /// Exit with an error if there is no store or its schema is not up to date, instead of changing it
    #[arg(long, env = "PLANTSTORE_NO_MIGRATE", value_parser = switch)]
    no_migrate: bool,
    /// Do not serve the web console at `/`
    #[arg(long, env = "PLANTSTORE_NO_CONSOLE", value_parser = switch)]
    no_console: bool,
    #[command(flatten)]
    log: LogOptions,
    // These options have headings of their own, so they must be the last.
    #[command(flatten)]
    tls: TlsOptions,
    #[command(flatten)]
    oidc: OidcOptions,
    #[command(flatten)]
    limits: LimitOptions,
    #[command(flatten)]
    trusted_proxies: TrustedProxies,
    #[command(flatten)]
    cors: CorsOptions,
    #[command(flatten)]
    monitoring: MonitoringOptions,
}

#[derive(Args)]
#[command(next_help_heading = "Limits")]
struct LimitOptions {
    #[command(flatten)]
    transport: TransportLimits,
    #[command(flatten)]
    api: ApiLimits,
    /// Maximum number of creates and deletes that wait for their commit; beyond it the status is 503
    #[arg(long, value_name = "NUMBER", env = "PLANTSTORE_WRITE_QUEUE", default_value_t = 1_024, value_parser = number::<usize>(1..=1_000_000))]
    write_queue: usize,
    /// Time limit for a response of the database server, or for the write lock of a file; after it the status is 503
    #[arg(long, value_name = "TIME", env = "PLANTSTORE_STORE_TIMEOUT", default_value = "2s", value_parser = duration)]
    store_timeout: Duration,
    #[command(flatten)]
    auth: AuthLimits,
}

impl LimitOptions {
    fn check(&self) -> Result<(), UsageError> {
        match (self.auth.rate_limit, self.auth.rate_burst) {
            (None, Some(_)) => {
                Err(UsageError(format!("{} needs a --rate-limit, for example 100/s", origin("--rate-burst"))))
            }
            _ => Ok(()),
        }
    }
}

impl Options {
    pub(super) fn run(&self, warnings: &[String]) -> anyhow::Result<()> {
        let url = self.store.url()?;
        let (mut settings, tls) = (self.settings()?, self.tls.tls()?);
        let traces = self.monitoring.trace_export()?;
        let log = self.log.start_log();
        for warning in warnings {
            tracing::warn!("{warning}");
        }
        match traces {
            TraceExport::Off => {}
            TraceExport::To(collector) => {
                settings.collector = Some(*collector);
                for warning in otel::warnings() {
                    tracing::warn!("{warning}");
                }
            }
            TraceExport::Invalid(error) => tracing::warn!(%error, "traces are not exported"),
        }
        self.store.warn_of_exposure();
        raise_file_limit(self.limits.transport.max_connections as u64);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .global_queue_interval(GLOBAL_QUEUE_INTERVAL)
            .build()
            .context("cannot start")?;
        let served = runtime.block_on(self.serve(&url, settings, tls, log.dropped()));
        // Closes the connections that are still open, and waits for no task: a DNS lookup in progress may take long.
        runtime.shutdown_background();
        served
    }

    fn settings(&self) -> anyhow::Result<ServerSettings> {
        self.limits.check()?;
        Ok(ServerSettings {
            transport: self.limits.transport.clone(),
            trusted_proxies: self.trusted_proxies.clone(),
            auth: self.limits.auth.clone(),
            api: self.limits.api.clone(),
            issuer: self.oidc.issuer()?,
            cors: self.cors.cors()?,
            console: !self.no_console,
            hsts: self.tls.sends_hsts(),
            sign_in: self.oidc.sign_in(),
            collector: None,
        })
    }

    async fn serve(
        &self,
        url: &StoreUrl,
        settings: ServerSettings,
        tls: Option<Arc<Tls>>,
        lines_dropped: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> anyhow::Result<()> {
        // The ports are bound first: no store is created for a server that cannot start.
        let listener = bind(&self.listen, "--listen").await?;
        let metrics = self.monitoring.listen().await?;
        let address = listener.local_addr().context("cannot tell the address in use")?;
        let readers = tokio::runtime::Handle::current().metrics().num_workers();
        let write_queue = self.limits.write_queue;
        let options = OpenOptions {
            schema_change: if self.no_migrate { SchemaChange::None } else { SchemaChange::Migrate },
            write_queue,
            readers,
            admin_timeout: OPEN_TIMEOUT,
            timeout: self.limits.store_timeout,
            await_server: true,
        };
        let (store, _) = Store::open(url, options).await?;
        let store = Arc::new(store);
        if let Err(error) = store.ping().await {
            tracing::warn!(%error, "the store does not respond yet: not ready");
        }
        let shutdown = shutdown_signal()?;
        tls::start_reloading(tls.as_ref())?;
        let first = if self.no_first_token { None } else { first_token::issue(&store, url).await? };
        if let Err(error) = announce(
            ServiceAddress { listen: &self.listen, bound: address },
            &self.tls,
            url,
            first.as_ref(),
            settings.console,
            metrics.as_ref(),
        ) {
            // A token that is neither shown nor in a file must not stay valid.
            if let Some(first) = first.filter(|first| first.file.is_none()) {
                store.revoke_token(first.id, Timestamp::now()).await?;
            }
            return Err(error);
        }
        let sweeper = Sweeper::start(&store);
        let shutdown = Supervisor::from_environment().ready_until(shutdown);

        let server = Server::new(Arc::clone(&store), settings);
        let scraped = metrics.map(|metrics| metrics.serve(server, tls.clone(), lines_dropped));
        let stopped = server.serve(listener, tls, Box::pin(shutdown)).await;
        // The rest of the grace period, but at least `CLOSE_TIMEOUT`.
        let deadline = stopped.deadline.max(Instant::now() + CLOSE_TIMEOUT);
        let closing = async {
            server.finish_account_changes().await;
            tokio::join!(sweeper.finish(), store.close())
        };
        let store_closed = tokio::time::timeout_at(deadline.into(), closing).await.is_ok();
        if stopped.unfinished > 0 || !store_closed {
            let connections = stopped.unfinished;
            tracing::warn!(
                connections,
                store_closed,
                "stopped: the shutdown grace period ended before all work had finished"
            );
        } else {
            tracing::info!("stopped");
        }
        if tokio::time::timeout_at(deadline.into(), server.flush_traces()).await.is_err() {
            tracing::warn!("the collector did not accept the last spans within the shutdown grace period");
        }
        if let Some(scraped) = scraped {
            // Served until now, so that the shutdown can be observed.
            scraped.abort();
            let _ = scraped.await;
        }
        Ok(())
    }
}

/// Raises the limit on open files to what `connections` need, as far as the system allows.
fn raise_file_limit(connections: u64) {
    let mut limit = getrlimit(Resource::Nofile);
    let wanted = connections + OTHER_FILES;
    if limit.current.is_none_or(|current| current >= wanted) {
        return;
    }
    let allowed = limit.maximum.map_or(wanted, |maximum| maximum.min(wanted));
    limit.current = Some(allowed);
    if setrlimit(Resource::Nofile, limit).is_err() || allowed < wanted {
        tracing::warn!(limit = allowed, needed = wanted, "the open file limit is too low for --max-connections");
    }
}
