//! Requests to the server under test, each with a timeout and a bounded response.

use std::slice;
use std::time::Duration;

use hyper::body::Bytes;
use hyper::http;
use tokio::time::timeout;

use plantstore_client::trust::TrustError;
use plantstore_client::{ClientError, HttpUrl, Server};

use crate::response::Response;

/// Maximum size of a response body in bytes.
const RESPONSE_MAX: usize = 4 << 20;

#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) method: &'static str,
    pub(crate) path: String,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: String,
    pub(crate) anonymous: bool,
}

impl Request {
    pub(crate) fn new(method: &'static str, path: impl Into<String>) -> Self {
        Self { method, path: path.into(), headers: Vec::new(), body: String::new(), anonymous: false }
    }

    pub(crate) fn create(body: impl Into<String>) -> Self {
        Self::json("POST", "/plants", body)
    }

    pub(crate) fn json(method: &'static str, path: impl Into<String>, body: impl Into<String>) -> Self {
        let request = Self::new(method, path).with("content-type", "application/json");
        Self { body: body.into(), ..request }
    }

    pub(crate) fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    pub(crate) fn anonymous(self) -> Self {
        Self { anonymous: true, ..self }
    }

    /// Describes the request for messages, without its header fields, which hold the token.
    pub(crate) fn describe(&self) -> String {
        let with = if self.body.is_empty() { "" } else { " with " };
        format!("{} {}{with}{}", self.method, self.path, self.body)
    }

    /// Adds the token, unless the request is anonymous or has other credentials.
    fn encode(&self, token: Option<&str>) -> Result<http::Request<Bytes>, http::Error> {
        let mut encoded = http::Request::builder().method(self.method).uri(&self.path);
        for (name, value) in &self.headers {
            encoded = encoded.header(*name, value);
        }
        let has_credentials = self.headers.iter().any(|(name, _)| *name == "authorization");
        if let Some(token) = token.filter(|_| !self.anonymous && !has_credentials) {
            encoded = encoded.header("authorization", format!("Bearer {token}"));
        }
        encoded.body(Bytes::from(self.body.clone()))
    }
}

#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The server has sent a link or an `ETag` that is not valid.
    #[error("the request cannot be sent: {0}")]
    Invalid(#[from] http::Error),
    #[error("no complete response within {0:?}")]
    Timeout(Duration),
}

pub(crate) struct Client {
    url: HttpUrl,
    http: plantstore_client::Client,
    token: Option<String>,
    timeout: Duration,
}

impl Client {
    pub(crate) fn new(server: Server, token: Option<String>, timeout: Duration) -> Result<Self, TrustError> {
        let http = server.client(RESPONSE_MAX)?;
        Ok(Self { url: server.url, http, token, timeout })
    }

    /// Returns the credentials with another name of the authentication scheme.
    pub(crate) fn credentials(&self, scheme: &str) -> String {
        format!("{scheme} {}", self.token.as_deref().unwrap_or_default())
    }

    /// Sends one request on a connection of its own.
    pub(crate) async fn send(&self, request: &Request) -> Result<Response, RequestError> {
        let mut responses = self.send_all(slice::from_ref(request)).await?;
        Ok(responses.swap_remove(0))
    }

    /// Sends several requests on one connection, one after the other. Returns as many responses.
    pub(crate) async fn send_all(&self, requests: &[Request]) -> Result<Vec<Response>, RequestError> {
        let exchanges = async {
            let mut connection = self.http.connect(&self.url).await?;
            let mut responses = Vec::with_capacity(requests.len());
            for request in requests {
                let response = connection.send(request.encode(self.token.as_deref())?).await?;
                responses.push(Response::new(request.describe(), &response, self.token.as_deref()));
            }
            Ok(responses)
        };
        timeout(self.timeout, exchanges).await.map_err(|_| RequestError::Timeout(self.timeout))?
    }
}
