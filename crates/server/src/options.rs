//! Limits of the service that are options of the command line: the name, default and help text of each. The documentation promises
//! the defaults.

pub mod value_parser;

use std::str::FromStr;
use std::time::Duration;

use clap::builder::Resettable;
use clap::{Args, Command};

use self::value_parser::{duration, number};

/// Highest number of a rate, in its unit of time.
const RATE_MAX: u32 = 1_000_000;

/// Returns the options with their defaults; environment variables are ignored.
pub(crate) fn defaults<T: Args>() -> T {
    let command = T::augment_args(Command::new("defaults")).mut_args(|option| option.env(Resettable::Reset));
    T::from_arg_matches(&command.get_matches_from(["defaults"])).expect("every option has a default or is optional")
}

#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub struct TransportLimits {
    /// Time limit for the head of a request to arrive
    #[arg(long, value_name = "TIME", env = "PLANTSTORE_HEADER_TIMEOUT", default_value = "10s", value_parser = duration)]
    pub header_timeout: Duration,
    /// Time limit between two requests on a connection
    #[arg(long, value_name = "TIME", env = "PLANTSTORE_IDLE_TIMEOUT", default_value = "75s", value_parser = duration)]
    pub idle_timeout: Duration,
    /// Time limit for a client that reads nothing of its response
    #[arg(long, value_name = "TIME", env = "PLANTSTORE_WRITE_TIMEOUT", default_value = "30s", value_parser = duration)]
    pub write_timeout: Duration,
    /// Maximum size of a request head in bytes
    #[arg(long, value_name = "BYTES", env = "PLANTSTORE_MAX_HEADER_BYTES", default_value_t = 16_384, value_parser = number::<usize>(1_024..=262_144))]
    pub max_header_bytes: usize,
    /// Maximum number of header fields of a request
    #[arg(long, value_name = "NUMBER", env = "PLANTSTORE_MAX_HEADERS", default_value_t = 100, value_parser = number::<usize>(10..=10_000))]
    pub max_headers: usize,
    /// Maximum number of open connections
    #[arg(long, value_name = "NUMBER", env = "PLANTSTORE_MAX_CONNECTIONS", default_value_t = 10_000, value_parser = number::<usize>(1..=1_000_000))]
    pub max_connections: usize,
    /// Maximum number of open connections per client address (IPv6: per /64); by default half of the total, and the total for
    /// this machine
    #[arg(long, value_name = "NUMBER", env = "PLANTSTORE_MAX_CONNECTIONS_PER_ADDRESS", value_parser = number::<usize>(1..=1_000_000))]
    pub max_connections_per_address: Option<usize>,
    /// Time for requests in flight to finish after the signal to stop; then their connections are closed
    #[arg(long, value_name = "TIME", env = "PLANTSTORE_SHUTDOWN_GRACE", default_value = "10s", value_parser = duration)]
    pub shutdown_grace: Duration,
}

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
    /// Maximum number of open event streams, by default half of the open connections; beyond it the status is 503. Over HTTP/1.1
    /// each of them is one of the open connections
    #[arg(long, value_name = "NUMBER", env = "PLANTSTORE_MAX_EVENT_STREAMS", value_parser = number::<usize>(0..=1_000_000))]
    pub max_event_streams: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Number of events per period.
    pub(crate) number: u32,
    pub(crate) period: Duration,
}

impl Rate {
    /// Creates a rate per second, clamped to the allowed range.
    pub(crate) fn per_second(number: u32) -> Self {
        Self { number: number.clamp(1, RATE_MAX), period: Duration::from_secs(1) }
    }
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (number, seconds) = match text.split_once('/') {
            Some((number, "s")) => (number, 1),
            Some((number, "m")) => (number, 60),
            Some((number, "h")) => (number, 3_600),
            _ => ("", 0),
        };
        if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
            let form = "write a number of requests and a unit of time, for example 100/s, 600/m or 5000/h";
            return Err(form.to_owned());
        }
        match number.parse() {
            Ok(number @ 1..=RATE_MAX) => Ok(Self { number, period: Duration::from_secs(seconds) }),
            _ => Err(format!("the number must be from 1 to {RATE_MAX}")),
        }
    }
}
