//! Authentication and scopes.

use crate::check::Check;
use crate::error::{CheckError, Outcome};
use crate::options::Level;
use crate::request::{Request, plant_json};
use crate::response::Response;
use crate::run::Run;
use plantstore_model::token::PlainToken;

const CHALLENGE: &str = r#"Bearer realm="plants""#;
const CHALLENGE_INVALID: &str = r#"Bearer realm="plants", error="invalid_token""#;

pub(super) const CHECKS: &[Check] = &[
    Check::new(Level::Interface, "access-no-token", "without a token every operation is refused", |run| {
        Box::pin(no_token(run))
    }),
    Check::new(Level::Interface, "access-wrong-token", "with a wrong token every operation is refused", |run| {
        Box::pin(wrong_token(run))
    }),
    Check::new(Level::Full, "access-challenge", "no token is 401 with 40100 and WWW-Authenticate", |run| {
        Box::pin(challenge(run))
    }),
    Check::new(Level::Full, "access-invalid", "malformed and unknown tokens are the same 401 with 40101", |run| {
        Box::pin(invalid(run))
    }),
    Check::new(Level::Full, "access-first", "the token is checked before anything else", |run| Box::pin(first(run))),
    Check::new(Level::Full, "access-scheme", "the word Bearer may be in small letters", |run| Box::pin(scheme(run))),
    Check::new(Level::Full, "access-scope", "a missing scope is 403 with 40300 and is named", |run| {
        Box::pin(scope(run))
    }),
];

/// Returns the three operations; the plant has this id if the create succeeds.
fn operations(id: i64, name: &str) -> [Request; 3] {
    [
        Request::new("GET", "/plants?limit=1"),
        Request::new("DELETE", format!("/plants/{id}")),
        Request::create(plant_json(id, name, None)),
    ]
}

/// Sends a request that must be rejected, and tracks the plant in case it is not.
async fn sent(run: &mut Run, id: i64, request: &Request) -> Outcome<Response> {
    if request.method == "POST" { run.create_as_is(id, request).await } else { run.send_as_is(request).await }
}

async fn no_token(run: &mut Run) -> Outcome {
    let (id, name) = (run.tracker.new_id(), run.tracker.name("no token"));
    for request in operations(id, &name) {
        if request.method == "POST" && run.may_create().is_err() {
            continue;
        }
        let response = sent(run, id, &request).await?;
        response.expect((400..500).contains(&response.status), "to be refused without a token")?;
    }
    Ok(())
}

async fn wrong_token(run: &mut Run) -> Outcome {
    let (id, name) = (run.tracker.new_id(), run.tracker.name("wrong token"));
    let unknown = unknown_token()?;
    for request in operations(id, &name) {
        if request.method == "POST" && run.may_create().is_err() {
            continue;
        }
        let response = sent(run, id, &request.with("authorization", format!("Bearer {unknown}"))).await?;
        response.expect((400..500).contains(&response.status), "to be refused with a token that nobody has")?;
    }
    Ok(())
}

fn unknown_token() -> Outcome<String> {
    let token = PlainToken::generate().map_err(|fault| CheckError::Untried(fault.to_string()))?;
    Ok(token.reveal().to_owned())
}

async fn challenge(run: &mut Run) -> Outcome {
    let plain = Request::new("GET", "/plants?limit=1");
    for request in [plain.clone(), plain.with("authorization", "Basic Z2FyZGVuZXI6cm9zZXM=")] {
        let response = run.send_as_is(&request).await?;
        response.expect_error(401, 40100)?;
        response.expect_header("www-authenticate", CHALLENGE)?;
    }
    Ok(())
}

async fn invalid(run: &mut Run) -> Outcome {
    let mut words = None;
    for token in ["pst_malformed".to_owned(), unknown_token()?] {
        let request = Request::new("GET", "/plants?limit=1").with("authorization", format!("Bearer {token}"));
        let response = run.send_as_is(&request).await?;
        response.expect_error(401, 40101)?;
        response.expect_header("www-authenticate", CHALLENGE_INVALID)?;
        let first = words.get_or_insert_with(|| response.body.clone());
        response.expect(*first == response.body, "the same words for every token that is not valid")?;
    }
    Ok(())
}

async fn first(run: &mut Run) -> Outcome {
    for request in [
        Request::create("{"),
        Request::new("GET", "/plants?limit=ten"),
        Request::new("DELETE", "/plants/none"),
        Request::new("PUT", "/plants"),
        Request::new("GET", "/no/such/address"),
    ] {
        run.send_as_is(&request).await?.expect_error(401, 40100)?;
    }
    Ok(())
}

async fn scheme(run: &mut Run) -> Outcome {
    run.may_read()?;
    for scheme in ["bearer", "BEARER"] {
        let request = run.with_scheme(scheme, Request::new("GET", "/plants?limit=1"));
        run.send_as_is(&request).await?.expect_success()?;
    }
    Ok(())
}

async fn scope(run: &mut Run) -> Outcome {
    let scopes = run.scopes;
    if scopes.read && scopes.write && scopes.delete {
        return Err(CheckError::NotApplicable("the token allows everything".to_owned()));
    }
    let id = run.tracker.new_id();
    let lacking = [
        (scopes.read, Request::new("GET", "/plants?limit=1"), "plants:read"),
        (scopes.write, Request::create("{}"), "plants:write"),
        (scopes.delete, Request::new("DELETE", format!("/plants/{id}")), "plants:delete"),
    ];
    for (allowed, request, scope) in lacking {
        if !allowed {
            let response = run.send(request).await?;
            response.expect_error(403, 40300)?;
            let expected = format!(r#"{CHALLENGE}, error="insufficient_scope", scope="{scope}""#);
            response.expect_header("www-authenticate", &expected)?;
        }
    }
    Ok(())
}
