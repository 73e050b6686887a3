//! Limits of requests. The defaults are the service's contract; operators may change each.

use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiLimits {
    /// From the first byte of a request to the last of its body.
    pub request_timeout: Duration,
    /// Bytes of a request's body.
    pub body_bytes: usize,
    /// Lists that may read the store concurrently.
    pub in_flight: usize,
    /// Lists that may wait for one of those to finish.
    pub waiting: usize,
    /// How long they wait.
    pub waiting_timeout: Duration,
    /// Bytes of lists that are cached.
    pub list_cache_bytes: usize,
}

impl Default for ApiLimits {
    fn default() -> Self {
        Self {
            request_timeout: Duration::from_secs(30),
            body_bytes: 16 * 1024,
            in_flight: 512,
            waiting: 512,
            waiting_timeout: Duration::from_secs(1),
            list_cache_bytes: 16 << 20,
        }
    }
}
