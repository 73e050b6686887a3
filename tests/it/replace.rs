//! `PUT /plants/{id}`

use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;

use crate::support::transfer::import;
use crate::support::{Client, Garden, JSON, Response, Service, StopOnDrop, assert_snapshot, engine_test, wait_until};

#[track_caller]
fn put_with_key(client: &Client, key: &str, id: i64, body: &str) -> Response {
    client.call("PUT", &format!("/plants/{id}"), &[JSON, ("Idempotency-Key", key)], Some(body.as_bytes()))
}

engine_test!(replacing_returns_the_plant_as_it_is_now, |Garden { ada, .. }: &Garden| {
    ada.post(r#"{"id": 7, "name": "Mosntera", "tag": "indoor"}"#);
    ada.plant(8, "Fern");
    assert_snapshot!(ada.put(7, r#"{"name": "Monstera", "tag": "office"}"#).wire(), @r#"
    200 OK
    content-type: application/json
    content-length: 34

    {"name":"Monstera","tag":"office"}
    "#);
    assert_eq!(ada.get("/plants/7").text(), r#"{"name":"Monstera","tag":"office"}"#);
    let replaced = ada.put(7, r#"{"id": 7, "name": "Monstera", "owner": "eve"}"#);
    assert_eq!(replaced.text(), r#"{"name":"Monstera"}"#, "a tag that is not sent is removed");
    assert_eq!(ada.put(8, r#"{"name": "Fern", "tag": ""}"#).text(), r#"{"name":"Fern","tag":""}"#);
    assert_eq!(ada.get("/plants?include=id").text(), r#"[{"id":7,"name":"Monstera"},{"id":8,"name":"Fern","tag":""}]"#);
});

engine_test!(missing_or_foreign_plant_gets_the_404_of_a_delete, |Garden { store, server, ada }: &Garden| {
    let bob = server.client(&store.token("bob", &[]));
    ada.plant(5, "Rose");
    let body = r#"{"name": "Mine"}"#;
    assert_eq!(bob.put(5, body).wire(), bob.delete(5).wire());
    assert_eq!(bob.put(123_456, body).wire(), bob.delete(5).wire());
    assert_eq!(bob.get("/plants").text(), "[]", "a replacement never creates a plant");
    assert_eq!(ada.get("/plants").text(), r#"[{"name":"Rose"}]"#);
    assert_eq!(ada.delete(5).status, 204);
    assert_eq!(ada.put(5, body).error(), 40400);
});

engine_test!(body_follows_the_rules_of_a_create, |Garden { ada, .. }: &Garden| {
    ada.plant(1, "Rose");
    let long_name = json!({ "name": "ä".repeat(1_001) }).to_string();
    let long_tag = json!({ "name": "a", "tag": "🌵".repeat(201) }).to_string();
    let rejected: &[(&str, i64, &str)] = &[
        ("", 40000, "it is empty"),
        ("{", 40000, "not JSON"),
        ("[]", 40002, "the body must be a JSON object with `name`"),
        ("{}", 40001, "`name` is required"),
        (r#"{"name": null}"#, 40002, "`name` must be a string"),
        (r#"{"name": ""}"#, 40003, "`name` must have 1 to 1000 characters, has 0"),
        (r#"{"name": "a", "name": "b"}"#, 40002, "`name` is given more than once"),
        (r#"{"id": 2, "name": "a"}"#, 40002, "`id` must be 1, as in the path, or absent"),
        (r#"{"id": null, "name": "a"}"#, 40002, "`id` must be an integer"),
        (r#"{"id": "1", "name": "a"}"#, 40002, "`id` must be an integer"),
        (r#"{"id": 1.0, "name": "a"}"#, 40002, "`id` must be an integer"),
        (&long_name, 40003, "`name` must have 1 to 1000 characters, has 1001"),
        (&long_tag, 40003, "`tag` must have 0 to 200 characters, has 201"),
        (r#"{"name": "\u0007"}"#, 40003, "U+0007"),
    ];
    for (body, error, words) in rejected {
        let response = ada.put(1, body);
        assert_eq!(response.error(), *error, "{body}: {}", response.text());
        assert!(response.message().contains(words), "{body}: {}", response.text());
    }
    assert_snapshot!(ada.put(1, r#"{"id": 2, "tag": 7}"#).text(), @r#"{"error":40001,"message":"`id` must be 1, as in the path, or absent; `name` is required; `tag` must be a string"}"#);
    assert_eq!(ada.call("PUT", "/plants/1", &[("Content-Type", "text/plain")], Some(b"{}")).error(), 41500);
    assert_eq!(ada.put(1, " ".repeat(16 * 1024 + 1)).error(), 41300);
    for id in ["abc", "1.0", "9223372036854775808"] {
        assert_eq!(ada.put(id, "{").error(), 40005, "the path is checked before the body");
    }
    assert_eq!(ada.get("/plants").text(), r#"[{"name":"Rose"}]"#);
    let longest = json!({ "name": "ß".repeat(1_000), "tag": "🌵".repeat(200) });
    assert_eq!(ada.put(1, longest.to_string()).json(), longest);
});

engine_test!(access_is_checked_before_the_plant, |Service { store, server }: &Service| {
    let [ada, bob] = ["ada", "bob"].map(|user| server.client(&store.token(user, &[])));
    ada.plant(1, "Rose");
    let put = |client: &Client, owner: &str| client.put(format!("1?owner={owner}"), r#"{"name": "Fern"}"#);
    assert_eq!(server.anonymous().put(1, "{").error(), 40100);
    let delete_only = server.client(&store.token("ada", &["--scope", "plants:read,plants:delete"]));
    assert_eq!(delete_only.put(1, "{").error(), 40300);
    assert_eq!(put(&bob, "ada").error(), 40400);
    store.share("ada", "bob", "reader");
    // The server may have cached for 2 s that nothing is shared.
    wait_until("the share takes effect", || put(&bob, "ada").error() == 40300);
    assert_eq!(ada.get("/plants").text(), r#"[{"name":"Rose"}]"#);
    store.share("ada", "bob", "editor");
    wait_until("the role takes effect", || put(&bob, "ada").status == 200);
    assert_eq!(ada.get("/plants").text(), r#"[{"name":"Fern"}]"#);
    assert_eq!(bob.put(1, r#"{"name": "x"}"#).error(), 40400, "without an owner, it is the caller's own plant");
});

engine_test!(a_replacement_with_a_key_is_done_once, |Garden { ada, .. }: &Garden| {
    ada.plant(1, "Rose");
    let first = put_with_key(ada, "key", 1, r#"{"name": "Fern"}"#);
    assert_eq!((first.status, first.header("idempotency-replayed")), (200, None));
    assert_eq!(ada.put(1, r#"{"name": "Moss"}"#).status, 200);
    let again = put_with_key(ada, "key", 1, r#"{"name": "Fern"}"#);
    assert_eq!((again.text(), again.header("idempotency-replayed")), (first.text(), Some("true")));
    assert_eq!(ada.get("/plants").text(), r#"[{"name":"Moss"}]"#, "it is not executed again");
    for (id, body) in [(1, r#"{"name": "Other"}"#), (2, r#"{"name": "Fern"}"#)] {
        assert_eq!(put_with_key(ada, "key", id, body).error(), 42200);
    }
    assert_eq!(ada.call("DELETE", "/plants/1", &[("Idempotency-Key", "key")], None).error(), 42200);
    // A rejection is stored like a success.
    assert_eq!(put_with_key(ada, "missing", 2, r#"{"name": "Fern"}"#).error(), 40400);
    assert_eq!(put_with_key(ada, "invalid", 1, "{}").error(), 40001);
    ada.plant(2, "Ivy");
    let missing = put_with_key(ada, "missing", 2, r#"{"name": "Fern"}"#);
    assert_eq!((missing.error(), missing.header("idempotency-replayed")), (40400, Some("true")));
    let invalid = put_with_key(ada, "invalid", 1, "{}");
    assert_eq!((invalid.error(), invalid.header("idempotency-replayed")), (40001, Some("true")));
    assert_eq!(ada.get("/plants").text(), r#"[{"name":"Moss"},{"name":"Ivy"}]"#);
});

engine_test!(every_replacement_changes_the_entity_tag, |Garden { store, server, ada }: &Garden| {
    let bob = server.client(&store.token("bob", &[]));
    let tag = |client: &Client, path: &str| client.get(path).header("etag").unwrap().to_owned();
    ada.plant(1, "Rose");
    let mut seen = vec![tag(ada, "/plants")];
    let of_bob = tag(&bob, "/plants");
    for name in ["Fern", "Fern", "Rose"] {
        let known = seen.last().unwrap().clone();
        assert_eq!(ada.call("GET", "/plants", &[("If-None-Match", &known)], None).status, 304);
        assert_eq!(ada.put(1, json!({ "name": name }).to_string()).status, 200);
        let listed = ada.call("GET", "/plants", &[("If-None-Match", &known)], None);
        assert_eq!(listed.text(), json!([{ "name": name }]).to_string());
        assert_eq!(ada.call("GET", "/plants/1", &[("If-None-Match", &known)], None).status, 200);
        seen.push(tag(ada, "/plants"));
    }
    assert_eq!(ada.put(1, "{}").status, 400);
    assert_eq!(tag(ada, "/plants"), *seen.last().unwrap(), "a rejected request does not change the tag");
    assert_eq!(tag(&bob, "/plants"), of_bob);
    let all = seen.len();
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), all, "no tag is used twice, even for equal plants");
});

// The list is longer than the buffers between server and client, so its end is read after the replacement.
engine_test!(list_that_is_being_read_has_a_replaced_plant_once, |Garden { store, ada, .. }: &Garden| {
    let name = "x".repeat(1_000);
    let line = |id| json!({ "owner": "ada", "id": id, "name": name }).to_string() + "\n";
    import(store, &[], &(1..=20_000).map(line).collect::<String>());
    let mut connection = ada.connect();
    connection.send(ada.bytes("GET", "/plants?include=id", &[], None));
    let mut first = [0; 1];
    assert_eq!(connection.stream().peek(&mut first).unwrap(), 1, "the list has begun");
    for id in [1, 10_000, 20_000] {
        assert_eq!(ada.put(id, r#"{"name": "replaced"}"#).status, 200);
    }
    ada.plant(20_001, "created after the beginning");
    let list = connection.read_response(false);
    assert_eq!(list.ids(), (1..=20_000).collect::<Vec<_>>());
    assert_eq!(list.json()[19_999]["name"], "replaced", "the end of the list was read after the replacement");
});

engine_test!(pages_are_exact_while_plants_are_replaced, |Garden { store, ada, .. }: &Garden| {
    let name = "x".repeat(200);
    let line = |id| json!({ "owner": "ada", "id": id, "name": name }).to_string() + "\n";
    import(store, &[], &(1..=1_500).map(line).collect::<String>());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = StopOnDrop(&stop);
        scope.spawn(|| {
            let mut id = 0;
            while !stop.load(Ordering::Relaxed) {
                id = (id + 7) % 1_500;
                assert_eq!(ada.put(id + 1, json!({ "name": "y".repeat(200) }).to_string()).status, 200);
            }
        });
        for limit in [100, 700, 1_499, 1_500] {
            let mut seen = Vec::new();
            let mut next = Some(format!("/plants?include=id&limit={limit}"));
            while let Some(page) = next {
                let page = ada.get(&page);
                assert!(page.ids().len() <= limit, "at most the limit");
                seen.extend(page.ids());
                next = page.next();
            }
            assert_eq!(seen, (1..=1_500).collect::<Vec<_>>(), "limit {limit}");
        }
    });
});

engine_test!(all_concurrent_replacements_succeed_and_one_is_the_last, |Garden { ada, .. }: &Garden| {
    ada.plant(1, "Rose");
    std::thread::scope(|scope| {
        for number in 0..12 {
            scope.spawn(move || {
                let body = json!({ "name": format!("name {number}"), "tag": format!("tag {number}") });
                assert_eq!(ada.put(1, body.to_string()).json(), body);
            });
        }
    });
    let last = ada.get("/plants/1").json();
    let number = last["name"].as_str().unwrap().strip_prefix("name ").expect("one of the names").to_owned();
    assert_eq!(last["tag"], format!("tag {number}"), "name and tag are of the same request");
});
