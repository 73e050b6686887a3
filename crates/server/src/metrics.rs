//! What the service counts of its requests and connections.
//!
//! Everything has its place in an array. To find it, a request costs a few comparisons with the names of routes and methods,
//! and then a few additions, whether anybody asks for the numbers or not: nothing is hashed, locked or allocated.

use std::time::Duration;

use hyper::{Method, StatusCode};

use super::connection_limit::Exceeded;
use super::wire::Ending;
use plantstore_telemetry::metrics::{Counter, Gauge, Held, Histogram, Label, Page, Striped, TIMES};

const METHODS: [&str; 7] = ["GET", "HEAD", "POST", "DELETE", "OPTIONS", "_OTHER", NO_METHOD];
/// Of what never became a request.
const NO_METHOD: &str = "-";
/// Statuses there can be, after one place for a request that never got one.
const STATUSES: usize = 501;
/// Error numbers are a status from 400 to 599 and two digits, of which the first is 0.
const ERRORS: usize = 200 * 10;

/// What is told from the start, so that a rate is known from the first request on.
const EXPECTED: [(&str, &str, u16); 3] =
    [("/plants", "GET", 200), ("/plants", "POST", 200), ("/plants/{id}", "DELETE", 204)];

/// The errors that alerts are about, for the same reason: the first of them is to be an increase.
const WATCHED_ERRORS: [u32; 4] = [50000, 50300, 50301, 50700];

pub(crate) struct Metrics {
    /// As the log names them; the last is for what is none of them.
    routes: &'static [&'static str],
    ended: Striped<Tally>,
    pub(crate) connections: Connections,
    /// Lists of which more than one page is sent.
    pub(crate) lists_streaming: Gauge,
    pub(crate) auth_failures: Counter,
    pub(crate) limited_addresses: Counter,
    pub(crate) limited_users: Counter,
}

/// The requests that have ended on one thread.
struct Tally {
    /// By route, method and status.
    requests: Box<[Counter]>,
    /// By route and method.
    durations: Box<[Histogram]>,
    /// By error number.
    errors: Box<[Counter]>,
    answer_bytes: Counter,
    answers_cut: Counter,
}

impl Tally {
    /// Of so many routes and methods.
    fn new(kinds: usize) -> Self {
        Self {
            requests: counters(kinds * STATUSES),
            durations: (0..kinds).map(|_| Histogram::new(&TIMES)).collect(),
            errors: counters(ERRORS),
            answer_bytes: Counter::default(),
            answers_cut: Counter::default(),
        }
    }
}

/// A request that has ended.
pub(crate) struct Ended<'a> {
    pub(crate) method: Option<&'a Method>,
    pub(crate) route: &'static str,
    /// `None` when it never got an answer.
    pub(crate) status: Option<StatusCode>,
    pub(crate) error: Option<i32>,
    pub(crate) bytes: u64,
    /// Whether the whole answer went out.
    pub(crate) complete: bool,
    pub(crate) took: Duration,
}

fn counters(number: usize) -> Box<[Counter]> {
    (0..number).map(|_| Counter::default()).collect()
}

fn method_place(method: Option<&Method>) -> usize {
    let last = METHODS.len() - 1;
    let known = |method: &Method| METHODS.iter().position(|known| *known == method.as_str());
    method.map_or(last, |method| known(method).unwrap_or(last - 1))
}

fn status_place(status: Option<StatusCode>) -> usize {
    status.map_or(0, |status| usize::from(status.as_u16()) - 99).min(STATUSES - 1)
}

fn error_place(number: i32) -> Option<usize> {
    let number = usize::try_from(number).ok()?;
    let place = (number / 100).checked_sub(400)? * 10 + number % 100;
    (number % 100 < 10 && place < ERRORS).then_some(place)
}

impl Metrics {
    /// Of requests on these routes.
    pub(crate) fn new(routes: &'static [&'static str]) -> Self {
        let kinds = routes.len() * METHODS.len();
        Self {
            routes,
            ended: Striped::new(|| Tally::new(kinds)),
            connections: Connections::default(),
            lists_streaming: Gauge::default(),
            auth_failures: Counter::default(),
            limited_addresses: Counter::default(),
            limited_users: Counter::default(),
        }
    }

    /// The place of a route and a method.
    fn kind(&self, route: &str, method: Option<&Method>) -> usize {
        let known = self.routes.iter().position(|known| *known == route);
        debug_assert!(known.is_some(), "{route} is not listed");
        known.unwrap_or(self.routes.len() - 1) * METHODS.len() + method_place(method)
    }

    pub(crate) fn ended(&self, ended: &Ended<'_>) {
        let (kind, tally) = (self.kind(ended.route, ended.method), self.ended.mine());
        tally.requests[kind * STATUSES + status_place(ended.status)].count();
        tally.durations[kind].time(ended.took);
        tally.answer_bytes.add(ended.bytes);
        if !ended.complete {
            tally.answers_cut.count();
        }
        if let Some(place) = ended.error.and_then(error_place) {
            tally.errors[place].count();
        }
    }

    /// What all threads have counted.
    fn sum<'a>(&'a self, counter: impl Fn(&'a Tally) -> &'a Counter) -> u64 {
        self.ended.iter().map(|tally| counter(tally).get()).sum()
    }

    pub(crate) fn write(&self, page: &mut Page) {
        let kinds = || self.routes.iter().flat_map(|route| METHODS.map(|method| (*route, method))).enumerate();
        let mut requests = page.counter("plantstore_http_requests_total", "Requests that have ended.");
        for (kind, (route, method)) in kinds() {
            for status in 0..STATUSES {
                let count = self.sum(|tally| &tally.requests[kind * STATUSES + status]);
                let code = u16::try_from(status + 99).unwrap_or_default();
                if count > 0 || EXPECTED.contains(&(route, method, code)) {
                    let shown = if status == 0 { "-".into() } else { Label::Number(code.into()) };
                    requests.sample(&labels(route, method, &[("status", shown)]), count);
                }
            }
        }
        let help = "From the first byte of a request to the last of its answer.";
        let mut durations = page.histogram("plantstore_http_request_duration_seconds", help);
        for (kind, (route, method)) in kinds() {
            let expected = EXPECTED.iter().any(|expected| (expected.0, expected.1) == (route, method));
            let all = Histogram::new(&TIMES);
            self.ended.iter().for_each(|tally| all.absorb(&tally.durations[kind]));
            if all.count() > 0 || expected {
                durations.distribution(&labels(route, method, &[]), &all);
            }
        }
        let mut errors = page.counter("plantstore_http_errors_total", "Answers by the error number they hold.");
        for (place, count) in (0..ERRORS).map(|place| (place, self.sum(|tally| &tally.errors[place]))) {
            let number = u32::try_from((place / 10 + 400) * 100 + place % 10).unwrap_or_default();
            if count > 0 || WATCHED_ERRORS.contains(&number) {
                errors.sample(&[("number", number.into())], count);
            }
        }
        page.counter("plantstore_http_answer_bytes_total", "Bytes of answers, without their heads.")
            .sample(&[], self.sum(|tally| &tally.answer_bytes));
        let help = "Answers whose end never went out: the client went away or was too slow, or a list broke off.";
        page.counter("plantstore_http_answers_cut_total", help).sample(&[], self.sum(|tally| &tally.answers_cut));
        page.gauge("plantstore_lists_streaming", "Lists of several pages that are being sent.")
            .sample(&[], self.lists_streaming.get());
        self.connections.write(page);
        page.counter("plantstore_auth_failures_total", "Requests with a token that is not valid.")
            .sample(&[], self.auth_failures.get());
        page.counter("plantstore_rate_limited_total", "Requests that were refused because there were too many.")
            .sample(&[("limit", "auth_failures".into())], self.limited_addresses.get())
            .sample(&[("limit", "user".into())], self.limited_users.get());
    }
}

fn labels(route: &'static str, method: &'static str, more: &[(&'static str, Label)]) -> Vec<(&'static str, Label)> {
    [&[("method", method.into()), ("route", route.into())], more].concat()
}

/// The connections of clients.
#[derive(Default)]
pub(crate) struct Connections {
    pub(crate) open: Gauge,
    accepted: Counter,
    beyond_total: Counter,
    beyond_address: Counter,
    silent: Counter,
    slow_head: Counter,
    large_head: Counter,
    large_body: Counter,
    malformed: Counter,
    stalled: Counter,
    handshake: Counter,
    misuse: Counter,
}

impl Connections {
    /// A connection was accepted; it is open until what is handed over is dropped.
    pub(crate) fn accept(&self) -> Held<'_> {
        self.accepted.count();
        self.open.hold()
    }

    /// One more than there may be.
    pub(crate) fn turn_away(&self, exceeded: Exceeded) {
        match exceeded {
            Exceeded::Total => self.beyond_total.count(),
            Exceeded::Address => self.beyond_address.count(),
        }
    }

    /// A connection was ended by us.
    pub(crate) fn cut(&self, why: Ending) {
        match why {
            Ending::Silent => self.silent.count(),
            Ending::HeadTimeout => self.slow_head.count(),
            Ending::HeadTooLarge => self.large_head.count(),
            Ending::BodyTooLarge => self.large_body.count(),
            Ending::Malformed => self.malformed.count(),
            Ending::Stalled => self.stalled.count(),
            Ending::Misuse => self.misuse.count(),
            // It goes on.
            Ending::Http2 => {}
        }
    }

    /// No encrypted connection came about.
    pub(crate) fn fail_handshake(&self) {
        self.handshake.count();
    }

    fn write(&self, page: &mut Page) {
        page.gauge("plantstore_http_connections", "Connections of clients that are open.").sample(&[], self.open.get());
        page.counter("plantstore_http_connections_accepted_total", "Connections that were accepted.")
            .sample(&[], self.accepted.get());
        let help =
            "Connections beyond --max-connections or --max-connections-per-address: rejected with 503 or closed.";
        page.counter("plantstore_http_connections_turned_away_total", help)
            .sample(&[("limit", "total".into())], self.beyond_total.get())
            .sample(&[("limit", "address".into())], self.beyond_address.get());
        page.counter("plantstore_http_connections_cut_total", "Connections that were ended by us, by what was wrong.")
            .sample(&[("why", "silent".into())], self.silent.get())
            .sample(&[("why", "slow_head".into())], self.slow_head.get())
            .sample(&[("why", "large_head".into())], self.large_head.get())
            .sample(&[("why", "large_body".into())], self.large_body.get())
            .sample(&[("why", "malformed".into())], self.malformed.get())
            .sample(&[("why", "stalled".into())], self.stalled.get())
            .sample(&[("why", "handshake".into())], self.handshake.get())
            .sample(&[("why", "misuse".into())], self.misuse.get());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_number_has_a_place_of_its_own() {
        assert_eq!(error_place(40000), Some(0));
        assert_eq!(error_place(40009), Some(9));
        assert_eq!(error_place(40100), Some(10));
        assert_eq!(error_place(59909), Some(ERRORS - 1));
        for none in [-1, 0, 39999, 40010, 60000, i32::MAX] {
            assert_eq!(error_place(none), None, "{none}");
        }
    }

    #[test]
    fn every_status_has_a_place_of_its_own() {
        let place = |status| status_place(StatusCode::from_u16(status).ok());
        assert_eq!((status_place(None), place(100), place(599), place(999)), (0, 1, 500, 500));
    }
}
