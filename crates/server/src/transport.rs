//! Connections: listening, TLS, HTTP/1.1 and HTTP/2 under deadlines and limits, and graceful shutdown.
//!
//! Knows nothing about the API. A listener is given a [`Handler`], which turns requests into responses, renders the rejection of
//! input that is not a valid request, and receives connection events.

mod connection_state;
mod handler;
mod http1;
mod http2;
mod listener;
mod state;
mod stream;
mod tls;
mod trusted_proxies;

pub(crate) use self::connection_state::{CloseReason, Rejection};
pub(crate) use self::handler::{
    BufferBudget, BufferPermit, ConnectionEvent, Handler, OpenEnded, REQUEST_ID, RequestInfo, ResponseBody,
};
pub(crate) use self::listener::serve;
pub use self::state::ShutdownOutcome;
pub(crate) use self::state::{
    ClientAddress, Exceeded, InFlightRequest, KeyedLimit, KeyedPlace, Tracked, Tracker, Transport,
};
pub use self::tls::{CertificateFileError, Tls};
pub use self::trusted_proxies::TrustedProxies;
