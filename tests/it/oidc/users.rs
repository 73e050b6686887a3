//! Users of the issuer: created at the first use of a token.

use jiff::Timestamp;
use serde_json::json;

use super::{call, serve, with};
use crate::support::issuer::{Issuer, SigningKey};
use crate::support::{
    Client, CommandOutput, Events, Store, assert_contains, engine_test, postgres_test, retry_while_unavailable,
    wait_for, wait_until,
};

engine_test!(user_is_created_once_at_the_first_use, |store: &Store| {
    let key = SigningKey::ed25519("d");
    let issuer = Issuer::start(&[&key]);
    let server = serve(store, &issuer, &[]);
    std::thread::scope(|scope| {
        for number in 0..8 {
            let (server, issuer, key) = (&server, &issuer, &key);
            // Different tokens of one user, so that no request finds the user in the token cache.
            let claims = with(issuer.claims("newcomer"), json!({ "jti": number }));
            scope.spawn(move || server.client(&key.token(&claims)).plant(number, "Rose"));
        }
    });
    assert_eq!(store.users(), ["newcomer"]);
    assert_eq!(server.client(&key.token(&issuer.claims("newcomer"))).ids(), (0..8).collect::<Vec<_>>());
    assert_eq!(store.rows("SELECT count(*) FROM users"), [1]);
});

engine_test!(a_local_user_of_the_same_name_is_the_same_user, |store: &Store| {
    let key = SigningKey::ed25519("d");
    let issuer = Issuer::start(&[&key]);
    let server = serve(store, &issuer, &[]);
    let ours = server.client(&store.token("ada", &[]));
    ours.plant(1, "Rose");
    let theirs = server.client(&key.token(&issuer.claims("ada")));
    assert_eq!(theirs.ids(), [1]);
    assert_eq!(theirs.delete(1).status, 204);
    assert_eq!(ours.ids(), [0_i64; 0], "both kinds of tokens name the same user");
    assert_eq!(server.client(&key.token(&issuer.claims("bob"))).post(r#"{"id":1,"name":"Fern"}"#).status, 200);
    assert_eq!(ours.ids(), [0_i64; 0], "other users are separate");
});

engine_test!(deleted_user_with_a_valid_token_is_created_again, |store: &Store| {
    let key = SigningKey::ed25519("d");
    let issuer = Issuer::start(&[&key]);
    let server = serve(store, &issuer, &[]);
    let ada = server.client(&key.token(&issuer.claims("ada")));
    ada.plant(1, "Rose");
    store.run(&["user", "delete", "--yes", "ada"]).success();
    wait_until("the user to be created again", || {
        let response = ada.post(r#"{"id":2,"name":"Fern"}"#);
        assert!([200, 401].contains(&response.status), "{}", response.text());
        response.status == 200
    });
    assert_eq!(ada.ids(), [2], "the new user has no plants of the deleted one");
    assert_eq!(store.users(), ["ada"]);
});

engine_test!(stream_of_events_ends_with_the_token_of_the_issuer, |store: &Store| {
    let key = SigningKey::ed25519("d");
    let issuer = Issuer::start(&[&key]);
    let server = serve(store, &issuer, &[]);
    let lasting = server.client(&key.token(&issuer.claims("ada")));
    let (mut of_lasting, first) = Events::of(&lasting);
    // An expired token is accepted for another 30 seconds, because clocks differ.
    let (end, expiring, mut of_expiring) = wait_for("a stream that is opened before its token expires", || {
        let end = Timestamp::now().as_second() + 6;
        let expiring = server.client(&key.token(&with(issuer.claims("ada"), json!({ "exp": end - 30 }))));
        Events::try_of(&expiring).map(|events| (end, expiring, events))
    });
    lasting.plant(1, "Rose");
    of_lasting.wait_for_current(&lasting, "/plants", &first);
    while of_expiring.next().is_some() {}
    assert!(Timestamp::now().as_second() >= end, "the stream has ended before its token");
    assert_eq!(expiring.get("/plants").error(), 40101);
    store.run(&["user", "delete", "--yes", "ada"]).success();
    // A user with a valid token is created again, without plants.
    wait_until("a list without plants", || {
        let tag = of_lasting.next().expect("an event");
        lasting.ids().is_empty() && lasting.call("GET", "/plants", &[("If-None-Match", &tag)], None).status == 304
    });
});

engine_test!(claim_of_the_user_name_is_an_option, |store: &Store| {
    let key = SigningKey::ed25519("d");
    let issuer = Issuer::start(&[&key]);
    let server = serve(store, &issuer, &["--oidc-user-claim", "email"]);
    let claims = with(issuer.claims("7c8ec7"), json!({ "email": "ada@example.com" }));
    server.client(&key.token(&claims)).plant(1, "Rose");
    // A token without the claim is rejected.
    assert_eq!(call(&server, &key.token(&issuer.claims("ada"))).error(), 40101);
    let twice = claims.to_string().replace(r#""email":"#, r#""email":"eve","email":"#);
    assert_eq!(call(&server, &key.token_of(&key.header().to_string(), &twice)).error(), 40101);
    assert_eq!(store.users(), ["ada@example.com"]);
});

engine_test!(user_that_cannot_be_created_yet_gets_503, |store: &Store| {
    let key = SigningKey::ed25519("d");
    let issuer = Issuer::start(&[&key]);
    let server = serve(store, &issuer, &["--store-timeout", "5s"]);
    let known = server.client(&key.token(&issuer.claims("known")));
    assert_eq!(retry_while_unavailable(|| known.post(r#"{"id":1,"name":"Rose"}"#)).status, 200);
    let held = store.hold_writes();
    let newcomer = server.client(&key.token(&issuer.claims("newcomer")));
    let response = newcomer.get("/plants");
    assert_eq!(response.error(), 50300);
    assert!(response.header("retry-after").is_some());
    assert_eq!(known.ids(), [1], "existing users are not delayed");
    drop(held);
    wait_until("the new user to be created", || newcomer.get("/plants").status == 200);
});

// Two nodes that see a new user concurrently create one user.
postgres_test!(two_nodes_create_one_user, |store: &Store| {
    let key = SigningKey::ed25519("d");
    let issuer = Issuer::start(&[&key]);
    let nodes = [0, 1].map(|_| serve(store, &issuer, &[]));
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
        assert!(clients.iter().all(|client| client.ids() == [0, 1]), "each node lists the plants of both");
    }
    assert_eq!(store.rows("SELECT count(*) FROM users"), [21]);
    assert_eq!(store.rows("SELECT count(*) FROM collections WHERE user_id > 0"), [21]);
});

engine_test!(user_of_the_issuer_creates_tokens_and_shares, |store: &Store| {
    let key = SigningKey::ed25519("d");
    let issuer = Issuer::start(&[&key]);
    let server = serve(store, &issuer, &[]);
    let scope = json!({ "scope": "plants:read tokens:manage shares:manage" });
    let ada = server.client(&key.token(&with(issuer.claims("ada"), scope.clone())));
    let me = ada.get("/me").json();
    assert_eq!((&me["user"], &me["token"]["issuer"]), (&json!("ada"), &json!(issuer.url())));
    assert!(me["token"].get("id").is_none() && me["token"].get("label").is_none(), "{me}");
    assert!(me["token"]["expires_at"].as_str().is_some_and(|time| time.ends_with('Z')), "{me}");

    let headers = [("Content-Type", "application/json")];
    let create = |body: &str| ada.call("POST", "/tokens", &headers, Some(body.as_bytes()));
    assert_eq!(create(r#"{"scopes":["plants:write"]}"#).error(), 40008);
    assert_eq!(create(r#"{"expires_at":"2999-01-01T00:00:00Z"}"#).error(), 40008, "later than the default");
    let token = create("{}").json();
    assert_eq!((&token["scopes"], &token["current"]), (&json!(["plants:read"]), &json!(false)));
    let time = |field: &str| -> jiff::Timestamp { token[field].as_str().unwrap().parse().unwrap() };
    let days = time("expires_at").duration_since(time("created_at")).as_hours() / 24;
    assert_eq!(days, 90, "it does not end with the token of the issuer");
    let made = Client { address: ada.address, token: token["secret"].as_str().map(str::to_owned) };
    assert_eq!(made.get("/plants").text(), "[]");
    let listed = String::from_utf8(store.run(&["token", "list", "--json"]).stdout).expect("text");
    assert_contains(&listed, r#""created_by": "issuer""#);

    // An offer to a name is there when the issuer's user of this name first appears.
    assert_eq!(ada.call("PUT", "/shares/bob", &headers, Some(br#"{"role":"reader"}"#)).status, 204);
    let bob = server.client(&key.token(&with(issuer.claims("bob"), scope)));
    assert_eq!(bob.call("PUT", "/shares/received/ada", &[], None).status, 204);
    assert_eq!(bob.get("/plants?owner=ada").text(), "[]");
});
