//! Fetches and caches the issuer's signing keys: at intervals, at once when a token names an unknown key, and with the cached
//! keys while the issuer is down.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::Deserialize;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::issuer::{FetchFault, IssuerUrl, IssuerUrlFault, fetch_document};
use super::keys::{KeySet, SkippedKey};
use super::report::report_skipped_keys;
use plantstore_client::{Address, Cleartext, Client};
use plantstore_telemetry::metrics::{Counter, Gauge, Page};

/// How long after one fetch the next begins. With [`FETCH_TIMEOUT`] it bounds how long a key that was removed works on; the
/// documentation promises 30 seconds.
const REFRESH: Duration = Duration::from_secs(20);
/// The same after a fetch that failed.
const RETRY: Duration = Duration::from_secs(5);
/// Time for a fetch, and for the requests that wait for it.
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);
/// Shortest interval at which tokens with an unknown key cause a fetch.
const ASK_INTERVAL: Duration = Duration::from_secs(5);

/// The keys of an issuer, and the task that fetches them.
pub(super) struct KeyCache {
    state: watch::Sender<State>,
    metrics: Arc<FetchMetrics>,
}

/// What is counted of the fetches.
#[derive(Default)]
struct FetchMetrics {
    fetched: Counter,
    failed: Counter,
    /// When the last one brought keys, in seconds since 1970; 0 for never.
    last: Gauge,
}

struct State {
    keys: Option<Arc<KeySet>>,
    /// Whether a fetch is under way, or about to be.
    fetching: bool,
    /// When a token made the service ask last.
    asked: Option<Instant>,
}

/// What is missing.
pub(super) enum Missing {
    /// The key: the issuer's others are there.
    Key,
    /// All keys: they were never there.
    Keys,
}

impl KeyCache {
    pub(super) fn start(url: IssuerUrl, client: Client) -> Self {
        let (state, _) = watch::channel(State { keys: None, fetching: true, asked: None });
        let metrics = Arc::<FetchMetrics>::default();
        tokio::spawn(keep(url, client, state.clone(), Arc::clone(&metrics)));
        Self { state, metrics }
    }

    pub(super) fn write_metrics(&self, page: &mut Page) {
        let FetchMetrics { fetched, failed, last } = &*self.metrics;
        page.counter("plantstore_oidc_key_fetches_total", "Fetches of the issuer's keys, by outcome.")
            .sample(&[("outcome", "ok".into())], fetched.get())
            .sample(&[("outcome", "failed".into())], failed.get());
        // Before the first fetch there is no such time: the age computed from zero would be decades.
        if let Some(last) = Some(last.get()).filter(|last| *last > 0) {
            let help = "Time of the last successful fetch of the issuer's keys, as Unix time.";
            page.gauge("plantstore_oidc_keys_last_fetch_timestamp_seconds", help).sample(&[], last);
        }
    }

    pub(super) fn current(&self) -> Option<Arc<KeySet>> {
        self.state.borrow().keys.clone()
    }

    /// The keys, once they are such as `suffice`: waits for the fetch that is under way; if there is none, asks for one,
    /// unless that was done a moment ago.
    pub(super) async fn keys_with(&self, suffice: impl Fn(&KeySet) -> bool) -> Result<Arc<KeySet>, Missing> {
        let mut state = self.state.subscribe();
        let deadline = Instant::now() + FETCH_TIMEOUT;
        loop {
            match self.look(&suffice) {
                Look::Found(keys) => return Ok(keys),
                Look::Coming(missing) if timeout_at(deadline, state.changed()).await.is_err() => return Err(missing),
                Look::Coming(_) => {}
                Look::Missing(missing) => return Err(missing),
            }
        }
    }

    /// All of it at one moment: what a fetch brings just now is not missed.
    fn look(&self, suffice: impl Fn(&KeySet) -> bool) -> Look {
        let mut look = Look::Missing(Missing::Keys);
        self.state.send_if_modified(|state| {
            let missing = match &state.keys {
                Some(keys) if suffice(keys) => {
                    look = Look::Found(Arc::clone(keys));
                    return false;
                }
                Some(_) => Missing::Key,
                None => Missing::Keys,
            };
            let may_ask = state.asked.is_none_or(|asked| asked.elapsed() >= ASK_INTERVAL);
            let asks = !state.fetching && may_ask;
            if asks {
                (state.fetching, state.asked) = (true, Some(Instant::now()));
            }
            look = if state.fetching { Look::Coming(missing) } else { Look::Missing(missing) };
            asks
        });
        look
    }
}

enum Look {
    Found(Arc<KeySet>),
    /// A fetch is under way, and may bring it.
    Coming(Missing),
    Missing(Missing),
}

/// Fetches the keys for ever.
async fn keep(url: IssuerUrl, client: Client, state: watch::Sender<State>, metrics: Arc<FetchMetrics>) {
    let issuer = url.as_str();
    let mut asked = state.subscribe();
    let mut failing = false;
    let mut reported = Vec::new();
    loop {
        let fetched = timeout(FETCH_TIMEOUT, fetch(&url, &client)).await.unwrap_or(Err(FetchFault::Silent));
        let failed = match fetched {
            Ok((keys, skipped)) => {
                if failing {
                    tracing::info!(issuer, "the issuer responds again");
                }
                if skipped != reported {
                    report_skipped_keys(issuer, &skipped);
                    reported = skipped;
                }
                take(&state, issuer, keys);
                metrics.fetched.count();
                metrics.last.set(Timestamp::now().as_second());
                false
            }
            Err(fault) => {
                metrics.failed.count();
                if !failing {
                    let error = fault.to_string();
                    tracing::warn!(
                        issuer,
                        error,
                        "cannot fetch the issuer's keys: retrying, the cached keys stay in use"
                    );
                }
                state.send_modify(|state| state.fetching = false);
                true
            }
        };
        failing = failed;
        tokio::select! {
            () = sleep(if failed { RETRY } else { REFRESH }) => {}
            _ = asked.wait_for(|state| state.fetching) => {}
        }
        // No notification is needed: the state is read where it is used.
        state.send_if_modified(|state| {
            state.fetching = true;
            false
        });
    }
}

/// Puts keys into use. The same as before stay the same, and so does all that rests on them.
fn take(state: &watch::Sender<State>, issuer: &str, keys: KeySet) {
    let (count, mut changed) = (keys.len(), false);
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

async fn fetch(url: &IssuerUrl, client: &Client) -> Result<(KeySet, Vec<SkippedKey>), FetchFault> {
    #[derive(Deserialize)]
    struct Discovery {
        issuer: String,
        jwks_uri: String,
    }
    let document = fetch_document(client, url.discovery()).await?;
    let discovery: Discovery = serde_json::from_slice(&document).map_err(|_| FetchFault::NoDiscovery)?;
    if discovery.issuer != url.as_str() {
        return Err(FetchFault::another_issuer(url, &discovery.issuer));
    }
    let keys = Address::parse(&discovery.jwks_uri, Cleartext::Loopback).map_err(IssuerUrlFault::from);
    let keys = keys.map_err(FetchFault::BadKeysAddress)?;
    KeySet::parse(&fetch_document(client, &keys).await?).ok_or(FetchFault::NoKeySet)
}
