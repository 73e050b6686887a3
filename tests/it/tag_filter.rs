//! `GET /plants?tag=`

use serde_json::json;

use crate::support::transfer::import;
use crate::support::{Client, Garden, Response, Service, Store, assert_snapshot, engine_test, wait_until};

/// Imports plants with the tag `rare` for one in so many of the ids, and `common` for the others.
fn fill(store: &Store, owner: &str, ids: impl Iterator<Item = i64>, one_in: i64, length: usize) {
    let name = "x".repeat(length);
    let line = |id: i64| {
        let tag = if id % one_in == 0 { "rare" } else { "common" };
        json!({ "owner": owner, "id": id, "name": name, "tag": tag }).to_string() + "\n"
    };
    import(store, &[], &ids.map(line).collect::<String>());
}

/// Follows the `next` links to the last page.
fn pages(client: &Client, first: &str) -> Vec<Response> {
    let mut pages = vec![client.get(first)];
    while let Some(next) = pages.last().and_then(Response::next) {
        pages.push(client.get(&next));
    }
    pages
}

#[track_caller]
fn ids(client: &Client, query: &str) -> Vec<i64> {
    client.get(&format!("/plants?include=id&{query}")).ids()
}

engine_test!(only_plants_with_exactly_this_tag_are_listed, |Garden { ada, .. }: &Garden| {
    let tags = [Some("indoor"), None, Some("Indoor"), Some(""), Some("in door & more"), Some("indoor "), Some("é")];
    for (id, tag) in tags.iter().enumerate() {
        assert_eq!(ada.post(json!({ "id": id, "name": "Rose", "tag": tag }).to_string()).status, 200);
    }
    for _ in 0..2 {
        assert_eq!(ids(ada, "tag=indoor"), [0]);
        assert_eq!(ids(ada, "tag=Indoor"), [2]);
        assert_eq!(ids(ada, "tag="), [3], "an empty tag is a tag, and no tag is none");
        assert_eq!(ids(ada, "tag"), [3]);
        assert_eq!(ids(ada, "tag=in+door%20%26%20more"), [4]);
        assert_eq!(ids(ada, "tag=indoor%20"), [5]);
        assert_eq!(ids(ada, "tag=e%CC%81"), [0; 0], "tags are not normalised");
        assert_eq!(ids(ada, "tag=%C3%A9"), [6]);
        for nothing in ["tag=null", "tag=%00", "tag=%ff", "tag=door", "tag=in%25"] {
            assert_eq!(ids(ada, nothing), [0; 0], "{nothing}");
        }
    }
    assert_eq!(ada.get("/plants?tag=indoor").text(), r#"[{"name":"Rose","tag":"indoor"}]"#);
    let rose = r#"[{"id":0,"owner":"ada","name":"Rose","tag":"indoor"}]"#;
    assert_eq!(ada.get("/plants?tag=indoor&include=id,owner").text(), rose);
    assert_eq!(ada.get("/plants/1?tag=indoor").text(), r#"{"name":"Rose"}"#, "a single plant is not filtered");
});

engine_test!(tag_that_is_repeated_or_too_long_is_rejected_with_400, |Garden { ada, .. }: &Garden| {
    let longest = "🌵".repeat(200);
    assert_eq!(ada.post(json!({ "id": 1, "name": "Rose", "tag": longest }).to_string()).status, 200);
    let encoded = "%F0%9F%8C%B5".repeat(200);
    assert_eq!(ids(ada, &format!("tag={encoded}")), [1]);
    let long = "x".repeat(201);
    for wrong in ["tag=a&tag=b", "tag=a&tag=a", "tag&tag", &format!("tag={encoded}x"), &format!("tag={long}")] {
        assert_eq!(ada.get(&format!("/plants?{wrong}")).error(), 40007, "{wrong}");
    }
    assert_snapshot!(ada.get("/plants?tag=a&tag=b").text(), @r#"{"error":40007,"message":"`tag` takes one tag of at most 200 characters, once"}"#);
});

engine_test!(pages_hold_as_many_matches_as_the_limit_allows, |Garden { store, ada, .. }: &Garden| {
    fill(store, "ada", 1..=5_000, 100, 3);
    let rare: Vec<i64> = (1..=50).map(|id| id * 100).collect();
    for limit in [1, 7, 25, 49, 50, 51] {
        let pages = pages(ada, &format!("/plants?include=id&tag=rare&limit={limit}"));
        assert_eq!(pages.iter().flat_map(Response::ids).collect::<Vec<_>>(), rare, "limit {limit}");
        assert_eq!(pages.len(), rare.len().div_ceil(limit), "no empty last page for limit {limit}");
    }
    let next = ada.get("/plants?limit=2&include=id&owner=ada&tag=rare").next().expect("a next page");
    assert!(next.ends_with("&include=id&owner=ada&tag=rare"), "{next}");
    assert_eq!(ada.get("/plants?tag=rare&limit=0").wire(), ada.get("/plants?limit=0").wire());
    assert_eq!(ids(ada, "tag=none&limit=1"), [0; 0]);
    assert_eq!(ada.post(r#"{"id": -1, "name": "Rose", "tag": "a&b=<\"> ü"}"#).status, 200);
    assert_eq!(ada.post(r#"{"id": -2, "name": "Rose", "tag": "a&b=<\"> ü"}"#).status, 200);
    let first = ada.get("/plants?include=id&limit=1&tag=a%26b%3D%3C%22%3E%20%C3%BC");
    assert_eq!(ada.get(&first.next().expect("a next page")).ids(), [-1], "the link encodes the tag");
});

engine_test!(long_filtered_lists_are_streamed_completely, |Garden { store, ada, .. }: &Garden| {
    fill(store, "ada", 1..=9_000, 3, 200);
    let rare: Vec<i64> = (1..=3_000).map(|id| id * 3).collect();
    let response = ada.get("/plants?include=id&tag=rare");
    assert_eq!(response.header("transfer-encoding"), Some("chunked"));
    assert_eq!(response.ids(), rare);
    for limit in [1_000, 2_999, 3_000] {
        let pages = pages(ada, &format!("/plants?include=id&tag=rare&limit={limit}"));
        assert_eq!(pages.iter().flat_map(Response::ids).collect::<Vec<_>>(), rare, "limit {limit}");
        assert_eq!(pages.len(), rare.len().div_ceil(limit));
    }
    // The last match is followed by many plants without the tag.
    fill(store, "ada", 10_000..=20_000, 1_000_000, 3);
    assert_eq!(ids(ada, "tag=rare"), rare);
    assert_eq!(ada.get("/plants?tag=rare&limit=3000").next(), None);
    let zipped = ada.call("GET", "/plants?tag=rare", &[("Accept-Encoding", "gzip")], None);
    assert_eq!(zipped.header("content-encoding"), Some("gzip"));
});

engine_test!(filtered_list_has_the_entity_tag_of_the_whole_list, |Garden { ada, .. }: &Garden| {
    let conditional = |path: &str, tag: &str| ada.call("GET", path, &[("If-None-Match", tag)], None);
    ada.post(r#"{"id": 1, "name": "Rose", "tag": "indoor"}"#);
    let tag = ada.get("/plants").header("etag").unwrap().to_owned();
    assert_eq!(ada.get("/plants?tag=indoor").header("etag"), Some(&*tag));
    assert_eq!(conditional("/plants?tag=indoor", &tag).status, 304);
    assert_eq!(conditional("/plants?tag=other", &tag).status, 304);
    // A change of a plant that does not match changes the tag, and each filter is cached separately.
    ada.post(r#"{"id": 2, "name": "Fern", "tag": "outdoor"}"#);
    for _ in 0..2 {
        assert_eq!(conditional("/plants?include=id&tag=indoor", &tag).ids(), [1]);
        assert_eq!(conditional("/plants?include=id&tag=outdoor", &tag).ids(), [2]);
        assert_eq!(conditional("/plants?include=id", &tag).ids(), [1, 2]);
    }
    assert_eq!(ada.put(1, r#"{"name": "Rose", "tag": "outdoor"}"#).status, 200);
    assert_eq!(ids(ada, "tag=indoor"), [0; 0]);
    assert_eq!(ids(ada, "tag=outdoor"), [1, 2]);
    assert_eq!(ada.call("HEAD", "/plants?tag=outdoor", &[], None).header("content-length"), Some("65"));
});

engine_test!(plants_of_several_owners_are_filtered, |Service { store, server }: &Service| {
    let [_, bob] = ["ada", "bob"].map(|user| server.client(&store.token(user, &[])));
    store.share("ada", "bob", "reader");
    fill(store, "ada", 1..=4_000, 1_000, 3);
    fill(store, "bob", 1..=4_000, 2_000, 3);
    wait_until("the share takes effect", || bob.get("/plants?limit=1&owner=ada").status == 200);
    let expected = [1_000, 2_000, 2_000, 3_000, 4_000, 4_000];
    assert_eq!(ids(&bob, "tag=rare"), expected);
    for limit in [1, 2, 4, 6, 7] {
        let pages = pages(&bob, &format!("/plants?include=id&tag=rare&limit={limit}"));
        assert_eq!(pages.iter().flat_map(Response::ids).collect::<Vec<_>>(), expected, "limit {limit}");
        assert_eq!(pages.len(), expected.len().div_ceil(limit));
    }
    assert_eq!(ids(&bob, "tag=rare&owner=ada"), [1_000, 2_000, 3_000, 4_000]);
    assert_eq!(ids(&bob, "tag=rare&owner=bob"), [2_000, 4_000]);
});
