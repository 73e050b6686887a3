//! Options of `plantstore serve`: the origins whose pages may call the service.

use clap::Args;

use crate::cli::environment::origin;
use crate::cli::exit::UsageError;
use plantstore_server::Cors;

#[derive(Args)]
#[command(next_help_heading = "Browsers")]
pub(super) struct CorsOptions {
    /// An origin whose pages may call the service, such as `https://app.example`, or `*` for all. Repeat the option, or separate
    /// several origins with commas
    // Parsed together, because `*` excludes others.
    #[arg(long, value_name = "ORIGIN", env = "PLANTSTORE_CORS_ORIGIN", value_delimiter = ',')]
    cors_origin: Vec<String>,
}

impl CorsOptions {
    pub(super) fn cors(&self) -> Result<Option<Cors>, UsageError> {
        if self.cors_origin.is_empty() {
            return Ok(None);
        }
        Cors::parse(&self.cors_origin)
            .map(Some)
            .map_err(|error| UsageError(format!("{}: {error}", origin("--cors-origin"))))
    }
}
