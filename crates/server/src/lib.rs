//! The HTTP service, in six top-level modules; imports point from right to left:
//!
//! `options` ← `transport` ← `observe` ← `auth` ← `api` ← `web`
//!
//! `server` composes their states into one. A request: `transport` reads it from a connection, `request_handler` gives it
//! a context, `routes` finds its handler, the handler's arguments authenticate and parse it, the store executes
//! it, and the handler returns a response or an `api::ApiError`.

mod api;
mod auth;
mod metrics_listener;
mod observe;
mod options;
mod request_handler;
mod routes;
mod server;
mod transport;
mod web;

#[cfg(fuzzing)]
pub use self::api::fuzz_head;
pub use self::api::{Cors, OriginError};
pub use self::auth::{Issuer, IssuerUrl, IssuerUrlError};
pub use self::metrics_listener::serve_metrics;
pub use self::observe::{Collector, CollectorSettings, Endpoint, EndpointError};
pub use self::options::{ApiLimits, AuthLimits, Rate, TransportLimits, value_parser};
pub use self::routes::openapi;
pub use self::server::{Server, ServerSettings};
pub use self::transport::{CertificateFileError, ShutdownOutcome, Tls, TrustedProxies};
pub use self::web::SignIn;
