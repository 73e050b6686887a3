//! TLS for the clients of the service: the certificate, taken from its files again whenever they change, and the handshake.

mod expiry;

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustls::ServerConfig;
use rustls::crypto::ring::Ticketer;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use sha2::{Digest, Sha256};
use tokio_rustls::TlsAcceptor;

use self::expiry::expiry;
use super::socket::Socket;
use super::stream::Stream;
use plantstore_client::trust;
use plantstore_telemetry::metrics::Page;

/// What is spoken within, by the names that client and server agree on during the handshake.
const HTTP_2: &[u8] = b"h2";
const HTTP_1_1: &[u8] = b"http/1.1";
/// What the first record of a TLS client starts with.
const HANDSHAKE: u8 = 22;
/// Bytes of a response that wait encrypted for a client to take them.
const ENCRYPTED_BUFFER_MAX: usize = 16 * 1024;
/// Permission of all users to read a file.
const READABLE_BY_ALL: u32 = 0o004;

/// Why there is no certificate to show. The messages are for operators and say what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TlsFault {
    /// One of the files cannot be read.
    #[error("cannot read {file}: {why}")]
    Unreadable {
        /// The file.
        file: String,
        /// Why.
        why: String,
    },
    /// There is no certificate in its file.
    #[error("{0} holds no certificate: it must have the whole chain in PEM, the server's own first")]
    NoCertificate(String),
    /// There is no key in its file.
    #[error("{0} holds no private key: it must have one in PEM (PKCS#8, PKCS#1 or SEC1) that is not encrypted")]
    NoKey(String),
    /// The key is another certificate's.
    #[error("the key in {key} does not belong to the first certificate in {certificate}")]
    Mismatch {
        /// The file of the certificate.
        certificate: String,
        /// The file of the key.
        key: String,
    },
    /// They are of a kind that cannot be used.
    #[error("cannot use the certificate in {certificate} with the key in {key}: {why}")]
    Unusable {
        /// The file of the certificate.
        certificate: String,
        /// The file of the key.
        key: String,
        /// What is wrong with them.
        why: String,
    },
}

/// What became of looking at the files again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// They hold what they held before.
    Unchanged,
    /// New connections get what they hold now.
    Renewed,
}

/// The service's side of encrypted connections.
pub struct Tls {
    files: Files,
    shown: Arc<Shown>,
    acceptor: TlsAcceptor,
}

impl Tls {
    /// Encryption with the certificate and the key in these files.
    pub fn new(certificate: PathBuf, key: PathBuf) -> Result<Self, TlsFault> {
        let files = Files { certificate, key };
        let shown = Arc::new(Shown(Mutex::new(files.read()?)));
        let config = server_config(Arc::clone(&shown)).map_err(|error| files.unusable(&error))?;
        Ok(Self { files, shown, acceptor: TlsAcceptor::from(Arc::new(config)) })
    }

    /// Looks at the files again. If there is something wrong with them, what they held before is shown on.
    pub fn renew(&self) -> Result<Renewal, TlsFault> {
        let found = self.files.read()?;
        let mut shown = self.shown.pair();
        if found.digest == shown.digest {
            return Ok(Renewal::Unchanged);
        }
        *shown = found;
        Ok(Renewal::Renewed)
    }

    /// The SHA-256 of the certificate that is shown, as `openssl x509 -fingerprint -sha256` writes it.
    pub fn fingerprint(&self) -> String {
        let digest = Sha256::digest(self.shown.pair().key.cert[0].as_ref());
        let bytes: Vec<String> = digest.iter().map(|byte| format!("{byte:02X}")).collect();
        bytes.join(":")
    }

    /// Writes when the certificate that is shown expires.
    pub fn write_metrics(&self, page: &mut Page) {
        let expires = expiry(&self.shown.pair().key.cert[0]);
        if let Some(expires) = expires {
            let help = "Expiry of the TLS certificate in use, as Unix time.";
            page.gauge("plantstore_tls_certificate_expiry_timestamp_seconds", help).sample(&[], expires.as_second());
        }
    }

    /// Returns true if all users of this machine may read the key.
    pub fn key_is_readable_by_all(&self) -> bool {
        fs::metadata(&self.files.key).is_ok_and(|metadata| metadata.permissions().mode() & READABLE_BY_ALL != 0)
    }

    /// Performs the handshake with a client.
    pub(super) async fn accept(&self, socket: Socket) -> Result<(Stream, Protocol), HandshakeError> {
        match socket.first_byte().await {
            Some(HANDSHAKE) => {}
            Some(_) => return Err(HandshakeError::NotEncrypted(Stream::Plain(socket))),
            None => return Err(HandshakeError::Gone),
        }
        let mut stream = self.acceptor.accept(socket).await.map_err(HandshakeError::Failed)?;
        stream.get_mut().1.set_buffer_limit(Some(ENCRYPTED_BUFFER_MAX));
        let http2 = stream.get_ref().1.alpn_protocol() == Some(HTTP_2);
        let protocol = if http2 { Protocol::Http2 } else { Protocol::Http1 };
        Ok((Stream::Tls(Box::new(stream)), protocol))
    }
}

/// The protocol that client and server have agreed on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    Http1,
    Http2,
}

/// Reasons why a handshake does not succeed.
pub(super) enum HandshakeError {
    /// The client does not speak TLS at all.
    NotEncrypted(Stream),
    /// The client has closed the connection without a byte, as TCP health checks do.
    Gone,
    Failed(io::Error),
}

fn server_config(shown: Arc<Shown>) -> Result<ServerConfig, rustls::Error> {
    let versions = [&rustls::version::TLS13, &rustls::version::TLS12];
    let config = ServerConfig::builder_with_provider(trust::cryptography()).with_protocol_versions(&versions)?;
    let mut config = config.with_no_client_auth().with_cert_resolver(shown);
    config.alpn_protocols = vec![HTTP_2.to_vec(), HTTP_1_1.to_vec()];
    // Clients bring their session along when they reconnect: nothing is stored here.
    config.ticketer = Ticketer::new()?;
    Ok(config)
}

/// Where the certificate and its key are.
struct Files {
    certificate: PathBuf,
    key: PathBuf,
}

impl Files {
    fn read(&self) -> Result<Pair, TlsFault> {
        let certificates = contents(&self.certificate)?;
        let key = contents(&self.key)?;
        let mut digest = Sha256::new();
        digest.update(Sha256::digest(&certificates));
        digest.update(Sha256::digest(&key));
        Ok(Pair { key: Arc::new(self.pair(&certificates, &key)?), digest: digest.finalize().into() })
    }

    fn pair(&self, certificates: &[u8], key: &[u8]) -> Result<CertifiedKey, TlsFault> {
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificates).collect();
        let chain = chain.map_err(|error| unreadable(&self.certificate, &error))?;
        if chain.is_empty() {
            return Err(TlsFault::NoCertificate(shown(&self.certificate)));
        }
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| TlsFault::NoKey(shown(&self.key)))?;
        CertifiedKey::from_der(chain, key, &trust::cryptography()).map_err(|error| self.unusable(&error))
    }

    fn unusable(&self, error: &rustls::Error) -> TlsFault {
        let (certificate, key) = (shown(&self.certificate), shown(&self.key));
        match error {
            rustls::Error::InconsistentKeys(_) => TlsFault::Mismatch { certificate, key },
            error => TlsFault::Unusable { certificate, key, why: error.to_string() },
        }
    }
}

fn contents(file: &Path) -> Result<Vec<u8>, TlsFault> {
    fs::read(file).map_err(|error| unreadable(file, &error))
}

fn unreadable(file: &Path, why: &dyn std::error::Error) -> TlsFault {
    TlsFault::Unreadable { file: shown(file), why: why.to_string() }
}

fn shown(file: &Path) -> String {
    file.display().to_string()
}

/// A certificate with its key, and what tells whether the files still hold them.
#[derive(Debug)]
struct Pair {
    key: Arc<CertifiedKey>,
    digest: [u8; 32],
}

/// The certificate that new connections get.
#[derive(Debug)]
struct Shown(Mutex<Pair>);

impl Shown {
    fn pair(&self) -> MutexGuard<'_, Pair> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ResolvesServerCert for Shown {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.pair().key))
    }
}
