//! Shared test support: a place for a store, a server on it, and clients that expose every byte.

mod browser;
mod client;
pub(crate) mod collector;
pub(crate) mod contract;
pub(crate) mod faulty_proxy;
pub(crate) mod forward_proxy;
mod history;
pub(crate) mod http2;
pub(crate) mod issuer;
mod metrics;
mod postgres;
pub(crate) mod provider;
mod proxy;
mod response;
mod retrying;
mod server;
mod stop;
mod stub_server;
mod terminal;
pub(crate) mod tools;
mod traced;
pub(crate) mod transfer;
mod workload;

use std::time::{Duration, Instant};

pub(crate) use browser::BrowserScript;
pub(crate) use client::{Client, Connection, JSON};
pub(crate) use history::{Action, History, Operation, Outcome, Summary};
pub(crate) use metrics::{Metrics, Scrape};
pub(crate) use postgres::{CLOSED_ADDRESS, Cluster, free_port};
pub(crate) use proxy::{Proxy, Stage};
pub(crate) use response::Response;
pub(crate) use retrying::{CompletedWrite, RetryingClients};
pub(crate) use server::{Server, Site, signal};
pub(crate) use stop::StopOnDrop;
pub(crate) use terminal::Terminal;
pub(crate) use traced::TracedCommand;
pub(crate) use workload::{Random, Workload};

/// Storage engine that a test runs on.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Engine {
    Sqlite,
    Postgres,
}

/// Asserts an inline snapshot that every engine shares, so that it may be reached more than once.
macro_rules! assert_snapshot {
    ($($argument:tt)*) => {
        insta::allow_duplicates! { insta::assert_snapshot!($($argument)*) }
    };
}
pub(crate) use assert_snapshot;

/// Longest wait for an expected event before the test fails.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

/// Waits until `condition` gives something.
#[track_caller]
pub(crate) fn wait_for<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = condition() {
            return found;
        }
        assert!(start.elapsed() < TIMEOUT, "timed out waiting for {what}");
        #[expect(clippy::disallowed_methods, reason = "the pause between two looks at a condition")]
        std::thread::sleep(Duration::from_millis(5));
    }
}
