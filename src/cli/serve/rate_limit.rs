//! Options of `plantstore serve`: the rate limit per user.

use clap::Args;

use crate::cli::environment::origin;
use crate::cli::exit::UsageError;
use crate::cli::value_parser::number;
use plantstore_server::{Quota, Rate};

#[derive(Args)]
pub(super) struct RateLimitOptions {
    /// Requests of one user in the long run, for example 100/s, 600/m or 5000/h; others are answered 429. Not limited
    /// unless given
    #[arg(long, value_name = "NUMBER/UNIT", env = "PLANTSTORE_RATE_LIMIT")]
    rate_limit: Option<Rate>,
    /// Requests of one user at once; as many as the number of the rate unless given
    #[arg(long, value_name = "NUMBER", env = "PLANTSTORE_RATE_BURST", value_parser = number::<u32>(1..=1_000_000))]
    rate_burst: Option<u32>,
}

impl RateLimitOptions {
    pub(super) fn quota(&self) -> Result<Option<Quota>, UsageError> {
        match (self.rate_limit, self.rate_burst) {
            (Some(rate), burst) => Ok(Some(Quota::new(rate, burst.unwrap_or(rate.number())))),
            (None, Some(_)) => {
                Err(UsageError(format!("{} needs a --rate-limit, for example 100/s", origin("--rate-burst"))))
            }
            (None, None) => Ok(None),
        }
    }
}
