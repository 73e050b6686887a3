//! Limits of requests: the option, default and help text of each. The documentation promises the defaults.

use std::time::Duration;

use clap::Args;

use crate::options::defaults;
use crate::options::value_parser::{duration, number};

#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub struct ApiLimits {
    /// Time limit for the whole request to arrive
    #[arg(long, value_name = "TIME", env = "PLANTSTORE_REQUEST_TIMEOUT", default_value = "30s", value_parser = duration)]
    pub request_timeout: Duration,
    /// Maximum size of a request body in bytes
    #[arg(long, value_name = "BYTES", env = "PLANTSTORE_MAX_BODY_BYTES", default_value_t = 16_384, value_parser = number::<usize>(1..=16_777_216))]
    pub max_body_bytes: usize,
    /// Maximum number of requests that read the store concurrently; a list counts until its first chunk is read
    #[arg(long = "max-in-flight", value_name = "NUMBER", env = "PLANTSTORE_MAX_IN_FLIGHT", default_value_t = 512, value_parser = number::<usize>(1..=100_000))]
    pub max_concurrent_reads: usize,
    /// Maximum number of requests that wait for one of those to finish; beyond it the status is 503
    #[arg(long, value_name = "NUMBER", env = "PLANTSTORE_MAX_WAITING", default_value_t = 512, value_parser = number::<usize>(0..=100_000))]
    pub max_waiting: usize,
    /// Maximum time of this wait, and of the wait of a change of tokens or shares for earlier ones; after it the status is 503
    #[arg(long, value_name = "TIME", env = "PLANTSTORE_WAITING_TIMEOUT", default_value = "1s", value_parser = duration)]
    pub waiting_timeout: Duration,
    /// Size of the cache of lists in bytes; 0 turns it off
    #[arg(long, value_name = "BYTES", env = "PLANTSTORE_LIST_CACHE_BYTES", default_value_t = 16_777_216, value_parser = number::<usize>(0..=u32::MAX.into()))]
    pub list_cache_bytes: usize,
}

impl Default for ApiLimits {
    fn default() -> Self {
        defaults()
    }
}
