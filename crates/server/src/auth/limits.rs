//! Limits on failed authentications and on the requests of a user: the option, default and help text of each.

use clap::Args;

use super::rate_limit::{Quota, Rate};
use crate::options::defaults;
use crate::options::value_parser::number;

#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub struct AuthLimits {
    /// Rate of failed authentications per client address, in requests per second; beyond it the status is 429
    #[arg(long, value_name = "NUMBER", env = "PLANTSTORE_AUTH_FAILURE_RATE", default_value_t = 10, value_parser = number::<u32>(1..=1_000_000))]
    pub auth_failure_rate: u32,
    /// Burst of failed authentications per client address, in requests
    #[arg(long, value_name = "NUMBER", env = "PLANTSTORE_AUTH_FAILURE_BURST", default_value_t = 100, value_parser = number::<u32>(1..=1_000_000))]
    pub auth_failure_burst: u32,
    /// Request rate per user, for example 100/s, 600/m or 5000/h; beyond it the status is 429. Not limited unless given
    #[arg(long, value_name = "NUMBER/UNIT", env = "PLANTSTORE_RATE_LIMIT")]
    pub rate_limit: Option<Rate>,
    /// Request burst per user; the number in the rate limit unless given
    #[arg(long, value_name = "NUMBER", env = "PLANTSTORE_RATE_BURST", value_parser = number::<u32>(1..=1_000_000))]
    pub rate_burst: Option<u32>,
}

impl Default for AuthLimits {
    fn default() -> Self {
        defaults()
    }
}

impl AuthLimits {
    pub(super) fn failure_quota(&self) -> Quota {
        Quota::new(Rate::per_second(self.auth_failure_rate), self.auth_failure_burst)
    }

    pub(super) fn user_quota(&self) -> Option<Quota> {
        self.rate_limit.map(|rate| Quota::new(rate, self.rate_burst.unwrap_or(rate.number())))
    }
}
