//! Modules shared with the tests: client, workload and history checker.
#![expect(dead_code, reason = "used by the tests only")]

#[path = "../../tests/it/support/client.rs"]
mod client;
#[path = "../../tests/it/support/contract.rs"]
mod contract;
#[path = "../../tests/it/support/history.rs"]
mod history;
#[path = "../../tests/it/support/stop.rs"]
mod stop;
#[path = "../../tests/it/support/workload.rs"]
mod workload;

use std::time::Duration;

pub(crate) use client::{Answer, Client, Connection};
pub(crate) use history::{History, Summary};
pub(crate) use stop::Stop;
pub(crate) use workload::{Report, Workload};

/// Timeout of a client for a response.
const PATIENCE: Duration = Duration::from_secs(30);
