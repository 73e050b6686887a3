//! Modules shared with the tests: client, workload and history checker.
#![expect(dead_code, reason = "used by the tests only")]

#[path = "../../tests/it/support/client.rs"]
mod client;
#[path = "../../tests/it/support/contract.rs"]
mod contract;
#[path = "../../tests/it/support/history.rs"]
mod history;
#[path = "../../tests/it/support/response.rs"]
mod response;
#[path = "../../tests/it/support/stop.rs"]
mod stop;
#[path = "../../tests/it/support/wait.rs"]
mod wait;
#[path = "../../tests/it/support/watcher.rs"]
mod watcher;
#[path = "../../tests/it/support/workload.rs"]
mod workload;

pub(crate) use client::{Client, Connection};
pub(crate) use history::{History, Summary};
pub(crate) use response::Response;
pub(crate) use stop::StopOnDrop;
use wait::{Stopwatch, TIMEOUT, wait_for, wait_until};
pub(crate) use workload::{Random, Report, Workload};
