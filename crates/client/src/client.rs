//! HTTP/1.1 client on one connector. It sets no deadline (the caller does) and follows no redirects.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{ACCEPT, HOST, HeaderValue, PROXY_AUTHORIZATION, USER_AGENT};
use hyper::{HeaderMap, Method, Request, StatusCode, Uri};
use hyper_rustls::HttpsConnector;
use hyper_util::client::proxy::matcher::Intercept;
use rustls::{ClientConfig, RootCertStore};
use tokio::task::JoinHandle;
use tower_service::Service;

use crate::connect::{Proxies, TcpConnector};
use crate::error::{ClientError, describe};
use crate::http_url::{Cleartext, HttpUrl};
use crate::trust::{self, TrustError};

const JSON: &str = "application/json";
const AGENT: &str = concat!("plantstore/", env!("CARGO_PKG_VERSION"));
/// Shorter than the time after which servers commonly close a connection.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

pub struct Settings<'a> {
    /// Requests go to this URL, and to those that its responses name.
    pub url: &'a HttpUrl,
    /// A file of authorities to trust instead of the system's.
    pub authorities: Option<&'a Path>,
    /// The command line option that names such a file, for error messages.
    pub ca_option: &'static str,
    pub cleartext: Cleartext,
    pub proxies: Proxies,
    /// Maximum size of a response body in bytes.
    pub response_max: usize,
}

/// A server that an option names.
pub struct Server {
    pub url: HttpUrl,
    /// A file of authorities to trust instead of the system's, from the option `--ca`.
    pub authorities: Option<PathBuf>,
    pub proxies: Proxies,
}

impl Server {
    pub fn client(&self, response_max: usize) -> Result<Client, TrustError> {
        Client::new(Settings {
            url: &self.url,
            authorities: self.authorities.as_deref(),
            ca_option: "--ca",
            cleartext: Cleartext::Anywhere,
            proxies: self.proxies.clone(),
            response_max,
        })
    }
}

#[derive(Debug)]
pub struct Response {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

pub struct Client {
    connector: HttpsConnector<TcpConnector>,
    proxies: Proxies,
    ca_option: &'static str,
    response_max: usize,
    /// The connection of the last request, for the next one to the same server.
    idle: Mutex<Option<Connection>>,
}

impl Client {
    #[expect(clippy::missing_panics_doc, reason = "the provider has cipher suites for all protocol versions")]
    pub fn new(settings: Settings<'_>) -> Result<Self, TrustError> {
        let Settings { url, authorities, ca_option, cleartext, proxies, response_max } = settings;
        let roots = match trust::authorities(authorities, ca_option) {
            // For plain HTTP, a system without any certificates is no error.
            Err(_) if authorities.is_none() && !url.is_encrypted() => RootCertStore::empty(),
            found => found?,
        };
        let config = ClientConfig::builder_with_provider(trust::crypto_provider())
            .with_safe_default_protocol_versions()
            .expect("the provider has cipher suites for all protocol versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        let connector = HttpsConnector::from((TcpConnector { cleartext, proxies: proxies.clone() }, config));
        Ok(Self { connector, proxies, ca_option, response_max, idle: Mutex::default() })
    }

    pub async fn get(&self, address: &HttpUrl) -> Result<Response, ClientError> {
        let mut request = Request::new(Bytes::new());
        request.headers_mut().insert(ACCEPT, HeaderValue::from_static(JSON));
        self.send(address, request).await
    }

    /// Sends a `POST` request. The server may receive it twice, see [`Self::send`].
    pub async fn post(&self, address: &HttpUrl, headers: HeaderMap, body: Bytes) -> Result<Response, ClientError> {
        let mut request = Request::new(body);
        *request.method_mut() = Method::POST;
        *request.headers_mut() = headers;
        self.send(address, request).await
    }

    /// Sends a request on the idle connection, and once more on a new one if that breaks before the response: the server has
    /// probably closed it since the last response. If it has not, it receives the request twice.
    async fn send(&self, address: &HttpUrl, mut request: Request<Bytes>) -> Result<Response, ClientError> {
        *request.uri_mut() = address.target();
        let idle = self.idle().take().filter(|idle| idle.is_usable_for(address));
        if let Some(mut connection) = idle {
            match connection.send(request.clone()).await {
                Err(ClientError::Broken { .. }) => {}
                response => return self.reusing(connection, response),
            }
        }
        let mut connection = self.connect(address).await?;
        let response = connection.send(request).await;
        self.reusing(connection, response)
    }

    /// Stores the connection of a complete response for the next request.
    fn reusing(
        &self,
        connection: Connection,
        response: Result<Response, ClientError>,
    ) -> Result<Response, ClientError> {
        let response = response?;
        *self.idle() = Some(connection);
        Ok(response)
    }

    fn idle(&self) -> MutexGuard<'_, Option<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub async fn connect(&self, address: &HttpUrl) -> Result<Connection, ClientError> {
        let stream = self.connector.clone().call(address.uri().clone()).await;
        let stream = stream.map_err(|error| ClientError::unreachable(address.authority(), &*error, self.ca_option))?;
        let broken = |error: hyper::Error| ClientError::broken(address.authority(), &error);
        let (sender, connection) = http1::handshake(stream).await.map_err(broken)?;
        Ok(Connection {
            sender,
            // Its errors are returned to the pending request.
            driver: tokio::spawn(async move { drop(connection.await) }),
            address: address.clone(),
            // For HTTPS, the proxy has opened a tunnel.
            forwarding_proxy: self.proxies.proxy_for(address.uri()).filter(|_| !address.is_encrypted()),
            response_max: self.response_max,
            last_response: Instant::now(),
        })
    }
}

/// One connection, which is closed when this is dropped.
pub struct Connection {
    sender: SendRequest<Full<Bytes>>,
    driver: JoinHandle<()>,
    address: HttpUrl,
    /// The proxy that requests go to, which forwards plain HTTP.
    forwarding_proxy: Option<Intercept>,
    response_max: usize,
    last_response: Instant,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Connection {
    fn is_usable_for(&self, address: &HttpUrl) -> bool {
        self.last_response.elapsed() < IDLE_TIMEOUT && self.address.origin() == address.origin()
    }

    /// Sends a request whose URI is a path with or without a query.
    pub async fn send(&mut self, mut request: Request<Bytes>) -> Result<Response, ClientError> {
        let authority = self.address.authority();
        let headers = request.headers_mut();
        if let Ok(host) = HeaderValue::from_str(authority) {
            headers.insert(HOST, host);
        }
        headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
        if let Some(proxy) = &self.forwarding_proxy {
            headers.extend(proxy.basic_auth().map(|credentials| (PROXY_AUTHORIZATION, credentials.clone())));
            let absolute = format!("http://{authority}{}", request.uri());
            *request.uri_mut() = absolute.parse::<Uri>().map_err(|error| ClientError::broken(authority, &error))?;
        }
        let broken = |error: hyper::Error| ClientError::broken(authority, &error);
        self.sender.ready().await.map_err(broken)?;
        let response = self.sender.send_request(request.map(Full::new)).await.map_err(broken)?;
        let (parts, body) = response.into_parts();
        let limit = self.response_max;
        let body = Limited::new(body, limit).collect().await.map_err(|error| {
            let authority = authority.to_owned();
            if error.is::<LengthLimitError>() {
                return ClientError::TooLarge { authority, limit };
            }
            ClientError::Truncated { authority, reason: describe(&*error) }
        })?;
        self.last_response = Instant::now();
        Ok(Response { status: parts.status, headers: parts.headers, body: body.to_bytes() })
    }
}
