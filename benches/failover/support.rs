//! Support that the campaign shares with the tests: a client, a load, and the checker of histories.
#![expect(dead_code, reason = "the tests need more of it")]

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
#[path = "../../tests/it/support/workload.rs"]
mod workload;

use std::time::Duration;

pub(crate) use client::{Client, Connection};
pub(crate) use history::{History, Summary};
pub(crate) use response::Response;
pub(crate) use stop::StopOnDrop;
pub(crate) use workload::{Report, Workload};

/// Timeout of a client for a response.
const TIMEOUT: Duration = Duration::from_secs(30);
