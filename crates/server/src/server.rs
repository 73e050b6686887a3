//! The server: its configuration, the state that all requests share, and `serve`.

use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt as _};
use plantstore_store::Store;
use plantstore_telemetry::metrics::Exposition;
use tokio::net::TcpListener;

use crate::api::{Api, Cors};
use crate::auth::{Auth, Issuer};
use crate::observe::{Collector, Observe};
use crate::options::{ApiLimits, AuthLimits, TransportLimits};
use crate::request_handler::RequestHandler;
use crate::routes;
use crate::transport::{self, ShutdownOutcome, Tls, Transport, TrustedProxies};
use crate::web::SignIn;

/// Configuration of the service, beside its store.
pub struct ServerSettings {
    pub transport: TransportLimits,
    pub trusted_proxies: TrustedProxies,
    pub auth: AuthLimits,
    pub api: ApiLimits,
    /// The issuer whose tokens are accepted in addition to the service's own.
    pub issuer: Option<Issuer>,
    /// The origins whose pages may call the service.
    pub cors: Option<Cors>,
    /// Serve the web console.
    pub console: bool,
    /// Tell browsers, with `Strict-Transport-Security`, to use TLS only.
    pub hsts: bool,
    /// The issuer that users of the console can sign in with.
    pub sign_in: Option<SignIn>,
    /// The collector that traces are exported to.
    pub collector: Option<Collector>,
}

/// The service on a store.
#[derive(Clone, Copy)]
pub struct Server {
    handler: &'static RequestHandler,
    pub(crate) store: &'static Arc<Store>,
}

impl Server {
    /// Creates the server, whose state is never freed. Must be called in the runtime that serves the requests.
    pub fn new(store: Arc<Store>, settings: ServerSettings) -> Self {
        let ServerSettings { transport, trusted_proxies, auth, api, issuer, cors, console, hsts, sign_in, collector } =
            settings;
        let transport = leak(Transport::new(transport, trusted_proxies));
        let auth = Auth::new(Arc::clone(&store), issuer, &auth);
        let api = leak(Api::new(Arc::clone(&store), transport, auth, api));
        let handler = RequestHandler {
            api,
            observe: Observe::new(routes::labels(), collector),
            cors,
            console,
            hsts,
            label_of: routes::label_of,
            is_routine: routes::is_routine,
            respond: routes::respond(console, sign_in.as_ref()),
        };
        Self { handler: leak(handler), store: leak(store) }
    }

    /// Serves the connections of `listener`, with TLS if it is given, until `shutdown` resolves; then accepts no more, finishes
    /// the requests in flight and closes all connections, within the grace period of the limits.
    ///
    /// The future is boxed, as those of other entry points of the crates: otherwise its code, and with it all handlers, would be
    /// compiled with the binary, after everything else and on one core.
    pub fn serve(
        &self,
        listener: TcpListener,
        tls: Option<Arc<Tls>>,
        shutdown: BoxFuture<'static, ()>,
    ) -> BoxFuture<'_, ShutdownOutcome> {
        let api = self.handler.api;
        let shutdown = shutdown.inspect(|()| api.event_streams.end());
        Box::pin(transport::serve(listener, tls, api.transport, self.handler, shutdown))
    }

    /// Waits for the changes of tokens and shares in progress. They continue after their clients have disconnected.
    pub async fn finish_account_changes(&self) {
        self.handler.api.account_changes.finish().await;
    }

    /// Sends the remaining spans to the collector; must be called when no request is in flight any more.
    pub fn flush_traces(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            if let Some(tracer) = &self.handler.observe.tracer {
                tracer.finish().await;
            }
        })
    }

    /// Writes the metrics of the service; the store writes its own.
    pub(crate) fn write_metrics(&self, exposition: &mut Exposition) {
        let RequestHandler { api, observe, .. } = self.handler;
        observe.requests.write(exposition);
        observe.connections.write(exposition);
        api.write_metrics(exposition);
        if let Some(tracer) = &observe.tracer {
            tracer.write_metrics(exposition);
        }
    }
}

pub(crate) fn leak<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}
