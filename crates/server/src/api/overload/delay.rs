//! Delays repeated rejections of one client: a user, or an address without a user.
//!
//! A few rejections per second are sent at once, the others later. Without this, clients that retry at once would occupy the
//! processors with rejections, and requests that could be served would starve. The connection does not matter, so that a
//! client gains nothing by opening another one, and clients behind one proxy do not delay each other.

use std::time::{Duration, Instant};

use plantstore_model::user::UserId;

use crate::auth::{Quota, Rate, RateLimiter};
use crate::observe::Context;
use crate::transport::ClientAddress;

/// Rejections of one client that are sent at once: so many, as concurrent requests may need, and then so many per second.
const PROMPT_BURST: u32 = 100;
const PROMPT_PER_SECOND: u32 = 10;
/// Delay of the others. A rejection costs about as much as a cached list, so the number of connections divided by this time must
/// be a small part of the requests per second that can be served.
const DELAY: Duration = Duration::from_secs(4);

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Client {
    User(UserId),
    Address(ClientAddress),
}

pub(crate) struct RejectionDelay(RateLimiter<Client>);

impl RejectionDelay {
    pub(in crate::api) fn new() -> Self {
        Self(RateLimiter::new(Quota::new(Rate::per_second(PROMPT_PER_SECOND), PROMPT_BURST)))
    }

    /// Waits as long as the rejection of this request is to be delayed.
    pub(crate) async fn wait(&self, request: &Context) {
        let client = request.user_id().map_or_else(|| Client::Address(request.client()), Client::User);
        if self.0.take(client, Instant::now()).is_err() {
            tokio::time::sleep(DELAY).await;
        }
    }
}
