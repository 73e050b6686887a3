//! Warnings for operators about keys and tokens of their issuer that are not accepted. They quote values of the issuer or a
//! client, but never a token.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::jwt::{ExpectedClaims, TokenError};
use super::keys::SkippedKey;

/// Maximum number of skipped keys of a set that are logged one by one.
const SKIPPED_KEYS_MAX: usize = 20;
/// Minimum time between two warnings of one kind about rejected tokens, because any client can cause them.
const REJECTION_INTERVAL: Duration = Duration::from_secs(60);

/// Warns about the keys of a fetched set that cannot be used.
pub(super) fn report_skipped_keys(issuer: &str, skipped: &[SkippedKey]) {
    for SkippedKey { id, reason } in skipped.iter().take(SKIPPED_KEYS_MAX) {
        tracing::warn!(issuer, kid = id, %reason, "issuer key skipped");
    }
    if let Some(more) = skipped.len().checked_sub(SKIPPED_KEYS_MAX).filter(|more| *more > 0) {
        tracing::warn!(issuer, keys = more, "more issuer keys skipped");
    }
}

/// Rate-limited warnings about rejected tokens that point at a wrong configuration of the issuer or of its client.
#[derive(Default)]
pub(super) struct RejectionReports {
    opaque: ReportLimit,
    audience: ReportLimit,
}

impl RejectionReports {
    /// Logs a warning for errors that a wrong configuration can cause, at most one of each kind in [`REJECTION_INTERVAL`].
    pub(super) fn report(&self, error: &TokenError, expected: &ExpectedClaims) {
        let ExpectedClaims { issuer, audience, .. } = expected;
        match error {
            TokenError::Malformed => {
                if let Some(suppressed) = self.opaque.pass(Instant::now()) {
                    let message = "bearer token rejected: it is neither a JWT nor a token of this service; let the \
                        issuer issue access tokens as JWTs";
                    tracing::warn!(issuer, suppressed, "{message}");
                }
            }
            TokenError::Audience(found) => {
                if let Some(suppressed) = self.audience.pass(Instant::now()) {
                    let found = found.as_deref().unwrap_or("missing");
                    let message = "issuer token rejected: its `aud` does not contain --oidc-audience";
                    tracing::warn!(issuer, expected = audience, found, suppressed, "{message}");
                }
            }
            _ => {}
        }
    }
}

/// Allows one report in [`REJECTION_INTERVAL`] and counts the others.
#[derive(Default)]
struct ReportLimit(Mutex<ReportState>);

#[derive(Default)]
struct ReportState {
    last: Option<Instant>,
    suppressed: u64,
}

impl ReportLimit {
    /// Returns the number of reports suppressed since the last one, or `None` to suppress this one as well.
    fn pass(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.last.is_some_and(|last| now.saturating_duration_since(last) < REJECTION_INTERVAL) {
            state.suppressed += 1;
            return None;
        }
        state.last = Some(now);
        Some(std::mem::take(&mut state.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_report_passes_per_interval_with_the_number_suppressed() {
        let (limit, start) = (ReportLimit::default(), Instant::now());
        assert_eq!(limit.pass(start), Some(0));
        assert_eq!(limit.pass(start), None);
        assert_eq!(limit.pass(start + REJECTION_INTERVAL / 2), None);
        assert_eq!(limit.pass(start + REJECTION_INTERVAL), Some(2));
        assert_eq!(limit.pass(start + REJECTION_INTERVAL), None);
    }
}
