//! Metrics in the text format of Prometheus or OpenMetrics.

use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::sync::atomic::Ordering;

use super::instruments::{Buckets, Histogram, Observation};

pub type Labels<'a> = &'a [(&'static str, Cow<'a, str>)];

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
        self.exposition.write(format_args!(
            " # {{trace_id=\"{:032x}\",span_id=\"{:016x}\"}} {} {:.3}",
            u128::from_be_bytes(exemplar.trace_id),
            u64::from_be_bytes(exemplar.span_id),
            float(*value) / per_unit,
            time.as_secs_f64()
        ));
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
