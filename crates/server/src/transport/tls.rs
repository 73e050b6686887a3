//! TLS for incoming connections: the certificate, which is reloaded when its files change, and the handshake.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rustls::ServerConfig;
use rustls::crypto::ring::Ticketer;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use sha2::{Digest, Sha256};
use tokio_rustls::TlsAcceptor;
use x509_cert::der::asn1::AnyRef;
use x509_cert::der::{Decode as _, SliceReader, Tag, Tagged as _};
use x509_cert::time::Time;

use super::connection_state::{Phase, Protocol};
use super::stream::{Socket, Stream};
use plantstore_client::trust;
use plantstore_telemetry::metrics::Exposition;

const HTTP_2: &[u8] = b"h2";
const HTTP_1_1: &[u8] = b"http/1.1";
/// Maximum size of the buffer of encrypted bytes.
const ENCRYPTED_BUFFER_MAX: usize = 16 * 1024;
const READABLE_BY_ALL: u32 = 0o004;

/// The reason why a certificate cannot be loaded. The messages are for operators and say what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CertificateFileError {
    #[error("cannot read {file}: {reason}")]
    Unreadable { file: String, reason: String },
    #[error("{0} has no certificate: it must have the whole chain in PEM, the server's own first")]
    NoCertificate(String),
    #[error("{0} has no private key: it must have one in PEM (PKCS#8, PKCS#1 or SEC1) that is not encrypted")]
    NoKey(String),
    #[error("the key in {key} does not belong to the first certificate in {certificate}")]
    Mismatch { certificate: String, key: String },
    #[error("cannot use the certificate in {certificate} with the key in {key}: {reason}")]
    Unusable { certificate: String, key: String, reason: String },
}

pub struct Tls {
    files: CertificateFiles,
    current: Arc<CurrentCertificate>,
    acceptor: TlsAcceptor,
}

impl Tls {
    pub fn new(certificate: PathBuf, key: PathBuf) -> Result<Self, CertificateFileError> {
        let files = CertificateFiles { certificate, key };
        let current = Arc::new(CurrentCertificate(Mutex::new(files.read()?)));
        let config = server_config(Arc::clone(&current)).map_err(|error| files.unusable(&error))?;
        Ok(Self { files, current, acceptor: TlsAcceptor::from(Arc::new(config)) })
    }

    /// Reads the files again; true if new connections get a new certificate. After an error, the old one stays in use.
    pub fn reload(&self) -> Result<bool, CertificateFileError> {
        let new = self.files.read()?;
        let old = std::mem::replace(&mut *self.current.get(), Arc::clone(&new));
        // Only one key belongs to a certificate.
        Ok(new.cert != old.cert)
    }

    /// Returns the SHA-256 of the certificate in the format of `openssl x509 -fingerprint -sha256`.
    pub fn fingerprint(&self) -> String {
        let digest = Sha256::digest(self.current.get().cert[0].as_ref());
        let bytes: Vec<String> = digest.iter().map(|byte| format!("{byte:02X}")).collect();
        bytes.join(":")
    }

    pub fn write_metrics(&self, exposition: &mut Exposition) {
        let expires = expiry(&self.current.get().cert[0]);
        if let Some(expires) = expires {
            let help = "Expiry of the TLS certificate in use, as Unix time.";
            exposition.gauge("plantstore_tls_certificate_expiry_timestamp_seconds", help).sample(&[], expires);
        }
    }

    pub fn key_is_readable_by_all(&self) -> bool {
        fs::metadata(&self.files.key).is_ok_and(|metadata| metadata.permissions().mode() & READABLE_BY_ALL != 0)
    }

    pub(super) async fn accept(&self, socket: Socket) -> io::Result<(Stream, Protocol)> {
        let mut stream = self.acceptor.accept(socket).await?;
        stream.get_mut().1.set_buffer_limit(Some(ENCRYPTED_BUFFER_MAX));
        let http2 = stream.get_ref().1.alpn_protocol() == Some(HTTP_2);
        let protocol = if http2 { Protocol::Http2 } else { Protocol::Http1(Phase::New(Instant::now())) };
        Ok((Stream::Right(Box::new(stream)), protocol))
    }
}

fn server_config(certificate: Arc<CurrentCertificate>) -> Result<ServerConfig, rustls::Error> {
    let versions = [&rustls::version::TLS13, &rustls::version::TLS12];
    let config = ServerConfig::builder_with_provider(trust::crypto_provider()).with_protocol_versions(&versions)?;
    let mut config = config.with_no_client_auth().with_cert_resolver(certificate);
    config.alpn_protocols = vec![HTTP_2.to_vec(), HTTP_1_1.to_vec()];
    // Session tickets: the client stores the session, and the server stores nothing.
    config.ticketer = Ticketer::new()?;
    Ok(config)
}

struct CertificateFiles {
    certificate: PathBuf,
    key: PathBuf,
}

impl CertificateFiles {
    fn read(&self) -> Result<Arc<CertifiedKey>, CertificateFileError> {
        let certificates = contents(&self.certificate)?;
        let key = contents(&self.key)?;
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&certificates).collect();
        let chain = chain.map_err(|error| unreadable(&self.certificate, &error))?;
        if chain.is_empty() {
            return Err(CertificateFileError::NoCertificate(self.certificate.display().to_string()));
        }
        let key = PrivateKeyDer::from_pem_slice(&key)
            .map_err(|_| CertificateFileError::NoKey(self.key.display().to_string()))?;
        let certified = CertifiedKey::from_der(chain, key, &trust::crypto_provider());
        certified.map(Arc::new).map_err(|error| self.unusable(&error))
    }

    fn unusable(&self, error: &rustls::Error) -> CertificateFileError {
        let certificate = self.certificate.display().to_string();
        let key = self.key.display().to_string();
        match error {
            rustls::Error::InconsistentKeys(_) => CertificateFileError::Mismatch { certificate, key },
            error => CertificateFileError::Unusable { certificate, key, reason: error.to_string() },
        }
    }
}

fn contents(file: &Path) -> Result<Vec<u8>, CertificateFileError> {
    fs::read(file).map_err(|error| unreadable(file, &error))
}

fn unreadable(file: &Path, error: &dyn std::error::Error) -> CertificateFileError {
    CertificateFileError::Unreadable { file: file.display().to_string(), reason: error.to_string() }
}

#[derive(Debug)]
struct CurrentCertificate(Mutex<Arc<CertifiedKey>>);

impl CurrentCertificate {
    fn get(&self) -> MutexGuard<'_, Arc<CertifiedKey>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ResolvesServerCert for CurrentCertificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.get()))
    }
}

/// Returns the expiry time of a certificate in DER, as Unix time; `None` if it is not a certificate.
///
/// Only the fields up to the validity are decoded: a certificate that the TLS library accepts may have names, extensions and
/// serial numbers that a strict decoder rejects.
fn expiry(certificate: &[u8]) -> Option<u64> {
    let certificate = AnyRef::from_der(certificate).ok()?;
    let signed = AnyRef::decode(&mut SliceReader::new(certificate.value()).ok()?).ok()?;
    let mut fields = SliceReader::new(signed.value()).ok()?;
    let mut next = || AnyRef::decode(&mut fields).ok();
    let first = next()?;
    if matches!(first.tag(), Tag::ContextSpecific { .. }) {
        // It was the version; the serial number follows.
        next()?;
    }
    let _algorithm = next()?;
    let _issuer = next()?;
    let validity = next()?;
    let mut times = SliceReader::new(validity.value()).ok()?;
    AnyRef::decode(&mut times).ok()?;
    Some(Time::decode(&mut times).ok()?.to_unix_duration().as_secs())
}
