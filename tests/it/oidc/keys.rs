//! Keys of the issuer: fetching, rotation, removal and invalid key sets.

use std::time::Instant;

use serde_json::{Value, json};

use super::{call, lines, serve, with};
use crate::support::issuer::{AUDIENCE, Authority, DISCOVERY, Issuer, KEYS, SigningKey, encode, ok};
use crate::support::{
    Events, Stopwatch, Store, assert_snapshot, engine_test, engine_tool_test, sqlite_test, tool_test, wait_until,
};

const FAILED: &str = "cannot fetch the issuer's keys";
const BACK: &str = "the issuer responds again";

// An issuer should not reuse a key id. If it does, a cached rejection must not outlive the old key.
engine_test!(rejected_token_is_verified_again_with_new_keys, |store: &Store| {
    let [old, new] = [SigningKey::p256("e"), SigningKey::p256("e")];
    let issuer = Issuer::start(&[&old]);
    let server = serve(store, &issuer, &[]);
    let of_new = new.token(&issuer.claims("ada"));
    assert_eq!(call(&server, &of_new).status, 401);
    issuer.publish(&[&new]);
    // An unknown key id makes the server fetch the keys before it responds.
    assert_eq!(call(&server, &SigningKey::p256("unknown").token(&issuer.claims("ada"))).status, 401);
    assert_eq!(call(&server, &of_new).status, 200);
});

engine_tool_test!(new_key_is_accepted_and_a_removed_key_is_rejected, requires_openssl, |store: &Store| {
    let (old, new) = (SigningKey::p256("old"), SigningKey::rsa("new"));
    let issuer = Issuer::start(&[&old]);
    let server = serve(store, &issuer, &[]);
    let [of_old, of_new] = [&old, &new].map(|key| key.token(&issuer.claims("ada")));
    assert_eq!(call(&server, &of_old).status, 200);
    assert_eq!(call(&server, &of_new).status, 401, "the key is not published yet");
    // The server has just fetched the keys, so it fetches them again only after a pause.
    issuer.publish(&[&old, &new]);
    wait_until("the new key to be accepted", || call(&server, &of_new).status == 200);
    assert_eq!(call(&server, &of_old).status, 200, "both keys are accepted during the rotation");

    issuer.publish(&[&new]);
    issuer.wait_for_fetch();
    wait_until("the old key to be rejected", || call(&server, &of_old).status == 401);
    assert_eq!(call(&server, &of_new).status, 200);
});

// The first token of a new key makes the server fetch the keys. Then tokens of the removed key are rejected, although
// they were cached as valid.
engine_test!(first_token_of_a_new_key_is_accepted, |store: &Store| {
    let (old, new) = (SigningKey::p256("old"), SigningKey::p256("new"));
    let issuer = Issuer::start(&[&old]);
    let server = serve(store, &issuer, &[]);
    let [of_old, of_new] = [&old, &new].map(|key| key.token(&issuer.claims("ada")));
    assert_eq!(call(&server, &of_old).status, 200);
    issuer.publish(&[&new]);
    assert_eq!(call(&server, &of_new).status, 200);
    assert_eq!(call(&server, &of_old).status, 401);
});

engine_test!(a_removed_key_stops_working_within_30_seconds, |store: &Store| {
    let (kept, removed) = (SigningKey::p256("kept"), SigningKey::p256("removed"));
    // The second issuer removes its only key at the same time.
    let issuers = [Issuer::start(&[&kept, &removed]), Issuer::start(&[&removed])];
    let servers = issuers.each_ref().map(|issuer| serve(store, issuer, &[]));
    let [first, second] = issuers.each_ref().map(|issuer| removed.token(&issuer.claims("ada")));
    assert_eq!([call(&servers[0], &first).status, call(&servers[1], &second).status], [200, 200]);
    issuers[0].publish(&[&kept]);
    issuers[1].publish(&[]);
    let start = Stopwatch::start();
    wait_until("the removed key to be rejected", || call(&servers[0], &first).status == 401);
    assert!(start.elapsed().as_secs() < 30, "30 seconds are documented");
    assert_eq!(call(&servers[0], &kept.token(&issuers[0].claims("ada"))).status, 200);
    wait_until("all keys to be rejected", || call(&servers[1], &second).status == 401);
    servers[1].wait_for_log("the issuer has no usable key");
});

engine_test!(a_removed_key_ends_streams_of_events, |store: &Store| {
    let (kept, removed) = (SigningKey::p256("kept"), SigningKey::p256("removed"));
    let issuer = Issuer::start(&[&kept, &removed]);
    let server = serve(store, &issuer, &[]);
    let [ada, bob] = ["ada", "bob"].map(|user| server.client(&kept.token(&issuer.claims(user))));
    let of_removed = server.client(&removed.token(&issuer.claims("ada")));
    assert_eq!([ada.get("/plants").status, bob.get("/plants").status], [200, 200]);
    store.share("bob", "ada", "reader");
    let (mut events, _) = Events::of(&of_removed);
    issuer.publish(&[&kept]);
    wait_until("the removed key to be rejected", || of_removed.get("/plants").status == 401);
    // It changes the list of ada, but neither her tokens nor her own plants, at which the session would be looked up anyway.
    bob.plant(1, "Rose");
    assert_eq!(events.next(), None);
});

engine_test!(unknown_key_ids_do_not_flood_the_issuer, |store: &Store| {
    let key = SigningKey::ed25519("d");
    let issuer = Issuer::start(&[&key]);
    let server = serve(store, &issuer, &["--auth-failure-burst", "100000"]);
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
    // At most one fetch per 5 seconds for unknown keys, and one regular fetch every 20 seconds.
    let allowed = 2 + usize::try_from(start.elapsed().as_secs()).unwrap() / 4;
    let asked = issuer.fetches() - before;
    assert!((1..=allowed).contains(&asked), "{asked} fetches for 200 tokens");
    assert_eq!(call(&server, &key.token(&issuer.claims("ada"))).status, 200);
});

engine_test!(concurrent_requests_for_a_new_key_share_one_fetch, |store: &Store| {
    let (old, new) = (SigningKey::p256("old"), SigningKey::p256("new"));
    let issuer = Issuer::start(&[&old]);
    let server = serve(store, &issuer, &[]);
    assert_eq!(call(&server, &old.token(&issuer.claims("ada"))).status, 200);
    issuer.publish(&[&old, &new]);
    let before = issuer.fetches();
    std::thread::scope(|scope| {
        for number in 0..16 {
            let (server, token) = (&server, new.token(&issuer.claims(&format!("user-{number}"))));
            scope.spawn(move || assert_eq!(call(server, &token).status, 200));
        }
    });
    // The second may be a regular fetch.
    assert!(issuer.fetches() - before <= 2, "{} fetches", issuer.fetches() - before);
});

engine_test!(cached_keys_work_while_the_issuer_is_down, |store: &Store| {
    let (key, later) = (SigningKey::p256("e"), SigningKey::p256("later"));
    let mut issuer = Issuer::start(&[&key]);
    let server = serve(store, &issuer, &[]);
    let ada = server.client(&key.token(&issuer.claims("ada")));
    ada.plant(1, "Rose");
    issuer.server.stop();
    assert_eq!(call(&server, &later.token(&issuer.claims("ada"))).error(), 40101, "an unknown key is rejected");
    server.wait_for_log(FAILED);
    // Longer than the lifetime of cache entries and than several fetch attempts.
    let start = Instant::now();
    wait_until("12 seconds to pass", || {
        assert_eq!(ada.ids(), [1]);
        start.elapsed().as_secs() >= 12
    });
    // New users are accepted, too.
    assert_eq!(server.client(&key.token(&issuer.claims("bob"))).get("/plants").status, 200);
    issuer.publish(&[&key, &later]);
    issuer.server.restart();
    wait_until("the new key to be accepted", || call(&server, &later.token(&issuer.claims("ada"))).status == 200);
    assert_eq!(ada.ids(), [1]);
    server.wait_for_log(BACK);
    assert_eq!(server.logged(FAILED), 1, "the failure is logged once, not at every attempt");
});

engine_test!(tokens_get_503_before_the_first_fetch_of_keys, |store: &Store| {
    let key = SigningKey::p256("e");
    let mut issuer = Issuer::start(&[&key]);
    issuer.server.stop();
    let server = serve(store, &issuer, &[]);
    let token = key.token(&issuer.claims("ada"));
    let response = call(&server, &token);
    assert_snapshot!(response.wire(), @r#"
    503 Service Unavailable
    content-type: application/json
    cache-control: no-store
    retry-after: 1
    content-length: 112

    {"error":50300,"message":"the keys of the access token's issuer are not known yet, nothing was done: try again"}
    "#);
    assert_eq!(response.error(), 50300);
    // Tokens of plantstore do not depend on the issuer.
    assert_eq!(server.client(&store.token("bob", &[])).get("/plants").status, 200);
    assert_eq!(server.anonymous().get("/readyz").status, 200);
    let elsewhere = key.token(&with(issuer.claims("ada"), json!({ "iss": "https://elsewhere.example" })));
    assert_eq!(call(&server, &elsewhere).error(), 40101, "a token of another issuer is invalid with any key");
    server.wait_for_log(FAILED);
    issuer.server.restart();
    wait_until("the keys to be fetched", || call(&server, &token).status == 200);
});

engine_test!(silent_issuer_delays_no_request_for_long, |store: &Store| {
    let key = SigningKey::p256("e");
    let issuer = Issuer::start(&[&key]);
    issuer.server.be_silent(true);
    let server = serve(store, &issuer, &[]);
    assert_eq!(server.client(&store.token("bob", &[])).get("/plants").status, 200);
    let token = key.token(&issuer.claims("ada"));
    assert_eq!(call(&server, &token).error(), 50300);
    issuer.server.be_silent(false);
    wait_until("the keys to be fetched", || call(&server, &token).status == 200);
    server.wait_for_log("the issuer did not respond in time");
    issuer.server.be_silent(true);
    // The fetch times out.
    assert_eq!(call(&server, &SigningKey::p256("x").token(&issuer.claims("ada"))).error(), 40101);
    assert_eq!(call(&server, &token).status, 200);
});

engine_tool_test!(certificate_of_the_issuer_is_verified, requires_openssl, |store: &Store| {
    let key = SigningKey::rsa("r");
    let (authority, other) = (Authority::new(), Authority::new());
    let issuer = Issuer::start_with_tls(&authority, &[&key]);
    let token = key.token(&issuer.claims("ada"));
    let (file, wrong) = (authority.file().display().to_string(), other.file().display().to_string());

    let trusting = serve(store, &issuer, &["--oidc-ca", &file]);
    trusting.client(&token).plant(1, "Rose");
    for more in [&["--oidc-ca", wrong.as_str()][..], &[]] {
        let server = serve(store, &issuer, more);
        assert_eq!(call(&server, &token).error(), 50300, "{more:?}");
        server.wait_for_log("certificate");
    }
    // The certificate is for 127.0.0.1.
    let elsewhere = issuer.url().replace("127.0.0.1", "localhost");
    let server = store.serve(&["--oidc-issuer", &elsewhere, "--oidc-audience", AUDIENCE, "--oidc-ca", &file]);
    let named = key.token(&with(issuer.claims("ada"), json!({ "iss": elsewhere })));
    assert_eq!(call(&server, &named).error(), 50300);
    server.wait_for_log("not valid for name");
});

engine_test!(issuer_url_may_have_a_path_and_is_compared_exactly, |store: &Store| {
    let key = SigningKey::ed25519("d");
    let issuer = Issuer::start_below("/realms/garden/", &[&key]);
    let server = serve(store, &issuer, &[]);
    server.client(&key.token(&issuer.claims("ada"))).plant(1, "Rose");
    let bare = issuer.url().trim_end_matches('/');
    let other = key.token(&with(issuer.claims("ada"), json!({ "iss": bare })));
    assert_eq!(call(&server, &other).error(), 40101);
    let server = store.serve(&["--oidc-issuer", bare, "--oidc-audience", AUDIENCE]);
    assert_eq!(call(&server, &other).error(), 50300, "the discovery document names another issuer");
    server.wait_for_log("set --oidc-issuer to exactly that");
    let line = lines(&server, FAILED).remove(0);
    let error = line["error"].as_str().expect("an error");
    assert!(
        error.contains(&format!("{bare:?}")) && error.contains(&format!("{:?}", issuer.url())),
        "the error names both issuers: {error}"
    );
});

// Invalid discovery documents and key sets are rejected.
sqlite_test!(invalid_documents_of_an_issuer_are_rejected, |store: &Store| {
    let key = SigningKey::p256("e");
    let issuer = Issuer::start(&[&key]);
    let token = key.token(&issuer.claims("ada"));
    let keys_at = |address: &str| ok(&json!({ "issuer": issuer.url(), "jwks_uri": address }).to_string());
    let moved = format!("HTTP/1.1 302 Found\r\nLocation: {}/keys\r\nContent-Length: 0\r\n\r\n", issuer.url());
    let nonsense = [
        (DISCOVERY, ok("{}"), "has no `issuer` or no `jwks_uri`"),
        (DISCOVERY, ok("nonsense"), "has no `issuer` or no `jwks_uri`"),
        (DISCOVERY, ok(r#"{"issuer":"https://elsewhere.example","jwks_uri":"https://x.example/"}"#), "to exactly that"),
        (DISCOVERY, keys_at("http://keys.example/keys"), "`jwks_uri` cannot be used"),
        (DISCOVERY, keys_at("ftp://127.0.0.1/keys"), "`jwks_uri` cannot be used"),
        (DISCOVERY, keys_at("/keys"), "`jwks_uri` cannot be used"),
        (DISCOVERY, moved.clone().into_bytes(), "responds with 302"),
        (DISCOVERY, b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n".to_vec(), "responds with 500"),
        (DISCOVERY, b"nonsense\r\n\r\n".to_vec(), "sent no valid response"),
        (DISCOVERY, b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{".to_vec(), "is incomplete"),
        (DISCOVERY, Vec::new(), "sent no valid response"),
        (KEYS, moved.into_bytes(), "responds with 302"),
        (KEYS, ok("[]"), "is not a key set"),
        (KEYS, ok("{}"), "is not a key set"),
        (KEYS, ok(&format!(r#"{{"keys":[],"x":"{}"}}"#, "x".repeat(2 << 20))), "larger than"),
    ];
    for (path, response, expected) in nonsense {
        issuer.respond_with(path, Some(response));
        let server = serve(store, &issuer, &[]);
        assert_eq!(call(&server, &token).error(), 50300, "{expected}");
        server.wait_for_log(expected);
        issuer.respond_with(path, None);
    }
    assert_eq!(store.users(), [""; 0]);
});

// An invalid key set does not replace the keys in use.
sqlite_test!(invalid_key_set_removes_no_key, |store: &Store| {
    let (key, new) = (SigningKey::p256("e"), SigningKey::p256("new"));
    let issuer = Issuer::start(&[&key]);
    let server = serve(store, &issuer, &[]);
    let [token, of_new] = [&key, &new].map(|key| key.token(&issuer.claims("ada")));
    assert_eq!(call(&server, &token).status, 200);
    issuer.respond_with(KEYS, Some(ok("{}")));
    assert_eq!(call(&server, &of_new).error(), 40101);
    server.wait_for_log("is not a key set");
    assert_eq!(call(&server, &token).status, 200);
    issuer.publish(&[&key, &new]);
    issuer.respond_with(KEYS, None);
    wait_until("the new key to be accepted", || call(&server, &of_new).status == 200);
    server.wait_for_log(BACK);
});

// Keys of a set that the server cannot use are skipped; the others are used.
tool_test!(unusable_keys_are_skipped, requires_openssl, |store: &Store| {
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
        // The point is not on the curve.
        json!({ "kty": "EC", "crv": "P-256", "kid": "off", "x": encode([1; 32]), "y": encode([1; 32]) }),
    ];
    jwks.extend(good.iter().map(|key| key.jwk.clone()));
    // A modulus with a leading zero byte, as in ASN.1, is accepted.
    let padded = SigningKey::rsa("padded");
    let modulus =
        base64::Engine::decode(&base64::engine::general_purpose::URL_SAFE_NO_PAD, padded.jwk["n"].as_str().unwrap())
            .unwrap();
    jwks.push(changed(&padded, json!({ "n": encode([&[0], &modulus[..]].concat()), "key_ops": ["verify"] })));
    let issuer = Issuer::start(&[]);
    issuer.publish_jwks(jwks);
    let server = serve(store, &issuer, &[]);
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
    // Several keys match a token without `kid`.
    assert_eq!(call(&server, &good[0].token_with(&ambiguous, &issuer.claims("ada"))).status, 401);
});

// Keys after the hundredth are ignored.
sqlite_test!(key_set_is_limited_to_a_hundred_keys, |store: &Store| {
    let keys: Vec<SigningKey> = (0..101).map(|number| SigningKey::ed25519(&format!("key-{number}"))).collect();
    let issuer = Issuer::start(&keys.iter().collect::<Vec<_>>());
    let server = serve(store, &issuer, &[]);
    let status = |key: &SigningKey| call(&server, &key.token(&issuer.claims("ada"))).status;
    assert_eq!((status(&keys[0]), status(&keys[99]), status(&keys[100])), (200, 200, 401));
});
