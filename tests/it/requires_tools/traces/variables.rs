//! The environment variables of OpenTelemetry.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::process::{Command, Output, Stdio};

use super::{SPAN, TRACE};
use crate::support::collector::Collector;
use crate::support::issuer::Authority;
use crate::support::{CommandOutput, Engine, Server, Store, assert_contains, sqlite_test, wait_for, wait_until};

type Options<'a> = &'a [&'a str];
type Variables<'a> = &'a [(&'a str, &'a str)];

const SERVE: [&str; 4] = ["serve", "--listen", "127.0.0.1:0", "--no-first-token"];

fn command(store: &Store, options: &[&str], variables: &[(&str, &str)]) -> Command {
    let mut command = store.command_through(&["timeout", "120"], &[&SERVE[..], options].concat());
    command.envs(variables.iter().copied()).stdin(Stdio::null());
    command
}

fn serve(store: &Store, options: &[&str], variables: &[(&str, &str)]) -> Server {
    let mut command = store.command(&[&SERVE[..], options].concat());
    command.envs(variables.iter().copied());
    Server::start(command)
}

fn get(server: &Server, id: &str) {
    assert_eq!(server.anonymous().call("GET", "/livez", &[("X-Request-Id", id)], None).status, 200);
}

/// Waits for the warning that traces are not exported, and returns its line.
#[track_caller]
fn wait_for_warning(server: &Server) -> String {
    let is_it = |line: &&str| line.contains("traces are not exported");
    wait_for("the warning", || server.log().lines().find(is_it).map(str::to_owned))
}

#[test]
fn path_for_traces_is_appended_only_to_the_base_endpoint() {
    let (store, collector) = (Store::new(Engine::Sqlite), Collector::start());
    let url = collector.url();
    let (below, verbatim, missing) =
        (format!("{url}/otlp/"), format!("{url}/spans?tenant=1"), "http://127.0.0.1:1".to_owned());
    let cases: [(&str, Options, Variables, &str); 4] = [
        ("base", &[], &[("OTEL_EXPORTER_OTLP_ENDPOINT", &url)], "/v1/traces"),
        ("below", &[], &[("OTEL_EXPORTER_OTLP_ENDPOINT", &below)], "/otlp/v1/traces"),
        (
            "verbatim",
            &[],
            &[("OTEL_EXPORTER_OTLP_ENDPOINT", &missing), ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", &verbatim)],
            "/spans?tenant=1",
        ),
        (
            "option",
            &["--otlp-endpoint", &url],
            &[("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", &missing), ("OTEL_SDK_DISABLED", "true")],
            "/v1/traces",
        ),
    ];
    for (id, options, variables, path) in cases {
        let server = serve(&store, options, variables);
        get(&server, id);
        collector.wait_for_request(id);
        let requests = collector.requests();
        let head = &requests.last().expect("a request").head;
        assert!(head.starts_with(&format!("POST {path} HTTP/1.1\r\n")), "{id}: {head}");
    }
}

#[test]
fn header_fields_are_decoded_and_sent_but_never_logged() {
    let (store, collector) = (Store::new(Engine::Sqlite), Collector::start());
    let variables = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url()),
        ("OTEL_EXPORTER_OTLP_HEADERS", "x-general=for-all".to_owned()),
        ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "Authorization=Bearer%20hush%2Chush==, x-tenant = garden".to_owned()),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip".to_owned()),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "30000".to_owned()),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf".to_owned()),
    ];
    let variables = variables.each_ref().map(|(name, value)| (*name, value.as_str()));
    let server = serve(&store, &["--log-level", "debug"], &variables);
    get(&server, "with-headers");
    collector.wait_for_request("with-headers");
    let requests = collector.requests();
    let request = requests.last().expect("a request");
    assert_eq!(request.header("authorization"), Some("Bearer hush,hush=="));
    assert_eq!(request.header("x-tenant"), Some("garden"));
    assert_eq!(request.header("x-general"), None, "the variable for traces replaces the general one");
    assert_eq!(request.header("content-type"), Some("application/x-protobuf"));
    assert_eq!(request.header("content-encoding"), Some("gzip"));
    assert!(request.header("user-agent").is_some_and(|agent| agent.starts_with("plantstore/")));
    // `google.rpc.Status { message: "hush" }`
    collector.respond_with_body(b"\x12\x04hush");
    collector.respond_with(Some("400 Bad Request"));
    get(&server, "rejected");
    server.wait_for_log("it answers 400 Bad Request");
    // `partial_success { rejected_spans: 1, error_message: "hush" }`
    collector.respond_with_body(b"\x0a\x08\x08\x01\x12\x04hush");
    collector.respond_with(None);
    get(&server, "partly");
    server.wait_for_log("only in part");
    assert_eq!(server.stop().code(), Some(0));
    assert!(!server.log().contains("hush"), "{}", server.log());
    let url = variables[0].1;
    for wrong in ["Authorization=Bearer hush,hush", "a=1,=hush"] {
        let headers = ("OTEL_EXPORTER_OTLP_HEADERS", wrong);
        let Output { status, stderr, .. } =
            command(&store, &["--otlp-endpoint", url], &[headers]).output().expect("the command runs");
        let error = String::from_utf8_lossy(&stderr);
        assert_eq!(status.code(), Some(2), "{wrong}: {error}");
        let warning = wait_for_warning(&serve(&store, &[], &[variables[0], headers]));
        for message in [&*error, warning.as_str()] {
            assert!(message.contains("OTEL_EXPORTER_OTLP_HEADERS: ") && !message.contains("hush"), "{message}");
        }
    }
}

#[test]
fn resource_attributes_describe_the_service() {
    let (store, collector) = (Store::new(Engine::Sqlite), Collector::start());
    let url = collector.url();
    let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", url.as_str());
    let export = |id: &str, variables: &[(&str, &str)]| {
        let server = serve(&store, &[], &[&[endpoint], variables].concat());
        get(&server, id);
        collector.wait_for_request(id);
        collector.resource()
    };
    let own = export("own", &[]);
    assert_eq!(own["service.name"], "plantstore");
    assert_eq!(own["service.version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(own["service.instance.id"].len(), 32);
    assert_eq!(own["telemetry.sdk.name"], "opentelemetry");
    let attributes = "service.name=hidden,deployment.environment.name=test bed,service.instance.id=7";
    let given = export("given", &[("OTEL_RESOURCE_ATTRIBUTES", attributes), ("OTEL_SERVICE_NAME", "garden")]);
    assert_eq!(given["service.name"], "garden");
    assert_eq!(given["deployment.environment.name"], "test bed");
    assert_eq!(given["service.instance.id"], "7");
    assert_eq!(given.len(), own.len() + 1);
}

sqlite_test!(sampler_variable_is_used_unless_the_option_is_given, |store: &Store| {
    let parents = [None, Some("00"), Some("01")];
    let cases: [(Options, Variables, [bool; 3]); 6] = [
        (&[], &[], [true, false, true]),
        (&[], &[("OTEL_TRACES_SAMPLER", "always_on")], [true, true, true]),
        (&[], &[("OTEL_TRACES_SAMPLER", "always_off")], [false, false, false]),
        (
            &[],
            &[("OTEL_TRACES_SAMPLER", "parentbased_traceidratio"), ("OTEL_TRACES_SAMPLER_ARG", "0")],
            [false, false, true],
        ),
        (&[], &[("OTEL_TRACES_SAMPLER", "traceidratio"), ("OTEL_TRACES_SAMPLER_ARG", "1.0")], [true, true, true]),
        (&["--otlp-sample", "0"], &[("OTEL_TRACES_SAMPLER", "always_on")], [false, false, true]),
    ];
    for (options, variables, expected) in cases {
        let collector = Collector::start();
        let url = collector.url();
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", url.as_str());
        let server = serve(store, options, &[&[endpoint], variables].concat());
        for flags in parents {
            let parent = format!("00-{TRACE}-{SPAN}-{}", flags.unwrap_or_default());
            let headers = [("X-Request-Id", flags.unwrap_or("root")), ("traceparent", &*parent)];
            let headers = if flags.is_some() { &headers[..] } else { &headers[..1] };
            assert_eq!(server.anonymous().call("GET", "/livez", headers, None).status, 200);
        }
        assert_eq!(server.stop().code(), Some(0));
        let exported = parents.map(|flags| collector.request(flags.unwrap_or("root")).is_some());
        assert_eq!(exported, expected, "{options:?} {variables:?}");
    }
});

#[test]
fn variables_turn_the_export_off() {
    let (store, collector) = (Store::new(Engine::Sqlite), Collector::start());
    let url = collector.url();
    let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", url.as_str());
    let off: [&[(&str, &str)]; 4] = [
        &[],
        &[("OTEL_EXPORTER_OTLP_ENDPOINT", ""), ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")],
        &[endpoint, ("OTEL_SDK_DISABLED", "True")],
        &[endpoint, ("OTEL_TRACES_EXPORTER", "none")],
    ];
    for variables in off {
        let server = serve(&store, &[], variables);
        get(&server, "off");
        assert_eq!(server.stop().code(), Some(0));
    }
    assert_eq!(collector.server.connections(), 0);
}

#[test]
fn certificate_option_overrides_the_variable() {
    let (store, authority, stranger) = (Store::new(Engine::Sqlite), Authority::new(), Authority::new());
    let collector = Collector::start_with_tls(&authority);
    let (url, right, wrong) = (collector.url(), authority.file(), stranger.file());
    let [right, wrong] = [&right, &wrong].map(|file| file.to_str().unwrap());
    let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", url.as_str());
    let cases: [(&str, &[&str], &str); 2] = [("variable", &[], right), ("option", &["--otlp-ca", right], wrong)];
    for (id, options, file) in cases {
        let server = serve(&store, options, &[endpoint, ("OTEL_EXPORTER_OTLP_CERTIFICATE", file)]);
        get(&server, id);
        collector.wait_for_request(id);
    }
}

sqlite_test!(invalid_variable_is_a_warning_unless_the_option_names_the_endpoint, |store: &Store| {
    let url = "https://127.0.0.1:4318";
    let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", url);
    let cases = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "127.0.0.1:4318", "for example http://127.0.0.1:4318; /v1/traces is added"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "ftp://x", "for example http://127.0.0.1:4318/v1/traces"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "write http/protobuf"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json", "write http/protobuf"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "zstd", "write gzip or none"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s", "write a number of milliseconds"),
        ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "0", "write a number of milliseconds"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "missing.pem", "cannot use the certificates in missing.pem"),
        ("OTEL_TRACES_EXPORTER", "console", "write otlp or none"),
        ("OTEL_TRACES_SAMPLER", "jaeger_remote", "write always_on, "),
        ("OTEL_RESOURCE_ATTRIBUTES", "nonsense", "write NAME=VALUE"),
    ];
    for (name, value, words) in cases {
        let is_reported = |message: &str| message.contains(&format!("{name}: ")) && message.contains(words);
        let server = serve(store, &[], &[endpoint, (name, value)]);
        get(&server, "not-exported");
        let warning = wait_for_warning(&server);
        assert!(is_reported(&warning), "{name}: {warning}");
        // The option replaces these variables.
        if name.ends_with("_ENDPOINT") || name == "OTEL_TRACES_EXPORTER" {
            continue;
        }
        let output = command(store, &["--otlp-endpoint", url], &[(name, value)]).output().expect("the command runs");
        let errors = output.stderr_text();
        assert_eq!((output.status.code(), is_reported(&errors)), (Some(2), true), "{name}: {errors}");
    }
    let ratio = [endpoint, ("OTEL_TRACES_SAMPLER", "traceidratio"), ("OTEL_TRACES_SAMPLER_ARG", "2")];
    let warning = wait_for_warning(&serve(store, &[], &ratio));
    assert_contains(&warning, "OTEL_TRACES_SAMPLER_ARG: write a share from 0 (none) to 1 (all)");
});

sqlite_test!(variable_that_is_not_utf_8_is_invalid, |store: &Store| {
    let mut command = store.command(&SERVE);
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318");
    command.env("OTEL_EXPORTER_OTLP_HEADERS", OsStr::from_bytes(b"api-key=hush\xff"));
    let warning = wait_for_warning(&Server::start(command));
    assert_contains(&warning, "OTEL_EXPORTER_OTLP_HEADERS: write it in UTF-8");
    assert!(!warning.contains("hush"), "{warning}");
});

#[test]
fn unsupported_variables_log_a_warning() {
    let (store, collector) = (Store::new(Engine::Sqlite), Collector::start());
    let url = collector.url();
    let variables = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", url.as_str()),
        ("OTEL_EXPORTER_OTLP_HEADER", "a=1"),
        ("OTEL_EXPORTER_OTLP_CLIENT_KEY", "key.pem"),
        ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://127.0.0.1:1"),
    ];
    let server = serve(&store, &[], &variables);
    let mistyped = "the variable OTEL_EXPORTER_OTLP_HEADER is ignored: there is no such option; did you mean";
    server.wait_for_log(mistyped);
    let unsupported = "the variable OTEL_EXPORTER_OTLP_CLIENT_KEY is ignored";
    server.wait_for_log(unsupported);
    assert!(!server.log().contains("OTLP_METRICS_ENDPOINT"), "{}", server.log());
    let without = serve(&store, &[], &variables[1..]);
    get(&without, "without");
    assert!(!without.log().contains("is ignored"), "{}", without.log());
}

/// A partial success is not sent again.
#[test]
fn partial_success_is_counted_and_logged() {
    let (store, collector) = (Store::new(Engine::Sqlite), Collector::start());
    // `partial_success { rejected_spans: 1, error_message: "too old" }`
    collector.respond_with_body(b"\x0a\x0b\x08\x01\x12\x07too old");
    let server = serve(&store, &["--otlp-endpoint", &collector.url(), "--metrics-listen", "0"], &[]);
    let metrics = server.metrics();
    get(&server, "partly");
    wait_until("the warning", || {
        let log = server.log();
        log.contains("only in part") && log.contains(r#""rejected":1,"error":"too old""#)
    });
    metrics.wait_for("plantstore_trace_spans_total", &[("outcome", "rejected")], 1);
    assert_eq!(metrics.value("plantstore_trace_spans_total", &[("outcome", "exported")]), 0);
    assert_eq!(collector.requests().len(), 1);
}
