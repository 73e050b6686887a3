//! Metrics of requests and connections.
//!
//! Every combination of labels has a fixed index in an array. Counting a request costs a few comparisons with the names of
//! routes and methods and a few atomic additions; nothing is hashed or allocated. Only a request that is traced takes a lock, one
//! of its thread, to leave an exemplar.

use std::time::Duration;

use hyper::{Method, StatusCode, Version};
use plantstore_model::user::UserId;
use plantstore_telemetry::metrics::{Counter, Exemplar, Exposition, Histogram, Striped, TIMES};

use crate::transport::{CloseReason, ConnectionEvent, Exceeded};

const METHODS: [&str; 8] = ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "_OTHER", NO_METHOD];
/// For bytes that never became a request.
const NO_METHOD: &str = "-";
/// Possible statuses, after one index for a request without a response.
const STATUSES: usize = 501;
/// Error codes are a status from 400 to 599 and two digits, of which the first is 0.
const ERRORS: usize = 200 * 10;

/// Samples that are present from the start, so that the first request is visible as an increase.
const EXPECTED: [(&str, &str, u16); 3] =
    [("/plants", "GET", 200), ("/plants", "POST", 200), ("/plants/{id}", "DELETE", 204)];

/// The errors that alerts are about, for the same reason.
const WATCHED_ERRORS: [u32; 4] = [50000, 50300, 50301, 50700];

pub(crate) struct RequestMetrics {
    /// The labels of all routes; the last is for paths without a route.
    routes: Vec<&'static str>,
    threads: Striped<ThreadMetrics>,
}

/// The requests that have ended on one thread.
struct ThreadMetrics {
    /// By route, method and status.
    requests: Box<[Counter]>,
    /// By route and method.
    durations: Box<[Histogram]>,
    /// By error code.
    errors: Box<[Counter]>,
    response_bytes: Counter,
    responses_cut: Counter,
}

impl ThreadMetrics {
    /// Takes the number of combinations of route and method.
    fn new(kinds: usize) -> Self {
        Self {
            requests: counters(kinds * STATUSES),
            durations: (0..kinds).map(|_| Histogram::new(&TIMES)).collect(),
            errors: counters(ERRORS),
            response_bytes: Counter::default(),
            responses_cut: Counter::default(),
        }
    }
}

pub(super) struct EndedRequest<'a> {
    pub(super) id: &'a str,
    pub(super) version: Version,
    /// `None` for bytes that never became a request.
    pub(super) method: Option<&'a Method>,
    pub(super) route: &'static str,
    pub(super) user: Option<UserId>,
    pub(super) took: Duration,
    pub(super) outcome: &'a Outcome,
}

#[derive(Default)]
pub(crate) struct Outcome {
    /// `None` without a response.
    pub(crate) status: Option<StatusCode>,
    pub(crate) error: Option<i32>,
    /// Bytes of the response's body that were sent.
    pub(crate) bytes: u64,
    pub(crate) complete: bool,
}

impl EndedRequest<'_> {
    /// Returns the method, one name for all that are not known, or `-`: clients cannot choose the labels.
    pub(super) fn method_name(&self) -> &'static str {
        METHODS[method_index(self.method)]
    }

    pub(super) fn version_number(&self) -> &'static str {
        match self.version {
            Version::HTTP_10 => "1.0",
            Version::HTTP_2 => "2",
            _ => "1.1",
        }
    }
}

fn counters(number: usize) -> Box<[Counter]> {
    (0..number).map(|_| Counter::default()).collect()
}

fn method_index(method: Option<&Method>) -> usize {
    let last = METHODS.len() - 1;
    let known = |method: &Method| METHODS.iter().position(|known| *known == method.as_str());
    method.map_or(last, |method| known(method).unwrap_or(last - 1))
}

fn status_index(status: Option<StatusCode>) -> usize {
    status.map_or(0, |status| usize::from(status.as_u16()) - 99).min(STATUSES - 1)
}

fn error_index(code: i32) -> Option<usize> {
    let code = usize::try_from(code).ok()?;
    let index = (code / 100).checked_sub(400)? * 10 + code % 100;
    (code % 100 < 10 && index < ERRORS).then_some(index)
}

impl RequestMetrics {
    pub(super) fn new(routes: Vec<&'static str>) -> Self {
        let kinds = routes.len() * METHODS.len();
        Self { routes, threads: Striped::new(|| ThreadMetrics::new(kinds)) }
    }

    fn kind(&self, route: &str, method: Option<&Method>) -> usize {
        let known = self.routes.iter().position(|known| *known == route);
        debug_assert!(known.is_some(), "{route} is not listed");
        known.unwrap_or(self.routes.len() - 1) * METHODS.len() + method_index(method)
    }

    /// Counts a request that has ended; `exemplar` are the ids of its span, if it is recorded.
    pub(super) fn end(&self, ended: &EndedRequest<'_>, exemplar: Option<Exemplar>) {
        let kind = self.kind(ended.route, ended.method);
        let metrics = self.threads.local();
        metrics.requests[kind * STATUSES + status_index(ended.outcome.status)].count();
        metrics.durations[kind].time_traced(ended.took, exemplar);
        metrics.response_bytes.add(ended.outcome.bytes);
        if !ended.outcome.complete {
            metrics.responses_cut.count();
        }
        if let Some(index) = ended.outcome.error.and_then(error_index) {
            metrics.errors[index].count();
        }
    }

    fn sum<'a>(&'a self, counter: impl Fn(&'a ThreadMetrics) -> &'a Counter) -> u64 {
        self.threads.iter().map(|metrics| counter(metrics).get()).sum()
    }

    pub(crate) fn write(&self, exposition: &mut Exposition) {
        let kinds = || self.routes.iter().flat_map(|route| METHODS.map(|method| (*route, method))).enumerate();
        let mut requests = exposition.counter("plantstore_http_requests_total", "Completed requests.");
        for (kind, (route, method)) in kinds() {
            for status in 0..STATUSES {
                let count = self.sum(|metrics| &metrics.requests[kind * STATUSES + status]);
                let code = u16::try_from(status + 99).unwrap_or_default();
                if count > 0 || EXPECTED.contains(&(route, method, code)) {
                    let shown = if status == 0 { "-".into() } else { code.to_string().into() };
                    requests.sample(&[("method", method.into()), ("route", route.into()), ("status", shown)], count);
                }
            }
        }
        let help = "Time from the first byte of a request to the last byte of its response.";
        let mut durations = exposition.histogram("plantstore_http_request_duration_seconds", help);
        for (kind, (route, method)) in kinds() {
            let expected = EXPECTED.iter().any(|expected| (expected.0, expected.1) == (route, method));
            let all = Histogram::new(&TIMES);
            self.threads.iter().for_each(|metrics| all.absorb(&metrics.durations[kind]));
            if all.count() > 0 || expected {
                durations.distribution(&[("method", method.into()), ("route", route.into())], &all);
            }
        }
        let mut errors = exposition.counter("plantstore_http_errors_total", "Error responses, by error code.");
        for (index, count) in (0..ERRORS).map(|index| (index, self.sum(|metrics| &metrics.errors[index]))) {
            let number = u32::try_from((index / 10 + 400) * 100 + index % 10).unwrap_or_default();
            if count > 0 || WATCHED_ERRORS.contains(&number) {
                errors.sample(&[("code", number.to_string().into())], count);
            }
        }
        exposition
            .counter("plantstore_http_response_bytes_total", "Bytes of response bodies sent.")
            .sample(&[], self.sum(|metrics| &metrics.response_bytes));
        let help = "Responses not sent in full: the client disconnected or was too slow, or reading a list failed.";
        exposition
            .counter("plantstore_http_responses_incomplete_total", help)
            .sample(&[], self.sum(|metrics| &metrics.responses_cut));
    }
}

/// The causes for which the server rejects a connection or ends it, with their values of the label `limit` or `reason`.
const REJECTED: [(ConnectionEvent, &str); 2] = [
    (ConnectionEvent::LimitReached(Exceeded::Total), "total"),
    (ConnectionEvent::LimitReached(Exceeded::Address), "address"),
];
const ABORTED: [(ConnectionEvent, &str); 7] = [
    (ConnectionEvent::Aborted(CloseReason::Idle), "idle"),
    (ConnectionEvent::Aborted(CloseReason::HeadTimeout), "header_timeout"),
    (ConnectionEvent::Aborted(CloseReason::HeadTooLarge), "header_too_large"),
    (ConnectionEvent::Aborted(CloseReason::Malformed), "malformed"),
    (ConnectionEvent::Aborted(CloseReason::Stalled), "stalled"),
    (ConnectionEvent::HandshakeFailed, "tls_handshake"),
    (ConnectionEvent::Aborted(CloseReason::ProtocolViolation), "protocol_violation"),
];

#[derive(Default)]
pub(crate) struct ConnectionMetrics {
    rejected: [Counter; REJECTED.len()],
    aborted: [Counter; ABORTED.len()],
}

impl ConnectionMetrics {
    pub(crate) fn record(&self, event: ConnectionEvent) {
        let known = REJECTED.iter().zip(&self.rejected).chain(ABORTED.iter().zip(&self.aborted));
        known.filter(|((known, _), _)| *known == event).for_each(|(_, counter)| counter.count());
    }

    pub(crate) fn write(&self, exposition: &mut Exposition) {
        let help =
            "Connections rejected because of --max-connections (total) or --max-connections-per-address (address).";
        let mut rejected = exposition.counter("plantstore_http_connections_rejected_total", help);
        for ((_, limit), counter) in REJECTED.iter().zip(&self.rejected) {
            rejected.sample(&[("limit", (*limit).into())], counter.get());
        }
        let help = "Connections closed by the server because of a fault, by reason.";
        let mut aborted = exposition.counter("plantstore_http_connections_aborted_total", help);
        for ((_, reason), counter) in ABORTED.iter().zip(&self.aborted) {
            aborted.sample(&[("reason", (*reason).into())], counter.get());
        }
    }
}
