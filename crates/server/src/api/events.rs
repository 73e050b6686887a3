//! `GET /events`: server-sent events that report the entity tag of the caller's list whenever it changes.
//!
//! Nothing is queued: a stream that is woken reads the current versions, as a list does, and sends the tag if it differs from the
//! last one. Tokens and received shares have no version. Their changes move the version of the user, so a stream looks up its
//! session again whenever the version of its caller has changed.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;
use std::io;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use jiff::Timestamp;
use plantstore_store::{Version, Watch};
use serde_json::json;
use tokio::time::{Instant, sleep_until};

use super::collections::{OwnerParameter, ReadableCollections, readable};
use super::error::ApiError;
use super::extract::ReadCapacity;
use super::overload::StreamPlace;
use super::representation::EntityTag;
use super::state::Api;
use crate::auth::{Caller, CallerToken, Read};
use crate::transport::OpenEnded;

/// Time between two comments, which keep the connection open in proxies and show that the client is still there.
const COMMENT_INTERVAL: Duration = Duration::from_secs(15);
const EVENT_INTERVAL: Duration = Duration::from_millis(100);
/// Time after which a stream ends, in seconds, and the part of it that is random, so that streams do not end together.
const LIFETIME: u64 = 3_600;
const LIFETIME_JITTER: u64 = 360;
/// Time after which the session is looked up in any case: nodes of releases before 0.7 do not move the version.
const LOOK_UP_INTERVAL: Duration = Duration::from_secs(60);
/// The same after a change: the servers of Citus do not commit in the same instant.
const SETTLE_INTERVAL: Duration = Duration::from_secs(2);
/// Time after which the store is asked again if it is not available.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Time, in milliseconds, after which the client is asked to reconnect.
const RETRY: &str = "retry: 2000\n\n";

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
const ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

pub(crate) async fn stream(
    State(api): State<&'static Api>,
    caller: Caller<Read>,
    token: CallerToken,
    _: ReadCapacity,
    owner: OwnerParameter,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let now = Instant::now();
    let mut stream = EventStream {
        place: api.event_streams.open(caller.session.user_id())?,
        readable: readable(&caller.session, &owner)?,
        watch: api.store.watch(),
        api,
        token,
        owner,
        version: None,
        looked_up_at: now,
        look_up_at: now,
        sent: None,
        comment_at: now + COMMENT_INTERVAL,
        ends_at: now + Duration::from_secs(LIFETIME - RandomState::new().hash_one(()) % LIFETIME_JITTER),
    };
    let tag = Box::pin(stream.current_tag()).await?;
    stream.sent = Some(tag);
    let mut first = RETRY.to_owned();
    if headers.get(LAST_EVENT_ID) != Some(&tag.header()) {
        first += &event(tag);
    }
    let first = stream::iter([Ok::<_, io::Error>(Bytes::from(first))]);
    let rest = stream::unfold(stream, |mut stream| async { Some((Ok(stream.next().await?), stream)) });
    let mut response = Response::new(Body::from_stream(stream::StreamExt::chain(first, rest)));
    response.extensions_mut().insert(OpenEnded);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(ACCEL_BUFFERING, HeaderValue::from_static("no"));
    Ok(response)
}

fn event(tag: EntityTag) -> String {
    let tag = tag.header();
    let tag = tag.to_str().unwrap_or_default();
    format!("event: plants\nid: {tag}\ndata: {}\n\n", json!({"etag": tag}))
}

struct EventStream {
    place: StreamPlace,
    api: &'static Api,
    token: CallerToken,
    owner: OwnerParameter,
    readable: ReadableCollections,
    /// Watches the caller, and the owners of the list.
    watch: Watch,
    /// The version of the caller when the session was looked up.
    version: Option<Version>,
    looked_up_at: Instant,
    look_up_at: Instant,
    sent: Option<EntityTag>,
    comment_at: Instant,
    ends_at: Instant,
}

impl EventStream {
    /// Returns the next event or comment; `None` at the end.
    async fn next(&mut self) -> Option<Bytes> {
        let mut not_before = Instant::now() + EVENT_INTERVAL;
        loop {
            sleep_until(not_before).await;
            let wake_at = self.comment_at.min(self.look_up_at).min(self.ends_at);
            let has_changed = tokio::select! {
                biased;
                () = self.place.ended() => return None,
                () = self.watch.changed() => true,
                () = sleep_until(wake_at) => false,
            };
            if Instant::now() >= self.ends_at {
                return None;
            }
            if has_changed || Instant::now() >= self.look_up_at || !self.token.holds(self.readable.session()) {
                // Boxed, so that a stream that waits does not need the memory.
                match Box::pin(self.current_tag()).await {
                    Ok(tag) if self.sent != Some(tag) => {
                        self.sent = Some(tag);
                        self.comment_at = Instant::now() + COMMENT_INTERVAL;
                        return Some(event(tag).into());
                    }
                    Ok(_) => {}
                    // The client gets this error when it connects again.
                    Err(ApiError::InvalidToken | ApiError::NoCollection) => return None,
                    Err(_) => {
                        self.look_up_at = Instant::now() + RETRY_INTERVAL;
                        not_before = self.look_up_at;
                    }
                }
            }
            if Instant::now() >= self.comment_at {
                self.comment_at = Instant::now() + COMMENT_INTERVAL;
                return Some(Bytes::from_static(b":\n\n"));
            }
        }
    }

    /// Returns the entity tag that `GET /plants` would have now.
    async fn current_tag(&mut self) -> Result<EntityTag, ApiError> {
        loop {
            self.watch.set([self.readable.user_id()].into_iter().chain(self.readable.owners()).collect());
            let versions = self.api.store.current_versions(self.watch.users()).await?;
            let [of_caller, of_owners @ ..] = &*versions else { return Err(ApiError::InvalidToken) };
            let has_changed = self.version != *of_caller;
            if of_owners.contains(&None) {
                // A deleted owner stays in the list until the session is looked up.
                self.look_up_at = self.look_up_at.min(self.looked_up_at + SETTLE_INTERVAL);
            }
            let mut has_same_owners = true;
            if has_changed || Instant::now() >= self.look_up_at || !self.token.holds(self.readable.session()) {
                let session = self.token.look_up().await?;
                self.version = *of_caller;
                self.looked_up_at = Instant::now();
                let interval = if has_changed { SETTLE_INTERVAL } else { LOOK_UP_INTERVAL };
                let lifetime = session.expires.map_or(interval, |end| {
                    Duration::try_from(end.duration_since(Timestamp::now())).unwrap_or_default()
                });
                self.look_up_at = self.looked_up_at + interval.min(lifetime).max(SETTLE_INTERVAL);
                let readable = readable(&session, &self.owner)?;
                has_same_owners = readable.owners().eq(self.readable.owners());
                self.readable = readable;
            }
            if has_same_owners {
                self.readable.check_owners_exist(of_owners)?;
                return Ok(self.readable.tag(of_owners));
            }
        }
    }
}
