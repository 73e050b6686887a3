//! HTTP/1.1 client for pooled connections and for a connection of the caller's own. It sets no deadline (the caller does) and
//! follows no redirects.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{ACCEPT, HOST, HeaderValue, PROXY_AUTHORIZATION, USER_AGENT};
use hyper::http::Extensions;
use hyper::{HeaderMap, Method, Request, StatusCode, Uri};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::Connection as _;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::{ClientConfig, RootCertStore};
use tokio::task::JoinHandle;
use tower_service::Service;

use crate::connect::{Proxies, Reused, TcpConnector};
use crate::error::{ClientError, describe};
use crate::http_url::{Cleartext, HttpUrl};
use crate::trust;

const JSON: &str = "application/json";
const AGENT: &str = concat!("plantstore/", env!("CARGO_PKG_VERSION"));
/// Shorter than the time after which servers commonly close a connection.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

pub struct Settings {
    /// Certificates to trust; without any, only plain HTTP is possible.
    pub roots: Option<RootCertStore>,
    /// The command line option that names a file of certificates, for error messages.
    pub ca_option: &'static str,
    pub cleartext: Cleartext,
    pub proxies: Proxies,
    /// Maximum size of a response body in bytes.
    pub response_max: usize,
}

#[derive(Debug)]
pub struct Response {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

pub struct Client {
    connector: HttpsConnector<TcpConnector>,
    pool: legacy::Client<HttpsConnector<TcpConnector>, Full<Bytes>>,
    proxies: Proxies,
    has_roots: bool,
    ca_option: &'static str,
    response_max: usize,
}

impl Client {
    #[expect(clippy::missing_panics_doc, reason = "the provider has cipher suites for all protocol versions")]
    pub fn new(settings: Settings) -> Self {
        let Settings { roots, ca_option, cleartext, proxies, response_max } = settings;
        let has_roots = roots.is_some();
        let config = ClientConfig::builder_with_provider(trust::crypto_provider())
            .with_safe_default_protocol_versions()
            .expect("the provider has cipher suites for all protocol versions")
            .with_root_certificates(roots.unwrap_or_else(RootCertStore::empty))
            .with_no_client_auth();
        let connector = HttpsConnector::from((TcpConnector { cleartext, proxies: proxies.clone() }, config));
        let pool = legacy::Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .build(connector.clone());
        Self { connector, pool, proxies, has_roots, ca_option, response_max }
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

    /// Sends a request on a pooled connection, and once more on another one if that breaks before the response and has been
    /// used before: the server has probably closed it since the last response. If it has not, it receives the request twice.
    async fn send(&self, address: &HttpUrl, request: Request<Bytes>) -> Result<Response, ClientError> {
        self.require_roots(address)?;
        let mut request = with_common_headers(request, address.authority());
        *request.uri_mut() = address.uri().clone();
        if let Some(credentials) = self.proxy_credentials(address) {
            request.headers_mut().insert(PROXY_AUTHORIZATION, credentials);
        }
        let request = request.map(Full::new);
        let sent = match self.pool.request(request.clone()).await {
            Err(error) if is_on_reused_connection(&error) => self.pool.request(request).await,
            sent => sent,
        };
        let response = sent.map_err(|error| ClientError::from_pool(address.authority(), &error, self.ca_option))?;
        if let Some(reused) = response.extensions().get::<Reused>() {
            reused.0.store(true, Ordering::Relaxed);
        }
        read(response, address.authority(), self.response_max).await
    }

    /// Opens a connection for several requests in a row.
    pub async fn connect(&self, address: &HttpUrl) -> Result<Connection, ClientError> {
        self.require_roots(address)?;
        let authority = address.authority().to_owned();
        let stream = self.connector.clone().call(address.uri().clone()).await;
        let stream = stream.map_err(|error| ClientError::unreachable(&authority, &*error, self.ca_option))?;
        let proxied = stream.connected().is_proxied();
        let broken = |error: hyper::Error| ClientError::broken(&authority, &error);
        let (sender, connection) = http1::handshake(stream).await.map_err(broken)?;
        // Its errors are returned to the pending request.
        let driver = tokio::spawn(async move { drop(connection.await) });
        let proxy_credentials = self.proxy_credentials(address);
        Ok(Connection { sender, driver, authority, proxied, proxy_credentials, response_max: self.response_max })
    }

    fn require_roots(&self, address: &HttpUrl) -> Result<(), ClientError> {
        if self.has_roots || !address.is_encrypted() {
            return Ok(());
        }
        Err(ClientError::NoTrustRoots(address.authority().to_owned(), self.ca_option))
    }

    /// Returns the credentials for a proxy that forwards plain HTTP; for HTTPS, the request that opens the tunnel has them.
    fn proxy_credentials(&self, address: &HttpUrl) -> Option<HeaderValue> {
        let proxy = self.proxies.proxy_for(address.uri()).filter(|_| !address.is_encrypted())?;
        proxy.basic_auth().cloned()
    }
}

/// One connection, which is closed when this is dropped.
pub struct Connection {
    sender: SendRequest<Full<Bytes>>,
    driver: JoinHandle<()>,
    authority: String,
    /// Requests go to a proxy that forwards plain HTTP.
    proxied: bool,
    proxy_credentials: Option<HeaderValue>,
    response_max: usize,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Connection {
    /// Sends a request whose URI is a path with or without a query.
    pub async fn send(&mut self, request: Request<Bytes>) -> Result<Response, ClientError> {
        let mut request = with_common_headers(request, &self.authority);
        if self.proxied {
            let absolute = format!("http://{}{}", self.authority, request.uri());
            let invalid = |error| ClientError::broken(&self.authority, &error);
            *request.uri_mut() = absolute.parse::<Uri>().map_err(invalid)?;
            if let Some(credentials) = &self.proxy_credentials {
                request.headers_mut().insert(PROXY_AUTHORIZATION, credentials.clone());
            }
        }
        let broken = |error: hyper::Error| ClientError::broken(&self.authority, &error);
        self.sender.ready().await.map_err(broken)?;
        let response = self.sender.send_request(request.map(Full::new)).await.map_err(broken)?;
        read(response, &self.authority, self.response_max).await
    }
}

fn with_common_headers(mut request: Request<Bytes>, authority: &str) -> Request<Bytes> {
    let headers = request.headers_mut();
    if let Ok(host) = HeaderValue::from_str(authority) {
        headers.insert(HOST, host);
    }
    headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
    request
}

fn is_on_reused_connection(error: &legacy::Error) -> bool {
    let mut extras = Extensions::new();
    if let Some(connected) = error.connect_info() {
        connected.get_extras(&mut extras);
    }
    extras.get::<Reused>().is_some_and(|reused| reused.0.load(Ordering::Relaxed))
}

async fn read(response: hyper::Response<Incoming>, authority: &str, limit: usize) -> Result<Response, ClientError> {
    let (parts, body) = response.into_parts();
    let body = Limited::new(body, limit).collect().await.map_err(|error| {
        let authority = authority.to_owned();
        if error.is::<LengthLimitError>() {
            return ClientError::TooLarge { authority, limit };
        }
        ClientError::Truncated { authority, reason: describe(&*error) }
    })?;
    Ok(Response { status: parts.status, headers: parts.headers, body: body.to_bytes() })
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;
    use crate::http_url::UrlTarget;

    /// Serves `requests` requests on each connection, then closes it without announcing that; counts the connections.
    async fn serve(requests: usize, connections: Arc<AtomicUsize>) -> HttpUrl {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
        let port = listener.local_addr().expect("its address").port();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                connections.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(async move {
                    for _ in 0..requests {
                        let mut head = Vec::new();
                        while !head.ends_with(b"\r\n\r\n") {
                            head.push(stream.read_u8().await.expect("a request"));
                        }
                        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}").await.expect("a response");
                    }
                });
            }
        });
        HttpUrl::parse(&format!("http://localhost:{port}/"), Cleartext::Loopback, UrlTarget::None).expect("an address")
    }

    fn client(response_max: usize) -> Client {
        Client::new(Settings {
            roots: None,
            ca_option: "--ca",
            cleartext: Cleartext::Loopback,
            proxies: Proxies::default(),
            response_max,
        })
    }

    #[tokio::test]
    async fn connection_is_reused_until_the_server_closes_it() {
        let connections = Arc::<AtomicUsize>::default();
        let address = serve(3, Arc::clone(&connections)).await;
        let client = client(2);
        for expected in [1, 1, 1, 2, 2, 2, 3] {
            assert_eq!(client.get(&address).await.expect("a response").body, "{}");
            assert_eq!(connections.load(Ordering::Relaxed), expected);
            // Lets the connection return to the pool.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    #[tokio::test]
    async fn connection_that_the_server_closed_is_replaced() {
        let address = serve(1, Arc::default()).await;
        let client = client(2);
        for _ in 0..50 {
            assert_eq!(client.get(&address).await.expect("a response").status, StatusCode::OK);
        }
    }

    #[tokio::test]
    async fn response_beyond_the_limit_is_an_error() {
        let address = serve(1, Arc::default()).await;
        assert!(matches!(client(1).get(&address).await, Err(ClientError::TooLarge { limit: 1, .. })));
    }

    #[tokio::test]
    async fn https_without_trust_roots_is_an_error() {
        let address =
            HttpUrl::parse("https://plants.example", Cleartext::Loopback, UrlTarget::None).expect("an address");
        let error = client(1).get(&address).await.expect_err("no trust roots");
        let text = "no trusted certificates to verify plants.example with: name a file of them with --ca";
        assert_eq!(error.to_string(), text);
    }
}
