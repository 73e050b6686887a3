//! The state of authentication: cached sessions, and limits on clients and users.

use std::sync::Arc;

use plantstore_store::Store;
use plantstore_telemetry::metrics::{Counter, Exposition};

use super::limits::AuthLimits;
use super::oidc::Issuer;
use super::rate_limit::RateLimiter;
use super::sessions::{SessionSelector, Sessions};
use super::user_quota::UserQuota;
use crate::transport::ClientAddress;

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
        Self {
            store,
            sessions: Sessions::new(issuer),
            failure_limit: RateLimiter::new(limits.failure_quota()),
            user_quota: limits.user_quota().map(UserQuota::new),
            failures: Counter::default(),
            limited_addresses: Counter::default(),
        }
    }

    /// Ends the cached sessions of this node that a change affects. Other nodes notice it when their sessions expire.
    pub(crate) fn end_sessions(&self, affected: &SessionSelector) {
        self.sessions.end(affected);
    }

    pub(crate) fn write_failure_metrics(&self, exposition: &mut Exposition) {
        exposition
            .counter("plantstore_auth_failures_total", "Requests with an invalid token.")
            .sample(&[], self.failures.get());
        let limited_users = self.user_quota.as_ref().map_or(0, |quota| quota.rejected.get());
        exposition
            .counter("plantstore_requests_rate_limited_total", "Requests rejected with status 429, by limit.")
            .sample(&[("limit", "auth_failures".into())], self.limited_addresses.get())
            .sample(&[("limit", "user".into())], limited_users);
    }

    pub(crate) fn write_session_metrics(&self, exposition: &mut Exposition) {
        self.sessions.write_metrics(exposition);
    }
}
