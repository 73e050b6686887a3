//! Trust roots of outgoing connections: the certificates of the system's authorities, or those in a file.

use std::path::Path;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::address::Address;

/// Files in which systems store the certificates of the authorities that they trust.
const SYSTEM_FILES: &[&str] =
    &["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

/// The reason why there are no trust roots. The messages are for operators and say what to do.
#[derive(Debug, thiserror::Error)]
pub enum TrustFault {
    /// No file was named, and the system has none.
    #[error("this system has no file of trusted certificates: name one with {0}")]
    NoSystemFile(&'static str),
    #[error("cannot use the certificates in {file}: {reason}")]
    Unusable { file: String, reason: String },
}

/// Returns the certificates in `file`, or the system's if none is named; `option` is the command line option that names one.
pub fn authorities(file: Option<&Path>, option: &'static str) -> Result<RootCertStore, TrustFault> {
    let system = || SYSTEM_FILES.iter().map(Path::new).find(|file| file.exists());
    let file = file.or_else(system).ok_or(TrustFault::NoSystemFile(option))?;
    let unusable = |reason: String| TrustFault::Unusable { file: file.display().to_string(), reason };
    let mut authorities = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(file).map_err(|error| unusable(error.to_string()))? {
        let certificate = certificate.map_err(|error| unusable(error.to_string()))?;
        // A system's file may hold malformed ones, which are skipped.
        let _ = authorities.add(certificate);
    }
    if authorities.is_empty() {
        return Err(unusable("there are none".to_owned()));
    }
    Ok(authorities)
}

/// Returns the certificates to trust for requests to `address` and what it refers to. A system without any is good enough
/// for plain HTTP.
pub fn authorities_for(
    address: &Address,
    file: Option<&Path>,
    option: &'static str,
) -> Result<Option<RootCertStore>, TrustFault> {
    match authorities(file, option) {
        Err(_) if file.is_none() && !address.is_encrypted() => Ok(None),
        found => found.map(Some),
    }
}

/// Returns the cryptography of every encrypted connection.
pub fn cryptography() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}
