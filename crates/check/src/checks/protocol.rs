//! Responses that do not concern plants (routes, methods, connections, probes), and rules about all responses.

use std::future::{Ready, ready};

use crate::client::Request;
use crate::run::{Check, Run, check};
use crate::verdict::CheckResult;

pub(super) const CHECKS: &[Check] = &[
    check!(Full, "route-unknown", "an unknown route is 404 with 40401", unknown_route),
    check!(Full, "method-unknown", "a method that is not allowed is 405 with 40500 and Allow", unknown_method),
    check!(Full, "request-id", "a valid X-Request-Id is returned, an invalid one is replaced", request_id),
    check!(Full, "connection-keep-alive", "a connection stays usable after errors", keep_alive),
    check!(Full, "probes", "/livez and /readyz return 200 without a token", probes),
    check!(Full, "openapi", "/openapi.json describes version 1.0.0 of the interface, without a token", openapi),
    check!(Full, "docs", "/docs is an HTML page, without a token", docs),
];

/// These verify the responses to all earlier requests.
pub(super) const ALL_RESPONSES: &[Check] = &[
    check!(Interface, "error-shape", "errors are JSON with an int32 `error` and a `message`", always, "error-shape"),
    check!(Interface, "no-server-error", "no request gets a server error", always, "no-server-error"),
    check!(Full, "error-codes", "error codes are documented and start with the status", always, "error-codes"),
    check!(
        Full,
        "error-members",
        "an error has exactly two members, and its message is not empty",
        always,
        "error-members"
    ),
    check!(Full, "request-id-always", "every response has an X-Request-Id", always, "request-id-always"),
    check!(Full, "nosniff-always", "every response has X-Content-Type-Options: nosniff", always, "nosniff-always"),
];

/// Reports the first violation of a rule by any response of the run.
fn always(run: &mut Run, id: &str) -> Ready<CheckResult> {
    ready(run.observations.result(id))
}

async fn unknown_route(run: &mut Run) -> CheckResult {
    for path in ["/plant", "/plants/1/2", "/Plants"] {
        run.send(Request::new("GET", path)).await?.expect_error(40401)?;
    }
    Ok(())
}

async fn unknown_method(run: &mut Run) -> CheckResult {
    for (method, path, allowed) in
        [("PUT", "/plants", "GET"), ("PATCH", "/plants", "POST"), ("POST", "/plants/1", "DELETE")]
    {
        let response = run.send(Request::new(method, path)).await?;
        response.expect_error(40500)?;
        let lists = response.header("allow").is_some_and(|allow| allow.split(',').any(|word| word.trim() == allowed));
        response.expect(lists, format_args!("an `Allow` that lists {allowed}"))?;
    }
    Ok(())
}

async fn request_id(run: &mut Run) -> CheckResult {
    let valid = run.send(Request::new("GET", "/plants?limit=0").with("x-request-id", "check-7_A.b:c")).await?;
    valid.expect_header("x-request-id", "check-7_A.b:c")?;
    let long = "x".repeat(129);
    for invalid in ["two words", long.as_str()] {
        let response = run.send(Request::new("GET", "/plants?limit=0").with("x-request-id", invalid)).await?;
        let replaced = response.header("x-request-id").is_some_and(|id| id != invalid);
        response.expect(replaced, "an X-Request-Id that replaces the invalid one")?;
    }
    Ok(())
}

async fn keep_alive(run: &mut Run) -> CheckResult {
    let requests = [
        Request::new("GET", "/plants?limit=ten"),
        Request::new("DELETE", "/plants/none"),
        Request::new("GET", "/no/such/route"),
        Request::create("{"),
        Request::new("GET", "/plants").anonymous(),
        Request::new("GET", "/livez").anonymous(),
    ];
    let responses = run.send_all(&requests).await?;
    responses.last().map_or(Ok(()), |last| last.expect_status(200))
}

async fn probes(run: &mut Run) -> CheckResult {
    for path in ["/livez", "/readyz"] {
        let response = run.send(Request::new("GET", path).anonymous()).await?;
        response.expect_status(200)?;
        response.expect(response.is_json_type(), "the media type application/json")?;
    }
    Ok(())
}

async fn openapi(run: &mut Run) -> CheckResult {
    let response = run.send(Request::new("GET", "/openapi.json").anonymous()).await?;
    response.expect_status(200)?;
    let json = response.json()?;
    let operations = [("/plants", "get"), ("/plants", "post"), ("/plants/{id}", "delete")];
    let described = operations.iter().all(|(path, method)| json["paths"][path].get(method).is_some());
    response.expect(described && json["info"]["version"] == "1.0.0", "the three operations, and the version 1.0.0")
}

async fn docs(run: &mut Run) -> CheckResult {
    let response = run.send(Request::new("GET", "/docs").anonymous()).await?;
    response.expect_status(200)?;
    let page = response.header("content-type").is_some_and(|kind| kind.starts_with("text/html"));
    response.expect(page, "an HTML page")
}
