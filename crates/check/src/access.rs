//! Access: without a valid token there is nothing, and the answer says what is missing.

use super::answer::Answer;
use super::client::Ask;
use super::visit::{Visit, body, create_ask};
use super::{Check, Level, Outcome, Trouble};
use plantstore_model::token::PlainToken;

const CHALLENGE: &str = r#"Bearer realm="plants""#;
const CHALLENGE_INVALID: &str = r#"Bearer realm="plants", error="invalid_token""#;

pub(super) const CHECKS: &[Check] = &[
    Check::new(Level::Interface, "access-no-token", "without a token every operation is refused", |visit| {
        Box::pin(no_token(visit))
    }),
    Check::new(Level::Interface, "access-wrong-token", "with a wrong token every operation is refused", |visit| {
        Box::pin(wrong_token(visit))
    }),
    Check::new(Level::Full, "access-challenge", "no token is 401 with 40100 and WWW-Authenticate", |visit| {
        Box::pin(challenge(visit))
    }),
    Check::new(Level::Full, "access-invalid", "malformed and unknown tokens are the same 401 with 40101", |visit| {
        Box::pin(invalid(visit))
    }),
    Check::new(Level::Full, "access-first", "the token is checked before anything else", |visit| {
        Box::pin(first(visit))
    }),
    Check::new(Level::Full, "access-scheme", "the word Bearer may be in small letters", |visit| {
        Box::pin(scheme(visit))
    }),
    Check::new(Level::Full, "access-scope", "a missing scope is 403 with 40300 and is named", |visit| {
        Box::pin(scope(visit))
    }),
];

/// The three operations; should one be done, what it creates has this id.
fn operations(id: i64, name: &str) -> [Ask; 3] {
    [Ask::new("GET", "/plants?limit=1"), Ask::new("DELETE", format!("/plants/{id}")), create_ask(body(id, name, None))]
}

/// Sends what must be refused, and remembers what is created should it not be.
async fn sent(visit: &mut Visit, id: i64, ask: &Ask) -> Outcome<Answer> {
    if ask.method == "POST" { visit.create_as_is(id, ask).await } else { visit.ask_as_is(ask).await }
}

async fn no_token(visit: &mut Visit) -> Outcome {
    let (id, name) = (visit.ledger.id(), visit.ledger.name("no token"));
    for ask in operations(id, &name) {
        if ask.method == "POST" && visit.may_plant().is_err() {
            continue;
        }
        let answer = sent(visit, id, &ask).await?;
        answer.expect((400..500).contains(&answer.status), "to be refused without a token")?;
    }
    Ok(())
}

async fn wrong_token(visit: &mut Visit) -> Outcome {
    let (id, name) = (visit.ledger.id(), visit.ledger.name("wrong token"));
    let unknown = unknown_token()?;
    for ask in operations(id, &name) {
        if ask.method == "POST" && visit.may_plant().is_err() {
            continue;
        }
        let answer = sent(visit, id, &ask.with("authorization", format!("Bearer {unknown}"))).await?;
        answer.expect((400..500).contains(&answer.status), "to be refused with a token that nobody has")?;
    }
    Ok(())
}

fn unknown_token() -> Outcome<String> {
    let token = PlainToken::generate().map_err(|fault| Trouble::Untried(fault.to_string()))?;
    Ok(token.reveal().to_owned())
}

async fn challenge(visit: &mut Visit) -> Outcome {
    let plain = Ask::new("GET", "/plants?limit=1");
    for ask in [plain.clone(), plain.with("authorization", "Basic Z2FyZGVuZXI6cm9zZXM=")] {
        let answer = visit.ask_as_is(&ask).await?;
        answer.expect_error(401, 40100)?;
        answer.expect_header("www-authenticate", CHALLENGE)?;
    }
    Ok(())
}

async fn invalid(visit: &mut Visit) -> Outcome {
    let mut words = None;
    for token in ["pst_malformed".to_owned(), unknown_token()?] {
        let ask = Ask::new("GET", "/plants?limit=1").with("authorization", format!("Bearer {token}"));
        let answer = visit.ask_as_is(&ask).await?;
        answer.expect_error(401, 40101)?;
        answer.expect_header("www-authenticate", CHALLENGE_INVALID)?;
        let first = words.get_or_insert_with(|| answer.body.clone());
        answer.expect(*first == answer.body, "the same words for every token that is not valid")?;
    }
    Ok(())
}

async fn first(visit: &mut Visit) -> Outcome {
    for ask in [
        create_ask("{"),
        Ask::new("GET", "/plants?limit=ten"),
        Ask::new("DELETE", "/plants/none"),
        Ask::new("PUT", "/plants"),
        Ask::new("GET", "/no/such/address"),
    ] {
        visit.ask_as_is(&ask).await?.expect_error(401, 40100)?;
    }
    Ok(())
}

async fn scheme(visit: &mut Visit) -> Outcome {
    visit.may_read()?;
    for scheme in ["bearer", "BEARER"] {
        let ask = visit.introduced_by(scheme, Ask::new("GET", "/plants?limit=1"));
        visit.ask_as_is(&ask).await?.expect_success()?;
    }
    Ok(())
}

async fn scope(visit: &mut Visit) -> Outcome {
    let scopes = visit.scopes;
    if scopes.read && scopes.write && scopes.delete {
        return Err(Trouble::NotApplicable("the token allows everything".to_owned()));
    }
    let id = visit.ledger.id();
    let lacking = [
        (scopes.read, Ask::new("GET", "/plants?limit=1"), "plants:read"),
        (scopes.write, create_ask("{}"), "plants:write"),
        (scopes.delete, Ask::new("DELETE", format!("/plants/{id}")), "plants:delete"),
    ];
    for (allowed, ask, scope) in lacking {
        if !allowed {
            let answer = visit.ask(ask).await?;
            answer.expect_error(403, 40300)?;
            let expected = format!(r#"{CHALLENGE}, error="insufficient_scope", scope="{scope}""#);
            answer.expect_header("www-authenticate", &expected)?;
        }
    }
    Ok(())
}
