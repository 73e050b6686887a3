//! Errors of outgoing requests. The texts are for the log.

use std::error::Error;
use std::io;

use rustls::{CertificateError, InvalidMessage};

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("cannot connect to {0}: {1}")]
    Unreachable(String, String),
    #[error("{authority} sent no valid response: {reason}")]
    Broken { authority: String, reason: String },
    #[error("the response of {authority} is incomplete: {reason}")]
    Truncated { authority: String, reason: String },
    #[error("the response of {authority} is larger than {limit} bytes")]
    TooLarge { authority: String, limit: usize },
}

/// Finds a TLS error wrapped in I/O errors. `source` cannot be used, because it skips the wrapped error itself.
fn tls_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    let wrapped = |error: &'a io::Error| tls_error(error.get_ref()?);
    error.downcast_ref().or_else(|| error.downcast_ref().and_then(wrapped))
}

fn remedy(error: &rustls::Error, ca_option: &str) -> String {
    match error {
        rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
            format!(": name the authority that has signed it with {ca_option}")
        }
        rustls::Error::InvalidCertificate(CertificateError::Other(other))
            if other.to_string().contains("CaUsedAsEndEntity") =>
        {
            ": the certificate of an authority cannot be used by a server, so make one with basicConstraints=CA:FALSE"
                .to_owned()
        }
        rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType) => {
            ": it speaks plain HTTP, so write http://".to_owned()
        }
        _ => String::new(),
    }
}

impl ClientError {
    pub(crate) fn unreachable(authority: &str, error: &(dyn Error + 'static), ca_option: &str) -> Self {
        let remedy = tls_error(error).map(|error| remedy(error, ca_option)).unwrap_or_default();
        Self::Unreachable(authority.to_owned(), format!("{error}{remedy}"))
    }

    pub(crate) fn broken(authority: &str, error: &(dyn Error + 'static)) -> Self {
        Self::Broken { authority: authority.to_owned(), reason: describe(error) }
    }
}

pub(crate) fn describe(error: &(dyn Error + 'static)) -> String {
    error.source().map_or_else(|| error.to_string(), |source| format!("{error}: {source}"))
}
