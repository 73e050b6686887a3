//! TLS connections to the database.

use std::future::Future;
use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, SignatureScheme};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio_postgres::Socket;
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::url::{PostgresUrl, TlsMode};
use plantstore_client::trust;

type RustlsConnect = <MakeRustlsConnect as MakeTlsConnect<Socket>>::TlsConnect;
type RustlsStream = <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream;

/// Message that asks the server for TLS. It responds with one byte, `S` if it supports TLS.
const TLS_REQUEST: [u8; 8] = [0, 0, 0, 8, 0x04, 0xD2, 0x16, 0x2F];
/// Message with which the server asks for the password in clear text.
const CLEARTEXT_REQUEST: &[u8] = b"R\0\0\0\x08\0\0\0\x03";
const CLEARTEXT_REJECTED: &str = "the server asks for the password in clear text without TLS, and did not get it: use \
    sslmode=verify-full or the authentication method scram-sha-256, or allow it with sslmode=disable";

/// Negotiates TLS with the server. tokio-postgres could do this, but would send the password in clear text to a server that
/// supports no TLS and asks for it.
#[derive(Clone)]
pub(super) struct Negotiator<T = MakeRustlsConnect> {
    tls: T,
    is_required: bool,
}

impl MakeTlsConnect<Socket> for Negotiator {
    type Stream = DatabaseStream;
    type TlsConnect = Negotiator<RustlsConnect>;
    type Error = <MakeRustlsConnect as MakeTlsConnect<Socket>>::Error;

    fn make_tls_connect(&mut self, host: &str) -> Result<Self::TlsConnect, Self::Error> {
        let tls = MakeTlsConnect::<Socket>::make_tls_connect(&mut self.tls, host)?;
        Ok(Negotiator { tls, is_required: self.is_required })
    }
}

impl TlsConnect<Socket> for Negotiator<RustlsConnect> {
    type Stream = DatabaseStream;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<DatabaseStream>> + Send>>;

    fn connect(self, mut socket: Socket) -> Self::Future {
        Box::pin(async move {
            socket.write_all(&TLS_REQUEST).await?;
            match socket.read_u8().await? {
                b'S' => Ok(DatabaseStream::Encrypted(Box::new(self.tls.connect(socket).await?))),
                _ if self.is_required => Err(io::Error::new(ErrorKind::InvalidData, "server does not support TLS")),
                _ => Ok(DatabaseStream::Plain { socket, start: Vec::new() }),
            }
        })
    }
}

/// A connection with or without TLS. Reading fails if the server asks for the password in clear text without TLS.
pub(super) enum DatabaseStream {
    Encrypted(Box<RustlsStream>),
    Plain {
        socket: Socket,
        /// First bytes from the server, as many as [`CLEARTEXT_REQUEST`] has. The request would be the first message.
        start: Vec<u8>,
    },
}

impl AsyncRead for DatabaseStream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Encrypted(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Plain { socket, start } => {
                let before = buffer.filled().len();
                ready!(Pin::new(socket).poll_read(context, buffer))?;
                let missing = CLEARTEXT_REQUEST.len() - start.len();
                start.extend(buffer.filled()[before..].iter().take(missing));
                if start == CLEARTEXT_REQUEST {
                    return Poll::Ready(Err(io::Error::new(ErrorKind::InvalidData, CLEARTEXT_REJECTED)));
                }
                Poll::Ready(Ok(()))
            }
        }
    }
}

impl AsyncWrite for DatabaseStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Encrypted(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Plain { socket, .. } => Pin::new(socket).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Encrypted(stream) => Pin::new(stream).poll_flush(context),
            Self::Plain { socket, .. } => Pin::new(socket).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Encrypted(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Plain { socket, .. } => Pin::new(socket).poll_shutdown(context),
        }
    }
}

impl TlsStream for DatabaseStream {
    fn channel_binding(&self) -> ChannelBinding {
        match self {
            Self::Encrypted(stream) => stream.channel_binding(),
            Self::Plain { .. } => ChannelBinding::none(),
        }
    }
}

/// Returns the negotiator for the URL, or the fault of its trusted certificates.
pub(super) fn negotiator(url: &PostgresUrl) -> Result<Negotiator, String> {
    let provider = trust::crypto_provider();
    let authority = match url.tls_mode {
        TlsMode::Disable | TlsMode::Prefer | TlsMode::Require => None,
        TlsMode::VerifyCa | TlsMode::VerifyFull => {
            let file = url.authorities.as_deref();
            let trusted = trust::authorities(file, "sslrootcert=FILE").map_err(|fault| fault.to_string())?;
            let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(trusted), Arc::clone(&provider));
            Some(verifier.build().map_err(|error| error.to_string())?)
        }
    };
    let verifier = CertificateVerifier {
        authority,
        verify_name: url.tls_mode == TlsMode::VerifyFull,
        provider: Arc::clone(&provider),
    };
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    Ok(Negotiator { tls: MakeRustlsConnect::new(config), is_required: url.tls_mode != TlsMode::Prefer })
}

/// Verifies the database's certificate as configured in the URL.
#[derive(Debug)]
struct CertificateVerifier {
    authority: Option<Arc<WebPkiServerVerifier>>,
    verify_name: bool,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for CertificateVerifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(authority) = &self.authority else {
            return Ok(ServerCertVerified::assertion());
        };
        match authority.verify_server_cert(certificate, intermediates, name, ocsp, now) {
            // The name is verified last, so the certificate is valid otherwise.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if !self.verify_name => Ok(ServerCertVerified::assertion()),
            checked => checked,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
