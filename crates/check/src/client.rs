//! Requests to the server under test, each with a timeout and a bounded response.

use std::path::Path;
use std::slice;
use std::time::Duration;

use hyper::body::Bytes;
use hyper::{Method, http};
use tokio::time::timeout;

use plantstore_client::trust::{self, TrustError};
use plantstore_client::{Cleartext, ClientError, Connection, HttpUrl, Proxies, Settings, UrlError, UrlTarget};

use crate::response::Response;

/// Maximum size of a response body in bytes.
const RESPONSE_MAX: usize = 4 << 20;
const CA_OPTION: &str = "--ca";

/// Error of a text that is not the URL of a server. The messages say what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServerUrlError {
    #[error("write the server's address as http://HOST:PORT or https://HOST:PORT, for example http://127.0.0.1:8080")]
    Malformed,
    #[error("remove user name and password from the URL; put the token into PLANTSTORE_TOKEN or into --token-file")]
    Credentials,
    #[error("the interface names its paths from the root: leave out everything after host and port")]
    Path,
}

/// Parses the URL of a server: scheme, host and port.
pub fn server_url(text: &str) -> Result<HttpUrl, ServerUrlError> {
    HttpUrl::parse(text, Cleartext::Anywhere, UrlTarget::None).map_err(|error| match error {
        UrlError::Malformed | UrlError::Cleartext => ServerUrlError::Malformed,
        UrlError::Credentials => ServerUrlError::Credentials,
        UrlError::Target => ServerUrlError::Path,
    })
}

#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) method: &'static str,
    pub(crate) path: String,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: String,
}

impl Request {
    pub(crate) fn new(method: &'static str, path: impl Into<String>) -> Self {
        Self { method, path: path.into(), headers: Vec::new(), body: String::new() }
    }

    /// Returns a create with this body, as JSON.
    pub(crate) fn create(body: impl Into<String>) -> Self {
        Self::json("POST", "/plants", body)
    }

    /// Returns a request with this body, as JSON.
    pub(crate) fn json(method: &'static str, path: impl Into<String>, body: impl Into<String>) -> Self {
        let request = Self::new(method, path).with("content-type", "application/json");
        Self { body: body.into(), ..request }
    }

    pub(crate) fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// Describes the request for messages, without its header fields, which hold the token.
    fn describe(&self) -> String {
        let with = if self.body.is_empty() { "" } else { " with " };
        format!("{} {}{with}{}", self.method, self.path, self.body)
    }

    fn encode(&self) -> Result<http::Request<Bytes>, http::Error> {
        let mut encoded = http::Request::builder().method(Method::from_bytes(self.method.as_bytes())?).uri(&self.path);
        for (name, value) in &self.headers {
            encoded = encoded.header(*name, value);
        }
        encoded.body(Bytes::from(self.body.clone()))
    }
}

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
    url: HttpUrl,
    http: plantstore_client::Client,
    timeout: Duration,
}

impl Client {
    /// Creates a client for the server. `authorities` is a file of authorities to trust instead of the system's.
    pub(crate) fn new(
        url: HttpUrl,
        authorities: Option<&Path>,
        proxies: Proxies,
        timeout: Duration,
    ) -> Result<Self, TrustError> {
        let roots = url.is_encrypted().then(|| trust::authorities(authorities, CA_OPTION)).transpose()?;
        let http = plantstore_client::Client::new(Settings {
            roots,
            ca_option: CA_OPTION,
            cleartext: Cleartext::Anywhere,
            proxies,
            response_max: RESPONSE_MAX,
        });
        Ok(Self { url, http, timeout })
    }

    /// Sends one request on a connection of its own.
    pub(crate) async fn send(&self, request: &Request) -> Result<Response, RequestError> {
        let mut responses = self.send_all(slice::from_ref(request)).await?;
        Ok(responses.swap_remove(0))
    }

    /// Sends several requests on one connection, one after the other. Returns as many responses.
    pub(crate) async fn send_all(&self, requests: &[Request]) -> Result<Vec<Response>, RequestError> {
        let exchanges = async {
            let connected = self.http.connect(&self.url).await;
            let mut connection = connected.map_err(|error| self.translate(error))?;
            let mut responses = Vec::with_capacity(requests.len());
            for request in requests {
                responses.push(self.exchange(&mut connection, request).await?);
            }
            Ok(responses)
        };
        timeout(self.timeout, exchanges).await.map_err(|_| RequestError::Timeout(self.timeout))?
    }

    async fn exchange(&self, connection: &mut Connection, request: &Request) -> Result<Response, RequestError> {
        let encoded = request.encode().map_err(|error| RequestError::Broken(error.to_string()))?;
        let response = connection.send(encoded).await.map_err(|error| self.translate(error))?;
        let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        Ok(Response {
            request: request.describe(),
            status: response.status.as_u16(),
            headers: response.headers.iter().map(|(name, value)| (name.as_str().to_owned(), text(value))).collect(),
            body: response.body.to_vec(),
        })
    }

    fn translate(&self, error: ClientError) -> RequestError {
        match error {
            ClientError::Unreachable(_, error) => RequestError::Unreachable(self.url.origin(), error),
            error @ ClientError::NoTrustRoots(..) => RequestError::Unreachable(self.url.origin(), error.to_string()),
            ClientError::Broken { reason, .. } | ClientError::Truncated { reason, .. } => RequestError::Broken(reason),
            ClientError::TooLarge { .. } => RequestError::TooLarge,
        }
    }
}
