//! Logins by OpenID Connect, against an issuer of our own: who is let in, who is not, and what happens when its keys
//! change and when it is not there.

mod reports;

use std::time::Instant;

use ring::hmac;
use rstest::rstest;
use serde_json::{Value, json};

use crate::support::issuer::{AUDIENCE, Authority, DISCOVERY, Issuer, KEYS, SigningKey, encode, now, ok};
use crate::support::{Answer, Client, Engine, Server, Site, assert_snapshot, wait_for};

/// How far the clocks may be apart, in seconds.
const LEEWAY: f64 = 30.0;

/// A server that accepts the issuer's tokens.
#[track_caller]
fn serve(site: &Site, issuer: &Issuer, more: &[&str]) -> Server {
    site.serve(&[&issuer.options(), more].concat())
}

/// The claims with others in place of some; `null` takes one away.
fn with(mut claims: Value, others: Value) -> Value {
    let (Value::Object(all), Value::Object(others)) = (&mut claims, others) else { panic!("claims") };
    for (name, value) in others {
        if value.is_null() {
            all.remove(&name)
        } else {
            all.insert(name, value)
        };
    }
    claims
}

fn call(server: &Server, token: &str) -> Answer {
    server.client(token).get("/plants")
}

/// The names of all users.
fn users(site: &Site) -> Vec<String> {
    let output = site.run(&["user", "list", "--json"]);
    let users: Vec<Value> = serde_json::from_slice(&output.stdout).expect("JSON");
    users.iter().map(|user| user["name"].as_str().expect("a name").to_owned()).collect()
}

/// Lines are written a moment after what they tell of.
#[track_caller]
fn wait_for_log(server: &Server, words: &str) {
    wait_for(words, || server.log().contains(words).then_some(()));
}

fn occurrences(server: &Server, words: &str) -> usize {
    server.log().lines().filter(|line| line.contains(words)).count()
}

/// The lines of the log with these words.
fn lines(server: &Server, words: &str) -> Vec<Value> {
    let log = server.log();
    log.lines().filter(|line| line.contains(words)).map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

const FAILED: &str = "cannot fetch the issuer's keys";
const BACK: &str = "the issuer answers again";

#[rstest]
fn tokens_of_all_three_algorithms_are_accepted(#[values(Engine::Sqlite, Engine::Postgres)] engine: Engine) {
    let site = &Site::new(engine);
    let keys = [SigningKey::rsa("r"), SigningKey::p256("e"), SigningKey::ed25519("d")];
    let issuer = Issuer::start(&keys.each_ref());
    let server = serve(site, &issuer, &[]);
    for (number, key) in (0..).zip(&keys) {
        let ada = server.client(&key.token(&issuer.claims("ada")));
        ada.plant(number, key.algorithm());
        assert_eq!(ada.ids(), (0..=number).collect::<Vec<_>>(), "one user, whatever signed the token");
    }
    let ada = server.client(&keys[0].token(&issuer.claims("ada")));
    assert_eq!(ada.delete(0).status, 204);
    let output = site.run(&["user", "list", "--json"]);
    let listed: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((&listed[0]["name"], &listed[0]["tokens"], &listed[0]["plants"]), (&"ada".into(), &0.into(), &2.into()));
}

#[rstest]
fn a_token_may_say_less_or_more_than_it_must(#[values(Engine::Sqlite, Engine::Postgres)] engine: Engine) {
    let site = &Site::new(engine);
    let (key, other) = (SigningKey::p256("e"), SigningKey::ed25519("d"));
    let issuer = Issuer::start(&[&key, &other]);
    let server = serve(site, &issuer, &[]);
    let claims = issuer.claims("ada");
    let accepted = [
        json!({ "iat": null }),
        json!({ "nbf": now() - 1.0, "jti": "x", "nested": { "a": [1, { "b": null }] } }),
        json!({ "aud": [AUDIENCE] }),
        json!({ "aud": ["other", AUDIENCE, "third"] }),
        json!({ "exp": now() + 0.5 }),
        json!({ "exp": now() - LEEWAY + 10.0 }),
        json!({ "exp": 1e300, "iat": -1e300, "nbf": 0 }),
        json!({ "exp": u64::MAX, "nbf": i64::MIN }),
        json!({ "nbf": now() + LEEWAY - 10.0, "iat": now() + LEEWAY - 10.0 }),
        json!({ "sub": "auth0|5f7c8ec7c33c6c004bbafe82" }),
        json!({ "sub": "🌵".repeat(255) }),
    ];
    for others in accepted {
        let answer = call(&server, &key.token(&with(claims.clone(), others.clone())));
        assert_eq!(answer.status, 200, "{others}: {}", answer.text());
    }
    let headers = [
        json!({ "alg": "ES256" }),
        json!({ "alg": "ES256", "kid": "e" }),
        json!({ "alg": "ES256", "kid": "e", "typ": "at+jwt" }),
        json!({ "alg": "ES256", "kid": "e", "typ": "application/at+JWT" }),
        json!({ "alg": "ES256", "kid": "e", "typ": "jwt", "x5t": "y", "jku": "http://127.0.0.1:1/" }),
    ];
    for header in headers {
        assert_eq!(call(&server, &key.token_with(&header, &claims)).status, 200, "{header}");
    }
}

#[rstest]
fn whatever_is_wrong_with_a_token_the_answer_is_one_and_the_same(
    #[values(Engine::Sqlite, Engine::Postgres)] engine: Engine,
) {
    let site = &Site::new(engine);
    let keys = [SigningKey::rsa("r"), SigningKey::p256("e"), SigningKey::ed25519("d")];
    let issuer = Issuer::start(&keys.each_ref());
    let server = serve(site, &issuer, &["--auth-failure-burst", "100000", "--max-header-bytes", "65536"]);
    let expected = call(&server, "nonsense").wire();
    assert!(expected.contains("40101"), "{expected}");
    let claims = issuer.claims("mallory");
    let mut bad = Vec::new();
    for key in &keys {
        bad.extend(forged(key, &claims));
        bad.extend(malformed(key, &claims));
    }
    bad.extend(borrowed(&keys, &claims));
    bad.extend(claiming_too_much(&keys[1], &claims));
    assert!(bad.len() > 200, "{}", bad.len());
    for (what, token) in &bad {
        let answer = call(&server, token);
        assert_eq!(answer.wire(), expected, "{what}: {token}");
    }
    assert_eq!(users(site), [""; 0], "nobody was made for any of them");
    for key in &keys {
        assert_eq!(call(&server, &key.token(&claims)).status, 200, "and it was not the issuer's fault");
    }
}

#[rstest]
fn without_an_issuer_its_tokens_are_like_any_other_text(#[values(Engine::Sqlite, Engine::Postgres)] engine: Engine) {
    let site = &Site::new(engine);
    let key = SigningKey::p256("e");
    let issuer = Issuer::start(&[&key]);
    let server = site.serve(&[]);
    assert_eq!(call(&server, &key.token(&issuer.claims("ada"))).wire(), call(&server, "nonsense").wire());
    assert_eq!(issuer.fetches(), 0);
}

#[rstest]
fn failures_count_against_the_address(#[values(Engine::Sqlite, Engine::Postgres)] engine: Engine) {
    let site = &Site::new(engine);
    let key = SigningKey::ed25519("d");
    let issuer = Issuer::start(&[&key]);
    let server = serve(site, &issuer, &["--auth-failure-rate", "1", "--auth-failure-burst", "5"]);
    let good = key.token(&issuer.claims("ada"));
    let forged = SigningKey::ed25519("d").token(&issuer.claims("ada"));
    assert_eq!(call(&server, &good).status, 200);
    let answers: Vec<Answer> = (0..20).map(|_| call(&server, &forged)).collect();
    assert!(answers[..5].iter().all(|answer| answer.error() == 40101));
    assert!(answers.iter().any(|answer| answer.status == 429 && answer.error() == 42900));
    assert_eq!(call(&server, &good).status, 200, "a valid token from the same address");
    assert_eq!(call(&server, &key.token(&issuer.claims("bob"))).status, 200, "even one that was never seen before");
}

// What a token is verified for is a line of the log at this level.
#[rstest]
fn a_refused_token_that_is_repeated_is_not_verified_again(#[values(Engine::Sqlite, Engine::Postgres)] engine: Engine) {
    const REPEATED: usize = 50;
    let site = &Site::new(engine);
    let key = SigningKey::p256("e");
    let issuer = Issuer::start(&[&key]);
    let server =
        serve(site, &issuer, &["--log-level", "debug", "--auth-failure-rate", "1", "--auth-failure-burst", "5"]);
    let claims = issuer.claims("ada");
    assert_eq!(call(&server, &key.token(&claims)).status, 200);
    let repeat = |token: &str, reason: &str| {
        for _ in 0..REPEATED {
            assert!([401, 429].contains(&call(&server, token).status));
        }
        // Lines come in their order: after this one, all are there.
        let critical = json!({ "alg": "ES256", "kid": "e", "crit": [reason] });
        let marks = occurrences(&server, "(`crit`)");
        call(&server, &key.token_with(&critical, &claims));
        wait_for("the line after", || (occurrences(&server, "(`crit`)") > marks).then_some(()));
        occurrences(&server, reason)
    };
    for (token, reason) in [
        (SigningKey::p256("e").token(&claims), "its signature is not that"),
        (key.token(&with(claims.clone(), json!({ "aud": "others" }))), "its `aud` does not hold"),
        (key.token(&with(claims.clone(), json!({ "exp": now() - 60.0 }))), "it has expired"),
    ] {
        let verified = repeat(&token, reason);
        assert!((1..REPEATED).contains(&verified), "{reason}: {verified} times");
    }
    for (token, reason) in [
        (SigningKey::p256("unknown").token(&claims), "the issuer has no such key"),
        (key.token(&with(claims.clone(), json!({ "nbf": now() + 600.0 }))), "it is not valid yet"),
    ] {
        assert_eq!(repeat(&token, reason), REPEATED, "{reason}: that may change any moment");
    }
}

// The same name for another key: an issuer should not, but what was refused must not stay so.
#[rstest]
fn what_was_refused_is_verified_anew_with_new_keys(#[values(Engine::Sqlite, Engine::Postgres)] engine: Engine) {
    let site = &Site::new(engine);
    let [old, new] = [SigningKey::p256("e"), SigningKey::p256("e")];
    let issuer = Issuer::start(&[&old]);
    let server = serve(site, &issuer, &[]);
    let of_new = new.token(&issuer.claims("ada"));
    assert_eq!(call(&server, &of_new).status, 401);
    issuer.publish(&[&new]);
    // Makes the service ask, and waits for the answer.
    assert_eq!(call(&server, &SigningKey::p256("unknown").token(&issuer.claims("ada"))).status, 401);
    assert_eq!(call(&server, &of_new).status, 200);
}

#[rstest]
fn the_scopes_are_those_of_the_token(#[values(Engine::Sqlite, Engine::Postgres)] engine: Engine) {
    let site = &Site::new(engine);
    let key = SigningKey::ed25519("d");
    let issuer = Issuer::start(&[&key]);
    let server = serve(site, &issuer, &[]);
    let statuses = |scope: Value| {
        let ada = server.client(&key.token(&with(issuer.claims("ada"), json!({ "scope": scope }))));
        [ada.get("/plants").status, ada.post("{}").status, ada.delete(1).status, ada.get("/nowhere").status]
    };
    assert_eq!(statuses(json!("plants:read")), [200, 403, 403, 404]);
    assert_eq!(statuses(json!("plants:write")), [403, 400, 403, 404]);
    assert_eq!(statuses(json!("openid plants:delete profile")), [403, 403, 404, 404]);
    for nothing in
        [json!(null), json!(""), json!("plants"), json!("PLANTS:READ plants:reads"), json!(["plants:read"]), json!(7)]
    {
        assert_eq!(statuses(nothing.clone()), [403, 403, 403, 404], "{nothing}");
    }
    let reader = server.client(&key.token(&with(issuer.claims("ada"), json!({ "scope": "plants:read" }))));
    let answer = reader.delete(1);
    assert_eq!(answer.error(), 40300);
    let needed = r#"Bearer realm="plants", error="insufficient_scope", scope="plants:delete""#;
    assert_eq!(answer.header("www-authenticate"), Some(needed));
}

#[rstest]
fn a_user_is_made_at_the_first_use_and_only_once(#[values(Engine::Sqlite, Engine::Postgres)] engine: Engine) {
    let site = &Site::new(engine);
    let key = SigningKey::ed25519("d");
    let issuer = Issuer::start(&[&key]);
    let server = serve(site, &issuer, &[]);
    std::thread::scope(|scope| {
        for number in 0..8 {
            let (server, issuer, key) = (&server, &issuer, &key);
            // Different tokens of one user, so that none rests on what another has found.
            let claims = with(issuer.claims("newcomer"), json!({ "jti": number }));
            scope.spawn(move || server.client(&key.token(&claims)).plant(number, "Rose"));
        }
    });
    assert_eq!(users(site), ["newcomer"]);
    assert_eq!(server.client(&key.token(&issuer.claims("newcomer"))).ids(), (0..8).collect::<Vec<_>>());
    assert_eq!(site.rows("SELECT count(*) FROM users"), [1]);
}

#[rstest]
fn a_local_user_of_the_same_name_is_the_same_user(#[values(Engine::Sqlite, Engine::Postgres)] engine: Engine) {
    let site = &Site::new(engine);
    let key = SigningKey::ed25519("d");
    let issuer = Issuer::start(&[&key]);
    let server = serve(site, &issuer, &[]);
    let ours = server.client(&site.token("ada", &[]));
    ours.plant(1, "Rose");
    let theirs = server.client(&key.token(&issuer.claims("ada")));
    assert_eq!(theirs.ids(), [1]);
    assert_eq!(theirs.delete(1).status, 204);
    assert_eq!(ours.ids(), [0_i64; 0], "both kinds of token work side by side");
    assert_eq!(server.client(&key.token(&issuer.claims("bob"))).post(r#"{"id":1,"name":"Fern"}"#).status, 200);
    assert_eq!(ours.ids(), [0_i64; 0], "and others are others");
}

#[rstest]
fn a_deleted_user_with_a_valid_token_starts_anew(#[values(Engine::Sqlite, Engine::Postgres)] engine: Engine) {
    let site = &Site::new(engine);
    let key = SigningKey::ed25519("d");
    let issuer = Issuer::start(&[&key]);
    let server = serve(site, &issuer, &[]);
    let ada = server.client(&key.token(&issuer.claims("ada")));
    ada.plant(1, "Rose");
    assert!(site.run(&["user", "delete", "--yes", "ada"]).status.success());
    wait_for("another user of the name", || {
        let answer = ada.post(r#"{"id":2,"name":"Fern"}"#);
        assert!([200, 401].contains(&answer.status), "{}", answer.text());
        (answer.status == 200).then_some(())
    });
    assert_eq!(ada.ids(), [2], "nothing of the old one");
    assert_eq!(users(site), ["ada"]);
}

#[rstest]
fn the_claim_that_names_the_user_is_an_option(#[values(Engine::Sqlite, Engine::Postgres)] engine: Engine) {
    let site = &Site::new(engine);
    let key = SigningKey::ed25519("d");
    let issuer = Issuer::start(&[&key]);
    let server = serve(site, &issuer, &["--oidc-user-claim", "email"]);
    let claims = with(issuer.claims("7c8ec7"), json!({ "email": "ada@example.com" }));
    server.client(&key.token(&claims)).plant(1, "Rose");
    assert_eq!(call(&server, &key.token(&issuer.claims("ada"))).error(), 40101, "without it there is no user");
    let twice = claims.to_string().replace(r#""email":"#, r#""email":"eve","email":"#);
    assert_eq!(call(&server, &key.token_of(&key.header().to_string(), &twice)).error(), 40101);
    assert_eq!(users(site), ["ada@example.com"]);
}

#[rstest]
fn who_cannot_be_made_yet_is_told_to_come_again(#[values(Engine::Sqlite, Engine::Postgres)] engine: Engine) {
    let site = &Site::new(engine);
    let key = SigningKey::ed25519("d");
    let issuer = Issuer::start(&[&key]);
    let server = serve(site, &issuer, &[]);
    let known = server.client(&key.token(&issuer.claims("known")));
    known.plant(1, "Rose");
    let held = site.hold_writes();
    let newcomer = server.client(&key.token(&issuer.claims("newcomer")));
    let answer = newcomer.get("/plants");
    assert_eq!(answer.error(), 50300);
    assert!(answer.header("retry-after").is_some());
    assert_eq!(known.ids(), [1], "who is there already is not held up");
    drop(held);
    wait_for("the newcomer", || (newcomer.get("/plants").status == 200).then_some(()));
}

#[rstest]
fn a_new_key_works_at_once_and_a_removed_one_no_more(#[values(Engine::Sqlite, Engine::Postgres)] engine: Engine) {
    let site = &Site::new(engine);
    let (old, new) = (SigningKey::p256("old"), SigningKey::rsa("new"));
    let issuer = Issuer::start(&[&old]);
    let server = serve(site, &issuer, &[]);
    let [of_old, of_new] = [&old, &new].map(|key| key.token(&issuer.claims("ada")));
    assert_eq!(call(&server, &of_old).status, 200);
    assert_eq!(call(&server, &of_new).status, 401, "not published yet");
    // The service has just asked for it in vain, and asks again when it may.
    issuer.publish(&[&old, &new]);
    wait_for("the new key", || (call(&server, &of_new).status == 200).then_some(()));
    assert_eq!(call(&server, &of_old).status, 200, "both work during the change");

    issuer.publish(&[&new]);
    issuer.wait_for_fetch();
    wait_for("the end of the old key", || (call(&server, &of_old).status == 401).then_some(()));
    assert_eq!(call(&server, &of_new).status, 200);
}

// A key that nobody has asked for in vain is there with the first token that needs it. With it the old one ends, although
// its token has been believed a moment ago.
#[rstest]
fn the_first_token_of_a_new_key_is_not_refused(#[values(Engine::Sqlite, Engine::Postgres)] engine: Engine) {
    let site = &Site::new(engine);
    let (old, new) = (SigningKey::p256("old"), SigningKey::p256("new"));
    let issuer = Issuer::start(&[&old]);
    let server = serve(site, &issuer, &[]);
    let [of_old, of_new] = [&old, &new].map(|key| key.token(&issuer.claims("ada")));
    assert_eq!(call(&server, &of_old).status, 200);
    issuer.publish(&[&new]);
    assert_eq!(call(&server, &of_new).status, 200);
    assert_eq!(call(&server, &of_old).status, 401);
}

#[rstest]
fn a_removed_key_stops_working_within_30_seconds(#[values(Engine::Sqlite, Engine::Postgres)] engine: Engine) {
    let site = &Site::new(engine);
    let (kept, removed) = (SigningKey::p256("kept"), SigningKey::p256("removed"));
    let issuer = Issuer::start(&[&kept, &removed]);
    let server = serve(site, &issuer, &[]);
    let token = removed.token(&issuer.claims("ada"));
    assert_eq!(call(&server, &token).status, 200);
    issuer.publish(&[&kept]);
    let start = Instant::now();
    wait_for("its end", || (call(&server, &token).status == 401).then_some(()));
    assert!(start.elapsed().as_secs() < 30, "the documented 30 seconds");
    assert_eq!(call(&server, &kept.token(&issuer.claims("ada"))).status, 200);
    issuer.publish(&[]);
    wait_for("the end of all", || (call(&server, &kept.token(&issuer.claims("ada"))).status == 401).then_some(()));
    wait_for_log(&server, "the issuer has no key that can be used");
}

#[rstest]
fn unknown_keys_do_not_make_the_service_a_nuisance(#[values(Engine::Sqlite, Engine::Postgres)] engine: Engine) {
    let site = &Site::new(engine);
    let key = SigningKey::ed25519("d");
    let issuer = Issuer::start(&[&key]);
    let server = serve(site, &issuer, &["--auth-failure-burst", "100000"]);
    assert_eq!(call(&server, &key.token(&issuer.claims("ada"))).status, 200);
    let (before, start) = (issuer.fetches(), Instant::now());
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (server, issuer) = (&server, &issuer);
            scope.spawn(move || {
                for number in 0..25 {
                    let unknown = SigningKey::ed25519(&format!("{thread}-{number}"));
                    assert_eq!(call(server, &unknown.token(&issuer.claims("ada"))).error(), 40101);
                }
            });
        }
    });
    // Once for every 5 seconds begun, and once for every 20 seconds of its own accord.
    let allowed = 2 + usize::try_from(start.elapsed().as_secs()).unwrap() / 4;
    let asked = issuer.fetches() - before;
    assert!((1..=allowed).contains(&asked), "{asked} fetches for 200 tokens");
    assert_eq!(call(&server, &key.token(&issuer.claims("ada"))).status, 200);
}

#[rstest]
fn many_who_need_a_new_key_wait_for_one_fetch(#[values(Engine::Sqlite, Engine::Postgres)] engine: Engine) {
    let site = &Site::new(engine);
    let (old, new) = (SigningKey::p256("old"), SigningKey::p256("new"));
    let issuer = Issuer::start(&[&old]);
    let server = serve(site, &issuer, &[]);
    assert_eq!(call(&server, &old.token(&issuer.claims("ada"))).status, 200);
    issuer.publish(&[&old, &new]);
    let before = issuer.fetches();
    std::thread::scope(|scope| {
        for number in 0..16 {
            let (server, token) = (&server, new.token(&issuer.claims(&format!("user-{number}"))));
            scope.spawn(move || assert_eq!(call(server, &token).status, 200));
        }
    });
    // One of the two would be of its own accord.
    assert!(issuer.fetches() - before <= 2, "{} fetches", issuer.fetches() - before);
}

#[rstest]
fn while_the_issuer_is_down_its_keys_go_on_working(#[values(Engine::Sqlite, Engine::Postgres)] engine: Engine) {
    let site = &Site::new(engine);
    let (key, later) = (SigningKey::p256("e"), SigningKey::p256("later"));
    let mut issuer = Issuer::start(&[&key]);
    let server = serve(site, &issuer, &[]);
    let ada = server.client(&key.token(&issuer.claims("ada")));
    ada.plant(1, "Rose");
    issuer.server.stop();
    assert_eq!(call(&server, &later.token(&issuer.claims("ada"))).error(), 40101, "an unknown key stays unknown");
    wait_for_log(&server, FAILED);
    // Past the time for which anything is remembered, and past more than one attempt.
    let start = Instant::now();
    wait_for("some time to pass", || {
        assert_eq!(ada.ids(), [1]);
        (start.elapsed().as_secs() >= 12).then_some(())
    });
    assert_eq!(server.client(&key.token(&issuer.claims("bob"))).get("/plants").status, 200, "newcomers included");
    issuer.publish(&[&key, &later]);
    issuer.server.restart();
    wait_for("the new key", || (call(&server, &later.token(&issuer.claims("ada"))).status == 200).then_some(()));
    assert_eq!(ada.ids(), [1]);
    wait_for_log(&server, BACK);
    assert_eq!(occurrences(&server, FAILED), 1, "said once, not at every attempt");
}

#[rstest]
fn before_the_issuer_was_ever_there_its_tokens_are_told_to_come_again(
    #[values(Engine::Sqlite, Engine::Postgres)] engine: Engine,
) {
    let site = &Site::new(engine);
    let key = SigningKey::p256("e");
    let mut issuer = Issuer::start(&[&key]);
    issuer.server.stop();
    let server = serve(site, &issuer, &[]);
    let token = key.token(&issuer.claims("ada"));
    let answer = call(&server, &token);
    assert_snapshot!(answer.wire(), @r#"
    503 Service Unavailable
    content-type: application/json
    cache-control: no-store
    retry-after: 1
    content-length: 112
    x-request-id: (an id)
    x-content-type-options: nosniff
    date: (a date)

    {"error":50300,"message":"the keys of the access token's issuer are not known yet, nothing was done: try again"}
    "#);
    assert_eq!(answer.error(), 50300);
    assert_eq!(server.client(&site.token("bob", &[])).get("/plants").status, 200, "our own tokens do not depend on it");
    assert_eq!(server.anonymous().get("/readyz").status, 200);
    let elsewhere = key.token(&with(issuer.claims("ada"), json!({ "iss": "https://elsewhere.example" })));
    assert_eq!(call(&server, &elsewhere).error(), 40101, "no key could make it valid");
    wait_for_log(&server, FAILED);
    issuer.server.restart();
    wait_for("the keys", || (call(&server, &token).status == 200).then_some(()));
}

#[rstest]
fn a_silent_issuer_holds_up_nobody_for_long(#[values(Engine::Sqlite, Engine::Postgres)] engine: Engine) {
    let site = &Site::new(engine);
    let key = SigningKey::p256("e");
    let issuer = Issuer::start(&[&key]);
    issuer.server.be_silent(true);
    let server = serve(site, &issuer, &[]);
    assert_eq!(server.client(&site.token("bob", &[])).get("/plants").status, 200);
    let token = key.token(&issuer.claims("ada"));
    assert_eq!(call(&server, &token).error(), 50300);
    issuer.server.be_silent(false);
    wait_for("the keys", || (call(&server, &token).status == 200).then_some(()));
    wait_for_log(&server, "the issuer did not answer in time");
    issuer.server.be_silent(true);
    assert_eq!(call(&server, &SigningKey::p256("x").token(&issuer.claims("ada"))).error(), 40101, "after a while");
    assert_eq!(call(&server, &token).status, 200);
}

#[rstest]
fn a_token_ends_when_it_says_also_while_it_is_remembered(#[values(Engine::Sqlite, Engine::Postgres)] engine: Engine) {
    let site = &Site::new(engine);
    let key = SigningKey::ed25519("d");
    let issuer = Issuer::start(&[&key]);
    let server = serve(site, &issuer, &[]);
    assert_eq!(call(&server, &key.token(&issuer.claims("ada"))).status, 200);
    let end = now() + 1.0;
    let ada = server.client(&key.token(&with(issuer.claims("ada"), json!({ "exp": end - LEEWAY }))));
    let mut connection = ada.connect();
    let mut worked = 0;
    wait_for("its end", || {
        let sent = now();
        connection.send(ada.bytes("GET", "/plants", &[], None));
        let answer = connection.answer(false);
        if answer.status == 401 {
            return Some(());
        }
        assert_eq!(answer.status, 200);
        assert!(sent < end, "sent after its end, and believed");
        worked += 1;
        None
    });
    assert!(worked > 1, "it was remembered before");
}

#[rstest]
fn the_log_names_the_user_and_never_holds_the_token(#[values(Engine::Sqlite, Engine::Postgres)] engine: Engine) {
    let site = &Site::new(engine);
    let key = SigningKey::ed25519("d");
    let issuer = Issuer::start(&[&key]);
    let mut server = serve(site, &issuer, &["--log-level", "trace"]);
    let claims = with(issuer.claims("ada"), json!({ "secret": "a secret claim" }));
    let good = key.token(&claims);
    let mut used = vec![good.clone()];
    let line = |id: &str, token: &str| {
        let answer = server.client(token).call("GET", "/plants", &[("X-Request-Id", id)], None);
        let line = wait_for("its line", || server.log().lines().find(|line| line.contains(id)).map(str::to_owned));
        (answer.status, serde_json::from_str::<Value>(&line).expect("JSON"))
    };
    let (status, shown) = line("a-good-one", &good);
    assert_eq!((status, &shown["user"], &shown["token"]), (200, &"ada".into(), &Value::Null));
    let wrong = [
        key.token(&with(claims.clone(), json!({ "aud": "others" }))),
        SigningKey::ed25519("d").token(&claims),
        SigningKey::ed25519("unknown").token(&claims),
        good[..good.len() - 4].to_owned(),
    ];
    for (number, token) in wrong.into_iter().enumerate() {
        let (status, shown) = line(&format!("bad-{number}"), &token);
        assert_eq!((status, &shown["user"]), (401, &Value::Null));
        used.push(token);
    }
    server.client(&good).call("GET", "/plants", &[("X-Request-Id", &good)], None);
    server.client(&good).get(&format!("/plants?access_token={good}"));
    server.stop();
    let log = server.log();
    assert!(log.contains("its `aud` does not hold the audience"), "operators learn why: {log}");
    for part in used.iter().flat_map(|token| token.split('.')).filter(|part| part.len() > 8) {
        assert!(!log.contains(part), "{part} in {log}");
    }
    assert!(!log.contains("secret"), "{log}");
}

#[rstest]
fn over_tls_the_issuer_is_who_its_authority_says(#[values(Engine::Sqlite, Engine::Postgres)] engine: Engine) {
    let site = &Site::new(engine);
    let key = SigningKey::rsa("r");
    let (authority, other) = (Authority::new(), Authority::new());
    let issuer = Issuer::start_with_tls(&authority, &[&key]);
    let token = key.token(&issuer.claims("ada"));
    let (file, wrong) = (authority.file().display().to_string(), other.file().display().to_string());

    let trusting = serve(site, &issuer, &["--oidc-ca", &file]);
    trusting.client(&token).plant(1, "Rose");
    for more in [&["--oidc-ca", wrong.as_str()][..], &[]] {
        let server = serve(site, &issuer, more);
        assert_eq!(call(&server, &token).error(), 50300, "{more:?}");
        wait_for_log(&server, "certificate");
    }
    // The certificate is for 127.0.0.1.
    let elsewhere = issuer.url().replace("127.0.0.1", "localhost");
    let server = site.serve(&["--oidc-issuer", &elsewhere, "--oidc-audience", AUDIENCE, "--oidc-ca", &file]);
    let named = key.token(&with(issuer.claims("ada"), json!({ "iss": elsewhere })));
    assert_eq!(call(&server, &named).error(), 50300);
    wait_for_log(&server, "not valid for name");
}

#[rstest]
fn an_issuer_may_have_a_path_and_its_name_is_exact(#[values(Engine::Sqlite, Engine::Postgres)] engine: Engine) {
    let site = &Site::new(engine);
    let key = SigningKey::ed25519("d");
    let issuer = Issuer::start_below("/realms/garden/", &[&key]);
    let server = serve(site, &issuer, &[]);
    server.client(&key.token(&issuer.claims("ada"))).plant(1, "Rose");
    let bare = issuer.url().trim_end_matches('/');
    let other = key.token(&with(issuer.claims("ada"), json!({ "iss": bare })));
    assert_eq!(call(&server, &other).error(), 40101);
    let server = site.serve(&["--oidc-issuer", bare, "--oidc-audience", AUDIENCE]);
    assert_eq!(call(&server, &other).error(), 50300, "the issuer has another name");
    wait_for_log(&server, "set --oidc-issuer to exactly that");
    let line = lines(&server, FAILED).remove(0);
    let error = line["error"].as_str().expect("an error");
    assert!(
        error.contains(&format!("{bare:?}")) && error.contains(&format!("{:?}", issuer.url())),
        "both names: {error}"
    );
}

#[rstest]
fn ed25519_is_accepted_as_the_name_of_eddsa(#[values(Engine::Sqlite, Engine::Postgres)] engine: Engine) {
    let site = &Site::new(engine);
    let key = SigningKey::ed25519("d");
    let issuer = Issuer::start(&[]);
    issuer.publish_jwks(vec![with(key.jwk.clone(), json!({ "alg": "Ed25519" }))]);
    let server = serve(site, &issuer, &[]);
    for name in ["Ed25519", "EdDSA"] {
        let token = key.token_with(&json!({ "alg": name, "kid": "d" }), &issuer.claims("ada"));
        assert_eq!(call(&server, &token).status, 200, "{name}");
    }
    let other = SigningKey::ed25519("d").token_with(&json!({ "alg": "Ed25519", "kid": "d" }), &issuer.claims("ada"));
    assert_eq!(call(&server, &other).error(), 40101, "of another key");
}

/// Tokens that somebody made who does not have the issuer's key but knows all that is public.
fn forged(key: &SigningKey, claims: &Value) -> Vec<(String, String)> {
    let mut bad = Vec::new();
    let good = key.token(claims);
    let (signed, signature) = good.rsplit_once('.').unwrap();
    let payload = signed.split('.').nth(1).unwrap();
    for name in [
        "none", "None", "NONE", "nOnE", "", " none", "HS256", "RS384", "RS512", "PS256", "ES384", "ES256K", "ES512",
        "rs256", "Ed25519",
    ] {
        for kid in [json!({ "kid": key.id }), json!({})] {
            let header = encode(with(json!({ "alg": name, "typ": "JWT" }), kid).to_string());
            for signature in ["", "AA", signature] {
                bad.push((format!("alg {name:?}"), format!("{header}.{payload}.{signature}")));
            }
        }
    }
    for (name, algorithm) in [("HS256", hmac::HMAC_SHA256), ("HS384", hmac::HMAC_SHA384), ("HS512", hmac::HMAC_SHA512)]
    {
        for secret in key.public_forms().iter().map(Vec::as_slice).chain([&b""[..], b"secret"]) {
            let signed =
                format!("{}.{payload}", encode(json!({ "alg": name, "kid": key.id, "typ": "JWT" }).to_string()));
            let signature = hmac::sign(&hmac::Key::new(algorithm, secret), signed.as_bytes());
            bad.push((format!("{name} with what is public"), format!("{signed}.{}", encode(signature))));
        }
    }
    let other = match key.algorithm() {
        "RS256" => SigningKey::rsa(&key.id),
        "ES256" => SigningKey::p256(&key.id),
        _ => SigningKey::ed25519(&key.id),
    };
    bad.push(("another key of the same id".to_owned(), other.token(claims)));
    for name in ["jwk", "jku", "x5c", "x5u"] {
        let brought = match name {
            "jwk" => other.jwk.clone(),
            "x5c" => json!([encode(other.jwk.to_string())]),
            _ => json!("http://127.0.0.1:1/keys"),
        };
        let header = with(other.header(), json!({ name: brought }));
        bad.push((format!("a key of its own in {name}"), other.token_with(&header, claims)));
        let header = with(header, json!({ "kid": null }));
        bad.push((format!("a key of its own in {name}, without kid"), other.token_with(&header, claims)));
    }
    let elsewhere = key.token(&with(claims.clone(), json!({ "jti": "another" })));
    let foreign = elsewhere.rsplit_once('.').unwrap().1;
    bad.push(("the signature of another token".to_owned(), format!("{signed}.{foreign}")));
    let mut raw = key.sign(signed.as_bytes());
    for at in [0, raw.len() / 2, raw.len() - 1] {
        raw[at] ^= 1;
        bad.push(("a changed signature".to_owned(), format!("{signed}.{}", encode(&raw))));
        raw[at] ^= 1;
    }
    for nothing in ["AA", "AAAA"] {
        bad.push(("next to no signature".to_owned(), format!("{signed}.{nothing}")));
    }
    bad.push(("a short signature".to_owned(), format!("{signed}.{}", encode(&raw[..raw.len() - 1]))));
    bad.push(("a long signature".to_owned(), format!("{signed}.{}", encode([&raw[..], &[0]].concat()))));
    bad.push(("a signature of zeros".to_owned(), format!("{signed}.{}", encode(vec![0; raw.len()]))));
    bad
}

/// Tokens that are rightly signed and wrongly written.
fn malformed(key: &SigningKey, claims: &Value) -> Vec<(String, String)> {
    let mut bad = Vec::new();
    let mut add = |what: &str, token: String| bad.push((what.to_owned(), token));
    let good = key.token(claims);
    let parts: Vec<&str> = good.split('.').collect();
    let [header, payload, signature] = parts[..] else { panic!("three parts") };
    add("no signature", format!("{header}.{payload}"));
    add("an empty signature", format!("{header}.{payload}."));
    add("a fourth part", format!("{good}.AA"));
    add("a fifth part, as if encrypted", format!("{good}.AA.AA"));
    add("no claims", format!("{header}..{signature}"));
    add("no header", format!(".{payload}.{signature}"));
    for at in [1, good.len() / 2, good.len() - 1] {
        add("cut off", good[..at].to_owned());
    }
    add("twice", format!("{good} {good}"));
    add("padded", format!("{header}.{payload}.{signature}="));
    add("a header that is padded", format!("{header}=.{payload}.{signature}"));
    // The same bytes, with a bit at the end that nobody reads.
    let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let (last, rest) = signature.as_bytes().split_last().unwrap();
    let at = alphabet.iter().position(|known| known == last).unwrap();
    add(
        "a bit too many",
        format!("{header}.{payload}.{}{}", std::str::from_utf8(rest).unwrap(), char::from(alphabet[at ^ 1])),
    );
    let standard = format!("{header}.{payload}.{signature}").replace('-', "+").replace('_', "/");
    if standard != good {
        add("the other base64", standard);
    }

    let of = |header: &str, claims: &str| key.token_of(header, claims);
    let (header, text) = (key.header().to_string(), claims.to_string());
    add("a header that is no object", of("[]", &text));
    add("claims that are no object", of(&header, "\"x\""));
    add("claims that are no JSON", of(&header, &text[..text.len() - 1]));
    add("claims and more", of(&header, &format!("{text}{{}}")));
    for name in ["alg", "kid", "typ"] {
        let (own, other) = (key.header()[name].to_string(), r#""none""#);
        let once = format!(r#""{name}":{own}"#);
        add("twice the same in the header", of(&header.replace(&once, &format!("{once},{once}")), &text));
        add("twice in the header", of(&header.replace(&once, &format!(r#""{name}":{other},{once}"#)), &text));
        add("twice in the header", of(&header.replace(&once, &format!(r#"{once},"{name}":{other}"#)), &text));
    }
    for name in ["iss", "aud", "sub", "exp", "scope"] {
        let once = format!(r#""{name}":{}"#, claims[name]);
        add("twice in the claims", of(&header, &text.replace(&once, &format!("{once},{once}"))));
    }
    add("twice in the claims, in disguise", of(&header, &text.replace(r#""sub":"#, r#""s\u0075b":"ada","sub":"#)));
    for header in [
        json!({ "crit": ["exp"] }),
        json!({ "crit": [] }),
        json!({ "crit": ["b64"], "b64": false }),
        json!({ "typ": "dpop+jwt" }),
        json!({ "typ": "logout+jwt" }),
        json!({ "typ": "" }),
        json!({ "typ": 1 }),
        json!({ "typ": ["JWT"] }),
        json!({ "kid": 7 }),
        json!({ "kid": [key.id] }),
        json!({ "alg": null }),
        json!({ "alg": [key.algorithm()] }),
        json!({ "alg": 1 }),
    ] {
        add(&format!("header {header}"), key.token_with(&with(key.header(), header), claims));
    }
    add("too large", key.token(&with(claims.clone(), json!({ "more": "x".repeat(20_000) }))));
    bad
}

/// Tokens of one key that name another.
fn borrowed(keys: &[SigningKey], claims: &Value) -> Vec<(String, String)> {
    let mut bad = Vec::new();
    for signer in keys {
        for other in keys.iter().filter(|other| other.id != signer.id) {
            let header = json!({ "alg": other.algorithm(), "kid": signer.id, "typ": "JWT" });
            bad.push((format!("{} by a key of another kind", other.algorithm()), signer.token_with(&header, claims)));
            for algorithm in [signer.algorithm(), other.algorithm()] {
                let header = json!({ "alg": algorithm, "kid": other.id, "typ": "JWT" });
                // Of the own algorithm and another's key there is none: that is to ask the issuer, and no more.
                bad.push((format!("{algorithm} of {} as {}", signer.id, other.id), signer.token_with(&header, claims)));
            }
        }
    }
    bad
}

/// Tokens of the issuer that are not for us, not for now, or for nobody.
fn claiming_too_much(key: &SigningKey, claims: &Value) -> Vec<(String, String)> {
    let issuer = claims["iss"].as_str().unwrap();
    [
        json!({ "iss": null }),
        json!({ "iss": "https://elsewhere.example" }),
        json!({ "iss": format!("{issuer}/") }),
        json!({ "iss": &issuer[..issuer.len() - 1] }),
        json!({ "iss": issuer.to_uppercase() }),
        json!({ "iss": [issuer] }),
        json!({ "iss": "" }),
        json!({ "aud": null }),
        json!({ "aud": "others" }),
        json!({ "aud": "" }),
        json!({ "aud": "plant" }),
        json!({ "aud": "plants " }),
        json!({ "aud": "PLANTS" }),
        json!({ "aud": "plants others" }),
        json!({ "aud": [] }),
        json!({ "aud": ["others"] }),
        json!({ "aud": [[AUDIENCE]] }),
        json!({ "aud": { "plants": true } }),
        json!({ "aud": 7 }),
        json!({ "aud": true }),
        json!({ "exp": null }),
        json!({ "exp": now() - LEEWAY - 1.0 }),
        json!({ "exp": now() - 86_400.0 }),
        json!({ "exp": 0 }),
        json!({ "exp": -1 }),
        json!({ "exp": -1e300 }),
        json!({ "exp": i64::MIN }),
        json!({ "exp": (now() + 600.0).to_string() }),
        json!({ "exp": true }),
        json!({ "exp": [now() + 600.0] }),
        json!({ "nbf": now() + LEEWAY + 60.0 }),
        json!({ "nbf": 1e300 }),
        json!({ "nbf": u64::MAX }),
        json!({ "nbf": "0" }),
        json!({ "nbf": false }),
        json!({ "iat": now() + LEEWAY + 60.0 }),
        json!({ "iat": 1e18 }),
        json!({ "iat": "0" }),
        json!({ "iat": {} }),
        json!({ "sub": null }),
        json!({ "sub": "" }),
        json!({ "sub": 7 }),
        json!({ "sub": ["ada"] }),
        json!({ "sub": "a b" }),
        json!({ "sub": "a\u{0}" }),
        json!({ "sub": "a\n" }),
        json!({ "sub": "x".repeat(256) }),
        json!({ "sub": "a\u{200b}" }),
    ]
    .into_iter()
    .map(|others| (others.to_string(), key.token(&with(claims.clone(), others))))
    .collect()
}

/// What an issuer says is not believed blindly.
#[test]
fn an_issuer_that_talks_nonsense_is_like_none() {
    let site = Site::new(Engine::Sqlite);
    let key = SigningKey::p256("e");
    let issuer = Issuer::start(&[&key]);
    let token = key.token(&issuer.claims("ada"));
    let keys_at = |address: &str| ok(&json!({ "issuer": issuer.url(), "jwks_uri": address }).to_string());
    let moved = format!("HTTP/1.1 302 Found\r\nLocation: {}/keys\r\nContent-Length: 0\r\n\r\n", issuer.url());
    let nonsense = [
        (DISCOVERY, ok("{}"), "holds no `issuer` or no `jwks_uri`"),
        (DISCOVERY, ok("nonsense"), "holds no `issuer` or no `jwks_uri`"),
        (DISCOVERY, ok(r#"{"issuer":"https://elsewhere.example","jwks_uri":"https://x.example/"}"#), "to exactly that"),
        (DISCOVERY, keys_at("http://keys.example/keys"), "`jwks_uri` cannot be used"),
        (DISCOVERY, keys_at("ftp://127.0.0.1/keys"), "`jwks_uri` cannot be used"),
        (DISCOVERY, keys_at("/keys"), "`jwks_uri` cannot be used"),
        (DISCOVERY, moved.clone().into_bytes(), "answers 302"),
        (DISCOVERY, b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n".to_vec(), "answers 500"),
        (DISCOVERY, b"nonsense\r\n\r\n".to_vec(), "no usable answer"),
        (DISCOVERY, b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{".to_vec(), "breaks off"),
        (DISCOVERY, Vec::new(), "no usable answer"),
        (KEYS, moved.into_bytes(), "answers 302"),
        (KEYS, ok("[]"), "no set of keys"),
        (KEYS, ok("{}"), "no set of keys"),
        (KEYS, ok(&format!(r#"{{"keys":[],"x":"{}"}}"#, "x".repeat(2 << 20))), "larger than"),
    ];
    for (path, answer, expected) in nonsense {
        issuer.answer_with(path, Some(answer));
        let server = serve(&site, &issuer, &[]);
        assert_eq!(call(&server, &token).error(), 50300, "{expected}");
        wait_for_log(&server, expected);
        issuer.answer_with(path, None);
    }
    assert_eq!(users(&site), [""; 0]);
}

/// What it has said before stays in use when it begins to talk nonsense.
#[test]
fn nonsense_takes_no_key_away() {
    let site = Site::new(Engine::Sqlite);
    let (key, new) = (SigningKey::p256("e"), SigningKey::p256("new"));
    let issuer = Issuer::start(&[&key]);
    let server = serve(&site, &issuer, &[]);
    let [token, of_new] = [&key, &new].map(|key| key.token(&issuer.claims("ada")));
    assert_eq!(call(&server, &token).status, 200);
    issuer.answer_with(KEYS, Some(ok("{}")));
    assert_eq!(call(&server, &of_new).error(), 40101);
    wait_for_log(&server, "no set of keys");
    assert_eq!(call(&server, &token).status, 200);
    issuer.publish(&[&key, &new]);
    issuer.answer_with(KEYS, None);
    wait_for("the new key", || (call(&server, &of_new).status == 200).then_some(()));
    wait_for_log(&server, BACK);
}

/// A set may hold keys that are of no use here: they are left out, and do no harm to the others.
#[test]
fn keys_that_cannot_be_used_are_left_out() {
    let site = Site::new(Engine::Sqlite);
    let good =
        [SigningKey::rsa("r"), SigningKey::p256("e"), SigningKey::ed25519("d"), SigningKey::rsa_of("large", 4_096)];
    let weak = SigningKey::rsa_of("weak", 1_024);
    let changed = |key: &SigningKey, others: Value| with(key.jwk.clone(), others);
    let (for_encryption, for_another) = (SigningKey::p256("enc"), SigningKey::rsa("ps"));
    let (for_wrapping, misnamed) = (SigningKey::p256("ops"), SigningKey::p256("misnamed"));
    let mut jwks = vec![
        json!(null),
        json!("nonsense"),
        json!({}),
        json!({ "kty": "oct", "kid": "h", "k": encode("secret") }),
        json!({ "kty": "RSA", "kid": "empty" }),
        json!({ "kty": "EC", "crv": "P-256", "kid": "short", "x": "AA", "y": "AA" }),
        json!({ "kty": "EC", "crv": "P-384", "kid": "p384", "x": encode([1; 48]), "y": encode([1; 48]) }),
        json!({ "kty": "OKP", "crv": "X25519", "kid": "x", "x": encode([1; 32]) }),
        json!({ "kty": "OKP", "crv": "Ed25519", "kid": "n", "x": "!" }),
        weak.jwk.clone(),
        changed(&for_encryption, json!({ "use": "enc" })),
        changed(&for_another, json!({ "alg": "PS256" })),
        changed(&for_wrapping, json!({ "key_ops": ["wrapKey"] })),
        changed(&misnamed, json!({ "alg": "RS256" })),
        // Not on the curve.
        json!({ "kty": "EC", "crv": "P-256", "kid": "off", "x": encode([1; 32]), "y": encode([1; 32]) }),
    ];
    jwks.extend(good.iter().map(|key| key.jwk.clone()));
    // As other formats write a number that is not negative.
    let padded = SigningKey::rsa("padded");
    let modulus =
        base64::Engine::decode(&base64::engine::general_purpose::URL_SAFE_NO_PAD, padded.jwk["n"].as_str().unwrap())
            .unwrap();
    jwks.push(changed(&padded, json!({ "n": encode([&[0], &modulus[..]].concat()), "key_ops": ["verify"] })));
    let issuer = Issuer::start(&[]);
    issuer.publish_jwks(jwks);
    let server = serve(&site, &issuer, &[]);
    for key in good.iter().chain([&padded]) {
        assert_eq!(call(&server, &key.token(&issuer.claims("ada"))).status, 200, "{}", key.id);
    }
    for key in [&weak, &for_encryption, &for_another, &for_wrapping, &misnamed] {
        assert_eq!(call(&server, &key.token(&issuer.claims("ada"))).status, 401, "{}", key.id);
    }
    for (key, id) in [(&good[1], "off"), (&good[1], "short"), (&good[2], "x"), (&good[2], "n")] {
        let header = with(key.header(), json!({ "kid": id }));
        assert_eq!(call(&server, &key.token_with(&header, &issuer.claims("ada"))).status, 401, "{id}");
    }
    let ambiguous = with(good[0].header(), json!({ "kid": null }));
    assert_eq!(call(&server, &good[0].token_with(&ambiguous, &issuer.claims("ada"))).status, 401, "which of its keys?");
}

/// However many keys there are, a hundred are taken.
#[test]
fn a_set_has_a_hundred_keys_at_the_most() {
    let site = Site::new(Engine::Sqlite);
    let keys: Vec<SigningKey> = (0..101).map(|number| SigningKey::ed25519(&format!("key-{number}"))).collect();
    let issuer = Issuer::start(&keys.iter().collect::<Vec<_>>());
    let server = serve(&site, &issuer, &[]);
    let status = |key: &SigningKey| call(&server, &key.token(&issuer.claims("ada"))).status;
    assert_eq!((status(&keys[0]), status(&keys[99]), status(&keys[100])), (200, 200, 401));
}

/// Nodes that meet the same newcomer at the same time make one user of them.
#[test]
fn two_nodes_make_one_user() {
    let site = Site::new(Engine::Postgres);
    let key = SigningKey::ed25519("d");
    let issuer = Issuer::start(&[&key]);
    let nodes = [0, 1].map(|_| serve(&site, &issuer, &[]));
    for node in &nodes {
        assert_eq!(call(node, &key.token(&issuer.claims("first"))).status, 200);
    }
    let clients: Vec<Vec<Client>> = (0..20)
        .map(|user| {
            let token = key.token(&issuer.claims(&format!("newcomer-{user}")));
            nodes.iter().map(|node| node.client(&token)).collect()
        })
        .collect();
    std::thread::scope(|scope| {
        for clients in &clients {
            for (id, client) in (0..).zip(clients) {
                scope.spawn(move || client.plant(id, "Rose"));
            }
        }
    });
    for clients in &clients {
        assert!(clients.iter().all(|client| client.ids() == [0, 1]), "both see what both have planted");
    }
    assert_eq!(site.rows("SELECT count(*) FROM users"), [21]);
    assert_eq!(site.rows("SELECT count(*) FROM collections"), [21]);
}

#[test]
fn options_that_do_not_go_together_are_refused() {
    let site = Site::new(Engine::Sqlite);
    let issuer = ["--oidc-issuer", "https://login.example.com"];
    let audience = ["--oidc-audience", "plants"];
    let refused: &[(&[&str], &str)] = &[
        (&issuer, "--oidc-audience"),
        (&audience, "--oidc-issuer"),
        (&["--oidc-ca", "ca.pem"], "--oidc-issuer"),
        (&["--oidc-user-claim", "email"], "--oidc-issuer"),
        (&["--oidc-issuer", "https://login.example.com", "--oidc-audience", ""], "--oidc-audience"),
        (&["--oidc-issuer", "http://login.example.com", "--oidc-audience", "plants"], "use https://"),
        (&["--oidc-issuer", "http://127.0.0.1.example.com", "--oidc-audience", "plants"], "use https://"),
        (&["--oidc-issuer", "http://10.0.0.1:8080", "--oidc-audience", "plants"], "use https://"),
        (&["--oidc-issuer", "login.example.com", "--oidc-audience", "plants"], "write it as https://HOST/PATH"),
        (&["--oidc-issuer", "", "--oidc-audience", "plants"], "--oidc-issuer"),
        (&["--oidc-issuer", "https://", "--oidc-audience", "plants"], "write it as https://HOST/PATH"),
        (&["--oidc-issuer", "ftp://login.example.com", "--oidc-audience", "plants"], "write it as https://HOST/PATH"),
        (
            &["--oidc-issuer", "https://ada:secret@login.example.com", "--oidc-audience", "plants"],
            "without user name and password",
        ),
        (
            &["--oidc-issuer", "https://login.example.com:99999", "--oidc-audience", "plants"],
            "write it as https://HOST/PATH",
        ),
        (
            &["--oidc-issuer", "https://login.example.com/?a=b", "--oidc-audience", "plants"],
            "neither a query nor a fragment",
        ),
        (
            &["--oidc-issuer", "https://login.example.com/#x", "--oidc-audience", "plants"],
            "neither a query nor a fragment",
        ),
        (
            &["--oidc-issuer", "https://login.example.com", "--oidc-audience", "plants", "--oidc-ca", "nowhere.pem"],
            "nowhere.pem",
        ),
    ];
    for (options, expected) in refused {
        let output = site.run(&[&["serve", "--listen", "127.0.0.1:0"], *options].concat());
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{options:?}: {words}");
        assert!(words.contains(expected) && words.lines().count() == 1, "{options:?}: {words}");
    }
    assert!(!site.file().exists(), "no store is made for a server that cannot start");
    for url in
        ["http://localhost:1", "http://[::1]:1/", "http://127.1.2.3:1", "https://login.example.com/realms/garden/"]
    {
        drop(site.serve(&["--oidc-issuer", url, "--oidc-audience", "plants"]));
    }
    let mut by_variables = site.command(&["serve", "--listen", "127.0.0.1:0"]);
    by_variables.env("PLANTSTORE_OIDC_ISSUER", "http://127.0.0.1:1");
    let output = by_variables.output().expect("the command runs");
    assert_eq!(output.status.code(), Some(2), "a variable needs the other option, too");
}
