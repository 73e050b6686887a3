//! The OpenAPI document: valid, complete, served, and accepted by linters and Schemathesis. `support/contract.rs`
//! checks every response in every test against it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use rstest::rstest;
use serde_json::{Map, Value, json};

use crate::support::contract::{self, RequestLine, document};
use crate::support::tools::{in_tests, node_tool, python_tool, succeed, target};
use crate::support::{
    Engine, Fault, JSON, Response, Service, Store, assert_contains, assert_snapshot, campaign_factor, engine_test,
    engine_tool_test, sqlite_test,
};
use crate::tokens::ALL_SCOPES;

/// Least number of cases that Schemathesis tries in a round.
const CASES_MIN: usize = 800;
/// Arguments in a campaign, for 3,000 to 5,000 cases in a round: more examples for each operation whose number is not configured.
const MORE_EXAMPLES: [&str; 2] = ["--max-examples", "400"];
/// Rounds in a campaign for each round in the suite: with the default factor, more than 100,000 cases on both engines.
const MORE_ROUNDS: usize = 4;

/// Returns the path of a report, which is not deleted after the run.
fn output(name: &str) -> PathBuf {
    let directory = target().join("test-output/openapi");
    std::fs::create_dir_all(&directory).unwrap();
    directory.join(name)
}

/// Writes the document to a file and returns its path.
fn written() -> &'static Path {
    static FILE: LazyLock<PathBuf> = LazyLock::new(|| {
        let file = output("openapi.json");
        std::fs::write(&file, document().to_string()).unwrap();
        file
    });
    &FILE
}

/// Iterates over the operations: method, path and description in the document.
pub(crate) fn operations() -> impl Iterator<Item = (&'static str, &'static str, &'static Value)> {
    let paths = document()["paths"].as_object().unwrap();
    paths.iter().flat_map(|(path, item)| {
        item.as_object().unwrap().iter().map(move |(method, operation)| (method.as_str(), path.as_str(), operation))
    })
}

/// Collects all values of this key in the document, at any depth.
fn all<'a>(value: &'a Value, key: &str, found: &mut Vec<&'a Value>) {
    match value {
        Value::Object(object) => {
            found.extend(object.get(key));
            object.values().for_each(|value| all(value, key, found));
        }
        Value::Array(array) => array.iter().for_each(|value| all(value, key, found)),
        _ => {}
    }
}

#[rstest]
#[case::requires_python()]
fn the_document_is_valid() {
    succeed(python_tool("openapi-spec-validator").args(["--schema", "3.1"]).arg(written()));
}

/// Returns the problems that Redocly finds in a document, including warnings and ignored ones.
fn redocly_problems(file: &Path) -> Vec<Value> {
    let output = node_tool("redocly")
        .args(["lint", "--format", "json", "--config"])
        .arg(in_tests("node/redocly.yaml"))
        .arg(file)
        .envs([("REDOCLY_TELEMETRY", "off"), ("REDOCLY_SUPPRESS_UPDATE_NOTICE", "true")])
        .output()
        .unwrap();
    report(&output.stdout)["problems"].as_array().unwrap().clone()
}

/// Returns the problems that Spectral finds in a document, including hints.
fn spectral_problems(file: &Path) -> Vec<Value> {
    let mut command = node_tool("spectral");
    command.args(["lint", "--format", "json", "--quiet", "--ruleset"]).arg(in_tests("node/spectral.yaml")).arg(file);
    report(&command.output().unwrap().stdout).as_array().unwrap().clone()
}

#[track_caller]
fn report(stdout: &[u8]) -> Value {
    serde_json::from_slice(stdout).unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(stdout)))
}

#[rstest]
#[case::requires_node()]
fn redocly_and_spectral_find_no_problem() {
    assert_eq!(redocly_problems(written()), [Value::Null; 0]);
    assert_eq!(spectral_problems(written()), [Value::Null; 0]);
    let file = output("without-servers.json");
    std::fs::write(&file, r#"{"openapi": "3.1.0", "info": {"title": "x", "version": "1"}, "paths": {}}"#).unwrap();
    assert!(
        !redocly_problems(&file).is_empty() && !spectral_problems(&file).is_empty(),
        "both linters find the problems of an incomplete document"
    );
}

#[test]
fn the_document_has_every_operation() {
    let found: BTreeSet<String> = operations().map(|(method, path, _)| format!("{method} {path}")).collect();
    let found: Vec<&str> = found.iter().map(String::as_str).collect();
    assert_snapshot!(found.join("\n"), @r"
    delete /plants/{id}
    delete /shares/received/{owner}
    delete /shares/{user}
    delete /tokens/{id}
    get /events
    get /livez
    get /me
    get /openapi.json
    get /plants
    get /plants/{id}
    get /readyz
    get /shares
    get /tokens
    post /plants
    post /tokens
    put /plants/{id}
    put /shares/received/{owner}
    put /shares/{user}
    ");
    assert_eq!(document()["openapi"], "3.1.0");
    assert_eq!(document()["info"]["version"], "1.0.0");
    let mut ids = BTreeSet::new();
    for (method, path, operation) in operations() {
        assert!(
            ids.insert(operation["operationId"].as_str().unwrap()),
            "{method} {path}: the operation id is not unique"
        );
        assert!(operation["summary"].is_string() && operation["description"].is_string(), "{method} {path}");
        let public = ["/livez", "/readyz", "/openapi.json"].contains(&path);
        let security = operation["security"]
            .as_array()
            .unwrap_or_else(|| panic!("{method} {path} lists its security requirements"));
        assert_eq!(security.is_empty(), public, "{method} {path}");
        for (status, response) in operation["responses"].as_object().unwrap() {
            let description = contract::resolved(response)["description"].as_str();
            assert!(description.is_some_and(|text| !text.is_empty()), "{method} {path} {status}");
            for (kind, content) in contract::resolved(response)["content"].as_object().into_iter().flatten() {
                assert!(content["schema"].is_object(), "{method} {path} {status} {kind}");
            }
        }
    }
}

/// The document still has the operations and fields of the first release.
#[test]
fn document_has_everything_of_the_first_release() {
    for (method, path, statuses) in [
        ("post", "/plants", ["200", "400"]),
        ("get", "/plants", ["200", "400"]),
        ("delete", "/plants/{id}", ["204", "400"]),
    ] {
        let responses = &document()["paths"][path][method]["responses"];
        for status in statuses {
            assert!(responses[status].is_object(), "{method} {path} {status}");
        }
    }
    let schemas = &document()["components"]["schemas"];
    assert_eq!(schemas["NewPlant"]["required"], serde_json::json!(["id", "name"]));
    assert_eq!(schemas["Plant"]["required"], serde_json::json!(["name"]));
    assert_eq!(schemas["Error"]["required"], serde_json::json!(["error", "message"]));
    assert_eq!(contract::resolved(&schemas["NewPlant"]["properties"]["id"])["format"], "int64");
    assert_eq!(schemas["Error"]["properties"]["error"]["format"], "int32");
    let names = |operation: &'static Value| -> BTreeSet<String> {
        let parameters = operation["parameters"].as_array().unwrap();
        parameters.iter().map(|parameter| contract::resolved(parameter)["name"].as_str().unwrap().to_owned()).collect()
    };
    assert!(names(&document()["paths"]["/plants"]["get"]).contains("limit"));
    assert!(names(&document()["paths"]["/plants/{id}"]["delete"]).contains("id"));
}

/// Returns the error responses: those of operations, and those to requests that match no operation.
fn error_responses() -> impl Iterator<Item = &'static Value> {
    let of_operations = operations().flat_map(|(_, _, operation)| operation["responses"].as_object().unwrap());
    let errors = of_operations.filter(|(status, _)| status.as_str() >= "400");
    let errors = errors.map(|(_, response)| contract::resolved(response));
    let outside = &document()["components"]["responses"];
    errors.chain([&outside["NoSuchAddress"], &outside["MethodNotAllowed"]])
}

#[test]
fn every_error_response_has_the_one_schema_and_lists_its_codes() {
    let schema = &document()["components"]["schemas"]["Error"];
    assert_eq!(schema["properties"]["error"]["type"], "integer");
    assert_eq!(
        schema["properties"]["error"].get("enum"),
        None,
        "generated clients must accept error codes of later releases"
    );
    let mut bodies = 0;
    for response in error_responses() {
        let codes = response["x-error-codes"].as_array().unwrap();
        assert!(!codes.is_empty(), "{response}");
        let description = response["description"].as_str().unwrap();
        assert!(codes.iter().all(|code| description.contains(&code.to_string())), "{description} {codes:?}");
        let schema = &response["content"]["application/json"]["schema"];
        assert_eq!(schema, &serde_json::json!({ "$ref": "#/components/schemas/Error" }));
        bodies += 1;
    }
    assert!(bodies > 20, "{bodies}");
}

#[test]
fn the_document_names_its_server_and_licence_and_warns_of_inexact_ids() {
    assert_eq!(document()["servers"][0]["url"], "/");
    assert_eq!(document()["info"]["license"]["identifier"], "MIT OR Apache-2.0");
    let warns = |text: &Value| text.as_str().is_some_and(|text| text.contains("JavaScript") && text.contains("2^53"));
    assert!(warns(&document()["info"]["description"]));
    let schemas = &document()["components"]["schemas"];
    assert!(["PlantId", "TokenId"].iter().all(|name| warns(&schemas[name]["description"])));
}

#[test]
fn the_document_has_every_error_code_with_an_example() {
    let listed = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/reference/errors.md")).unwrap();
    let expected: BTreeSet<i64> =
        listed.lines().filter_map(|line| line.strip_prefix("| ")?.split(' ').next()?.parse().ok()).collect();
    assert!(expected.len() > 20, "{expected:?}");
    let mut lists = Vec::new();
    all(document(), "x-error-codes", &mut lists);
    let known: BTreeSet<i64> =
        lists.iter().flat_map(|codes| codes.as_array().unwrap()).filter_map(Value::as_i64).collect();
    assert_eq!(known, expected);
    let mut examples = Vec::new();
    all(document(), "value", &mut examples);
    let shown: BTreeSet<i64> = examples.iter().filter_map(|example| example["error"].as_i64()).collect();
    assert_eq!(shown, expected);
    assert!(examples.iter().all(|example| example["message"].as_str().is_some_and(|message| !message.is_empty())));
}

#[test]
fn references_resolve_and_every_component_is_used() {
    let mut references = Vec::new();
    all(document(), "$ref", &mut references);
    let references: BTreeSet<&str> = references.into_iter().map(|reference| reference.as_str().unwrap()).collect();
    for reference in &references {
        let found = document().pointer(reference.strip_prefix('#').unwrap());
        assert!(found.is_some_and(Value::is_object), "{reference}");
    }
    for kind in ["schemas", "headers", "parameters", "examples"] {
        for name in document()["components"][kind].as_object().unwrap().keys() {
            assert!(references.contains(format!("#/components/{kind}/{name}").as_str()), "{kind}/{name} is not used");
        }
    }
}

/// Scopes, roles and `include` are one type each in generated clients, and the document stays small.
#[test]
fn what_operations_have_in_common_is_described_once() {
    let mut enumerations = Vec::new();
    all(document(), "enum", &mut enumerations);
    let distinct: BTreeSet<String> = enumerations.iter().map(ToString::to_string).collect();
    assert_eq!(enumerations.len(), distinct.len(), "{enumerations:?}");
    let printed = serde_json::to_string_pretty(document()).unwrap();
    assert!(printed.len() <= 90 * 1024, "{} bytes", printed.len());
    let descriptions = document()["info"]["description"].as_str().unwrap();
    assert!(descriptions.contains("`HEAD` is allowed wherever `GET` is"));
}

// The scope that the document names is the one that the handler requires.
sqlite_test!(requests_have_the_fields_that_the_document_names, |Service { store, server }: &Service| {
    let ada = server.client(&store.token("ada", &["--scope", ALL_SCOPES]));
    for (schema, method, path) in
        [("NewPlant", "POST", "/plants"), ("NewToken", "POST", "/tokens"), ("NewShare", "PUT", "/shares/bob")]
    {
        let schema = &document()["components"]["schemas"][schema];
        let fields: Vec<&String> = schema["properties"].as_object().unwrap().keys().collect();
        // No field may be an object.
        let body: Map<_, _> = fields.iter().map(|field| ((*field).clone(), json!({}))).collect();
        let rejection = ada.call(method, path, &[JSON], Some(json!(body).to_string().as_bytes()));
        assert_eq!(rejection.error(), 40002);
        for field in fields {
            assert_contains(rejection.text(), &format!("`{field}`"));
        }
        let example = schema["examples"][0].to_string();
        assert!(ada.call(method, path, &[JSON], Some(example.as_bytes())).status < 300, "{example}");
    }
});

engine_test!(operation_needs_the_scope_that_the_document_names, |Service { store, server }: &Service| {
    let scopes = ["plants:read", "plants:write", "plants:delete", "tokens:manage", "shares:manage"];
    for (method, path, operation) in operations() {
        let Some(required) = operation["security"][0]["bearer"][0].as_str() else { continue };
        let others = scopes.into_iter().filter(|scope| *scope != required).collect::<Vec<_>>().join(",");
        let response = server.client(&store.token("ada", &["--scope", &others])).call(
            &method.to_uppercase(),
            &path.replace("{id}", "1").replace("{user}", "bob"),
            &[],
            None,
        );
        assert_eq!(response.error(), 40300, "{method} {path}");
        let challenge = response.header("www-authenticate").unwrap();
        assert!(challenge.ends_with(&format!("scope=\"{required}\"")), "{method} {path}: {challenge}");
    }
});

#[test]
fn command_prints_the_document_also_into_a_closed_pipe() {
    let binary = env!("CARGO_BIN_EXE_plantstore");
    let shell = format!("set -o pipefail; {binary} openapi | head -c 1");
    let output = Command::new("bash").args(["-c", &shell]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.stdout, b"{");
}

/// Tests the contract check itself.
#[test]
fn response_that_the_document_does_not_list_is_found() {
    let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let listed = Response {
        status: 400,
        reason: "Bad Request".to_owned(),
        headers: vec![header("content-type", "application/json"), header("date", "today"), header("x-request-id", "1")],
        body: br#"{"error":40004,"message":"`limit` is given more than once"}"#.to_vec(),
    };
    let passes = |method: &str, path: &str, change: &dyn Fn(&mut Response)| {
        let mut response = listed.clone();
        change(&mut response);
        std::panic::catch_unwind(|| contract::check(Some(&RequestLine::new(method, path)), &response)).is_ok()
    };
    assert!(passes("GET", "/plants?limit=1&limit=2", &|_| {}));
    assert!(passes("HEAD", "http://plants.example/plants?limit=x", &|response| response.body.clear()));
    assert!(!passes("GET", "/plants", &|response| response.status = 418), "an undocumented status");
    assert!(
        !passes("GET", "/plants", &|response| response.headers.push(header("x-surprise", "1"))),
        "an undocumented header field"
    );
    assert!(
        !passes("GET", "/plants", &|response| response.headers[0].1 = "text/plain".to_owned()),
        "an undocumented media type"
    );
    assert!(!passes("POST", "/plants", &|_| {}), "an error code of another operation");
    assert!(!passes("HEAD", "/plants", &|_| {}), "a body in response to HEAD");
    let common = |response: &mut Response| response.body = br#"{"error":40007,"message":"send one `Host`"}"#.to_vec();
    let rated = |response: &mut Response| {
        common(response);
        response.headers.push(header("ratelimit", "1"));
    };
    assert!(passes("GET", "/livez", &common) && passes("GET", "/plants", &rated));
    assert!(!passes("GET", "/livez", &rated), "a header field of requests with a token");
    assert!(!passes("PUT", "/plants", &|response| response.status = 200), "a success of an undocumented operation");
    assert!(!passes("GET", "/nothing", &|response| response.status = 200), "a success at an undocumented path");
    assert!(
        passes("GET", "/docs/page.css", &|response| response.headers.push(header("x-surprise", "1"))),
        "pages are not checked"
    );
    assert!(
        !passes("GET", "/docsx", &|response| response.headers.push(header("x-surprise", "1"))),
        "a path that only starts like a page is checked"
    );
}

engine_test!(document_is_public, |Service { store, server }: &Service| {
    let response = server.anonymous().get("/openapi.json");
    assert_eq!(&response.json(), document(), "the served document is that of the command");
    let head = server.anonymous().call("HEAD", "/openapi.json", &[], None);
    assert_eq!(head.header("content-length"), Some(response.body.len().to_string().as_str()));
    let tag = response.header("etag").expect("an entity tag");
    let again = server.anonymous().call("GET", "/openapi.json", &[("If-None-Match", tag)], None);
    assert_snapshot!(again.wire(), @r"
    304 Not Modified
    etag: (a tag)
    cache-control: no-cache
    vary: Accept-Encoding
    ");
    assert_eq!(again.header("etag"), Some(tag));
    assert_eq!(server.anonymous().call("POST", "/openapi.json", &[], None).error(), 40100);
    let ada = server.client(&store.token("ada", &[]));
    let rejected = ada.call("POST", "/openapi.json", &[], None);
    assert_eq!((rejected.error(), rejected.header("allow")), (40500, Some("GET,HEAD")));
});

engine_tool_test!(schemathesis_finds_no_undocumented_response, requires_python, |engine: &Engine| {
    let fault = Fault::on(*engine, "generated requests of Schemathesis", 1).with_more_in_campaign(MORE_ROUNDS);
    for _ in 0..fault.rounds {
        let seed = fault.begin_round().below(usize::MAX);
        fault.count(run_schemathesis(&Store::new(*engine), seed), 0);
    }
});

/// Runs Schemathesis against a new server, and returns the number of cases.
#[track_caller]
fn run_schemathesis(store: &Store, seed: usize) -> usize {
    // Schemathesis sends many invalid tokens from one address.
    let unlimited = ["--auth-failure-rate", "1000000", "--auth-failure-burst", "1000000"];
    // A busy machine is not an error of the service.
    let slow = ["--log-level", "warn", "--store-timeout", "60s"];
    let server = store.serve(&[unlimited, slow].concat());
    let scopes = ["plants:read", "plants:write", "plants:delete", "tokens:manage", "shares:manage"];
    let token =
        store.token("ada", &[&["--expires", "never"], &scopes.map(|scope| ["--scope", scope]).concat()[..]].concat());
    // An id that the hooks of Schemathesis know: a token that revokes itself would end the run.
    store.execute("UPDATE tokens SET token_id = 6917529027641081857");
    for (owner, role) in [("bob", "editor"), ("eve", "reader")] {
        store.token(owner, &[]);
        let shared = store.run(&["share", "grant", "--owner", owner, "--to", "ada", "--role", role]);
        assert!(shared.status.success(), "{}", String::from_utf8_lossy(&shared.stderr));
    }
    let engine = format!("{:?}", store.engine).to_lowercase();
    let report = output(&format!("schemathesis-{engine}.json"));
    let directory = in_tests("python");
    let ran = python_tool("schemathesis")
        .arg("--config-file")
        .arg(directory.join("schemathesis.toml"))
        .arg("run")
        .arg(written())
        .args(["--url", &format!("http://{}", server.address())])
        .args(["--header", &format!("Authorization: Bearer {token}")])
        .args(["--checks", "all", "--phases", "examples,coverage,fuzzing,stateful", "--mode", "all"])
        // With several threads, an error of CPython (`AST constructor recursion depth mismatch`) ends a run now and then. The
        // limit of the response time is for a busy machine.
        .args([
            "--seed",
            &seed.to_string(),
            "--workers",
            "1",
            "--generation-database",
            "none",
            "--max-response-time",
            "60",
        ])
        .args(if campaign_factor() > 1 { &MORE_EXAMPLES[..] } else { &[] })
        .args(["--no-color", "--report", "json", "--report-json-path"])
        .arg(&report)
        .env("SCHEMATHESIS_HOOKS", "formats")
        .env("PYTHONPATH", &directory)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .current_dir(store.directory())
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success(), "{stderr}\n{}", String::from_utf8_lossy(&ran.stderr));
    let report: Value = serde_json::from_slice(&std::fs::read(report).unwrap()).unwrap();
    assert_eq!(report["complete"], true, "{stderr}");
    // All but the one that streams events.
    assert_eq!(report["operations"]["tested"], operations().count() - 1, "{stderr}");
    for phase in ["examples", "coverage", "fuzzing", "stateful"] {
        assert_eq!(report["phases"][phase]["status"], "success", "{stderr}");
    }
    let cases = &report["test_cases"];
    let generated = usize::try_from(cases["generated"].as_u64().unwrap()).unwrap();
    assert!(generated >= CASES_MIN, "{cases}");
    assert_eq!((&cases["with_failures"], &cases["errored"]), (&Value::from(0), &Value::from(0)), "{stderr}");
    for (kind, warnings) in report["warnings"].as_object().unwrap() {
        assert_eq!(warnings, &Value::Array(Vec::new()), "{kind}: {stderr}");
    }
    generated
}
