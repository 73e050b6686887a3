//! Request quota per user. Each node counts on its own.
//!
//! The header fields are those of draft-ietf-httpapi-ratelimit-headers, as of its versions 10 and 11.

use std::time::Instant;

use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use plantstore_model::user::UserId;
use plantstore_telemetry::metrics::Counter;

use super::error::AuthError;
use super::rate_limit::{BucketLevel, Quota, RateLimiter};
use crate::observe::Context;

const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");

pub(crate) struct UserQuota {
    limiter: RateLimiter<UserId>,
    policy: HeaderValue,
    pub(super) rejected: Counter,
}

impl UserQuota {
    pub(super) fn new(quota: Quota) -> Self {
        let limiter = RateLimiter::new(quota);
        let policy = format!(r#""user";q={};w={}"#, quota.burst, limiter.window());
        let policy = HeaderValue::try_from(policy).expect("digits are a header value");
        Self { limiter, policy, rejected: Counter::default() }
    }

    /// Counts a request of this user, and rejects it if the quota is exhausted.
    pub(super) fn count(&self, user: UserId, context: &Context) -> Result<(), AuthError> {
        let taken = self.limiter.take(user, Instant::now());
        let (Ok(BucketLevel { left, next_in }) | Err(BucketLevel { left, next_in })) = taken;
        if let Ok(value) = HeaderValue::try_from(format!(r#""user";r={left};t={next_in}"#)) {
            context.set_rate_limit(value);
        }
        taken.map(drop).map_err(|level| {
            self.rejected.count();
            AuthError::TooManyRequests(level.next_in)
        })
    }

    /// Adds the policy, and the state of the quota if the user is authenticated.
    pub(crate) fn add_headers(&self, headers: &mut HeaderMap, context: &Context) {
        headers.insert(RATE_LIMIT_POLICY, self.policy.clone());
        if let Some(value) = context.rate_limit() {
            headers.insert(RATE_LIMIT, value.clone());
        }
    }
}
