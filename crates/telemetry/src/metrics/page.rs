//! The page that metrics are exported on.

use std::fmt::{self, Write as _};
use std::sync::atomic::Ordering;

use super::instruments::{Buckets, Histogram};

/// The value of a label.
#[derive(Clone, Copy, Debug)]
pub enum Label {
    Word(&'static str),
    Number(u32),
}

impl From<&'static str> for Label {
    fn from(word: &'static str) -> Self {
        Self::Word(word)
    }
}

impl From<u32> for Label {
    fn from(number: u32) -> Self {
        Self::Number(number)
    }
}

impl fmt::Display for Label {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Word(word) => formatter.write_str(word),
            Self::Number(number) => number.fmt(formatter),
        }
    }
}

pub type Labels<'a> = &'a [(&'static str, Label)];

/// The exposition format of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// OpenMetrics 1.0, which Prometheus asks for.
    OpenMetrics,
    /// The text format before it.
    Text,
}

impl Format {
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// A page of metrics. Each name is written once, with all of its samples.
#[derive(Debug)]
pub struct Page {
    format: Format,
    text: String,
}

impl Page {
    pub fn new(format: Format) -> Self {
        Self { format, text: String::with_capacity(16 * 1024) }
    }

    /// Begins a counter, whose name ends in `_total`.
    pub fn counter(&mut self, name: &'static str, help: &str) -> Family<'_> {
        let family = match self.format {
            Format::OpenMetrics => name.trim_end_matches("_total"),
            Format::Text => name,
        };
        self.family(name, family, "counter", help)
    }

    pub fn gauge(&mut self, name: &'static str, help: &str) -> Family<'_> {
        self.family(name, name, "gauge", help)
    }

    pub fn histogram(&mut self, name: &'static str, help: &str) -> Family<'_> {
        self.family(name, name, "histogram", help)
    }

    /// Writes a fact, as the labels of a sample that is always 1; its name ends in `_info`.
    pub fn info(&mut self, name: &'static str, help: &str, labels: Labels<'_>) {
        let mut family = match self.format {
            Format::OpenMetrics => self.family(name, name.trim_end_matches("_info"), "info", help),
            Format::Text => self.family(name, name, "gauge", help),
        };
        family.sample(labels, 1);
    }

    fn family(&mut self, name: &'static str, family: &str, kind: &str, help: &str) -> Family<'_> {
        self.write(format_args!("# HELP {family} {help}\n# TYPE {family} {kind}\n"));
        Family { page: self, name }
    }

    pub fn finish(mut self) -> String {
        if self.format == Format::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
        self.text
    }

    fn write(&mut self, text: fmt::Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = self.text.write_fmt(text);
    }
}

/// One name on the page, to which samples are added.
#[derive(Debug)]
pub struct Family<'a> {
    page: &'a mut Page,
    name: &'static str,
}

impl Family<'_> {
    pub fn sample(&mut self, labels: Labels<'_>, value: impl fmt::Display) -> &mut Self {
        self.line("", labels, None, value)
    }

    pub fn distribution(&mut self, labels: Labels<'_>, histogram: &Histogram) -> &mut Self {
        let Buckets { ends, per_unit } = *histogram.buckets;
        let mut sum_of_counts = 0;
        let ends = ends.iter().map(|end| Some(float(*end) / per_unit)).chain([None]);
        for (end, count) in ends.zip(&histogram.counts) {
            sum_of_counts += count.load(Ordering::Relaxed);
            let end = end.map_or_else(|| "+Inf".to_owned(), |end| end.to_string());
            self.line("_bucket", labels, Some(&end), sum_of_counts);
        }
        let sum = float(histogram.sum.load(Ordering::Relaxed)) / per_unit;
        self.line("_count", labels, None, sum_of_counts).line("_sum", labels, None, sum)
    }

    fn line(&mut self, suffix: &str, labels: Labels<'_>, end: Option<&str>, value: impl fmt::Display) -> &mut Self {
        let name = self.name;
        self.page.write(format_args!("{name}{suffix}"));
        let mut separator = '{';
        for (label, content) in labels {
            self.page.write(format_args!("{separator}{label}=\"{content}\""));
            separator = ',';
        }
        if let Some(end) = end {
            self.page.write(format_args!("{separator}le=\"{end}\""));
            separator = ',';
        }
        let close = if separator == ',' { "}" } else { "" };
        self.page.write(format_args!("{close} {value}\n"));
        self
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

    use super::super::instruments::{Counter, Gauge, TIMES};
    use super::*;

    fn page(format: Format) -> String {
        let mut page = Page::new(format);
        let (counter, gauge, times) = (Counter::default(), Gauge::default(), Histogram::new(&TIMES));
        counter.add(3);
        gauge.set(-2);
        times.time(Duration::from_micros(100));
        times.time(Duration::from_micros(101));
        times.time(Duration::from_secs(11));
        page.info("a_info", "A fact.", &[("version", "1".into())]);
        page.counter("b_total", "Counts.").sample(&[("status", 200.into()), ("route", "-".into())], counter.get());
        page.gauge("c", "Comes and goes.").sample(&[], gauge.get());
        page.histogram("d_seconds", "Takes time.").distribution(&[("kind", "x".into())], &times);
        page.finish()
    }

    #[test]
    fn pages() {
        assert_snapshot!(page(Format::OpenMetrics), @r#"
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
        d_seconds_bucket{kind="x",le="1"} 2
        d_seconds_bucket{kind="x",le="2.5"} 2
        d_seconds_bucket{kind="x",le="10"} 2
        d_seconds_bucket{kind="x",le="+Inf"} 3
        d_seconds_count{kind="x"} 3
        d_seconds_sum{kind="x"} 11.000201
        # EOF
        "#);
        let text = page(Format::Text);
        assert!(text.contains("# TYPE b_total counter\n") && text.contains("# TYPE a_info gauge\n"), "{text}");
        assert!(!text.contains("# EOF"), "{text}");
    }

    #[test]
    fn what_is_held_is_counted_until_it_is_dropped() {
        let gauge = Gauge::default();
        let (one, other) = (gauge.hold(), gauge.hold());
        assert_eq!(gauge.get(), 2);
        drop(one);
        assert_eq!(gauge.get(), 1);
        drop(other);
        assert_eq!(gauge.get(), 0);
    }
}
