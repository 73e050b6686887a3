//! HTTPS client for outgoing requests (issuer, trace collector, conformance check, import and export), and the certificates it
//! trusts.
//!
//! [`Client`] sends a request on the connection of the last one, if it still can, or on a [`Connection`] of the caller's own. Both
//! come from one connector, which tries all addresses of a name concurrently and goes through the proxies of [`Proxies`].

mod client;
mod connect;
mod error;
mod http_url;
pub mod trust;

pub use self::client::{Client, Connection, Response, Settings};
pub use self::connect::{Proxies, ProxyError};
pub use self::error::ClientError;
pub use self::http_url::{Cleartext, HttpUrl, UrlError, UrlTarget};
