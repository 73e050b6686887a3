//! HTTPS client for outgoing requests (issuer, trace collector, conformance check, import and export), and the certificates it
//! trusts.

mod client;
mod connect;
mod error;
mod http_url;
pub mod trust;

pub use self::client::{Client, Connection, Response, Server, Settings};
pub use self::connect::{Proxies, ProxyError};
pub use self::error::ClientError;
pub use self::http_url::{Cleartext, HttpUrl, UrlError, UrlTarget};
