//! What the tests share: a place for a store, a server on it, and a client that sees every byte.

pub(crate) mod broken;
mod browser;
mod client;
pub(crate) mod collector;
pub(crate) mod contract;
pub(crate) mod forward_proxy;
mod history;
pub(crate) mod http2;
pub(crate) mod issuer;
mod metrics;
mod postgres;
pub(crate) mod provider;
mod proxy;
mod retrying;
mod server;
mod standin;
mod stop;
mod terminal;
pub(crate) mod tools;
mod traced;
pub(crate) mod transfer;
mod workload;

use std::time::{Duration, Instant};

pub(crate) use browser::Script;
pub(crate) use client::{Answer, Client, Connection};
pub(crate) use history::{Action, History, Operation, Outcome, Summary};
pub(crate) use metrics::{Metrics, Scrape};
pub(crate) use postgres::{CLOSED_ADDRESS, Cluster, free_port};
pub(crate) use proxy::{Proxy, Stage};
pub(crate) use retrying::{Answered, Retrying};
pub(crate) use server::{Server, Site, signal};
pub(crate) use stop::Stop;
pub(crate) use terminal::Terminal;
pub(crate) use traced::Traced;
pub(crate) use workload::{Random, Workload};

/// The engines a test body runs on.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Engine {
    Sqlite,
    Postgres,
}

/// Declares tests that run on every engine, each on a fresh [`Site`].
macro_rules! on_every_engine {
    ($(fn $name:ident($site:ident) $body:block)*) => {
        $(fn $name($site: &$crate::support::Site) $body

        mod $name {
            #[test]
            fn sqlite() {
                insta::allow_duplicates! {
                    super::$name(&$crate::support::Site::new($crate::support::Engine::Sqlite));
                }
            }

            #[test]
            fn postgres() {
                // What one engine answers is what the other does: one snapshot for both.
                insta::allow_duplicates! {
                    super::$name(&$crate::support::Site::new($crate::support::Engine::Postgres));
                }
            }
        })*
    };
}
pub(crate) use on_every_engine;

/// How long a test waits for what must happen before it calls it failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until `condition` gives something.
#[track_caller]
pub(crate) fn wait_for<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = condition() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "waited in vain for {what}");
        #[expect(clippy::disallowed_methods, reason = "the pause between two looks at a condition")]
        std::thread::sleep(Duration::from_millis(5));
    }
}
