//! Storage of keys: as hashes, for a day, across restarts and releases.

use sha2::{Digest, Sha256};

use super::{STORED_KEYS, assert_replays, delete, is_replayed, plant, post};
use crate::support::{Engine, Garden, JSON, Service, Store, engine_test, wait_until};

// The test computes the fingerprint as the releases 0.3 and 0.4 did, for requests to the caller's own plants.
engine_test!(keys_stored_by_an_earlier_release_are_replayed, |Garden { store, ada, .. }: &Garden| {
    let hex = |bytes: &[u8]| bytes.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
    let blob = |bytes: &[u8]| match store.engine {
        Engine::Sqlite => format!("X'{}'", hex(bytes)),
        Engine::Postgres => format!("decode('{}', 'hex')", hex(bytes)),
    };
    for (key, path) in [("own", "/plants"), ("named", "/plants?owner=ada")] {
        let body = plant(1, "Rose");
        let mut fingerprint = Sha256::new();
        let mut part = |part: &[u8], values: &[u8]| {
            fingerprint.update(values.iter().flat_map(|count| u64::from(*count).to_be_bytes()).collect::<Vec<_>>());
            fingerprint.update(u64::try_from(part.len()).unwrap().to_be_bytes());
            fingerprint.update(part);
        };
        part(b"POST", &[]);
        part(path.as_bytes(), &[]);
        part(b"application/json", &[1]);
        part(body.as_bytes(), &[0]);
        store.execute(&format!(
            "INSERT INTO idempotency_keys (user_id, key, fingerprint, outcome, message, expires_at)
             VALUES (1, {}, {}, 200, NULL, 9999999999)",
            blob(&Sha256::digest(key)),
            blob(&fingerprint.finalize())
        ));
        let again = ada.call("POST", path, &[JSON, ("Idempotency-Key", key)], Some(body.as_bytes()));
        assert!(again.status == 200 && is_replayed(&again), "{}", again.wire());
    }
    assert_eq!(ada.ids(), [0_i64; 0], "a replay has no effect");
});

engine_test!(key_expires_after_a_day, |Garden { store, ada, .. }: &Garden| {
    assert_eq!(post(ada, "k1", &plant(1, "Rose")).status, 200);
    let now = if matches!(store.engine, Engine::Sqlite) { "unixepoch()" } else { "extract(epoch FROM now())" };
    let left = store.rows(&format!("SELECT CAST(expires_at - {now} AS bigint) FROM idempotency_keys"))[0];
    assert!((86_300..=86_401).contains(&left), "{left}");
    let expire = "UPDATE idempotency_keys SET expires_at = 1";
    store.execute(expire);
    assert_eq!(ada.delete(1).status, 204);
    let anew = post(ada, "k1", &plant(1, "Rose"));
    assert!(anew.status == 200 && !is_replayed(&anew), "{}", anew.wire());
    store.execute(expire);
    let other = delete(ada, "k1", 1);
    assert!(
        other.status == 204 && !is_replayed(&other),
        "an expired key can be used for another request: {}",
        other.wire()
    );
    assert_replays(&other, &delete(ada, "k1", 1));
    store.execute(expire);
    assert_eq!(post(ada, "k1", "nonsense").error(), 40000);
    assert_eq!(store.rows(STORED_KEYS), [1]);
});

engine_test!(expired_keys_are_deleted, |store: &Store| {
    let token = store.token("ada", &[]);
    let random = if matches!(store.engine, Engine::Sqlite) { "randomblob(32)" } else { "sha256(n::text::bytea)" };
    store.execute(&format!(
        "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 5000)
         INSERT INTO idempotency_keys (user_id, key, fingerprint, outcome, expires_at)
         SELECT 1, {random}, {random}, 200, n FROM numbers"
    ));
    // Two servers delete expired keys concurrently.
    let servers = [store.serve(&[]), store.serve(&[])];
    assert_eq!(post(&servers[0].client(&token), "k1", &plant(1, "Rose")).status, 200);
    wait_until("the deletion of the expired keys", || store.rows(STORED_KEYS) == [1]);
    assert!(is_replayed(&post(&servers[1].client(&token), "k1", &plant(1, "Rose"))), "the stored response stays");
});

engine_test!(keys_are_deleted_with_their_user, |Service { store, server }: &Service| {
    let (ada, bob) = (server.client(&store.token("ada", &[])), server.client(&store.token("bob", &[])));
    for (id, key) in [(1, "k1"), (2, "k2"), (3, "k3")] {
        assert_eq!(post(&ada, key, &plant(id, "Rose")).status, 200);
    }
    assert_eq!(post(&bob, "k1", &plant(1, "Fern")).status, 200);
    let deleted = std::thread::scope(|scope| {
        let deletion = scope.spawn(|| store.run(&["user", "delete", "--yes", "ada"]));
        // The deleted user's token is cached for a moment, but its requests have no effect and store no key.
        wait_until("the deletion", || store.rows("SELECT count(*) FROM users") == [1]);
        for response in [post(&ada, "k1", &plant(1, "Rose")), post(&ada, "k4", &plant(4, "Ivy")), delete(&ada, "k5", 1)]
        {
            assert_eq!(response.error(), 40101, "{}", response.wire());
        }
        let _ = post(&ada, "k6", "nonsense");
        deletion.join().expect("the command runs")
    });
    assert!(deleted.status.success());
    assert_eq!(store.rows(STORED_KEYS), [1]);
    assert_eq!(store.rows("SELECT count(*) FROM departed_users"), [0]);
    assert!(is_replayed(&post(&bob, "k1", &plant(1, "Fern"))));
});

engine_test!(keys_survive_a_restart, |store: &Store| {
    let mut server = store.serve(&[]);
    let token = store.token("ada", &[]);
    let first = post(&server.client(&token), "k1", &plant(1, "Rose"));
    let rejected = post(&server.client(&token), "k2", "nonsense");
    for kill in [false, true] {
        if kill {
            server.kill();
        } else {
            server.stop();
        }
        server = store.serve(&[]);
        let ada = server.client(&token);
        assert_replays(&first, &post(&ada, "k1", &plant(1, "Rose")));
        assert_replays(&rejected, &post(&ada, "k2", "nonsense"));
        assert_eq!(ada.ids(), [1]);
    }
});
