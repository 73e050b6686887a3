//! The state of authentication: cached sessions, and limits on clients and users.

use std::sync::Arc;

use plantstore_store::Store;
use plantstore_telemetry::metrics::{Counter, Page};

use super::oidc::Issuer;
use super::rate_limit::{Quota, Rate, RateLimiter};
use super::sessions::Sessions;
use super::user_quota::UserQuota;
use crate::transport::ClientAddress;

/// Limits on failed authentications of one client address, and on requests of one user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthLimits {
    pub failures_per_second: u32,
    pub failures_burst: u32,
    pub user_quota: Option<Quota>,
}

impl Default for AuthLimits {
    fn default() -> Self {
        Self { failures_per_second: 10, failures_burst: 100, user_quota: None }
    }
}

pub(crate) struct Auth {
    pub(super) store: Arc<Store>,
    pub(super) sessions: Sessions,
    pub(super) failure_limit: RateLimiter<ClientAddress>,
    pub(crate) user_quota: Option<UserQuota>,
    pub(super) failures: Counter,
    pub(super) limited_addresses: Counter,
}

impl Auth {
    pub(crate) fn new(store: Arc<Store>, issuer: Option<Issuer>, limits: &AuthLimits) -> Self {
        let failures = Quota::new(Rate::per_second(limits.failures_per_second), limits.failures_burst);
        Self {
            store,
            sessions: Sessions::new(issuer),
            failure_limit: RateLimiter::new(failures),
            user_quota: limits.user_quota.map(UserQuota::new),
            failures: Counter::default(),
            limited_addresses: Counter::default(),
        }
    }

    pub(crate) fn write_failure_metrics(&self, page: &mut Page) {
        page.counter("plantstore_auth_failures_total", "Requests with a token that is not valid.")
            .sample(&[], self.failures.get());
        let limited_users = self.user_quota.as_ref().map_or(0, |quota| quota.rejected.get());
        page.counter("plantstore_rate_limited_total", "Requests that were refused because there were too many.")
            .sample(&[("limit", "auth_failures".into())], self.limited_addresses.get())
            .sample(&[("limit", "user".into())], limited_users);
    }

    pub(crate) fn write_session_metrics(&self, page: &mut Page) {
        self.sessions.write_metrics(page);
    }
}
