//! What the campaign shares with the tests: a client, a load, and the checker of histories.
#![expect(dead_code, reason = "the tests need more of it")]

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

/// How long a client waits for an answer before it gives up.
const PATIENCE: Duration = Duration::from_secs(30);
