//! The environment variables of OpenTelemetry that configure the export of traces. Options of the command line win over them.
//!
//! The SDK reads most of them itself and ignores invalid values, so they are checked here. An empty variable counts as not set,
//! as OpenTelemetry specifies; one that is not UTF-8 is invalid. Header fields may be secret: no message quotes a value.

use std::env::{self, VarError};
use std::fmt::Display;
use std::time::Duration;

use plantstore_server::Endpoint;

use crate::cli::environment::{UsageError, ignored};

const DEFAULT_ENDPOINT: &str = "http://localhost:4318";
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
const EXPORTER_PREFIX: &str = "OTEL_EXPORTER_OTLP_";
/// Variables of the exporters of all signals. Each has a variant for traces, which comes first.
const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
const HEADERS: &str = "OTEL_EXPORTER_OTLP_HEADERS";
const TIMEOUT: &str = "OTEL_EXPORTER_OTLP_TIMEOUT";
const PROTOCOL: &str = "OTEL_EXPORTER_OTLP_PROTOCOL";
const CERTIFICATE: &str = "OTEL_EXPORTER_OTLP_CERTIFICATE";
const COMPRESSION: &str = "OTEL_EXPORTER_OTLP_COMPRESSION";
/// Exporters of other things than traces, whose variables have the same prefix.
const OTHER_SIGNALS: [&str; 3] = ["METRICS_", "LOGS_", "PROFILES_"];
const SAMPLERS: [&str; 3] = ["always_on", "always_off", "traceidratio"];
const LIST_ADVICE: &str = "write NAME=VALUE,NAME=VALUE, with special characters percent-encoded";

const SHARE_ADVICE: &str = "write a share from 0 (none) to 1 (all), for example 0.05 for one in twenty";

pub(super) fn share(text: &str) -> Result<f64, &'static str> {
    text.parse().ok().filter(|share| (0.0..=1.0).contains(share)).ok_or(SHARE_ADVICE)
}

type Check = fn(&str) -> bool;

/// Variables that the SDK reads, with a check of their values and the advice for an invalid one.
const CHECKED: [(&str, Check, &str); 5] = [
    (
        PROTOCOL,
        |value| value == "http/protobuf",
        "write http/protobuf, the only supported protocol; collectors accept it on port 4318",
    ),
    (HEADERS, is_list, LIST_ADVICE),
    ("OTEL_RESOURCE_ATTRIBUTES", is_list, LIST_ADVICE),
    (
        "OTEL_TRACES_SAMPLER",
        |value| SAMPLERS.contains(&value.strip_prefix("parentbased_").unwrap_or(value)),
        "write always_on, always_off, traceidratio, parentbased_always_on, parentbased_always_off or \
         parentbased_traceidratio",
    ),
    ("OTEL_TRACES_SAMPLER_ARG", |value| share(value).is_ok(), SHARE_ADVICE),
];

fn is_list(text: &str) -> bool {
    let mut entries = text.split(',').filter(|entry| !entry.trim().is_empty());
    entries.all(|entry| entry.split_once('=').is_some_and(|(name, _)| !name.trim().is_empty()))
}

pub(super) struct Variable {
    pub(super) name: String,
    pub(super) value: String,
}

impl Variable {
    fn read(name: &str) -> Result<Option<Self>, UsageError> {
        #[expect(clippy::disallowed_methods, reason = "OpenTelemetry defines these variables; options have others")]
        let value = match env::var(name) {
            Ok(value) => value,
            Err(VarError::NotPresent) => return Ok(None),
            Err(VarError::NotUnicode(_)) => return Err(UsageError(format!("{name}: write it in UTF-8"))),
        };
        let value = value.trim();
        Ok((!value.is_empty()).then(|| Self { name: name.to_owned(), value: value.to_owned() }))
    }

    /// Reads the variable for traces, or the one for all exporters.
    fn of_exporter(name: &str) -> Result<Option<Self>, UsageError> {
        match Self::read(&for_traces(name))? {
            Some(variable) => Ok(Some(variable)),
            None => Self::read(name),
        }
    }

    fn wrong(&self, fault: impl Display) -> UsageError {
        UsageError(format!("{}: {fault}", self.name))
    }
}

/// Returns the name of the variable that is for traces only.
fn for_traces(name: &str) -> String {
    name.replace(EXPORTER_PREFIX, "OTEL_EXPORTER_OTLP_TRACES_")
}

pub(super) fn is_disabled() -> Result<bool, UsageError> {
    let disabled = Variable::read("OTEL_SDK_DISABLED")?;
    if disabled.is_some_and(|disabled| disabled.value.eq_ignore_ascii_case("true")) {
        return Ok(true);
    }
    Ok(Variable::read("OTEL_TRACES_EXPORTER")?.is_some_and(|exporter| exporter.value == "none"))
}

pub(super) fn endpoint() -> Result<Option<Endpoint>, UsageError> {
    let exporter = Variable::read("OTEL_TRACES_EXPORTER")?;
    if let Some(exporter) = exporter.as_ref().filter(|exporter| exporter.value != "otlp") {
        return Err(exporter.wrong("write otlp or none"));
    }
    if let Some(variable) = Variable::read(&for_traces(ENDPOINT))? {
        return Endpoint::for_traces(&variable.value).map(Some).map_err(|fault| variable.wrong(fault));
    }
    match Variable::read(ENDPOINT)? {
        Some(variable) => variable.value.parse().map(Some).map_err(|fault| variable.wrong(fault)),
        None if exporter.is_some() => Ok(DEFAULT_ENDPOINT.parse().ok()),
        None => Ok(None),
    }
}

pub(super) fn check() -> Result<(), UsageError> {
    for (name, is_valid, advice) in CHECKED {
        match Variable::of_exporter(name)? {
            Some(variable) if !is_valid(&variable.value) => return Err(variable.wrong(advice)),
            _ => {}
        }
    }
    Ok(())
}

pub(super) fn gzip() -> Result<bool, UsageError> {
    let compression = Variable::of_exporter(COMPRESSION)?;
    match compression.as_ref().map(|variable| (variable, variable.value.as_str())) {
        None | Some((_, "none")) => Ok(false),
        Some((_, "gzip")) => Ok(true),
        Some((variable, _)) => Err(variable.wrong("write gzip or none")),
    }
}

pub(super) fn service_name() -> Result<Option<String>, UsageError> {
    Ok(Variable::read("OTEL_SERVICE_NAME")?.map(|variable| variable.value))
}

pub(super) fn timeout() -> Result<Duration, UsageError> {
    let Some(variable) = Variable::of_exporter(TIMEOUT)? else {
        return Ok(DEFAULT_TIMEOUT);
    };
    let milliseconds = variable.value.parse::<u64>().ok().filter(|milliseconds| *milliseconds > 0);
    milliseconds
        .map(Duration::from_millis)
        .ok_or_else(|| variable.wrong("write a number of milliseconds from 1 on, for example 10000"))
}

pub(super) fn certificate() -> Result<Option<Variable>, UsageError> {
    Variable::of_exporter(CERTIFICATE)
}

/// Returns a warning for each variable of an exporter of traces that is not read, for example because it is misspelled.
pub(super) fn warnings() -> Vec<String> {
    let known = [ENDPOINT, HEADERS, TIMEOUT, PROTOCOL, CERTIFICATE, COMPRESSION];
    let known: Vec<String> = known.iter().flat_map(|name| [(*name).to_owned(), for_traces(name)]).collect();
    let is_ours = |name: &String| {
        let rest = name.strip_prefix(EXPORTER_PREFIX);
        rest.is_some_and(|rest| !OTHER_SIGNALS.iter().any(|signal| rest.starts_with(signal)))
    };
    let set = env::vars_os().filter_map(|(name, _)| name.into_string().ok()).filter(is_ours);
    set.filter(|name| !known.contains(name)).map(|name| ignored(&name, &known)).collect()
}
