//! OpenID Connect with a third-party provider, `oidc-provider` of npm. Cases that it cannot produce are tested with our
//! own issuer (`oidc.rs`).

use crate::support::provider::{OTHER, PLANTS, Provider};
use crate::support::{Server, Store, engine_test, wait_for};

#[track_caller]
fn serve(store: &Store, provider: &Provider) -> Server {
    store.serve(&["--oidc-issuer", provider.issuer(), "--oidc-audience", "plants"])
}

fn status(server: &Server, token: &str) -> u16 {
    server.client(token).get("/plants").status
}

engine_test!(jwts_of_a_real_provider_are_accepted_with_every_algorithm, |store: &Store| {
    let mut provider = Provider::start();
    let server = serve(store, &provider);
    for (id, algorithm) in (1..).zip(["RS256", "ES256", "EdDSA", "Ed25519"]) {
        let garden = server.client(&provider.token(algorithm, PLANTS));
        garden.plant(id, algorithm);
        assert_eq!(garden.ids(), (1..=id).collect::<Vec<_>>(), "{algorithm}");
    }
    let garden = server.client(&provider.token("Ed25519", PLANTS));
    assert_eq!(garden.delete(1).status, 204);
    assert!(!server.log().contains("skipped"), "{}", server.log());
});

engine_test!(a_real_provider_may_rotate_its_keys, |store: &Store| {
    let mut provider = Provider::start();
    let server = serve(store, &provider);
    let old = provider.token("ES256", PLANTS);
    assert_eq!(status(&server, &old), 200);
    provider.rotate_keys();
    let new = provider.token("ES256", PLANTS);
    assert_eq!(status(&server, &new), 200, "the first token of a new key is accepted");
    assert_eq!(status(&server, &old), 401, "a token of the old key is rejected");
});

engine_test!(a_token_of_a_real_provider_for_another_audience_is_rejected_and_logged, |store: &Store| {
    let mut provider = Provider::start();
    let server = serve(store, &provider);
    let token = provider.token("RS256", OTHER);
    assert_eq!(server.client(&token).get("/plants").error(), 40101);
    let line =
        wait_for("the warning", || server.log().lines().find(|line| line.contains("its `aud`")).map(str::to_owned));
    assert!(line.contains("WARN") && line.contains("other") && line.contains("plants"), "{line}");
    assert_eq!(status(&server, &provider.token("RS256", PLANTS)), 200);
});

engine_test!(an_opaque_token_of_a_real_provider_is_rejected_and_logged, |store: &Store| {
    let mut provider = Provider::start();
    let server = serve(store, &provider);
    let token = provider.token("opaque", PLANTS);
    assert_eq!(server.client(&token).get("/plants").error(), 40101);
    server.wait_for_log("it is neither a JWT nor");
    assert!(!server.log().contains(&token));
});
