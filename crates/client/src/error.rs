//! Errors of outgoing requests. The texts are for the log.

use std::error::Error;
use std::fmt;
use std::io;

use hyper_util::client::legacy;
use rustls::{CertificateError, InvalidMessage};

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("cannot connect to {0}: {1}")]
    Unreachable(String, ConnectError),
    #[error("no trusted certificates to verify {0} with: name a file of them with {1}")]
    NoTrustRoots(String, &'static str),
    #[error("{authority} sent no valid response: {reason}")]
    Broken { authority: String, reason: String },
    #[error("the response of {authority} is incomplete: {reason}")]
    Truncated { authority: String, reason: String },
    #[error("the response of {authority} is larger than {limit} bytes")]
    TooLarge { authority: String, limit: usize },
}

/// The reason why a connection could not be established.
#[derive(Debug)]
pub struct ConnectError {
    text: String,
    tls: Option<TlsFailure>,
}

/// Failures of a TLS handshake that have a known remedy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsFailure {
    UnknownIssuer,
    /// The server presents the certificate of a certificate authority as its own.
    AuthorityAsServer,
    /// The server does not speak TLS.
    NotTls,
}

impl ConnectError {
    pub(crate) fn new(error: &(dyn Error + 'static)) -> Self {
        Self { text: error.to_string(), tls: tls_error(error).and_then(TlsFailure::of) }
    }

    pub fn tls_failure(&self) -> Option<TlsFailure> {
        self.tls
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

impl Error for ConnectError {}

impl TlsFailure {
    fn of(error: &rustls::Error) -> Option<Self> {
        match error {
            rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
                Some(Self::UnknownIssuer)
            }
            rustls::Error::InvalidCertificate(CertificateError::Other(other))
                if other.to_string().contains("CaUsedAsEndEntity") =>
            {
                Some(Self::AuthorityAsServer)
            }
            rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType) => Some(Self::NotTls),
            _ => None,
        }
    }
}

/// Finds a TLS error wrapped in I/O errors. `source` cannot be used, because it skips the wrapped error itself.
fn tls_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    let wrapped = |error: &'a io::Error| tls_error(error.get_ref()?);
    error.downcast_ref().or_else(|| error.downcast_ref().and_then(wrapped))
}

impl ClientError {
    pub(crate) fn from_pool(authority: &str, error: &legacy::Error) -> Self {
        match error.source() {
            Some(source) if error.is_connect() => Self::Unreachable(authority.to_owned(), ConnectError::new(source)),
            Some(source) => Self::broken(authority, source),
            None => Self::broken(authority, error),
        }
    }

    pub(crate) fn broken(authority: &str, error: &(dyn Error + 'static)) -> Self {
        Self::Broken { authority: authority.to_owned(), reason: describe(error) }
    }
}

pub(crate) fn describe(error: &(dyn Error + 'static)) -> String {
    error.source().map_or_else(|| error.to_string(), |source| format!("{error}: {source}"))
}
