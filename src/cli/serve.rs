//! `plantstore serve`: runs the service.

mod announcement;
mod first_token;
mod lifecycle;
mod listener;
mod monitoring;
mod options;
mod otel;
mod tls;

use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;
use jiff::Timestamp;
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::sync::oneshot;

use self::lifecycle::{notify_until, shutdown_signal};
use self::listener::{bind, listen_address};
use self::monitoring::MonitoringOptions;
use self::options::{CorsOptions, LimitOptions, LogOptions, OidcOptions};
use self::tls::TlsOptions;
use super::environment::switch;
use super::store_options::StoreOption;
use super::user::SWEEP_PAUSE;
use plantstore_server::{Server, ServerSettings, Tls, TrustedProxies};
use plantstore_store::{OpenOptions, SWEEP_DELAY, SchemaChange, Store, StoreUrl, WorkerAddress};

/// Time between two sweeps when there was nothing to remove.
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);
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
    /// The address at which this node reaches a worker of Citus, if it is not the one in Citus' catalog, as
    /// CATALOG-HOST:PORT=HOST:PORT. Can be repeated
    #[arg(
        long = "worker-address",
        value_name = "ADDRESS=ADDRESS",
        env = "PLANTSTORE_WORKER_ADDRESS",
        value_delimiter = ','
    )]
    worker_addresses: Vec<WorkerAddress>,
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

impl Options {
    pub(super) fn run(&self, warnings: &[String]) -> anyhow::Result<()> {
        let url = self.store.url()?;
        let mut settings = self.settings()?;
        let tls = self.tls.tls()?;
        let log = self.log.start_log();
        for warning in warnings {
            tracing::warn!("{warning}");
        }
        settings.collector = self.monitoring.collector()?;
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
            hsts: self.tls.is_enabled() && !self.tls.no_hsts,
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
            worker_addresses: Some(self.worker_addresses.clone()),
        };
        let store = Arc::new(Store::open(url, options).await?.store);
        if let Err(error) = store.ping().await {
            tracing::warn!(%error, "the store does not respond yet: not ready");
        }
        let shutdown = shutdown_signal()?;
        tls::start_reloading(tls.clone())?;
        let first = if self.no_first_token { None } else { first_token::issue(&store, url).await? };
        if let Err(error) = self.announce(address, url, first.as_ref(), metrics.as_ref()) {
            // A token that is neither shown nor in a file must not stay valid.
            if let Some(first) = first.filter(|first| first.file.is_none()) {
                store.revoke_token(first.id, Timestamp::now()).await?;
            }
            return Err(error);
        }
        let sweeper = Sweeper::start(&store);
        let shutdown = notify_until(shutdown);

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

/// Removes the plants of deleted users and expired idempotency keys from a thread of its own.
struct Sweeper {
    stop: mpsc::Sender<()>,
    ended: oneshot::Receiver<()>,
}

impl Sweeper {
    fn start(store: &Arc<Store>) -> Self {
        // A weak reference, so that the store can close: what is left is removed after the next start.
        let store = Arc::downgrade(store);
        let runtime = tokio::runtime::Handle::current();
        let (stop, stopped) = mpsc::channel();
        let (end, ended) = oneshot::channel();
        thread::spawn(move || {
            // The store requires this delay before the first sweep.
            let mut pause = SWEEP_DELAY;
            while stopped.recv_timeout(pause) == Err(mpsc::RecvTimeoutError::Timeout)
                && let Some(store) = store.upgrade()
            {
                // A failed sweep is retried the next time and does not affect the other.
                let [plants, keys] =
                    runtime.block_on(async { [store.sweep_deleted_users().await, store.sweep_expired_keys().await] });
                let removed = plants.unwrap_or(0) + keys.unwrap_or(0);
                pause = if removed > 0 { SWEEP_PAUSE } else { SWEEP_INTERVAL };
            }
            let _ = end.send(());
        });
        Self { stop, ended }
    }

    async fn finish(self) {
        drop(self.stop);
        let _ = self.ended.await;
    }
}
