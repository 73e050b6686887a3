//! Shared test support: a temporary store, a server that uses it, and clients that expose every byte.

mod browser;
mod client;
pub(crate) mod collector;
pub(crate) mod contract;
mod engine;
mod events;
mod fault;
mod fixture;
pub(crate) mod forward_proxy;
mod history;
pub(crate) mod http2;
pub(crate) mod issuer;
mod metrics;
mod output;
mod postgres;
pub(crate) mod provider;
pub(crate) mod recorded_disk;
mod response;
mod retrying;
pub(crate) mod rewriting_proxy;
mod server;
mod stop;
mod strace;
pub(crate) mod stub_server;
mod tcp_proxy;
mod terminal;
pub(crate) mod tools;
pub(crate) mod transfer;
mod wait;
mod watcher;
mod workload;

pub(crate) use browser::BrowserScript;
pub(crate) use client::{Client, Connection, JSON};
pub(crate) use engine::Engine;
pub(crate) use events::Events;
pub(crate) use fault::{Fault, campaign_factor, previous_releases};
pub(crate) use fixture::{
    Garden, Service, engine_test, engine_tool_test, one_engine_test, postgres_test, run_on, sqlite_test, tool_test,
};
pub(crate) use history::{Action, History, Operation, Outcome, Summary, wait_for_writes};
pub(crate) use metrics::{Metrics, Scrape};
pub(crate) use output::{CommandOutput, assert_contains};
pub(crate) use postgres::{CLOSED_ADDRESS, Cluster, free_port, runs_on_citus};
pub(crate) use response::Response;
pub(crate) use retrying::{CompletedWrite, RetryingClients};
pub(crate) use server::{Server, Store, signal};
pub(crate) use stop::StopOnDrop;
pub(crate) use strace::{FaultInjector, StraceCommand};
pub(crate) use tcp_proxy::{STAGES, Stage, TcpProxy};
pub(crate) use terminal::Terminal;
pub(crate) use wait::{Stopwatch, TIMEOUT, retry_while_unavailable, wait_for, wait_until};
pub(crate) use workload::{Random, Workload};

/// Asserts an inline snapshot that every engine shares, so that it may be reached more than once.
macro_rules! assert_snapshot {
    ($($argument:tt)*) => {
        insta::allow_duplicates! { insta::assert_snapshot!($($argument)*) }
    };
}
pub(crate) use assert_snapshot;
