//! Requests to the server under test, each with a timeout and a bounded response.

use std::path::Path;
use std::time::Duration;

use hyper::body::Bytes;
use hyper::{Method, http};
use tokio::time::timeout;

use plantstore_client::trust::{self, TrustError};
use plantstore_client::{Cleartext, ClientError, ConnectError, Connection, Proxies, Settings, TlsFailure};

use crate::request::Request;
use crate::response::Response;
use crate::url::ServerUrl;

/// Maximum size of a response body in bytes.
const RESPONSE_MAX: usize = 4 << 20;
const CA_OPTION: &str = "--ca";

/// Error of a request that got no response.
#[derive(Clone, Debug, thiserror::Error)]
pub enum RequestError {
    #[error("cannot connect to {0}: {1}")]
    Unreachable(String, String),
    /// The connection ended, or the response is not HTTP.
    #[error("the connection broke: {0}")]
    Broken(String),
    #[error("no complete response within {0:?}")]
    Timeout(Duration),
    #[error("a response of more than {RESPONSE_MAX} bytes")]
    TooLarge,
}

pub(crate) struct Client {
    url: ServerUrl,
    https: plantstore_client::Client,
    timeout: Duration,
}

impl Client {
    /// Creates a client for the server. `authorities` is a file of authorities to trust instead of the system's.
    pub(crate) fn new(
        url: ServerUrl,
        authorities: Option<&Path>,
        proxies: Proxies,
        timeout: Duration,
    ) -> Result<Self, TrustError> {
        let encrypted = url.address().is_encrypted();
        let roots = encrypted.then(|| trust::authorities(authorities, CA_OPTION)).transpose()?;
        let https = plantstore_client::Client::new(Settings {
            roots,
            ca_option: CA_OPTION,
            cleartext: Cleartext::Anywhere,
            proxies,
            response_max: RESPONSE_MAX,
        });
        Ok(Self { url, https, timeout })
    }

    /// Sends one request on a connection of its own.
    pub(crate) async fn send(&self, request: &Request) -> Result<Response, RequestError> {
        let exchange = async { self.exchange(&mut self.connect().await?, request).await };
        timeout(self.timeout, exchange).await.map_err(|_| RequestError::Timeout(self.timeout))?
    }

    /// Sends several requests on one connection, one after the other.
    pub(crate) async fn send_all(&self, requests: &[Request]) -> Result<Vec<Response>, RequestError> {
        let exchanges = async {
            let mut connection = self.connect().await?;
            let mut responses = Vec::with_capacity(requests.len());
            for request in requests {
                responses.push(self.exchange(&mut connection, request).await?);
            }
            Ok(responses)
        };
        timeout(self.timeout, exchanges).await.map_err(|_| RequestError::Timeout(self.timeout))?
    }

    async fn connect(&self) -> Result<Connection, RequestError> {
        self.https.connect(self.url.address()).await.map_err(|error| self.translate(error))
    }

    async fn exchange(&self, connection: &mut Connection, request: &Request) -> Result<Response, RequestError> {
        let encoded = encode(request).map_err(|error| RequestError::Broken(error.to_string()))?;
        let response = connection.send(encoded).await.map_err(|error| self.translate(error))?;
        let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        let headers = response.headers.iter().map(|(name, value)| (name.as_str().to_owned(), text(value))).collect();
        Ok(Response {
            request: request.describe(),
            status: response.status.as_u16(),
            headers,
            body: response.body.to_vec(),
        })
    }

    fn translate(&self, error: ClientError) -> RequestError {
        match error {
            ClientError::Unreachable(_, error) => {
                RequestError::Unreachable(self.url.to_string(), format!("{error}{}", remedy(&error)))
            }
            error @ ClientError::NoTrustRoots(..) => RequestError::Unreachable(self.url.to_string(), error.to_string()),
            ClientError::Broken { reason, .. } | ClientError::Truncated { reason, .. } => RequestError::Broken(reason),
            ClientError::TooLarge { .. } => RequestError::TooLarge,
        }
    }
}

fn encode(request: &Request) -> Result<http::Request<Bytes>, http::Error> {
    let mut encoded =
        http::Request::builder().method(Method::from_bytes(request.method.as_bytes())?).uri(&request.path);
    for (name, value) in &request.headers {
        encoded = encoded.header(*name, value);
    }
    encoded.body(Bytes::from(request.body.clone().unwrap_or_default()))
}

/// Returns the remedy for an error, if it is known.
fn remedy(error: &ConnectError) -> &'static str {
    match error.tls_failure() {
        Some(TlsFailure::UnknownIssuer) => ": name the authority that has signed it with --ca",
        Some(TlsFailure::AuthorityAsServer) => {
            ": the certificate of an authority cannot be used by a server, so make one with basicConstraints=CA:FALSE"
        }
        Some(TlsFailure::NotTls) => ": it speaks plain HTTP, so write http://",
        None => "",
    }
}
