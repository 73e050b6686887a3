//! `plantstore openapi`: prints the OpenAPI document; no store is needed.

use std::io::Write;

use clap::Args;

/// Print the OpenAPI document that the service answers at /openapi.json
#[derive(Args)]
#[command(after_help = "Examples:
  plantstore openapi > openapi.json")]
pub(super) struct Options {}

impl Options {
    #[expect(clippy::unused_self, reason = "commands are run alike")]
    pub(super) fn run(&self) -> anyhow::Result<()> {
        super::print(|output| {
            serde_json::to_writer_pretty(&mut *output, &plantstore_server::openapi())?;
            writeln!(output)
        })
    }
}
