//! Shares that owners offer and revoke themselves, and that grantees accept and leave. No response shows which users exist.

use std::path::Path;

use serde_json::{Value, json};

use crate::support::{
    Client, CommandOutput, Engine, JSON, Response, Service, Stopwatch, Store, assert_snapshot, engine_test, wait_until,
};
use crate::tokens::{EFFECT_LIMIT, manager, statuses_of_eight};

#[track_caller]
fn grant(client: &Client, to: &str, role: &str) -> Response {
    let body = json!({ "role": role }).to_string();
    client.call("PUT", &format!("/shares/{to}"), &[JSON], Some(body.as_bytes()))
}

#[track_caller]
fn revoke(client: &Client, to: &str) -> Response {
    client.call("DELETE", &format!("/shares/{to}"), &[], None)
}

#[track_caller]
fn accept(client: &Client, owner: &str) -> Response {
    client.call("PUT", &format!("/shares/received/{owner}"), &[], None)
}

/// Declines an offer, or leaves.
#[track_caller]
fn decline(client: &Client, owner: &str) -> Response {
    client.call("DELETE", &format!("/shares/received/{owner}"), &[], None)
}

fn granted(user: &str, role: &str, state: &str) -> Value {
    json!([{"user": user, "role": role, "state": state}])
}

fn received(owner: &str, role: &str, state: &str) -> Value {
    json!([{"owner": owner, "role": role, "state": state}])
}

/// Shares without their times, which are checked.
#[track_caller]
fn shares(client: &Client) -> Value {
    let response = client.get("/shares");
    assert_eq!((response.status, response.header("cache-control")), (200, Some("no-store")), "{}", response.wire());
    let mut shares = response.json();
    for share in shares["granted"].as_array_mut().expect("an array") {
        let time = share.as_object_mut().and_then(|share| share.remove("created_at")).expect("a time");
        assert!(time.as_str().is_some_and(|time| time.ends_with('Z')), "{time}");
    }
    shares
}

engine_test!(share_gives_access_after_it_is_accepted, |Service { store, server }: &Service| {
    let (ada, bob) = (manager(store, server, "ada"), manager(store, server, "bob"));
    ada.plant(1, "Rose");
    let tag = bob.get("/plants").header("etag").expect("a tag").to_owned();
    assert_eq!(accept(&bob, "ada").error(), 40403);
    let offered = grant(&ada, "bob", "reader");
    assert_eq!((offered.status, offered.text()), (204, ""));
    assert_eq!(shares(&ada), json!({"granted": granted("bob", "reader", "offered"), "received": []}));
    assert_eq!(shares(&bob), json!({"granted": [], "received": received("ada", "reader", "offered")}));
    assert_eq!(bob.get("/plants?owner=ada").error(), 40400);
    assert_eq!(bob.call("GET", "/plants", &[("If-None-Match", &tag)], None).status, 304);
    for _ in 0..2 {
        let accepted = accept(&bob, "ada");
        assert_eq!((accepted.status, accepted.text()), (204, ""));
    }
    // At once on the node that handled it.
    assert_eq!(bob.get("/plants").text(), r#"[{"name":"Rose"}]"#);
    assert_eq!(bob.call("DELETE", "/plants/1?owner=ada", &[], None).error(), 40300);
    assert_eq!(shares(&bob)["received"], received("ada", "reader", "accepted"));
    assert_eq!(grant(&ada, "bob", "editor").status, 204);
    assert_eq!(shares(&ada)["granted"], granted("bob", "editor", "accepted"), "a change of the role needs no consent");
    assert_eq!(bob.call("DELETE", "/plants/1?owner=ada", &[], None).status, 204);
    assert_eq!(revoke(&ada, "bob").status, 204);
    assert_eq!(bob.get("/plants?owner=ada").error(), 40400);
    assert_eq!(revoke(&ada, "bob").error(), 40403);
    assert_eq!(shares(&ada), json!({"granted": [], "received": []}));
    assert_eq!([accept(&bob, "ada").error(), decline(&bob, "ada").error()], [40403; 2]);
});

engine_test!(grantee_declines_and_leaves_unnoticed, |Service { store, server }: &Service| {
    let (ada, bob) = (manager(store, server, "ada"), manager(store, server, "bob"));
    let offered = granted("bob", "reader", "offered");
    assert_eq!(decline(&bob, "ada").error(), 40403);
    assert_eq!(grant(&ada, "bob", "reader").status, 204);
    let declined = decline(&bob, "ada");
    assert_eq!((declined.status, declined.text()), (204, ""));
    assert_eq!((&shares(&ada)["granted"], &shares(&bob)["received"]), (&offered, &json!([])));
    assert_eq!([accept(&bob, "ada").error(), decline(&bob, "ada").error()], [40403; 2]);
    // The owner's next offer is a new one, also after the grantee has left.
    assert_eq!(grant(&ada, "bob", "reader").status, 204);
    assert_eq!(accept(&bob, "ada").status, 204);
    assert_eq!(bob.get("/plants?owner=ada").status, 200);
    assert_eq!(decline(&bob, "ada").status, 204);
    assert_eq!(bob.get("/plants?owner=ada").error(), 40400);
    assert_eq!((&shares(&ada)["granted"], &shares(&bob)["received"]), (&offered, &json!([])));
    assert_eq!(grant(&ada, "bob", "editor").status, 204);
    assert_eq!(shares(&bob)["received"], received("ada", "editor", "offered"));
    // A share of the operator can be left, too, and granted again.
    for _ in 0..2 {
        store.share("ada", "bob", "editor");
        assert_eq!(shares(&bob)["received"], received("ada", "editor", "accepted"));
        assert_eq!(decline(&bob, "ada").status, 204);
    }
    let listed = String::from_utf8(store.run(&["share", "list"]).stdout).expect("text");
    assert!(listed.lines().any(|line| line.contains("declined")), "the operator sees the state: {listed}");
});

engine_test!(offer_is_there_when_its_user_appears, |Service { store, server }: &Service| {
    let ada = manager(store, server, "ada");
    ada.plant(1, "Rose");
    assert_eq!(grant(&ada, "bob", "reader").status, 204);
    assert_eq!(grant(&ada, "eve", "reader").status, 204);
    assert_eq!(revoke(&ada, "eve").status, 204);
    let (bob, eve) = (manager(store, server, "bob"), manager(store, server, "eve"));
    assert_eq!(shares(&bob)["received"], received("ada", "reader", "offered"));
    assert_eq!(accept(&bob, "ada").status, 204);
    assert_eq!(bob.get("/plants").text(), r#"[{"name":"Rose"}]"#);
    assert_eq!(accept(&eve, "ada").error(), 40403);
    // The acceptance of a deleted user ends, and so does a refusal: the next user of this name has an offer.
    for _ in 0..2 {
        store.run(&["user", "delete", "bob", "--yes"]).success();
        let bob = manager(store, server, "bob");
        assert_eq!(bob.get("/plants").text(), "[]");
        assert_eq!(shares(&bob)["received"], received("ada", "reader", "offered"));
        assert_eq!(decline(&bob, "ada").status, 204);
    }
    assert_eq!(shares(&ada)["granted"], granted("bob", "reader", "offered"));
    // The share of a deleted owner ends.
    let bob = manager(store, server, "bob");
    assert_eq!(grant(&ada, "bob", "reader").status, 204);
    assert_eq!(accept(&bob, "ada").status, 204);
    store.run(&["user", "delete", "ada", "--yes"]).success();
    wait_until("the end of the share", || bob.get("/plants?owner=ada").status == 404);
    assert_eq!(shares(&bob)["received"], json!([]));
});

engine_test!(owner_and_operator_change_the_same_share, |Service { store, server }: &Service| {
    let (ada, bob) = (manager(store, server, "ada"), manager(store, server, "bob"));
    let operator = |arguments: &[&str]| store.run(&[&["share"], arguments].concat());
    let by_operator = |role| operator(&["grant", "--owner", "ada", "--to", "bob", "--role", role]).status.success();
    let listed = || {
        let output = operator(&["list", "--json"]);
        serde_json::from_slice::<Value>(&output.stdout).expect("JSON").as_array().expect("an array").clone()
    };
    assert!(by_operator("reader"));
    let since = ada.get("/shares").json()["granted"][0]["created_at"].clone();
    assert_eq!(grant(&ada, "bob", "editor").status, 204);
    let share = ada.get("/shares").json()["granted"][0].clone();
    assert_eq!(share, json!({"user": "bob", "role": "editor", "state": "accepted", "created_at": since}));
    assert_eq!(shares(&bob)["received"], received("ada", "editor", "accepted"));
    assert_eq!(listed().len(), 1);
    assert!(by_operator("reader"));
    assert_eq!(shares(&bob)["received"], received("ada", "reader", "accepted"));
    assert_eq!((&listed()[0]["role"], &listed()[0]["state"]), (&json!("reader"), &json!("accepted")));
    assert_eq!(revoke(&ada, "bob").status, 204);
    assert_eq!(listed().len(), 0);
    assert_eq!(grant(&ada, "absent-user", "editor").status, 204);
    let offer = listed()[0].clone();
    assert_eq!([&offer["to"], &offer["role"], &offer["state"]], ["absent-user", "editor", "offered"]);
    assert!(operator(&["revoke", "--owner", "ada", "--to", "absent-user"]).status.success());
    assert_eq!(shares(&ada)["granted"], json!([]));
});

engine_test!(requests_for_shares_are_validated, |Service { store, server }: &Service| {
    let ada = manager(store, server, "ada");
    let put = |path: &str, body: &str| ada.call("PUT", path, &[JSON], Some(body.as_bytes()));
    let valid = r#"{"role":"reader"}"#;
    for (body, code) in [
        ("", 40000),
        ("{", 40000),
        ("1", 40002),
        ("{}", 40001),
        (r#"{"role":null}"#, 40002),
        (r#"{"role":1}"#, 40002),
        (r#"{"role":"owner"}"#, 40002),
        (r#"{"role":"reader","role":"reader"}"#, 40002),
        (r#"{"role":"reader","user":"eve"}"#, 40007),
        (r#"{"rôle":"reader"}"#, 40001),
    ] {
        assert_eq!(put("/shares/bob", body).error(), code, "{body}");
    }
    let unknown = put("/shares/bob", r#"{"rôle":"reader"}"#).message();
    assert_snapshot!(unknown, @"`role` is required; `rôle` is not known here: the fields are `role`");
    assert_eq!(ada.call("PUT", "/shares/bob", &[], Some(valid.as_bytes())).error(), 41500);
    assert_eq!(put("/shares/ada", valid).error(), 40007, "oneself");
    for name in ["%20", "a%20b", "%00", "%ff", "%E2%80%8B", &"x".repeat(256)] {
        assert_eq!(put(&format!("/shares/{name}"), valid).error(), 40007, "{name}");
        assert_eq!(revoke(&ada, name).error(), 40007, "{name}");
        assert_eq!([accept(&ada, name).error(), decline(&ada, name).error()], [40007; 2], "{name}");
    }
    assert_eq!(put("/shares", valid).error(), 40500);
    assert_eq!(put("/shares/", valid).error(), 40401);
    assert_eq!(shares(&ada)["granted"], json!([]));
    assert_eq!(put("/shares/%C3%85sa%2F%2B%40x", valid).status, 204);
    assert_eq!(shares(&ada)["granted"], granted("Åsa/+@x", "reader", "offered"));
    assert_eq!(revoke(&ada, "%C3%85sa%2F+@x").status, 204);
    let plain = server.client(&store.token("ada", &[]));
    assert_eq!(plain.get("/shares").error(), 40300);
    assert_eq!(grant(&plain, "bob", "reader").error(), 40300);
    assert_eq!(revoke(&plain, "bob").error(), 40300);
    assert_eq!([accept(&plain, "bob").error(), decline(&plain, "bob").error()], [40300; 2]);
});

engine_test!(token_grants_only_what_it_can_do_itself, |Service { store, server }: &Service| {
    let with = |scopes: &str| server.client(&store.token("ada", &["--scope", scopes]));
    let (manager, reader) = (with("shares:manage"), with("plants:read,shares:manage"));
    let writer = with("plants:read,plants:write,shares:manage");
    let editor = with("plants:read,plants:write,plants:delete,shares:manage");
    for (client, role) in [(&manager, "reader"), (&manager, "editor"), (&reader, "editor"), (&writer, "editor")] {
        assert_eq!(grant(client, "bob", role).error(), 40008, "{role}");
    }
    assert_snapshot!(
        grant(&reader, "bob", "editor").message(),
        @"an access token can only grant what it can do itself, and to grant this role it lacks: plants:write plants:delete"
    );
    assert_eq!(shares(&manager)["granted"], json!([]));
    assert_eq!(grant(&reader, "bob", "reader").status, 204);
    assert_eq!(grant(&editor, "bob", "editor").status, 204);
    assert_eq!(grant(&reader, "bob", "editor").error(), 40008, "even if the user has the role already");
    assert_eq!(revoke(&manager, "bob").status, 204, "every token for shares can revoke");
});

engine_test!(grants_are_limited_under_concurrency, |store: &Store| {
    let (server, other) = (store.serve(&[]), store.serve(&[]));
    let ada = manager(store, &server, "ada");
    store.execute(
        "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 97)
         INSERT INTO shares_by_name (grantee_name, owner_id, role, created_at) SELECT 'user' || n, 1, 'reader', 0 FROM numbers",
    );
    let statuses =
        statuses_of_eight(&ada, [&server, &other], |client, number| grant(client, &format!("new{number}"), "reader"));
    assert_eq!(statuses.iter().filter(|status| **status == 204).count(), 3, "{statuses:?}");
    assert_eq!(statuses.iter().filter(|status| **status == 409).count(), 5, "{statuses:?}");
    assert_eq!(grant(&ada, "another", "reader").error(), 40903);
    assert_eq!(grant(&ada, "user1", "editor").status, 204, "one of them can change");
    // The operator can grant more than the limit.
    store.execute("INSERT INTO users (name, created_at) VALUES ('one', 0), ('two', 0)");
    store.execute(
        "INSERT INTO shares_by_name (grantee_name, owner_id, role, created_at, grantee_id)
         SELECT name, 1, 'editor', 0, user_id FROM users WHERE name IN ('one', 'two')",
    );
    assert_eq!(grant(&ada, "one", "reader").status, 204, "the role of a share can change beyond the limit");
    assert_eq!(grant(&ada, "another", "reader").error(), 40903);
});

// Only what a user has accepted counts, so others cannot use up the limit.
engine_test!(accepted_shares_are_limited_under_concurrency, |store: &Store| {
    let (server, other) = (store.serve(&[]), store.serve(&[]));
    let bob = manager(store, &server, "bob");
    store.execute(
        "WITH RECURSIVE numbers (n) AS (SELECT 100 UNION ALL SELECT n + 1 FROM numbers WHERE n < 304)
         INSERT INTO users (name, created_at) SELECT 'owner' || n, 0 FROM numbers",
    );
    store.execute(
        "INSERT INTO shares_by_name (grantee_name, owner_id, role, created_at, grantee_id)
         SELECT 'bob', user_id, 'reader', user_id, CASE WHEN name < 'owner197' THEN 1 END
         FROM users WHERE name LIKE 'owner%'",
    );
    let listed = shares(&bob)["received"].as_array().expect("an array").clone();
    assert_eq!(listed.iter().filter(|share| share["state"] == "accepted").count(), 97);
    let offers: Vec<_> = listed.iter().filter(|share| share["state"] == "offered").collect();
    assert_eq!((offers.len(), &offers[0]["owner"]), (100, &json!("owner205")), "the newest");
    let statuses =
        statuses_of_eight(&bob, [&server, &other], |client, number| accept(client, &format!("owner{}", 197 + number)));
    assert_eq!(statuses.iter().filter(|status| **status == 204).count(), 3, "{statuses:?}");
    assert_eq!(accept(&bob, "owner300").error(), 40903);
    assert_eq!(accept(&bob, "owner100").status, 204, "it is accepted already");
    assert_eq!(accept(&bob, "absent").error(), 40403, "the limit does not show who exists");
    let operator = store.run(&["share", "grant", "--owner", "owner300", "--to", "bob", "--role", "reader"]);
    assert!(operator.stderr_text().contains("bob has accepted 100 shares already"), "{operator:?}");
    assert_eq!(decline(&bob, "owner100").status, 204);
    assert_eq!(accept(&bob, "owner300").status, 204);
});

// Shares that gave access in 0.6.0 are accepted; one with a name that no user has is an offer.
engine_test!(shares_of_an_earlier_release_stay_effective, |store: &Store| {
    let released = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files/0.6.0.db");
    match store.engine {
        Engine::Sqlite => drop(std::fs::copy(&released, store.file()).expect("a copy")),
        Engine::Postgres => {
            let copy = store.directory().join("released.db");
            std::fs::copy(&released, &copy).expect("a copy");
            store.run(&["restore", copy.to_str().expect("text")]).success();
        }
    }
    let server = store.serve(&[]);
    let token = std::fs::read_to_string(released.with_extension("token")).expect("the token beside it");
    let ada = server.client(token.trim_end());
    let expected = [("absent", "reader", "offered"), ("bob", "reader", "accepted"), ("cyd", "editor", "accepted")];
    let expected = expected.map(|(user, role, state)| granted(user, role, state)[0].clone());
    assert_eq!(shares(&ada), json!({"granted": expected, "received": received("bob", "reader", "accepted")}));
    let [bob, cyd] = ["bob", "cyd"].map(|user| server.client(&store.token(user, &[])));
    assert_eq!(bob.get("/plants/1?owner=ada").text(), r#"{"name":"Rose","tag":"red"}"#);
    assert_eq!(cyd.call("DELETE", "/plants/1?owner=ada", &[], None).status, 204);
});

// Every pair of users, with every operation on tokens and shares: the responses to a caller are the same whether the other user
// exists or not, and whatever the other has.
engine_test!(no_response_shows_which_users_tokens_or_shares_exist, |Service { store, server }: &Service| {
    let callers = ["ada", "bob"].map(|user| (user, manager(store, server, user)));
    // "eve" has a token, plants and shares; "joe" exists and has nothing; "absent" does not exist.
    let eve = manager(store, server, "eve");
    eve.plant(1, "Rose");
    assert_eq!(grant(&eve, "absent", "reader").status, 204);
    let joe = server.client(&store.token("joe", &[]));
    // The first use of each token is stored before their lists are compared.
    callers.iter().map(|(_, client)| client).chain([&joe]).for_each(|client| assert_eq!(client.get("/me").status, 200));
    store.wait_for_stored_token_use();
    let eves_token = eve.get("/me").json()["token"]["id"].as_i64().expect("an id");
    let others = ["eve", "joe", "absent"];
    for (caller, client) in &callers {
        let mut transcripts = Vec::new();
        for other in others {
            let token = if other == "eve" { eves_token } else { 9_999 };
            let revoke_token = || client.call("DELETE", &format!("/tokens/{token}"), &[], None);
            let responses = [
                ("revoke their token", revoke_token()),
                ("revoke no share", revoke(client, other)),
                ("grant", grant(client, other, "reader")),
                ("grant again", grant(client, other, "reader")),
                ("change", grant(client, other, "editor")),
                ("bad role", grant(client, other, "owner")),
                ("accept", accept(client, other)),
                ("decline", decline(client, other)),
                ("revoke their token while sharing", revoke_token()),
                ("their plants", client.get(&format!("/plants?owner={other}"))),
                ("their plant", client.get(&format!("/plants/1?owner={other}"))),
                ("shares", client.get("/shares")),
                ("tokens", client.get("/tokens")),
                ("revoke", revoke(client, other)),
                ("revoke again", revoke(client, other)),
                ("shares afterwards", client.get("/shares")),
            ];
            let transcript: Vec<_> = responses
                .iter()
                .map(|(step, response)| {
                    let mut wire = response.wire().replace(other, "(other)");
                    if let Some(granted) = response.json_or_null()["granted"][0]["created_at"].as_str() {
                        wire = wire.replace(granted, "(a time)");
                    }
                    let lines = wire.lines().filter(|line| !line.starts_with("content-length"));
                    format!("{step}: {}", lines.collect::<Vec<_>>().join("\n"))
                })
                .collect();
            transcripts.push(transcript);
        }
        for (other, transcript) in others.iter().zip(&transcripts) {
            for (step, expected) in transcript.iter().zip(&transcripts[0]) {
                assert_eq!(step, expected, "{caller} and {other}");
            }
        }
    }
    assert_eq!(eve.get("/me").status, 200);
    assert_eq!(shares(&eve), json!({"granted": granted("absent", "reader", "offered"), "received": []}));
});

engine_test!(share_is_revoked_on_every_node, |store: &Store| {
    let (server, other) = (store.serve(&[]), store.serve(&[]));
    let (ada, bob) = (manager(store, &server, "ada"), manager(store, &other, "bob"));
    assert_eq!(grant(&ada, "bob", "reader").status, 204);
    assert_eq!(accept(&bob, "ada").status, 204);
    wait_until("the share on the other node", || bob.get("/plants?owner=ada").status == 200);
    assert_eq!(revoke(&ada, "bob").status, 204);
    let revoked = Stopwatch::start();
    wait_until("its end on the other node", || bob.get("/plants?owner=ada").status == 404);
    assert!(revoked.elapsed() < EFFECT_LIMIT, "{:?}", revoked.elapsed());
});
