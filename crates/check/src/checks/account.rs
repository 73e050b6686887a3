//! The user's own tokens and shares. What a check creates, it revokes again.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::client::Request;
use crate::response::Response;
use crate::run::{Check, Run, check};
use crate::verdict::{CheckResult, Verdict};

/// Time within which a revocation takes effect on every node, and pause between two attempts to see it.
const REVOCATION_MAX: Duration = Duration::from_secs(5);
const REVOCATION_PAUSE: Duration = Duration::from_millis(200);

pub(super) const CHECKS: &[Check] = &[
    check!(Full, "account-me", "GET /me shows the user and the token", me),
    check!(Full, "account-tokens", "a token can be created, used, listed without its secret, and revoked", tokens),
    check!(
        Full,
        "account-token-limits",
        "a token cannot give an expiry later than its own, nor be repeated",
        token_limits
    ),
    check!(Full, "account-shares", "a share with a name that no user has can be offered, listed and revoked", shares),
];

async fn me(run: &mut Run) -> CheckResult {
    let response = run.send(Request::new("GET", "/me")).await?;
    response.expect_status(200)?;
    let me = response.json()?;
    response.expect(me["user"].is_string() && me["token"]["scopes"].is_array(), "a `user` and a `token` with `scopes`")
}

/// Fails with "not applicable" if the token lacks the scope of a list.
async fn list(run: &mut Run, path: &str, scope: &str) -> CheckResult<(Response, Value)> {
    let response = run.send(Request::new("GET", path)).await?;
    if response.status == 403 {
        return Err(Verdict::NotApplicable(format!("the token lacks {scope}")));
    }
    response.expect_status(200)?;
    response.expect_header("cache-control", "no-store")?;
    let json = response.json()?;
    Ok((response, json))
}

async fn tokens(run: &mut Run) -> CheckResult {
    list(run, "/tokens", "tokens:manage").await?;
    let label = run.tracker.name("token");
    let body = json!({"label": label, "scopes": ["tokens:manage"]}).to_string();
    let created = run.send(Request::json("POST", "/tokens", body)).await?;
    if created.status == 409 {
        return Err(Verdict::NotApplicable("the user has too many tokens".to_owned()));
    }
    created.expect_status(201)?;
    let token = created.json()?;
    let (Some(id), Some(secret)) = (token["id"].as_i64(), token["secret"].as_str()) else {
        return Err(Verdict::Fails("POST /tokens: expected a token with an `id` and a `secret`".to_owned()));
    };
    let used = use_token(run, id, &label, secret).await;
    let revoked = run.send(Request::new("DELETE", format!("/tokens/{id}"))).await?;
    used?;
    revoked.expect_status(204)?;
    expect_rejection(run, secret).await?;
    let again = run.send(Request::new("DELETE", format!("/tokens/{id}"))).await?;
    again.expect_error(40402)
}

/// Waits until a revoked token is rejected: another node than the one that revoked it may accept it for a moment.
async fn expect_rejection(run: &mut Run, secret: &str) -> CheckResult {
    let end = Instant::now() + REVOCATION_MAX;
    loop {
        let response = run.send(with_secret(secret)).await?;
        if response.status != 200 || Instant::now() >= end {
            return response.expect_error(40101);
        }
        tokio::time::sleep(REVOCATION_PAUSE).await;
    }
}

fn with_secret(secret: &str) -> Request {
    Request::new("GET", "/me").with("authorization", format!("Bearer {secret}"))
}

async fn use_token(run: &mut Run, id: i64, label: &str, secret: &str) -> CheckResult {
    let me = run.send(with_secret(secret)).await?;
    me.expect_status(200)?;
    me.expect(me.json()?["token"]["id"] == id, "the new token in `GET /me`")?;
    let (response, listed) = list(run, "/tokens", "tokens:manage").await?;
    let found = listed.as_array().and_then(|tokens| tokens.iter().find(|token| token["id"] == id));
    let hidden = !String::from_utf8_lossy(&response.body).contains(secret);
    let holds = hidden && found.is_some_and(|token| token["label"] == label && token["state"] == "active");
    response.expect(holds, "the new token, active and without its secret")
}

async fn token_limits(run: &mut Run) -> CheckResult {
    list(run, "/tokens", "tokens:manage").await?;
    let expires = run.send(Request::new("GET", "/me")).await?.json()?["token"]["expires_at"].clone();
    if !expires.is_null() {
        let body = json!({"expires_at": "9000-01-01T00:00:00Z"}).to_string();
        run.send(Request::json("POST", "/tokens", body)).await?.expect_error(40008)?;
    }
    let keyed = Request::json("POST", "/tokens", "{}").with("idempotency-key", "once");
    run.send(keyed).await?.expect_error(40007)
}

async fn shares(run: &mut Run) -> CheckResult {
    list(run, "/shares", "shares:manage").await?;
    let name = format!("plantstore-check-{}", run.tracker.new_id().unsigned_abs());
    let path = format!("/shares/{name}");
    let granted = run.send(Request::json("PUT", path.clone(), r#"{"role":"reader"}"#)).await?;
    let listed = list(run, "/shares", "shares:manage").await;
    let revoked = run.send(Request::new("DELETE", path.clone())).await?;
    if granted.status == 409 {
        return Err(Verdict::NotApplicable("the user has too many shares".to_owned()));
    }
    granted.expect_status(204)?;
    let (response, shares) = listed?;
    let is_new = |share: &Value| share["user"] == name && share["state"] == "offered";
    response.expect(shares["granted"].as_array().is_some_and(|shares| shares.iter().any(is_new)), "the new offer")?;
    revoked.expect_status(204)?;
    run.send(Request::new("DELETE", path)).await?.expect_error(40403)?;
    for method in ["PUT", "DELETE"] {
        run.send(Request::new(method, format!("/shares/received/{name}"))).await?.expect_error(40403)?;
    }
    Ok(())
}
