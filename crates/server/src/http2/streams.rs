//! The requests of one HTTP/2 connection as the others see them: what it may have in flight, and what its responses hold.

use std::num::NonZeroUsize;

use crate::App;
use crate::page_budget::PageBudget;
use plantstore_telemetry::metrics::{Gauge, Held};

/// Pages of lists that the responses of one connection hold at the same time.
const PAGES_MAX: usize = 2;

/// The requests of one connection.
pub(crate) struct Streams {
    in_flight: Gauge,
    /// Those of them whose response waits for the client's flow-control window.
    blocked: Gauge,
    pub(super) pages: PageBudget,
}

impl Streams {
    pub(super) fn new() -> Self {
        Self { in_flight: Gauge::default(), blocked: Gauge::default(), pages: PageBudget::of(PAGES_MAX) }
    }

    /// Counts a request as in flight until the return value is dropped.
    pub(super) fn begin(&self) -> Held<'_> {
        self.in_flight.hold()
    }

    /// Counts a response as blocked, on this connection and on all, until the return value is dropped.
    pub(super) fn block(&self, app: &'static App) -> (Held<'_>, Held<'static>) {
        (self.blocked.hold(), app.activity.blocked.hold())
    }

    /// Whether there is no room for this many requests: all connections together have more in flight than there may be
    /// connections, and this one has more than an equal share. Blocked responses do not count: they hold next to nothing.
    pub(super) fn exceed_in_flight(&self, app: &App) -> bool {
        let limit = app.limits.connections;
        app.activity.at_work().saturating_sub(count(&app.activity.blocked)) > limit
            && count(&self.in_flight).saturating_sub(count(&self.blocked)) > share(app)
    }

    /// The same for blocked responses, whose small cost is bounded in total by that.
    pub(super) fn exceed_blocked(&self, app: &App) -> bool {
        count(&app.activity.blocked) > app.limits.connections && count(&self.blocked) > share(app)
    }
}

/// Requests that each connection may have, whatever the others do.
fn share(app: &App) -> usize {
    let open = NonZeroUsize::new(count(&app.metrics.connections.open)).unwrap_or(NonZeroUsize::MIN);
    (app.limits.connections / open).max(1)
}

fn count(gauge: &Gauge) -> usize {
    usize::try_from(gauge.get()).unwrap_or_default()
}
