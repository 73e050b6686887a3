//! `plantstore openapi`: prints the OpenAPI document; no store is needed.

use clap::Args;

use super::stdio::print_json;

/// Print the OpenAPI document that the service serves at /openapi.json
#[derive(Args)]
#[command(after_help = "Examples:
  plantstore openapi > openapi.json")]
pub(super) struct Options {}

impl Options {
    #[expect(clippy::unused_self, reason = "all commands have the same signature")]
    pub(super) fn run(&self) -> anyhow::Result<()> {
        print_json(&plantstore_server::openapi())
    }
}
