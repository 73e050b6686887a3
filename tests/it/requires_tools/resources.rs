//! The clock jumps, and memory runs out: nothing that was acknowledged is lost, and no token is accepted that has expired.

use std::time::{SystemTime, UNIX_EPOCH};

use super::dates::{Clocks, serve_with, set_clock};
use super::system_calls::Written;
use crate::support::tools::{external, succeed};
use crate::support::{Client, Connection, Engine, Fault, JSON, Store, engine_test, wait_until};

/// Ten years in seconds.
const TEN_YEARS: i64 = 10 * 365 * 24 * 60 * 60;

engine_test!(clock_that_jumps_ten_years_grants_nothing, |store: &Store| {
    let file = store.directory().join("clock");
    set_clock(&file, "+0s");
    let server = serve_with(&Clocks::WallClock, store, &file);
    let [lasting, limited] = [&["--expires", "never"][..], &[]].map(|more| server.client(&store.token("ada", more)));
    let fault = Fault::on(store.engine, "jump of the clock by ten years", 8);
    // The offset of the server's clock, in seconds.
    let offset_of = |client: &Client| {
        let date = client.get("/livez").header("date").expect("a date").to_owned();
        let date = httpdate::parse_http_date(&date).expect("an HTTP date");
        let seconds = |time: SystemTime| i64::try_from(time.duration_since(UNIX_EPOCH).unwrap().as_secs()).unwrap();
        seconds(date) - seconds(SystemTime::now())
    };
    let mut ids = Vec::new();
    for id in (0..).take(fault.rounds) {
        let mut random = fault.begin_round();
        let offset = [TEN_YEARS, -TEN_YEARS, 0][random.below(3)];
        set_clock(&file, &format!("{offset:+}s"));
        wait_until("the date of the jump", || (offset_of(&lasting) - offset).abs() < 1_000);
        let key = format!("key {id}");
        let body = format!(r#"{{"id":{id},"name":"n"}}"#);
        let create = || lasting.call("POST", "/plants", &[JSON, ("Idempotency-Key", &key)], Some(body.as_bytes()));
        assert_eq!(create().status, 200, "{offset}: {}", server.log());
        assert_eq!(create().header("idempotency-replayed"), Some("true"), "{offset}");
        ids.push(id);
        assert_eq!(lasting.ids(), ids, "{offset}");
        let expected = if offset > 0 { 401 } else { 200 };
        wait_until("the limited token to be valid for 90 days only", || limited.get("/me").status == expected);
        fault.count(5, 1);
    }
    assert_eq!(server.stop().code(), Some(0));
    assert_eq!(store.serve(&[]).client(lasting.token.as_ref().unwrap()).ids(), ids);
});

/// The address space of a running server is limited to little more than it has. Requests may fail and the process may end, but what
/// it has acknowledged is stored.
#[test]
fn acknowledged_writes_survive_the_end_of_memory() {
    /// Connections of a round, each of which needs memory.
    const CONNECTIONS: usize = 200;
    let store = Store::new(Engine::Sqlite);
    let token = store.token("ada", &[]);
    let fault = Fault::new("end of memory", 6);
    let mut written = Written::default();
    let mut failures = 0;
    let mut new = 0..;
    for _ in 0..fault.rounds {
        let mut random = fault.begin_round();
        let server = store.serve(&["--log-level", "warn"]);
        let ada = server.client(&token);
        let limit = (server.virtual_memory() << 10) + (random.below(8 << 20) as u64);
        succeed(external("prlimit").args(["--pid", &server.id().to_string(), &format!("--as={limit}")]));
        let mut connections = Vec::new();
        for id in new.by_ref().take(CONNECTIONS) {
            // Large requests that have not ended.
            let Ok(mut connection) = Connection::try_open(ada.address) else { break };
            let _ = connection.try_send(&ada.bytes("POST", "/plants", &[JSON], Some(&[b' '; 16_000]))[..15_000]);
            connections.push(connection);
            let result = written.write_random(&ada, &mut random, id, &"x".repeat(1_000));
            failures += usize::from(result != Some(0));
            if result.is_none() {
                break;
            }
        }
        server.kill();
        written.assert_listed(&fault, &store.serve(&[]).client(&token), "after the end of memory");
    }
    fault.count(written.operations, written.acknowledged);
    assert!(failures > 0, "no request failed: memory did not run out");
}
