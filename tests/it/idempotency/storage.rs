//! Storage of keys: as hashes, for a day, across restarts and releases.

use rstest::rstest;
use sha2::{Digest, Sha256};

use super::{STORED_KEYS, assert_replays, delete, is_replayed, plant, post};
use crate::support::{Engine, JSON, Site, wait_for};

// The fingerprint of a request to the caller's own plants, as 0.3 to 0.4 computed it.
#[rstest]
fn keys_stored_by_an_earlier_release_are_replayed(#[values(Engine::Sqlite, Engine::Postgres)] engine: Engine) {
    let site = &Site::new(engine);
    let server = site.serve(&[]);
    let ada = server.client(&site.token("ada", &[]));
    let hex = |bytes: &[u8]| bytes.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
    let blob = |bytes: &[u8]| match site.engine {
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
        site.execute(&format!(
            "INSERT INTO idempotency_keys (user_id, key, fingerprint, outcome, message, expires_at)
             VALUES (1, {}, {}, 200, NULL, 9999999999)",
            blob(&Sha256::digest(key)),
            blob(&fingerprint.finalize())
        ));
        let again = ada.call("POST", path, &[JSON, ("Idempotency-Key", key)], Some(body.as_bytes()));
        assert!(again.status == 200 && is_replayed(&again), "{}", again.wire());
    }
    assert_eq!(ada.ids(), [0_i64; 0], "nothing is done again");
}

#[rstest]
fn key_expires_after_a_day(#[values(Engine::Sqlite, Engine::Postgres)] engine: Engine) {
    let site = &Site::new(engine);
    let server = site.serve(&[]);
    let ada = server.client(&site.token("ada", &[]));
    assert_eq!(post(&ada, "k1", &plant(1, "Rose")).status, 200);
    let in_a_day = if matches!(site.engine, Engine::Sqlite) { "unixepoch()" } else { "extract(epoch FROM now())" };
    let left = site.rows(&format!("SELECT CAST(expires_at - {in_a_day} AS bigint) FROM idempotency_keys"))[0];
    assert!((86_300..=86_401).contains(&left), "{left}");
    let over = "UPDATE idempotency_keys SET expires_at = 1";
    site.execute(over);
    assert_eq!(ada.delete(1).status, 204);
    let anew = post(&ada, "k1", &plant(1, "Rose"));
    assert!(anew.status == 200 && !is_replayed(&anew), "{}", anew.wire());
    site.execute(over);
    let other = delete(&ada, "k1", 1);
    assert!(
        other.status == 204 && !is_replayed(&other),
        "an expired key can be used for another request: {}",
        other.wire()
    );
    assert_replays(&other, &delete(&ada, "k1", 1));
    site.execute(over);
    assert_eq!(post(&ada, "k1", "nonsense").error(), 40000);
    assert_eq!(site.rows(STORED_KEYS), [1]);
}

#[rstest]
fn expired_keys_are_deleted(#[values(Engine::Sqlite, Engine::Postgres)] engine: Engine) {
    let site = &Site::new(engine);
    let token = site.token("ada", &[]);
    let random = if matches!(site.engine, Engine::Sqlite) { "randomblob(32)" } else { "sha256(n::text::bytea)" };
    site.execute(&format!(
        "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 5000)
         INSERT INTO idempotency_keys (user_id, key, fingerprint, outcome, expires_at)
         SELECT 1, {random}, {random}, 200, n FROM numbers"
    ));
    // Two servers delete expired keys concurrently.
    let servers = [site.serve(&[]), site.serve(&[])];
    assert_eq!(post(&servers[0].client(&token), "k1", &plant(1, "Rose")).status, 200);
    wait_for("the sweep", || (site.rows(STORED_KEYS) == [1]).then_some(()));
    assert!(is_replayed(&post(&servers[1].client(&token), "k1", &plant(1, "Rose"))), "the stored response stays");
}

#[rstest]
fn keys_are_deleted_with_their_user(#[values(Engine::Sqlite, Engine::Postgres)] engine: Engine) {
    let site = &Site::new(engine);
    let server = site.serve(&[]);
    let (ada, bob) = (server.client(&site.token("ada", &[])), server.client(&site.token("bob", &[])));
    for (id, key) in [(1, "k1"), (2, "k2"), (3, "k3")] {
        assert_eq!(post(&ada, key, &plant(id, "Rose")).status, 200);
    }
    assert_eq!(post(&bob, "k1", &plant(1, "Fern")).status, 200);
    let gone = std::thread::scope(|scope| {
        let deletion = scope.spawn(|| site.run(&["user", "delete", "--yes", "ada"]));
        // The token is cached for a moment; nothing is done, replayed or stored for it.
        wait_for("the deletion", || (site.rows("SELECT count(*) FROM users") == [1]).then_some(()));
        for response in [post(&ada, "k1", &plant(1, "Rose")), post(&ada, "k4", &plant(4, "Ivy")), delete(&ada, "k5", 1)]
        {
            assert_eq!(response.error(), 40101, "{}", response.wire());
        }
        let _ = post(&ada, "k6", "nonsense");
        deletion.join().expect("its end")
    });
    assert!(gone.status.success());
    assert_eq!(site.rows(STORED_KEYS), [1]);
    assert_eq!(site.rows("SELECT count(*) FROM departed_users"), [0]);
    assert!(is_replayed(&post(&bob, "k1", &plant(1, "Fern"))));
}

#[rstest]
fn keys_survive_a_restart(#[values(Engine::Sqlite, Engine::Postgres)] engine: Engine) {
    let site = &Site::new(engine);
    let mut server = site.serve(&[]);
    let token = site.token("ada", &[]);
    let first = post(&server.client(&token), "k1", &plant(1, "Rose"));
    let rejected = post(&server.client(&token), "k2", "nonsense");
    for kill in [false, true] {
        if kill {
            server.kill();
        } else {
            server.stop();
        }
        server = site.serve(&[]);
        let ada = server.client(&token);
        assert_replays(&first, &post(&ada, "k1", &plant(1, "Rose")));
        assert_replays(&rejected, &post(&ada, "k2", "nonsense"));
        assert_eq!(ada.ids(), [1]);
    }
}

#[rstest]
fn keys_are_stored_as_hashes_and_never_logged(#[values(Engine::Sqlite, Engine::Postgres)] engine: Engine) {
    let site = &Site::new(engine);
    let mut server = site.serve(&["--log-level", "trace"]);
    let ada = server.client(&site.token("ada", &[]));
    assert_eq!(post(&ada, "somebodys-secret-key", &plant(1, "Rose")).status, 200);
    assert_eq!(post(&ada, "somebodys-secret-key", &plant(2, "Rose")).error(), 42200);
    assert_eq!(site.rows(STORED_KEYS), [1]);
    server.stop();
    let contents = site.contents();
    assert!(!String::from_utf8_lossy(&contents).contains("somebodys-secret-key"));
    assert!(!server.log().contains("somebodys-secret-key"));
}
