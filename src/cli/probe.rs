//! `plantstore probe`: the readiness check of a server, for containers without other programs.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::anyhow;
use clap::Args;

use super::exit::UsageError;
use super::proxies::proxies;
use super::runtime::current_thread_runtime;
use super::stdio::print;
use super::value_parser::duration;
use plantstore_check::{self, ServerUrl};
use plantstore_client::Proxies;

/// Check that a server is ready for requests
#[derive(Args)]
#[command(after_help = "Examples:
  plantstore probe
  plantstore probe https://plants.example --ca authorities.pem --timeout 1s")]
pub(super) struct Options {
    /// The server: http://HOST:PORT or https://HOST:PORT
    #[arg(value_name = "URL", default_value = "http://127.0.0.1:8080")]
    url: String,
    /// A file of certificate authorities to trust instead of the system's
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Time limit for the response
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = duration)]
    timeout: Duration,
}

impl Options {
    pub(super) fn run(self) -> anyhow::Result<()> {
        let url: ServerUrl = self.url.parse().map_err(|error| UsageError(format!("{error}")))?;
        let proxies = if url.is_loopback() { Proxies::default() } else { proxies()? };
        let ready = plantstore_check::ready(url, self.ca, proxies, self.timeout);
        current_thread_runtime()?.block_on(ready).map_err(|reason| anyhow!("{reason}"))?;
        print(|output| writeln!(output, "ready"))
    }
}
