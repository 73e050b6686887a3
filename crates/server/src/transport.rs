//! Connections: listening, TLS, HTTP/1.1 and HTTP/2 under deadlines and limits, and graceful shutdown.
//!
//! Knows nothing about the API. A listener is given a [`Handler`], which turns requests into responses, renders the rejection of
//! input that is not a valid request, and receives connection events.

mod buffer_budget;
mod client_address;
mod connection;
mod connection_limit;
mod connection_state;
mod date;
mod forwarded;
mod framing;
mod handler;
mod http1;
mod http2;
mod in_flight;
mod limits;
mod listener;
mod rejection;
mod shutdown;
mod socket;
mod state;
mod stream;
mod tls;
mod trusted_proxies;

pub(crate) use self::buffer_budget::{BufferBudget, BufferPermit};
pub(crate) use self::client_address::ClientAddress;
pub(crate) use self::connection_limit::Exceeded;
pub(crate) use self::connection_state::CloseReason;
pub(crate) use self::date::now as date_header;
pub(crate) use self::handler::{ConnectionEvent, Handler, REQUEST_ID, RequestInfo, ResponseBody};
pub(crate) use self::in_flight::InFlightRequest;
pub use self::limits::TransportLimits;
pub(crate) use self::listener::serve;
pub(crate) use self::rejection::Rejection;
pub use self::shutdown::ShutdownOutcome;
pub(crate) use self::state::Transport;
pub use self::tls::{CertificateFileError, CertificateReload, Tls};
pub use self::trusted_proxies::TrustedProxies;
