//! Reading one plant.

use crate::support::{Garden, Service, assert_snapshot, engine_test};
use crate::tokens::manager;

engine_test!(plant_is_read_at_its_location, |Garden { ada, .. }: &Garden| {
    let created = ada.post(r#"{"id":-9223372036854775808,"name":"Rose","tag":"red"}"#);
    ada.plant(i64::MAX, "Fern");
    let location = created.header("location").expect("a location").to_owned();
    let found = ada.get(&location);
    assert_snapshot!(found.wire(), @r#"
    200 OK
    content-type: application/json
    etag: (a tag)
    cache-control: private, no-cache
    vary: Authorization
    content-length: 27

    {"name":"Rose","tag":"red"}
    "#);
    assert_eq!(ada.get(&format!("/plants/{}", i64::MAX)).text(), r#"{"name":"Fern"}"#);
    let with_id = ada.get("/plants/-9223372036854775808?include=id,owner");
    assert_eq!(with_id.text(), r#"{"id":-9223372036854775808,"owner":"ada","name":"Rose","tag":"red"}"#);
    let head = ada.call("HEAD", &location, &[], None);
    assert_eq!((head.status, head.header("content-length")), (200, Some("27")));
    assert_eq!(head.header("etag"), found.header("etag"));
});

engine_test!(entity_tag_of_a_plant_follows_its_collection, |Garden { ada, .. }: &Garden| {
    ada.plant(1, "Rose");
    let tag = ada.get("/plants/1").header("etag").expect("a tag").to_owned();
    let again = |tag: &str, path: &str| ada.call("GET", path, &[("If-None-Match", tag)], None);
    assert_eq!(again(&tag, "/plants/1").status, 304);
    assert_eq!(again("*", "/plants/1").status, 304);
    assert_eq!(again(&tag, "/plants/2").error(), 40400, "no plant is not an unchanged plant");
    assert_eq!(ada.delete(1).status, 204);
    ada.plant(1, "Fern");
    assert_eq!(again(&tag, "/plants/1").text(), r#"{"name":"Fern"}"#);
});

engine_test!(unknown_plant_is_the_same_404_as_for_delete, |Service { store, server }: &Service| {
    let (ada, bob) = (manager(store, server, "ada"), manager(store, server, "bob"));
    bob.plant(1, "Rose");
    let of_delete = ada.delete(1);
    assert_eq!(of_delete.error(), 40400);
    assert_eq!(ada.get("/plants/1").wire(), of_delete.wire(), "another user's plant");
    assert_eq!(ada.get("/plants/2").wire(), of_delete.wire());
    let foreign = |method| ada.call(method, "/plants/1?owner=bob", &[], None).wire();
    assert_eq!(foreign("GET"), foreign("DELETE"));
    assert_eq!(ada.get("/plants/1?owner=bob").error(), 40400, "not 403");
    assert_eq!(ada.get("/plants/1?owner=absent").wire(), foreign("GET"));
    let share = ada.call("PUT", "/shares/x", &[("Content-Type", "application/json")], Some(br#"{"role":"reader"}"#));
    assert_eq!(share.status, 204);
    let granted =
        bob.call("PUT", "/shares/ada", &[("Content-Type", "application/json")], Some(br#"{"role":"reader"}"#));
    assert_eq!(granted.status, 204);
    assert_eq!(ada.call("PUT", "/shares/received/bob", &[], None).status, 204);
    assert_eq!(ada.get("/plants/1?owner=bob&include=owner").text(), r#"{"owner":"bob","name":"Rose"}"#);
    assert_eq!(ada.get("/plants/1").error(), 40400, "without an owner it is the caller's own");
    for (path, code) in [
        ("/plants/x", 40005),
        ("/plants/01", 40005),
        ("/plants/1?include=name", 40007),
        ("/plants/1?owner=a&owner=b", 40007),
    ] {
        assert_eq!(ada.get(path).error(), code, "{path}");
    }
    let writer = server.client(&store.token("ada", &["--scope", "plants:write"]));
    assert_eq!(writer.get("/plants/1").error(), 40300);
});
