//! Metrics in the text format of Prometheus or OpenMetrics.

use std::fmt::{self, Write as _};
use std::sync::atomic::Ordering;

use super::exemplars::Observation;
use super::instruments::{Buckets, Histogram};

/// The value of a label.
#[derive(Clone, Copy, Debug)]
pub enum LabelValue {
    Word(&'static str),
    Number(u32),
}

impl From<&'static str> for LabelValue {
    fn from(word: &'static str) -> Self {
        Self::Word(word)
    }
}

impl From<u32> for LabelValue {
    fn from(number: u32) -> Self {
        Self::Number(number)
    }
}

impl fmt::Display for LabelValue {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Word(word) => formatter.write_str(word),
            Self::Number(number) => number.fmt(formatter),
        }
    }
}

pub type Labels<'a> = &'a [(&'static str, LabelValue)];

/// Format of an exposition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpositionFormat {
    /// OpenMetrics 1.0, with exemplars.
    OpenMetrics,
    /// The Prometheus text format, 0.0.4.
    Text,
}

impl ExpositionFormat {
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// The exported metrics. Each name is written once, with all of its samples.
#[derive(Debug)]
pub struct Exposition {
    format: ExpositionFormat,
    text: String,
}

impl Exposition {
    pub fn new(format: ExpositionFormat) -> Self {
        Self { format, text: String::with_capacity(16 * 1024) }
    }

    /// Begins a counter, whose name ends in `_total`.
    pub fn counter(&mut self, name: &'static str, help: &str) -> Family<'_> {
        let family = match self.format {
            ExpositionFormat::OpenMetrics => name.trim_end_matches("_total"),
            ExpositionFormat::Text => name,
        };
        self.family(name, family, "counter", help)
    }

    pub fn gauge(&mut self, name: &'static str, help: &str) -> Family<'_> {
        self.family(name, name, "gauge", help)
    }

    pub fn histogram(&mut self, name: &'static str, help: &str) -> Family<'_> {
        self.family(name, name, "histogram", help)
    }

    /// Writes an info metric: labels of a sample that is always 1. Its name ends in `_info`.
    pub fn info(&mut self, name: &'static str, help: &str, labels: Labels<'_>) {
        let mut family = match self.format {
            ExpositionFormat::OpenMetrics => self.family(name, name.trim_end_matches("_info"), "info", help),
            ExpositionFormat::Text => self.family(name, name, "gauge", help),
        };
        family.sample(labels, 1);
    }

    fn family(&mut self, name: &'static str, family: &str, kind: &str, help: &str) -> Family<'_> {
        self.write(format_args!("# HELP {family} {help}\n# TYPE {family} {kind}\n"));
        Family { exposition: self, name }
    }

    pub fn finish(mut self) -> String {
        if self.format == ExpositionFormat::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
        self.text
    }

    fn write(&mut self, text: fmt::Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = self.text.write_fmt(text);
    }
}

/// Metric family, to which samples are added.
#[derive(Debug)]
pub struct Family<'a> {
    exposition: &'a mut Exposition,
    name: &'static str,
}

impl Family<'_> {
    pub fn sample(&mut self, labels: Labels<'_>, value: impl fmt::Display) -> &mut Self {
        self.line("", labels, value)
    }

    pub fn distribution(&mut self, labels: Labels<'_>, histogram: &Histogram) -> &mut Self {
        let Buckets { bounds, per_unit } = *histogram.buckets;
        let mut sum_of_counts = 0;
        let bounds = bounds.iter().map(|bound| Some(float(*bound) / per_unit)).chain([None]);
        for (bucket, (bound, count)) in bounds.zip(&histogram.counts).enumerate() {
            sum_of_counts += count.load(Ordering::Relaxed);
            let bound = match (bound, self.exposition.format) {
                (None, _) => "+Inf".to_owned(),
                // OpenMetrics prescribes a decimal point: 1.0.
                (Some(bound), ExpositionFormat::OpenMetrics) => format!("{bound:?}"),
                (Some(bound), ExpositionFormat::Text) => bound.to_string(),
            };
            self.start_line("_bucket", labels, Some(&bound), sum_of_counts);
            if let (ExpositionFormat::OpenMetrics, Some(observation)) =
                (self.exposition.format, histogram.exemplars.get(bucket))
            {
                self.exemplar(&observation, per_unit);
            }
            self.exposition.text.push('\n');
        }
        let sum = float(histogram.sum.load(Ordering::Relaxed)) / per_unit;
        self.line("_count", labels, sum_of_counts).line("_sum", labels, sum)
    }

    fn exemplar(&mut self, observation: &Observation, per_unit: f64) {
        let Observation { exemplar, value, time } = observation;
        let (trace, span) = (u128::from_be_bytes(exemplar.trace_id), u64::from_be_bytes(exemplar.span_id));
        let (value, time) = (float(*value) / per_unit, time.as_secs_f64());
        self.exposition
            .write(format_args!(" # {{trace_id=\"{trace:032x}\",span_id=\"{span:016x}\"}} {value} {time:.3}"));
    }

    fn line(&mut self, suffix: &str, labels: Labels<'_>, value: impl fmt::Display) -> &mut Self {
        self.start_line(suffix, labels, None, value);
        self.exposition.text.push('\n');
        self
    }

    fn start_line(&mut self, suffix: &str, labels: Labels<'_>, bound: Option<&str>, value: impl fmt::Display) {
        let name = self.name;
        self.exposition.write(format_args!("{name}{suffix}"));
        let mut separator = '{';
        for (label, content) in labels {
            self.exposition.write(format_args!("{separator}{label}=\"{content}\""));
            separator = ',';
        }
        if let Some(bound) = bound {
            self.exposition.write(format_args!("{separator}le=\"{bound}\""));
            separator = ',';
        }
        let close = if separator == ',' { "}" } else { "" };
        self.exposition.write(format_args!("{close} {value}"));
    }
}

#[expect(clippy::cast_precision_loss, reason = "the exposition format has floats only")]
pub(super) fn float(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use std::time::Duration;

    use super::super::exemplars::Exemplar;
    use super::super::instruments::{Counter, Gauge, TIMES};
    use super::*;

    fn exposition(format: ExpositionFormat) -> String {
        let mut exposition = Exposition::new(format);
        let (counter, gauge, times) = (Counter::default(), Gauge::default(), Histogram::new(&TIMES));
        counter.add(3);
        gauge.set(-2);
        times.time(Duration::from_micros(100));
        times.time(Duration::from_micros(101));
        times.time(Duration::from_secs(11));
        exposition.info("a_info", "A fact.", &[("version", "1".into())]);
        exposition
            .counter("b_total", "Counts.")
            .sample(&[("status", 200.into()), ("route", "-".into())], counter.get());
        exposition.gauge("c", "Comes and goes.").sample(&[], gauge.get());
        exposition.histogram("d_seconds", "Takes time.").distribution(&[("kind", "x".into())], &times);
        exposition.finish()
    }

    #[test]
    fn metrics_have_the_format_asked_for() {
        assert_snapshot!(exposition(ExpositionFormat::OpenMetrics), @r#"
        # HELP a A fact.
        # TYPE a info
        a_info{version="1"} 1
        # HELP b Counts.
        # TYPE b counter
        b_total{status="200",route="-"} 3
        # HELP c Comes and goes.
        # TYPE c gauge
        c -2
        # HELP d_seconds Takes time.
        # TYPE d_seconds histogram
        d_seconds_bucket{kind="x",le="0.0001"} 1
        d_seconds_bucket{kind="x",le="0.00025"} 2
        d_seconds_bucket{kind="x",le="0.0005"} 2
        d_seconds_bucket{kind="x",le="0.001"} 2
        d_seconds_bucket{kind="x",le="0.0025"} 2
        d_seconds_bucket{kind="x",le="0.005"} 2
        d_seconds_bucket{kind="x",le="0.01"} 2
        d_seconds_bucket{kind="x",le="0.025"} 2
        d_seconds_bucket{kind="x",le="0.05"} 2
        d_seconds_bucket{kind="x",le="0.1"} 2
        d_seconds_bucket{kind="x",le="0.25"} 2
        d_seconds_bucket{kind="x",le="0.5"} 2
        d_seconds_bucket{kind="x",le="1.0"} 2
        d_seconds_bucket{kind="x",le="2.5"} 2
        d_seconds_bucket{kind="x",le="10.0"} 2
        d_seconds_bucket{kind="x",le="+Inf"} 3
        d_seconds_count{kind="x"} 3
        d_seconds_sum{kind="x"} 11.000201
        # EOF
        "#);
        let text = exposition(ExpositionFormat::Text);
        assert!(text.contains("# TYPE b_total counter\n") && text.contains("# TYPE a_info gauge\n"), "{text}");
        assert!(!text.contains("# EOF"), "{text}");
    }

    #[test]
    fn exemplars_are_part_of_openmetrics_only() {
        let times = Histogram::new(&TIMES);
        times.time_traced(Duration::from_millis(2), Some(Exemplar { trace_id: [0x1f; 16], span_id: [2; 8] }));
        let exposition = |format| {
            let mut exposition = Exposition::new(format);
            exposition.histogram("d_seconds", "Takes time.").distribution(&[], &times);
            exposition.finish()
        };
        let (openmetrics, text) = (exposition(ExpositionFormat::OpenMetrics), exposition(ExpositionFormat::Text));
        let exemplar = format!(r#" # {{trace_id="{}",span_id="{}"}} 0.002 "#, "1f".repeat(16), "02".repeat(8));
        let with = openmetrics.lines().filter(|line| line.contains(&exemplar)).collect::<Vec<_>>();
        assert!(matches!(*with, [line] if line.starts_with("d_seconds_bucket{le=\"0.0025\"} 1 # ")), "{openmetrics}");
        assert!(!text.contains("trace_id") && text.contains("le=\"1\""), "{text}");
    }

    #[test]
    fn gauge_counts_guards_until_they_are_dropped() {
        let gauge = Gauge::default();
        let (one, other) = (gauge.hold(), gauge.hold());
        assert_eq!(gauge.get(), 2);
        drop(one);
        assert_eq!(gauge.get(), 1);
        drop(other);
        assert_eq!(gauge.get(), 0);
    }
}
