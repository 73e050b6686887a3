//! The dashboard, the alerts and the document about metrics name existing metrics; the document names all.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use rstest::rstest;

use crate::support::collector::Collector;
use crate::support::issuer::{Authority, Issuer, SigningKey};
use crate::support::{Engine, Scrape, Store};

/// Labels that Prometheus adds to every series, and the series that it creates itself.
const OF_PROMETHEUS: [&str; 2] = ["job", "instance"];
const UP: &str = "up";

/// Returns the metrics of a server on this engine with every feature enabled, after requests of every kind.
fn scrape_of(engine: Engine) -> Scrape {
    let store = Store::new(engine);
    let key = SigningKey::ed25519("key");
    let (issuer, collector) = (Issuer::start(&[&key]), Collector::start());
    let url = collector.url();
    let options = ["--metrics-listen", "0", "--otlp-endpoint", &url];
    let server = store.serve(&[&options[..], &issuer.options()].concat());
    let metrics = server.metrics();
    let ada = server.client(&store.token("ada", &[]));
    ada.plant(1, "Rose");
    ada.get("/plants");
    assert_eq!(ada.delete(1).status, 204);
    assert_eq!(ada.delete(1).status, 404);
    assert_eq!(server.client(&key.token(&issuer.claims("bob"))).get("/plants").status, 200);
    metrics.wait_for("plantstore_http_errors_total", &[], 1);
    metrics.scrape()
}

/// Returns the metrics of a server with TLS.
fn scrape_with_tls() -> Scrape {
    let (store, authority) = (Store::new(Engine::Sqlite), Authority::new());
    let [certificate, key] = ["server.crt", "server.key"].map(|name| authority.path(name).display().to_string());
    store.serve(&["--metrics-listen", "0", "--tls-cert", &certificate, "--tls-key", &key]).metrics().scrape()
}

/// Returns the names of all series of both engines, with their labels and the values of each label.
fn series() -> BTreeMap<String, BTreeMap<String, BTreeSet<String>>> {
    let mut series: BTreeMap<String, BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
    for scrape in [scrape_of(Engine::Sqlite), scrape_of(Engine::Postgres), scrape_with_tls()] {
        for sample in scrape.samples {
            let labels = series.entry(sample.name).or_default();
            for (label, value) in sample.labels {
                labels.entry(label).or_default().insert(value);
            }
        }
    }
    series
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    Text(String),
    Sign(String),
}

/// Lexical tokens of a query: words, strings and signs.
fn tokens(query: &str) -> Vec<Token> {
    let mut rest = query.trim_start();
    let mut tokens = Vec::new();
    while let Some(first) = rest.chars().next() {
        let is_word = |character: char| character.is_alphanumeric() || "_:.$".contains(character);
        let length = if first == '"' {
            rest[1..].find('"').expect("the end of a string") + 2
        } else if is_word(first) {
            rest.find(|character| !is_word(character)).unwrap_or(rest.len())
        } else if rest.starts_with("=~") || rest.starts_with("!~") || rest.starts_with("!=") {
            2
        } else {
            first.len_utf8()
        };
        let (token, more) = rest.split_at(length);
        tokens.push(match first {
            '"' => Token::Text(token.trim_matches('"').to_owned()),
            first if is_word(first) => Token::Word(token.to_owned()),
            _ => Token::Sign(token.to_owned()),
        });
        rest = more.trim_start();
    }
    tokens
}

/// A label, an operator and a value.
type Matcher = (String, String, String);

/// Parts of a query: series with matchers, and the labels that it groups by.
#[derive(Debug, Default)]
struct Query {
    selectors: Vec<(String, Vec<Matcher>)>,
    groupings: Vec<String>,
}

fn parse_query(query: &str) -> Query {
    const GROUPING: [&str; 4] = ["by", "without", "on", "ignoring"];
    const OPERATORS: [&str; 4] = ["and", "or", "unless", "bool"];
    let tokens = tokens(query);
    let end = |from: usize, text: &str| {
        let found = tokens[from..].iter().position(|token| *token == Token::Sign(text.to_owned()));
        from + found.unwrap_or_else(|| panic!("no {text} in {query}"))
    };
    let sign = |at: usize, text: &str| tokens.get(at) == Some(&Token::Sign(text.to_owned()));
    let mut parsed = Query::default();
    let mut at = 0;
    while at < tokens.len() {
        let Token::Word(word) = &tokens[at] else {
            // Brackets contain a duration.
            at = if sign(at, "[") { end(at, "]") } else { at } + 1;
            continue;
        };
        at += 1;
        if GROUPING.contains(&word.as_str()) {
            assert!(sign(at, "("), "{query}");
            let end = end(at, ")");
            let labels = tokens[at..end].iter();
            parsed.groupings.extend(labels.filter_map(|token| match token {
                Token::Word(label) => Some(label.clone()),
                _ => None,
            }));
            at = end + 1;
        } else if matches!(tokens.get(at), Some(Token::Word(next)) if GROUPING.contains(&next.as_str())) {
            // An aggregation, followed by its labels.
        } else if !sign(at, "(") && !OPERATORS.contains(&word.as_str()) && word.parse::<f64>().is_err() {
            let mut matchers = Vec::new();
            if sign(at, "{") {
                while !sign(at, "}") {
                    let [Token::Word(label), Token::Sign(operator), Token::Text(value)] = &tokens[at + 1..at + 4]
                    else {
                        panic!("a matcher in {query}");
                    };
                    matchers.push((label.clone(), operator.clone(), value.clone()));
                    at += 4;
                }
                at += 1;
            }
            parsed.selectors.push((word.clone(), matchers));
        }
    }
    parsed
}

/// Lists the metrics and labels of a query that do not exist.
fn faults(query: &str, series: &BTreeMap<String, BTreeMap<String, BTreeSet<String>>>) -> Vec<String> {
    let parsed = parse_query(query);
    let mut faults = Vec::new();
    let mut labels: BTreeSet<&str> = OF_PROMETHEUS.into();
    for (name, matchers) in &parsed.selectors {
        let Some(known) = series.get(name) else {
            if name != UP {
                faults.push(format!("there is no {name}"));
            }
            continue;
        };
        labels.extend(known.keys().map(String::as_str));
        for (label, operator, value) in matchers.iter().filter(|(label, ..)| !OF_PROMETHEUS.contains(&label.as_str())) {
            match known.get(label) {
                None => faults.push(format!("{name} has no {label}")),
                Some(values) if operator == "=" && !values.contains(value) => {
                    faults.push(format!("{label} of {name} is never {value}"));
                }
                Some(_) => {}
            }
        }
    }
    faults.extend(
        parsed.groupings.iter().filter(|label| !labels.contains(label.as_str())).map(|label| format!("no {label}")),
    );
    if parsed.selectors.is_empty() {
        faults.push("it selects nothing".to_owned());
    }
    faults
}

fn file(path: &str) -> String {
    std::fs::read_to_string(format!("{}/{path}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

/// Collects all values of this field, at any depth.
fn fields(value: &Value, name: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(object) => object.iter().for_each(|(key, value)| match value {
            Value::String(text) if key == name => found.push(text.clone()),
            value => fields(value, name, found),
        }),
        Value::Array(array) => array.iter().for_each(|value| fields(value, name, found)),
        _ => {}
    }
}

fn queries_of_the_dashboard() -> Vec<String> {
    let mut found = Vec::new();
    fields(&serde_json::from_str(&file("deploy/grafana/plantstore.json")).unwrap(), "expr", &mut found);
    found
}

fn queries_of_the_alerts() -> Vec<String> {
    let alerts = file("deploy/prometheus/alerts.yml");
    alerts.lines().filter_map(|line| line.trim().strip_prefix("expr: ")).map(str::to_owned).collect()
}

/// Returns the names in the first column of the document's tables, with the labels in the second.
fn documented() -> BTreeMap<String, BTreeSet<String>> {
    let document = file("docs/reference/metrics.md");
    let in_code = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    let rows = document.lines().map(|line| line.split('|').skip(1).map(in_code).collect::<Vec<_>>());
    let rows = rows.filter_map(|row| match row.as_slice() {
        [names, labels, ..] => Some((names.first()?.clone(), labels.iter().cloned().collect())),
        _ => None,
    });
    rows.filter(|(name, _)| name.starts_with("plantstore_") || name.starts_with("process_")).collect()
}

#[rstest]
#[case::requires_postgres()]
fn dashboard_alerts_and_document_name_existing_metrics() {
    let series = series();
    let (dashboard, alerts) = (queries_of_the_dashboard(), queries_of_the_alerts());
    assert!(dashboard.len() >= 40 && alerts.len() >= 10);
    for query in dashboard.iter().chain(&alerts) {
        let faults = faults(query, &series);
        assert!(faults.is_empty(), "{query}: {faults:?}");
    }
    // The document lists a histogram once, without the suffixes of its series.
    let part =
        |name: &str| ["_bucket", "_count", "_sum"].iter().find_map(|part| name.strip_suffix(part).map(str::to_owned));
    let is_histogram = |name: &str| series.contains_key(&format!("{name}_bucket"));
    let mut exposed: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (name, labels) in &series {
        let metric = part(name).filter(|name| is_histogram(name)).unwrap_or_else(|| name.clone());
        exposed.entry(metric).or_default().extend(labels.keys().filter(|label| *label != "le").cloned());
    }
    assert_eq!(exposed, documented());
}

#[test]
fn every_alert_says_what_to_do() {
    let alerts = file("deploy/prometheus/alerts.yml");
    for alert in alerts.split("- alert: ").skip(1) {
        for part in ["expr: ", "severity: ", "summary: ", "runbook: "] {
            assert_eq!(alert.matches(part).count(), 1, "{part} of {alert}");
        }
        let name = alert.lines().next().unwrap();
        assert!(file("docs/reference/metrics.md").contains(&format!("`{name}`")), "{name} is in the document");
    }
}

/// Tests the checker of queries itself.
#[test]
fn query_of_an_unknown_metric_is_found() {
    let labels = |labels: &[(&str, &str)]| {
        labels.iter().map(|(name, value)| ((*name).to_owned(), BTreeSet::from([(*value).to_owned()]))).collect()
    };
    let series = BTreeMap::from([("a_total".to_owned(), labels(&[("x", "1")])), ("b".to_owned(), labels(&[]))]);
    let good = [
        "sum by (x) (rate(a_total{x=\"1\"}[5m])) / sum(b) > 0.5 and time() - b > 3",
        "a_total{x=~\"2|3\",instance=~\"$instance\"} or vector(0)",
        "up{job=\"plantstore\"} == 0",
        "histogram_quantile(0.99, sum by (x, job) (rate(a_total[$__rate_interval]))) + b",
    ];
    for query in good {
        assert_eq!(faults(query, &series), [""; 0], "{query}");
    }
    let bad = [
        "rate(c_total[5m])",
        "a_total{y=\"1\"}",
        "a_total{x=\"2\"}",
        "sum by (y) (a_total)",
        "b{x=\"1\"}",
        "sum by (x) (b)",
        "b / on (y) a_total",
        "vector(1)",
        "a_total{x=\"1\",y=\"1\"}",
        "b + c",
    ];
    for query in bad {
        assert_eq!(faults(query, &series).len(), 1, "{query}: {:?}", faults(query, &series));
    }
}
