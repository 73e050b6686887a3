//! Fetches and caches the issuer's signing keys: at intervals, and at once when a token names an unknown key. While the issuer
//! is down, the cached keys stay in use.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::Deserialize;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::issuer::{FetchError, IssuerUrl, IssuerUrlError, fetch_document, quoted};
use super::keys::{KeySet, SkippedKey};
use plantstore_client::{Cleartext, Client, HttpUrl, UrlTarget};
use plantstore_telemetry::metrics::{Counter, Exposition, Gauge};

/// Pause between two fetches. With [`FETCH_TIMEOUT`], a removed key is accepted for no longer than the documented 30 s.
const REFRESH_PAUSE: Duration = Duration::from_secs(20);
const RETRY_PAUSE: Duration = Duration::from_secs(5);
/// Time limit of a fetch, and of the requests that wait for it.
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);
/// Minimum time between two fetches that tokens with an unknown key cause.
const REQUEST_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum number of skipped keys of a set that are logged one by one.
const SKIPPED_KEYS_MAX: usize = 20;

/// The keys of an issuer. A task fetches them.
pub(super) struct KeyCache {
    state: watch::Sender<KeyState>,
    fetched: Counter,
    failed: Counter,
    /// Time of the last successful fetch, in seconds since 1970; 0 before the first.
    last_fetch: Gauge,
}

struct KeyState {
    keys: Option<Arc<KeySet>>,
    /// A fetch is in progress or about to start.
    fetching: bool,
    /// Time of the last fetch that a token caused.
    requested: Option<Instant>,
}

impl KeyCache {
    pub(super) fn start(url: IssuerUrl, client: Client) -> Arc<Self> {
        let cache = Arc::new(Self {
            state: watch::Sender::new(KeyState { keys: None, fetching: true, requested: None }),
            fetched: Counter::default(),
            failed: Counter::default(),
            last_fetch: Gauge::default(),
        });
        tokio::spawn(refresh(Arc::clone(&cache), url, client));
        cache
    }

    pub(super) fn write_metrics(&self, exposition: &mut Exposition) {
        exposition
            .counter("plantstore_oidc_key_fetches_total", "Fetches of the issuer's keys, by outcome.")
            .sample(&[("outcome", "ok".into())], self.fetched.get())
            .sample(&[("outcome", "failed".into())], self.failed.get());
        // Omitted before the first fetch: the age that a dashboard computes from zero would be decades.
        if let Some(last) = Some(self.last_fetch.get()).filter(|last| *last > 0) {
            let help = "Time of the last successful fetch of the issuer's keys, as Unix time.";
            exposition.gauge("plantstore_oidc_keys_last_fetch_timestamp_seconds", help).sample(&[], last);
        }
    }

    pub(super) fn current(&self) -> Option<Arc<KeySet>> {
        self.state.borrow().keys.clone()
    }

    /// Returns the current keys if they match. Otherwise waits for the fetch in progress, or requests one, unless another was
    /// requested within [`REQUEST_INTERVAL`].
    pub(super) async fn find(&self, matches: impl Fn(&KeySet) -> bool) -> Option<Arc<KeySet>> {
        let mut state = self.state.subscribe();
        let deadline = Instant::now() + FETCH_TIMEOUT;
        loop {
            if let Some(keys) = self.current().filter(|keys| matches(keys)) {
                return Some(keys);
            }
            if !self.request_fetch() || timeout_at(deadline, state.changed()).await.is_err() {
                // A fetch may have ended since the keys were compared.
                return self.current().filter(|keys| matches(keys));
            }
        }
    }

    /// Requests a fetch, unless it is too early. Returns true if one is in progress.
    fn request_fetch(&self) -> bool {
        let may_request = |last: Option<Instant>| last.is_none_or(|last| last.elapsed() >= REQUEST_INTERVAL);
        let requested = self.state.send_if_modified(|state| {
            let requests = !state.fetching && may_request(state.requested);
            if requests {
                state.fetching = true;
                state.requested = Some(Instant::now());
            }
            requests
        });
        requested || self.state.borrow().fetching
    }
}

async fn refresh(cache: Arc<KeyCache>, url: IssuerUrl, client: Client) {
    let issuer = url.as_str();
    let mut requests = cache.state.subscribe();
    let mut failing = false;
    let mut reported = Vec::new();
    loop {
        let fetched = timeout(FETCH_TIMEOUT, fetch(&url, &client)).await.unwrap_or(Err(FetchError::TimedOut));
        let failed = match fetched {
            Ok((keys, skipped)) => {
                if failing {
                    tracing::info!(issuer, "the issuer responds again");
                }
                if skipped != reported {
                    report_skipped_keys(issuer, &skipped);
                    reported = skipped;
                }
                use_keys(&cache.state, issuer, keys);
                cache.fetched.count();
                cache.last_fetch.set(Timestamp::now().as_second());
                false
            }
            Err(error) => {
                cache.failed.count();
                if !failing {
                    let error = error.to_string();
                    tracing::warn!(issuer, error, "cannot fetch the issuer's keys: retrying");
                }
                cache.state.send_modify(|state| state.fetching = false);
                true
            }
        };
        failing = failed;
        tokio::select! {
            () = sleep(if failed { RETRY_PAUSE } else { REFRESH_PAUSE }) => {}
            _ = requests.wait_for(|state| state.fetching) => {}
        }
        // Subscribers need no notification: they wait for the end of the fetch.
        cache.state.send_if_modified(|state| {
            state.fetching = true;
            false
        });
    }
}

fn report_skipped_keys(issuer: &str, skipped: &[SkippedKey]) {
    for SkippedKey { id, reason } in skipped.iter().take(SKIPPED_KEYS_MAX) {
        tracing::warn!(issuer, kid = id, %reason, "issuer key skipped");
    }
    if let Some(more) = skipped.len().checked_sub(SKIPPED_KEYS_MAX).filter(|more| *more > 0) {
        tracing::warn!(issuer, keys = more, "more issuer keys skipped");
    }
}

/// Replaces the current keys. If they are equal to the last, the set stays the same object, and cached sessions stay valid.
fn use_keys(state: &watch::Sender<KeyState>, issuer: &str, keys: KeySet) {
    let count = keys.len();
    let mut changed = false;
    state.send_modify(|state| {
        state.fetching = false;
        changed = state.keys.as_deref() != Some(&keys);
        if changed {
            state.keys = Some(Arc::new(keys));
        }
    });
    match (changed, count) {
        (false, _) => {}
        (true, 0) => tracing::warn!(issuer, "the issuer has no usable key: all of its tokens are rejected"),
        (true, keys) => tracing::info!(issuer, keys, "issuer keys updated"),
    }
}

async fn fetch(url: &IssuerUrl, client: &Client) -> Result<(KeySet, Vec<SkippedKey>), FetchError> {
    #[derive(Deserialize)]
    struct Discovery {
        issuer: String,
        jwks_uri: String,
    }
    let document = fetch_document(client, &url.discovery).await?;
    let discovery: Discovery = serde_json::from_slice(&document).map_err(|_| FetchError::NoDiscovery)?;
    if discovery.issuer != url.as_str() {
        return Err(FetchError::AnotherIssuer { configured: quoted(url.as_str()), found: quoted(&discovery.issuer) });
    }
    let keys =
        HttpUrl::parse(&discovery.jwks_uri, Cleartext::Loopback, UrlTarget::PathAndQuery).map_err(IssuerUrlError::from);
    let keys = keys.map_err(FetchError::BadKeysAddress)?;
    KeySet::parse(&fetch_document(client, &keys).await?).ok_or(FetchError::NoKeySet)
}
