//! `GET /plants`

use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};

use rstest::rstest;
use serde_json::json;

use crate::support::transfer::import;
use crate::support::{
    Client, CommandOutput, Connection, Engine, Garden, Response, Server, Service, StopOnDrop, Store, assert_snapshot,
    engine_test, wait_until,
};

/// Follows the `next` links to the last page.
fn pages(client: &Client, first: &str) -> Vec<Response> {
    let mut pages = vec![client.get(first)];
    while let Some(next) = pages.last().and_then(Response::next) {
        pages.push(client.get(&next));
        assert!(pages.len() < 10_000, "paging ends");
    }
    pages
}

fn ids(pages: &[Response]) -> Vec<i64> {
    pages.iter().flat_map(Response::ids).collect()
}

/// Imports plants with names of `length` characters.
fn fill(store: &Store, owner: &str, ids: impl Iterator<Item = i64>, length: usize) {
    let name = "x".repeat(length);
    let lines = ids.map(|id| json!({ "owner": owner, "id": id, "name": name }).to_string() + "\n");
    import(store, &[], &lines.collect::<String>());
}

engine_test!(plants_are_listed_in_order_of_ids, |Garden { ada, .. }: &Garden| {
    assert_snapshot!(ada.get("/plants").wire(), @r"
    200 OK
    content-type: application/json
    etag: (a tag)
    cache-control: private, no-cache
    vary: Authorization
    content-length: 2

    []
    ");
    for id in [3, -1, 20, 0, 100, 9, i64::MIN] {
        ada.plant(id, &format!("n{id}"));
    }
    assert_eq!(ada.ids(), [i64::MIN, -1, 0, 3, 9, 20, 100]);
    assert_snapshot!(ada.get("/plants?limit=2").wire(), @r#"
    200 OK
    content-type: application/json
    etag: (a tag)
    cache-control: private, no-cache
    vary: Authorization
    link: </plants?limit=2&after=01ffffffffffffffff05654f0d>; rel="next"
    content-length: 49

    [{"name":"n-9223372036854775808"},{"name":"n-1"}]
    "#);
});

engine_test!(ids_are_shown_on_request, |Garden { ada, .. }: &Garden| {
    ada.post(r#"{"id": 1, "name": "Rose", "tag": "t"}"#);
    ada.plant(2, "Fern");
    assert_eq!(ada.get("/plants").text(), r#"[{"name":"Rose","tag":"t"},{"name":"Fern"}]"#);
    assert_eq!(ada.get("/plants?include=id").text(), r#"[{"id":1,"name":"Rose","tag":"t"},{"id":2,"name":"Fern"}]"#);
    let page = ada.get("/plants?include=id&limit=1");
    let next = page.next().expect("a next page");
    assert!(next.ends_with("&include=id"), "{next}");
    assert_eq!(ada.get(&next).text(), r#"[{"id":2,"name":"Fern"}]"#);
    for wrong in ["include=", "include=tag", "include=ID", "include=id,id", "include=id&include=id", "include=id%20"] {
        assert_eq!(ada.get(&format!("/plants?{wrong}")).error(), 40007, "{wrong}");
    }
});

engine_test!(a_limit_is_an_int32_from_zero, |Garden { ada, .. }: &Garden| {
    for id in 1..=3 {
        ada.plant(id, "x");
    }
    for (limit, count) in [("0", 0), ("1", 1), ("2", 2), ("3", 3), ("4", 3), ("2147483647", 3), ("%33", 3)] {
        let response = ada.get(&format!("/plants?limit={limit}"));
        assert_eq!(response.json().as_array().map(Vec::len), Some(count), "{limit}");
        assert_eq!(response.header("link").is_some(), (1..3).contains(&count), "{limit}");
    }
    for wrong in [
        "",
        "-1",
        "-0",
        "+1",
        "1.0",
        "1e1",
        "01",
        "abc",
        "2147483648",
        "9999999999999999999999",
        "%20",
        "1%20",
        "0x1",
        "null",
        "1;",
        "\u{661}",
        "1&limit=1",
        "&limit=2",
    ] {
        let response = ada.get(&format!("/plants?limit={wrong}"));
        assert_eq!(response.error(), 40004, "{wrong}: {}", response.text());
    }
    assert_eq!(ada.get("/plants?limit").error(), 40004);
    assert_eq!(ada.get("/plants?limit=1&li%6dit=1").error(), 40004, "the same name, percent-encoded");
    for ignored in ["?", "?&&", "?Limit=x", "?limits=x", "?x=%ff", "?after_=1", "?access_token=x", "?%"] {
        assert_eq!(ada.get(&format!("/plants{ignored}")).json().as_array().map(Vec::len), Some(3), "{ignored}");
    }
});

engine_test!(head_returns_the_same_headers, |Garden { ada, .. }: &Garden| {
    for id in 1..=3 {
        ada.plant(id, "x");
    }
    for path in ["/plants", "/plants?limit=2", "/plants?limit=x", "/livez", "/readyz", "/nothing"] {
        let mut head = ada.call("HEAD", path, &[], None);
        let mut get = ada.get(path);
        get.body.clear();
        for response in [&mut head, &mut get] {
            response.headers.retain(|(name, _)| name != "x-request-id" && name != "date");
        }
        assert_eq!(head, get, "{path}");
    }
});

engine_test!(following_next_lists_every_plant_once, |Garden { store, ada, .. }: &Garden| {
    let all: Vec<i64> = (-20..=20).map(|id| id * 1_000_003).collect();
    fill(store, "ada", all.iter().copied(), 3);
    for limit in [1, 2, 7, 40, 41, 42, 1_000] {
        let pages = pages(ada, &format!("/plants?include=id&limit={limit}"));
        assert_eq!(ids(&pages), all, "limit {limit}");
        assert_eq!(pages.len(), all.len().div_ceil(limit), "no empty last page for limit {limit}");
    }
});

engine_test!(cursor_outlives_its_plant_and_reveals_no_other_user, |Garden { store, server, ada }: &Garden| {
    let bob = server.client(&store.token("bob", &[]));
    fill(store, "ada", 1..=6, 3);
    fill(store, "bob", 3..=4, 3);
    let next = ada.get("/plants?limit=3&include=id").next().expect("a next page");
    assert_eq!(ada.delete(3).status, 204);
    assert_eq!(ada.delete(4).status, 204);
    assert_eq!(ada.get(&next).ids(), [5, 6]);
    assert_eq!(bob.get(&next).ids(), [4], "a cursor is a position, not a permission");
    ada.plant(4, "again");
    ada.plant(0, "before the cursor");
    assert_eq!(ada.get(&next).ids(), [4, 5, 6]);
    let cursor = next.split("after=").nth(1).and_then(|rest| rest.split('&').next()).expect("a cursor");
    // Without a limit, all the rest.
    assert_eq!(ada.get(&format!("/plants?include=id&after={cursor}")).ids(), [4, 5, 6]);
});

engine_test!(the_largest_id_ends_the_list, |Garden { ada, .. }: &Garden| {
    ada.plant(i64::MAX, "last");
    ada.plant(i64::MIN, "first");
    let pages = pages(ada, "/plants?include=id&limit=1");
    assert_eq!(ids(&pages), [i64::MIN, i64::MAX]);
    ada.plant(0, "middle");
    let last = ada.get("/plants?limit=2").next().expect("a next page");
    assert_eq!(ada.delete(i64::MAX).status, 204);
    assert_eq!(ada.get(&last).text(), "[]");
});

engine_test!(malformed_cursor_is_rejected_with_400, |Garden { store, ada, .. }: &Garden| {
    fill(store, "ada", 1..=2, 3);
    let next = ada.get("/plants?limit=1").next().expect("a next page");
    let cursor = next.split("after=").nth(1).expect("a cursor");
    let changed = cursor.replace('1', "2");
    for wrong in [
        "",
        "0",
        "1",
        "abc",
        "%00",
        "%ff",
        "🌵",
        &cursor[1..],
        &changed,
        &cursor.to_uppercase(),
        &format!("{cursor}0"),
        &format!("{cursor}&after={cursor}"),
    ] {
        assert_eq!(ada.get(&format!("/plants?limit=1&after={wrong}")).error(), 40006, "{wrong}");
    }
    assert_snapshot!(ada.get("/plants?after=nonsense").text(), @r#"{"error":40006,"message":"`after` is not a cursor of this service: take it unchanged from the `Link` header of a list"}"#);
});

engine_test!(a_long_list_is_streamed_completely, |Garden { store, ada, .. }: &Garden| {
    fill(store, "ada", 1..=2_000, 100);
    // The server must not mistake the last bytes of the stream for an error response of the HTTP library.
    ada.plant(2_001, "HTTP/1.1 400 Bad Request");
    let response = ada.get("/plants?include=id");
    assert_eq!(response.header("transfer-encoding"), Some("chunked"));
    assert_eq!(response.ids(), (1..=2_001).collect::<Vec<_>>());
    assert_eq!(response.json()[2_000]["name"], "HTTP/1.1 400 Bad Request");
    let head = ada.call("HEAD", "/plants", &[], None);
    assert_eq!(head.status, 200);
    assert_eq!(head.body, b"");
});

engine_test!(long_lists_and_pages_hold_only_the_callers_plants, |Service { store, server }: &Service| {
    let names = ["ada", "bob"];
    let users = names.map(|user| server.client(&store.token(user, &[])));
    for (offset, name) in (0..).zip(names) {
        fill(store, name, (0..1_500).map(|number| number * 2 + offset), 100);
    }
    for (offset, user) in (0..).zip(&users) {
        let own: Vec<i64> = (0..1_500).map(|number| number * 2 + offset).collect();
        assert_eq!(user.ids(), own);
        let page = user.get("/plants?include=id&limit=1400");
        assert_eq!(page.ids(), own[..1_400]);
        assert_eq!(user.get(&page.next().expect("a next page")).ids(), own[1_400..]);
    }
});

engine_test!(pages_larger_than_one_read_of_the_store_are_exact, |Garden { store, ada, .. }: &Garden| {
    let all: Vec<i64> = (1..=3_000).map(|id| id * 3).collect();
    fill(store, "ada", all.iter().copied(), 200);
    for limit in [1_000, 1_500, 2_999, 3_000, 3_001] {
        let pages = pages(ada, &format!("/plants?include=id&limit={limit}"));
        assert_eq!(ids(&pages), all, "limit {limit}");
        assert_eq!(pages.len(), all.len().div_ceil(limit));
        assert!(pages.iter().all(|page| page.ids().len() <= limit));
    }
});

engine_test!(pages_are_exact_while_plants_are_created_and_deleted, |Garden { store, ada, .. }: &Garden| {
    let steady: Vec<i64> = (1..=1_500).map(|id| id * 10).collect();
    fill(store, "ada", steady.iter().copied(), 200);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        scope.spawn(|| {
            let mut number = 0;
            while !stop.load(Ordering::Relaxed) {
                number = (number + 7) % 1_500;
                let id = number * 10 + 1;
                ada.plant(id, &"y".repeat(200));
                assert_eq!(ada.delete(id).status, 204);
            }
        });
        for limit in [100, 700, 1_499, 1_500] {
            for _ in 0..5 {
                let pages = pages(ada, &format!("/plants?include=id&limit={limit}"));
                assert!(pages.iter().all(|page| page.ids().len() <= limit), "at most the limit");
                let seen = ids(&pages);
                assert!(seen.is_sorted_by(|one, other| one < other), "each plant is listed once, in order");
                let steadily: Vec<i64> = seen.into_iter().filter(|id| id % 10 == 0).collect();
                assert_eq!(steadily, steady, "limit {limit}");
            }
        }
    });
});

/// Starts a server and a list that is longer than the buffers between server and client. Reads its first byte.
fn a_list_that_is_being_sent(store: &Store, arguments: &[&str]) -> (Server, Client, Connection) {
    let server = store.serve(arguments);
    let ada = server.client(&store.token("ada", &[]));
    fill(store, "ada", 1..=20_000, 1_000);
    let mut connection = ada.connect();
    connection.send(ada.bytes("GET", "/plants", &[], None));
    connection.stream().read_exact(&mut [0; 1]).expect("the first byte");
    (server, ada, connection)
}

/// Reads to the end of the connection and asserts that the list is incomplete.
fn assert_cut(connection: &Connection) {
    let mut rest = Vec::new();
    let _ = connection.stream().read_to_end(&mut rest);
    assert!(!rest.ends_with(b"0\r\n\r\n"), "the list is complete");
}

// The write timeout applies to a client that reads nothing. A client that reads slowly gets the whole list.
engine_test!(a_slow_reader_gets_the_whole_list, |store: &Store| {
    let (_server, _ada, mut connection) = a_list_that_is_being_sent(store, &["--write-timeout", "4s"]);
    let mut buffer = vec![0; 64 * 1024];
    let mut last = Vec::new();
    while !last.ends_with(b"0\r\n\r\n") {
        let length = connection.read(&mut buffer).expect("more of the list");
        assert_ne!(length, 0, "the list was cut");
        last.extend_from_slice(&buffer[..length]);
        last.drain(..last.len().saturating_sub(16));
        #[expect(clippy::disallowed_methods, reason = "this is what makes the reader slow")]
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
});

// A user is deleted while a list of their plants is sent: the incomplete list must not look complete.
engine_test!(list_whose_user_is_deleted_is_cut_off, |store: &Store| {
    // The list must not be cut off for another reason.
    let (server, _ada, connection) = a_list_that_is_being_sent(store, &["--write-timeout", "10m"]);
    store.run(&["user", "delete", "--yes", "ada"]).success();
    assert_cut(&connection);
    server.wait_for_log("a user was deleted");
});

// The table is renamed while a list is sent: the client must notice that the list is incomplete.
engine_test!(list_that_cannot_be_finished_is_cut_off, |store: &Store| {
    let (server, ada, connection) = a_list_that_is_being_sent(store, &[]);
    store.execute("ALTER TABLE plants RENAME TO gone");
    assert_cut(&connection);
    assert_eq!(ada.get("/plants").error(), 50000, "a new list is an error");
    assert!(!ada.get("/plants").text().contains("plants\""), "the reason is only in the log");
    wait_until("the reason in the log", || {
        ["no such table", "does not exist"].iter().any(|words| server.log().contains(words))
    });
    server.wait_for_log("list response aborted");
});

/// PostgreSQL rejects such text. The store checks the texts of several rows together, so that a character may begin in one and end
/// in the next.
#[rstest]
#[case::name("name = CAST(x'ff' AS TEXT) WHERE plant_id = 50")]
#[case::tag("tag = CAST(x'80' AS TEXT) WHERE plant_id = 50")]
#[case::name_and_tag("name = CAST(x'61c3' AS TEXT), tag = CAST(x'a962' AS TEXT) WHERE plant_id = 50")]
#[case::tag_and_next_name(
    "tag = CAST(x'61c3' AS TEXT) WHERE plant_id = 50; UPDATE plants SET name = CAST(x'a963' AS TEXT) WHERE plant_id = 51"
)]
fn list_with_text_that_is_not_utf8_is_an_error(#[case] change: &str) {
    let Service { store, server } = &Service::new(Engine::Sqlite, &[]);
    let ada = server.client(&store.token("ada", &[]));
    store.insert_plants(100, "Fern");
    store.execute(&format!("UPDATE plants SET {change}"));
    assert_eq!(ada.get("/plants?limit=20").status, 200, "a list without this plant");
    for path in ["/plants", "/plants?limit=60", "/plants?include=id"] {
        assert_eq!(ada.get(path).error(), 50000, "{path}");
    }
}
