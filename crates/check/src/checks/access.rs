//! Authentication and scopes.

use crate::client::Request;
use crate::run::{Check, Run, check};
use crate::verdict::{CheckResult, Verdict};
use plantstore_model::token::{PlainToken, Scope, Scopes};

const CHALLENGE: &str = r#"Bearer realm="plants""#;
const CHALLENGE_INVALID: &str = r#"Bearer realm="plants", error="invalid_token""#;

pub(super) const CHECKS: &[Check] = &[
    check!(Interface, "access-no-token", "every operation without a token is rejected", no_token),
    check!(Interface, "access-wrong-token", "every operation with a wrong token is rejected", wrong_token),
    check!(Full, "access-challenge", "a missing token is 401 with 40100 and WWW-Authenticate", challenge),
    check!(Full, "access-invalid", "malformed and unknown tokens get the same 401 with 40101", invalid),
    check!(Full, "access-checked-first", "the token is checked before anything else", first),
    check!(Full, "access-scheme", "the scheme Bearer is not case-sensitive", scheme),
    check!(Full, "access-scope", "a missing scope is 403 with 40300 and named in WWW-Authenticate", scope),
];

/// Sends the three operations, which must be rejected. Tracks the plant in case its create is not.
async fn expect_rejections(run: &mut Run, authorization: Option<String>, expected: &str) -> CheckResult {
    let plant = run.new_plant("no access");
    let mut requests =
        vec![Request::new("GET", "/plants?limit=1"), Request::new("DELETE", format!("/plants/{}", plant.id))];
    if run.may_create().is_ok() {
        requests.push(Request::create(plant.json()));
    }
    for request in requests {
        let request = match &authorization {
            Some(value) => request.with("authorization", value),
            None => request.anonymous(),
        };
        let response = match request.method {
            "POST" => run.create_with(plant.id, request).await?,
            _ => run.send(request).await?,
        };
        response.expect((400..500).contains(&response.status), expected)?;
    }
    Ok(())
}

async fn no_token(run: &mut Run) -> CheckResult {
    expect_rejections(run, None, "a rejection without a token").await
}

async fn wrong_token(run: &mut Run) -> CheckResult {
    let unknown = format!("Bearer {}", unknown_token()?);
    expect_rejections(run, Some(unknown), "a rejection of an unknown token").await
}

fn unknown_token() -> CheckResult<String> {
    let token = PlainToken::generate().map_err(|error| Verdict::Untried(error.to_string()))?;
    Ok(token.reveal().to_owned())
}

async fn challenge(run: &mut Run) -> CheckResult {
    let plain = Request::new("GET", "/plants?limit=1");
    for request in [plain.clone().anonymous(), plain.with("authorization", "Basic Z2FyZGVuZXI6cm9zZXM=")] {
        let response = run.send(request).await?;
        response.expect_error(40100)?;
        response.expect_header("www-authenticate", CHALLENGE)?;
    }
    Ok(())
}

async fn invalid(run: &mut Run) -> CheckResult {
    let mut body = None;
    for token in ["pst_malformed".to_owned(), unknown_token()?] {
        let request = Request::new("GET", "/plants?limit=1").with("authorization", format!("Bearer {token}"));
        let response = run.send(request).await?;
        response.expect_error(40101)?;
        response.expect_header("www-authenticate", CHALLENGE_INVALID)?;
        let first = body.get_or_insert_with(|| response.body.clone());
        response.expect(*first == response.body, "the same body for every invalid token")?;
    }
    Ok(())
}

async fn first(run: &mut Run) -> CheckResult {
    for request in [
        Request::create("{"),
        Request::new("GET", "/plants?limit=ten"),
        Request::new("DELETE", "/plants/none"),
        Request::new("PUT", "/plants"),
        Request::new("GET", "/no/such/route"),
    ] {
        run.send(request.anonymous()).await?.expect_error(40100)?;
    }
    Ok(())
}

async fn scheme(run: &mut Run) -> CheckResult {
    run.may_read()?;
    for scheme in ["bearer", "BEARER"] {
        let request = Request::new("GET", "/plants?limit=1").with("authorization", run.client.credentials(scheme));
        run.send(request).await?.expect_success()?;
    }
    Ok(())
}

async fn scope(run: &mut Run) -> CheckResult {
    let lacking = Scopes::DEFAULT.without(run.scopes);
    if lacking.is_empty() {
        return Err(Verdict::NotApplicable("the token has all scopes".to_owned()));
    }
    let id = run.tracker.new_id();
    let requests = [
        (Scope::Read, Request::new("GET", "/plants?limit=1")),
        (Scope::Write, Request::create("{}")),
        (Scope::Delete, Request::new("DELETE", format!("/plants/{id}"))),
    ];
    for (scope, request) in requests.into_iter().filter(|(scope, _)| lacking.contains(*scope)) {
        let response = run.send(request).await?;
        response.expect_error(40300)?;
        let expected = format!(r#"{CHALLENGE}, error="insufficient_scope", scope="{}""#, scope.name());
        response.expect_header("www-authenticate", &expected)?;
    }
    Ok(())
}
