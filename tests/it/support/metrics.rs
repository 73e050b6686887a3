//! Strict parser of the metrics of a server.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use super::{Client, Connection, Response, wait_for};

/// The `Accept` header of Prometheus.
pub(crate) const OPENMETRICS: (&str, &str) =
    ("Accept", "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.1");

/// Metrics endpoint of a server.
pub(crate) struct Metrics {
    client: Client,
}

/// A parsed response of the metrics endpoint.
pub(crate) struct Scrape {
    pub(crate) text: String,
    pub(crate) samples: Vec<Sample>,
}

#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) value: f64,
}

impl Metrics {
    pub(crate) fn at(address: SocketAddr) -> Self {
        Self { client: Client { address, token: None } }
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// The listener closes a connection that is silent for two seconds, which may happen on a busy machine.
    #[track_caller]
    pub(crate) fn read_response(&self) -> Response {
        wait_for("a scrape", || {
            let mut connection = Connection::try_open(self.client.address).ok()?;
            connection.try_send(self.client.bytes("GET", "/metrics", &[OPENMETRICS], None)).ok()?;
            connection.try_read_response(false).ok()
        })
    }

    #[track_caller]
    pub(crate) fn scrape(&self) -> Scrape {
        let response = self.read_response();
        assert_eq!(response.status, 200, "{}", response.text());
        Scrape::parse(response.text())
    }

    /// Scrapes and returns the sum of the samples with this name and these labels.
    #[track_caller]
    pub(crate) fn value(&self, name: &str, labels: &[(&str, &str)]) -> i64 {
        self.scrape().value(name, labels)
    }

    /// Waits until the value is as expected: a request may be counted after its response is sent.
    #[track_caller]
    pub(crate) fn wait_for(&self, name: &str, labels: &[(&str, &str)], expected: i64) {
        let reached = || (self.value(name, labels) == expected).then_some(());
        wait_for(&format!("{name} {labels:?} to be {expected}"), reached);
    }
}

impl Scrape {
    /// Parses a page strictly by the OpenMetrics format.
    #[track_caller]
    pub(crate) fn parse(text: &str) -> Self {
        let lines = text.strip_suffix("# EOF\n").expect("`# EOF` at the end");
        let (mut families, mut samples) = (BTreeSet::new(), Vec::new());
        let mut current = (String::new(), String::new());
        for line in lines.lines() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                assert!(help.split_once(' ').is_some_and(|(_, text)| text.ends_with('.')), "{line}");
            } else if let Some(kind) = line.strip_prefix("# TYPE ") {
                let (name, kind) = kind.split_once(' ').expect("a metric type");
                current = (name.to_owned(), kind.to_owned());
                assert!(families.insert(name), "{name} comes twice");
            } else {
                let sample = Sample::parse(line);
                let suffix =
                    sample.name.strip_prefix(&current.0).unwrap_or_else(|| panic!("{line} is not in its family"));
                let suffixes: &[&str] = match current.1.as_str() {
                    "counter" => &["_total"],
                    "info" => &["_info"],
                    "histogram" => &["_bucket", "_count", "_sum"],
                    "gauge" => &[""],
                    kind => panic!("{kind} is no known metric type"),
                };
                assert!(suffixes.contains(&suffix), "{line} in a {}", current.1);
                samples.push(sample);
            }
        }
        let scrape = Self { text: text.to_owned(), samples };
        scrape.check();
        scrape
    }

    fn check(&self) {
        let mut seen = BTreeSet::new();
        for sample in &self.samples {
            assert!(seen.insert((&sample.name, &sample.labels)), "{sample:?} comes twice");
            assert!(sample.value.is_finite() && sample.value >= 0.0, "{sample:?}");
        }
        for last in self.samples.iter().filter(|sample| sample.labels.get("le").is_some_and(|end| end == "+Inf")) {
            let mut labels = last.labels.clone();
            labels.remove("le");
            let others = |sample: &&Sample| {
                sample.name == last.name && labels.iter().all(|(name, value)| sample.labels.get(name) == Some(value))
            };
            let counts: Vec<f64> = self.samples.iter().filter(others).map(|sample| sample.value).collect();
            assert!(counts.is_sorted(), "{last:?}: {counts:?}");
            let all = last.name.replace("_bucket", "_count");
            let count = self.samples.iter().find(|sample| sample.name == all && sample.labels == labels);
            assert!(count.is_some_and(|count| count.value.total_cmp(&last.value).is_eq()), "{last:?}");
        }
    }

    /// Returns the sum of the samples with this name and these labels, without its fraction.
    pub(crate) fn value(&self, name: &str, labels: &[(&str, &str)]) -> i64 {
        let fits = |sample: &&Sample| {
            let has = |(name, value): &(&str, &str)| sample.labels.get(*name).is_some_and(|found| found == value);
            sample.name == name && labels.iter().all(has)
        };
        let sum: f64 = self.samples.iter().filter(fits).map(|sample| sample.value).sum();
        #[expect(clippy::cast_possible_truncation, reason = "counts and bytes of a test")]
        {
            sum as i64
        }
    }
}

impl Sample {
    fn parse(line: &str) -> Self {
        // An exemplar may follow.
        let line = line.split(" # ").next().unwrap_or(line);
        let (series, value) = line.rsplit_once(' ').expect("a value");
        let value = value.parse().unwrap_or_else(|_| panic!("a number: {line}"));
        let (name, labels) = match series.strip_suffix('}') {
            Some(series) => series.split_once('{').expect("labels"),
            None => (series, ""),
        };
        let label = |label: &str| {
            let (name, value) = label.split_once('=').expect("a label");
            let value = value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).expect("a value in quotes");
            (name.to_owned(), value.to_owned())
        };
        let labels = labels.split(',').filter(|text| !text.is_empty()).map(label).collect();
        Self { name: name.to_owned(), labels, value }
    }
}
