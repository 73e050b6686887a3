//! A million plants: streamed in bounded memory, and paged exactly under concurrent writes.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::support::{StopOnDrop, Store, engine_test};

const MILLION: i64 = 1_000_000;
/// Memory that a list may need in addition to that of an idle server.
const EXTRA_KIB: u64 = 16 * 1024;

/// Inserts a million plants of one user directly into the store and returns a token.
fn plant_a_million(store: &Store) -> String {
    let token = store.token("ada", &[]);
    store.execute(&format!(
        "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {MILLION})
         INSERT INTO plants (user_id, plant_id, name, tag, version)
         SELECT 1, n * 10, 'plant ' || n, 'tag', 0 FROM numbers"
    ));
    token
}

/// Decrements a counter when its thread ends, also by a panic.
struct DecrementOnDrop<'a>(&'a AtomicUsize);

impl Drop for DecrementOnDrop<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

engine_test!(a_million_plants_are_streamed_in_bounded_memory, |store: &Store| {
    let token = plant_a_million(store);
    let server = store.serve(&[]);
    let ada = server.client(&token);
    // Fills caches and opens connections before the memory is measured.
    assert_eq!(ada.get("/plants?limit=20").status, 200);
    let before = server.resident();
    let mut largest = before;
    let mut connection = ada.connect();
    connection.send(ada.bytes("GET", "/plants", &[], None));
    let mut buffer = vec![0; 256 * 1024];
    let (mut plants, mut last) = (0, Vec::new());
    while !last.ends_with(b"]\r\n0\r\n\r\n") {
        let length = connection.read(&mut buffer).expect("more of the list");
        assert_ne!(length, 0, "the list is incomplete");
        plants += buffer[..length].split(|byte| *byte == b'{').count() - 1;
        last = buffer[length.saturating_sub(16)..length].to_vec();
        largest = largest.max(server.resident());
    }
    assert_eq!(plants, 1_000_000);
    assert!(largest - before <= EXTRA_KIB, "{} KiB more than the {before} KiB before", largest - before);
});

// Four clients read long lists as fast as the server sends them, and `/livez` is requested meanwhile.
engine_test!(long_lists_do_not_starve_other_requests, |store: &Store| {
    let token = plant_a_million(store);
    let server = store.serve(&["--log-level", "warn"]);
    let ada = server.client(&token);
    let running = AtomicUsize::new(4);
    let probes = std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let _done = DecrementOnDrop(&running);
                let mut connection = ada.connect();
                connection.send(ada.bytes("GET", "/plants", &[], None));
                let mut buffer = vec![0; 1 << 20];
                let mut last = Vec::new();
                while !last.ends_with(b"]\r\n0\r\n\r\n") {
                    let length = connection.read(&mut buffer).expect("more of the list");
                    assert_ne!(length, 0, "the list is incomplete");
                    last = buffer[length.saturating_sub(16)..length].to_vec();
                }
            });
        }
        let mut probes = 0;
        while running.load(Ordering::Relaxed) == 4 {
            assert_eq!(server.anonymous().get("/livez").status, 200);
            probes += 1;
        }
        probes
    });
    assert!(probes >= 20, "only {probes} other requests got a response while four million plants were sent");
});

engine_test!(paging_through_a_million_lists_each_plant_once_under_writes, |store: &Store| {
    let token = plant_a_million(store);
    let server = store.serve(&[]);
    let ada = server.client(&token);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        scope.spawn(|| {
            let mut number: i64 = 0;
            while !stop.load(Ordering::Relaxed) {
                number = (number + 7_919) % MILLION;
                ada.plant(number * 10 + 5, "passing by");
                assert_eq!(ada.delete(number * 10 + 5).status, 204);
            }
        });
        let mut connection = ada.connect();
        let mut expected = 10;
        let mut next = Some("/plants?include=id&limit=20000".to_owned());
        while let Some(page) = next {
            let response = connection.ask(ada.bytes("GET", &page, &[], None));
            let ids = response.ids();
            assert!(ids.len() <= 20_000);
            for id in ids {
                if id % 10 == 0 {
                    assert_eq!(id, expected);
                    expected += 10;
                }
            }
            next = response.next();
        }
        assert_eq!(expected, (MILLION + 1) * 10, "the list is incomplete");
    });
});
