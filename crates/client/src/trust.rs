//! Trust roots of outgoing connections: the system's certificate authorities, or those in a file. Also the cryptography of all
//! TLS connections.

use std::path::Path;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

/// Files in which Linux distributions and other systems store their trusted certificate authorities.
const SYSTEM_FILES: &[&str] =
    &["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

/// The reason why no trust roots could be loaded. The messages are for operators and say what to do.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    #[error("this system has no file of trusted certificates: name one with {0}")]
    NoSystemFile(&'static str),
    #[error("cannot use the certificates in {file}: {reason}")]
    Unusable { file: String, reason: String },
}

/// Loads the certificates in `file`, or the system's if none is given; `option` is the command line option for such a file.
pub fn authorities(file: Option<&Path>, option: &'static str) -> Result<RootCertStore, TrustError> {
    let system = || SYSTEM_FILES.iter().map(Path::new).find(|file| file.exists());
    let file = file.or_else(system).ok_or(TrustError::NoSystemFile(option))?;
    let unusable = |reason: String| TrustError::Unusable { file: file.display().to_string(), reason };
    let mut authorities = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(file).map_err(|error| unusable(error.to_string()))? {
        let certificate = certificate.map_err(|error| unusable(error.to_string()))?;
        // A system's file may contain certificates that the library rejects; they are skipped.
        let _ = authorities.add(certificate);
    }
    if authorities.is_empty() {
        return Err(unusable("it has no valid certificate".to_owned()));
    }
    Ok(authorities)
}

/// Returns the cryptography of all TLS connections, incoming and outgoing.
pub fn crypto_provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}
