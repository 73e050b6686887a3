//! The formats of the metrics, read by parsers of other projects.

use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::metrics::LISTEN;
use crate::support::collector::Collector;
use crate::support::tools::{in_tests, python_tool, succeed};
use crate::support::{CommandOutput, Store, engine_test, wait_until};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const DURATION: &str = "plantstore_http_request_duration_seconds_bucket";

/// Runs a command that must succeed with this input, and returns its output.
#[track_caller]
fn feed(mut command: Command, input: &str) -> String {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the command runs");
    child
        .stdin
        .take()
        .expect("standard input is piped")
        .write_all(input.as_bytes())
        .expect("the command reads its input");
    let output = child.wait_with_output().expect("the command ends");
    let text = output.stdout_text();
    assert!(output.status.success(), "{command:?}: {text}");
    text
}

/// Parses a page with `prometheus-client` for Python, and returns its exemplars.
#[track_caller]
fn exemplars(page: &str) -> Vec<Value> {
    let mut parser = python_tool("python");
    parser.arg(in_tests("python/openmetrics.py"));
    feed(parser, page).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

engine_test!(durations_of_traced_requests_have_exemplars, |store: &Store| {
    let collector = Collector::start();
    let server = store.serve(&[&LISTEN[..], &["--otlp-endpoint", &collector.url(), "--otlp-sample", "0"]].concat());
    let metrics = server.metrics();
    let ada = server.client(&store.token("ada", &[]));
    assert_eq!(ada.get("/plants").status, 200);
    metrics.wait_for("plantstore_http_requests_total", &[], 1);
    assert_eq!(exemplars(&metrics.scrape().text), [Value::Null; 0], "a request that is not sampled has no exemplar");
    let traced = [("traceparent", &*format!("00-{TRACE}-b7ad6b7169203331-01")), ("X-Request-Id", "traced")];
    assert_eq!(ada.call("GET", "/plants", &traced, None).status, 200);
    metrics.wait_for("plantstore_http_requests_total", &[], 2);
    let (span, _) = collector.wait_for_request("traced");
    let page = metrics.scrape();
    let found = exemplars(&page.text);
    let [exemplar] = &*found else { panic!("{found:?} in {}", page.text) };
    assert_eq!(exemplar["name"], DURATION);
    assert_eq!((&exemplar["labels"]["method"], &exemplar["labels"]["route"]), (&"GET".into(), &"/plants".into()));
    assert_eq!(
        (&exemplar["exemplar"]["trace_id"], &exemplar["exemplar"]["span_id"]),
        (&TRACE.into(), &span.0["spanId"])
    );
    let seconds = exemplar["value"].as_f64().expect("a value");
    let bound: f64 = exemplar["labels"]["le"].as_str().expect("a bound").parse().expect("a number");
    assert!(seconds > 0.0 && seconds <= bound, "{exemplar}");
    assert!(exemplar["timestamp"].as_f64().is_some_and(|time| time > 1.6e9), "{exemplar}");
    let text = metrics.client().get("/metrics");
    assert!(!text.text().contains(TRACE), "the text format has no exemplars");
    let last = TRACE.replace(&TRACE[..4], "1a57");
    for trace in [TRACE, TRACE, &last] {
        ada.call("GET", "/plants", &[("traceparent", &*format!("00-{trace}-b7ad6b7169203331-01"))], None);
    }
    metrics.wait_for("plantstore_http_requests_total", &[], 5);
    let found = exemplars(&metrics.scrape().text);
    assert!(found.iter().any(|found| found["exemplar"]["trace_id"] == *last), "the last of its bucket: {found:?}");
});

engine_test!(both_formats_are_valid, |store: &Store| {
    let collector = Collector::start();
    let server = store.serve(&[&LISTEN[..], &["--otlp-endpoint", &collector.url()]].concat());
    let metrics = server.metrics();
    let ada = server.client(&store.token("ada", &[]));
    ada.plant(1, "Rose");
    assert_eq!(ada.get("/plants").status, 200);
    assert_eq!(ada.delete(2).status, 404);
    wait_until("an exemplar of each request", || exemplars(&metrics.scrape().text).len() >= 3);
    let mut promtool = Command::new("promtool");
    promtool.args(["check", "metrics"]);
    feed(promtool, metrics.client().get("/metrics").text());
});

#[test]
fn promtool_accepts_the_alerts_and_the_configuration() {
    let deploy = in_tests("../deploy/prometheus");
    succeed(Command::new("promtool").args(["check", "rules"]).arg(deploy.join("alerts.yml")));
    succeed(Command::new("promtool").args(["check", "config"]).arg(deploy.join("prometheus.yml")));
}
