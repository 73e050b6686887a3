//! A server as the target of an import and the source of an export. Requests are repeated, writes with the same idempotency key,
//! until the server has decided them.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use bytes::Bytes;
use futures_util::future::join_all;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, ETAG, HeaderName, HeaderValue, LINK, RETRY_AFTER};
use hyper::{HeaderMap, Method, Request};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep, timeout};

use super::server_options::ServerAccess;
use plantstore_client::{Client, Connection, HttpUrl, Response};
use plantstore_model::plant::{NewPlant, Plant};
use plantstore_store::transfer::{ImportOutcome, ImportResult, ImportRow, OnDuplicate, StopReason};

/// Number of connections of an import. The server commits the plants that arrive together in one transaction.
const CONNECTIONS: usize = 64;
const PAGE_PLANTS: usize = 1_000;
/// Maximum size of a response body in bytes. It is enough for a page of the longest plants.
const RESPONSE_MAX: usize = 8 << 20;
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);
/// Time after which a request that fails again and again is not repeated. Waiting for the rate limit does not count.
const RETRY_TIMEOUT: Duration = Duration::from_secs(60);
/// Pauses before a request is repeated, unless the server says how long to wait.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// A server, with up to one connection to it.
pub(super) struct Session {
    server: Arc<Server>,
    connection: Option<Connection>,
}

struct Server {
    client: Client,
    url: HttpUrl,
    authorization: HeaderValue,
}

pub(super) struct Page {
    pub(super) plants: Vec<ListedPlant>,
    pub(super) next: Option<String>,
    /// Changes with the plants of the owner.
    pub(super) etag: Option<HeaderValue>,
}

#[derive(Deserialize)]
pub(super) struct ListedPlant {
    pub(super) id: i64,
    pub(super) name: String,
    pub(super) tag: Option<String>,
}

#[derive(Deserialize)]
struct Me {
    user: String,
}

#[derive(Deserialize)]
struct ErrorBody {
    error: i32,
    message: String,
}

impl Session {
    /// Connects to the server. If that fails, it is not tried again.
    pub(super) async fn connect(access: ServerAccess) -> anyhow::Result<Self> {
        let ServerAccess { server, token } = access;
        let client = server.client(RESPONSE_MAX)?;
        let url = server.url;
        let connection = Some(client.connect(&url).await?);
        let mut authorization = HeaderValue::try_from(format!("Bearer {token}"))?;
        authorization.set_sensitive(true);
        Ok(Self { server: Arc::new(Server { client, url, authorization }), connection })
    }

    pub(super) async fn user(&mut self) -> anyhow::Result<String> {
        Ok(parse::<Me>(&self.get("/me").await?)?.user)
    }

    pub(super) async fn page(&mut self, path: &str) -> anyhow::Result<Page> {
        let response = self.get(path).await?;
        let link = response.headers.get(LINK).map(HeaderValue::to_str).transpose()?;
        let next = |link: &str| Some(link.strip_prefix('<')?.strip_suffix(">; rel=\"next\"")?.to_owned());
        let next = link.map(|link| next(link).context("the list has an unknown `Link`")).transpose()?;
        Ok(Page { plants: parse(&response)?, next, etag: response.headers.get(ETAG).cloned() })
    }

    /// Creates a plant, or compares it with the one that has its id.
    async fn store(&mut self, ImportRow { line, owner, plant }: &ImportRow, run: u64) -> anyhow::Result<ImportOutcome> {
        let owner = encode(owner.as_str());
        let NewPlant { id, .. } = plant;
        let body = serde_json::to_vec(&Plant { id: Some(*id), ..plant.shown() })?;
        let headers = [
            (CONTENT_TYPE, HeaderValue::from_static("application/json")),
            (IDEMPOTENCY_KEY, HeaderValue::try_from(format!("{run:016x}-{line}"))?),
        ];
        let response = self.send(Method::POST, &format!("/plants?owner={owner}"), headers, body.into()).await?;
        match response.status.as_u16() {
            200 => return Ok(ImportOutcome::Stored),
            409 => {}
            _ => return Err(self.rejection(&response)),
        }
        let found: serde_json::Value = parse(&self.get(&format!("/plants/{id}?owner={owner}")).await?)?;
        let is_same = found == serde_json::to_value(plant.shown())?;
        Ok(if is_same { ImportOutcome::Same } else { ImportOutcome::Different })
    }

    async fn get(&mut self, path: &str) -> anyhow::Result<Response> {
        let response = self.send(Method::GET, path, [], Bytes::new()).await?;
        if response.status.as_u16() == 200 { Ok(response) } else { Err(self.rejection(&response)) }
    }

    /// Sends a request until it has a response that a repetition would not change.
    async fn send(
        &mut self,
        method: Method,
        path: &str,
        headers: impl IntoIterator<Item = (HeaderName, HeaderValue)>,
        body: Bytes,
    ) -> anyhow::Result<Response> {
        let mut request = Request::builder().method(method).uri(path).body(body)?;
        *request.headers_mut() = HeaderMap::from_iter(headers);
        request.headers_mut().insert(AUTHORIZATION, self.server.authorization.clone());
        let mut failing_since = None;
        let mut pause = PAUSE_MIN;
        loop {
            let attempt = timeout(RESPONSE_TIMEOUT, self.attempt(request.clone())).await;
            let attempt = attempt.unwrap_or_else(|_| Err(anyhow!("no response within {RESPONSE_TIMEOUT:?}")));
            let mut wait = pause;
            let error = match attempt {
                Ok(response) => match response.status.as_u16() {
                    status @ (408 | 429 | 502 | 503 | 504) => {
                        let seconds =
                            response.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
                        wait = seconds.map_or(pause, Duration::from_secs);
                        if status == 429 {
                            failing_since = None;
                        }
                        self.rejection(&response)
                    }
                    // A request with the same key is in flight.
                    409 if parse(&response).is_ok_and(|body: ErrorBody| body.error == 40_901) => {
                        self.rejection(&response)
                    }
                    _ => return Ok(response),
                },
                Err(error) => {
                    self.connection = None;
                    error
                }
            };
            if failing_since.get_or_insert_with(Instant::now).elapsed() >= RETRY_TIMEOUT {
                return Err(error);
            }
            sleep(wait).await;
            pause = PAUSE_MAX.min(pause * 2);
        }
    }

    async fn attempt(&mut self, request: Request<Bytes>) -> anyhow::Result<Response> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => none.insert(self.server.client.connect(&self.server.url).await?),
        };
        Ok(connection.send(request).await?)
    }

    fn rejection(&self, response: &Response) -> anyhow::Error {
        let server = self.server.url.authority();
        match parse(response) {
            Ok(ErrorBody { error, message }) => anyhow!("{server} responds with {error}: {message}"),
            Err(_) => anyhow!("{server} responds with {}", response.status),
        }
    }
}

pub(super) fn first_page(owner: &str) -> String {
    format!("/plants?include=id&limit={PAGE_PLANTS}&owner={}", encode(owner))
}

fn encode(text: &str) -> String {
    form_urlencoded::byte_serialize(text.as_bytes()).collect()
}

fn parse<T: DeserializeOwned>(response: &Response) -> anyhow::Result<T> {
    serde_json::from_slice(&response.body).context("the response is not that of a plantstore server")
}

pub(super) struct RemoteImporter {
    sessions: Vec<Session>,
    on_duplicate: OnDuplicate,
    /// The first part of the idempotency keys. A later run has other keys, so that plants that were deleted since are stored again.
    run: u64,
}

impl RemoteImporter {
    pub(super) async fn start(access: ServerAccess, on_duplicate: OnDuplicate) -> anyhow::Result<Self> {
        let mut session = Session::connect(access).await?;
        // Rejects an invalid token before the first plant.
        session.user().await?;
        let server = Arc::clone(&session.server);
        let mut sessions = vec![session];
        sessions.resize_with(CONNECTIONS, || Session { server: Arc::clone(&server), connection: None });
        Ok(Self { sessions, on_duplicate, run: getrandom::u64()? })
    }

    /// Stores a batch. Abandons it if `interrupted` resolves, and sends nothing more once a plant cannot be stored.
    pub(super) async fn store(&mut self, batch: &[ImportRow], interrupted: impl Future) -> ImportResult {
        let outcomes = RefCell::new(vec![ImportOutcome::Unknown; batch.len()]);
        let next = Cell::new(0);
        let stop = RefCell::new(None::<(usize, StopReason)>);
        let run = self.run;
        let is_rejected = |outcome| outcome == ImportOutcome::Different && self.on_duplicate == OnDuplicate::Stop;
        let workers = self.sessions.iter_mut().map(async |session| {
            while stop.borrow().is_none() && next.get() < batch.len() {
                let index = next.replace(next.get() + 1);
                let row = &batch[index];
                let reason = match session.store(row, run).await {
                    Ok(outcome) if is_rejected(outcome) => row.taken(),
                    Ok(outcome) => {
                        outcomes.borrow_mut()[index] = outcome;
                        continue;
                    }
                    Err(error) => StopReason::Rejected { line: row.line, reason: format!("{error:#}") },
                };
                // The first line is reported.
                let mut stop = stop.borrow_mut();
                if stop.as_ref().is_none_or(|(first, _)| index < *first) {
                    *stop = Some((index, reason));
                }
            }
        });
        tokio::select! {
            _ = join_all(workers) => {}
            _ = interrupted => {}
        }
        ImportResult { outcomes: outcomes.take(), new_users: 0, stop: stop.take().map(|(_, reason)| reason) }
    }
}
