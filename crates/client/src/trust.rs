//! Whose certificates are trusted: those of the system's authorities, or of the authorities in a file. Used wherever the
//! service itself connects to somebody.

use std::path::Path;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

/// Where systems keep the authorities they trust.
const SYSTEM_FILES: &[&str] =
    &["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

/// Why there is nobody to trust. The messages are for operators and say what to do.
#[derive(Debug, thiserror::Error)]
pub enum TrustFault {
    /// No file was named, and the system has none.
    #[error("this system has no file of trusted certificates: name one with {0}")]
    NoSystemFile(&'static str),
    /// The file cannot be read, or holds no certificate.
    #[error("cannot use the certificates in {file}: {why}")]
    Unusable {
        /// The file.
        file: String,
        /// What is wrong with it.
        why: String,
    },
}

/// The authorities in `file`, or the system's if none is named; `option` is how operators name one.
pub fn authorities(file: Option<&Path>, option: &'static str) -> Result<RootCertStore, TrustFault> {
    let system = || SYSTEM_FILES.iter().map(Path::new).find(|file| file.exists());
    let file = file.or_else(system).ok_or(TrustFault::NoSystemFile(option))?;
    let unusable = |why: String| TrustFault::Unusable { file: file.display().to_string(), why };
    let mut authorities = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(file).map_err(|error| unusable(error.to_string()))? {
        let certificate = certificate.map_err(|error| unusable(error.to_string()))?;
        // A system's file may hold some that are malformed; those are trusted by nobody.
        let _ = authorities.add(certificate);
    }
    if authorities.is_empty() {
        return Err(unusable("there are none".to_owned()));
    }
    Ok(authorities)
}

/// The cryptography of every encrypted connection.
pub fn cryptography() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}
