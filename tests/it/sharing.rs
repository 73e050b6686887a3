//! Sharing: a grant lets another user read or change plants, and reveals nothing else.

use std::collections::BTreeSet;
use std::process::Stdio;

use serde_json::json;

use crate::support::{
    Client, CommandOutput, Engine, Response, Server, Service, Store, assert_contains, assert_snapshot, engine_test,
    wait_for, wait_until,
};

#[track_caller]
fn share(store: &Store, arguments: &[&str]) -> String {
    let output = store.run(&[&["share"], arguments].concat());
    assert!(output.status.success(), "{}", output.stderr_text());
    output.stdout_text()
}

#[track_caller]
fn grant(store: &Store, owner: &str, to: &str, role: &str) {
    share(store, &["grant", "--owner", owner, "--to", to, "--role", role]);
}

fn clients<const N: usize>(store: &Store, server: &Server, users: [&str; N]) -> [Client; N] {
    users.map(|user| server.client(&store.token(user, &[])))
}

#[track_caller]
fn post_to(client: &Client, owner: &str, id: i64, name: &str) -> Response {
    let body = json!({ "id": id, "name": name }).to_string();
    let headers = [("Content-Type", "application/json")];
    client.call("POST", &format!("/plants?owner={owner}"), &headers, Some(body.as_bytes()))
}

#[track_caller]
fn delete_of(client: &Client, owner: &str, id: i64) -> Response {
    client.call("DELETE", &format!("/plants/{id}?owner={owner}"), &[], None)
}

/// Returns the ids and owners of a list, in its order.
fn owned(response: &Response) -> Vec<(i64, String)> {
    let json = response.json();
    let plants = json.as_array().expect("an array").iter();
    plants
        .map(|plant| (plant["id"].as_i64().expect("an id"), plant["owner"].as_str().expect("an owner").to_owned()))
        .collect()
}

/// Follows the `next` links and returns the ids and owners of all pages.
fn pages(client: &Client, first: &str) -> Vec<(i64, String)> {
    let mut found = Vec::new();
    let mut next = Some(first.to_owned());
    while let Some(path) = next {
        let response = client.get(&path);
        assert_eq!(response.status, 200, "{}", response.wire());
        found.extend(owned(&response));
        next = response.next();
    }
    found
}

engine_test!(reader_lists_shared_plants_and_cannot_change_them, |Service { store, server }: &Service| {
    let [ada, bob] = clients(store, server, ["ada", "bob"]);
    grant(store, "ada", "bob", "reader");
    ada.plant(1, "Rose");
    ada.plant(3, "Fern");
    bob.plant(1, "Ivy");
    assert_eq!(bob.get("/plants").text(), r#"[{"name":"Rose"},{"name":"Ivy"},{"name":"Fern"}]"#);
    assert_eq!(
        bob.get("/plants?include=id,owner").text(),
        r#"[{"id":1,"owner":"ada","name":"Rose"},{"id":1,"owner":"bob","name":"Ivy"},{"id":3,"owner":"ada","name":"Fern"}]"#
    );
    assert_eq!(bob.get("/plants?include=owner&owner=ada&limit=1").text(), r#"[{"owner":"ada","name":"Rose"}]"#);
    assert_eq!(bob.get("/plants?include=id&owner=bob").ids(), [1]);
    assert_eq!(ada.get("/plants?include=id").ids(), [1, 3], "the owner does not see the plants of the grantee");
    assert_eq!(ada.get("/plants?owner=bob").error(), 40400);
    assert_snapshot!(post_to(&bob, "ada", 2, "Moss").wire(), @r#"
    403 Forbidden
    content-type: application/json
    cache-control: no-store
    content-length: 119

    {"error":40300,"message":"you can read the plants of this owner, not change them: ask the owner for the role `editor`"}
    "#);
    assert_eq!(delete_of(&bob, "ada", 1).error(), 40300);
    assert_eq!(delete_of(&bob, "ada", 99).error(), 40300, "the response does not depend on the plant's existence");
    assert_eq!(ada.ids(), [1, 3]);
    // A request without an owner refers to the caller's own plants.
    assert_eq!(bob.delete(3).error(), 40400);
    assert_eq!(bob.delete(1).status, 204);
    assert_eq!(ada.ids(), [1, 3]);
});

engine_test!(editor_creates_and_deletes_shared_plants, |Service { store, server }: &Service| {
    let [ada, bob] = clients(store, server, ["ada", "bob"]);
    grant(store, "ada", "bob", "editor");
    ada.plant(1, "Rose");
    let created = post_to(&bob, "ada", 2, "Moss");
    assert_eq!((created.status, created.text()), (200, r#"{"name":"Moss"}"#));
    assert_eq!(created.header("location"), Some("/plants/2?owner=ada"));
    assert_eq!(post_to(&bob, "ada", 1, "another").error(), 40900);
    assert_eq!(ada.ids(), [1, 2]);
    assert_eq!(delete_of(&bob, "ada", 1).status, 204);
    assert_eq!(delete_of(&bob, "ada", 1).error(), 40400);
    assert_eq!(ada.ids(), [2]);
    bob.plant(2, "Ivy");
    // The owner does not see the plants of the grantee.
    assert_eq!(owned(&ada.get("/plants?include=id,owner")), [(2, "ada".to_owned())]);
    assert_eq!(post_to(&bob, "bob", 3, "Own").status, 200, "the caller may name themselves as the owner");
});

engine_test!(idempotency_key_is_not_replayed_for_an_owner_who_was_created_again, |store: &Store| {
    let server = store.serve(&[]);
    let [ada, bob] = clients(store, &server, ["ada", "bob"]);
    grant(store, "ada", "bob", "editor");
    ada.plant(2, "Fern");
    let headers = |key| [("Content-Type", "application/json"), ("Idempotency-Key", key)];
    let create = || bob.call("POST", "/plants?owner=ada", &headers("create"), Some(br#"{"id":1,"name":"Moss"}"#));
    let delete = || bob.call("DELETE", "/plants/2?owner=ada", &headers("delete"), None);
    let malformed = || bob.call("POST", "/plants?owner=ada", &headers("malformed"), Some(b"{"));
    assert_eq!([create().status, delete().status, malformed().status], [200, 204, 400]);
    for again in [create(), delete(), malformed()] {
        assert_eq!(again.header("idempotency-replayed"), Some("true"), "{}", again.wire());
    }
    store.run(&["user", "delete", "ada", "--yes"]).success();
    let ada = server.client(&store.token("ada", &[]));
    grant(store, "ada", "bob", "editor");
    wait_until("the grant of the new owner to take effect", || bob.get("/plants?owner=ada").text() == "[]");
    for again in [create(), delete(), malformed()] {
        assert_eq!(again.error(), 42200, "{}", again.wire());
    }
    assert_eq!(ada.ids(), [0_i64; 0]);
});

engine_test!(owner_who_shares_nothing_looks_like_a_missing_user, |Service { store, server }: &Service| {
    let [ada, bob, _cyd] = clients(store, server, ["ada", "bob", "cyd"]);
    grant(store, "ada", "cyd", "editor");
    ada.plant(1, "Rose");
    let visible = |response: &Response| (response.status, response.text().to_owned(), response.headers.len());
    for owner in ["ada", "cyd", "AdA", "", "%20", "%ff", "ada%00", &"x".repeat(300)] {
        for (shared, missing) in [
            (bob.get(&format!("/plants?owner={owner}")), bob.get("/plants?owner=carl")),
            (post_to(&bob, owner, 1, "Moss"), post_to(&bob, "carl", 1, "Moss")),
            (delete_of(&bob, owner, 1), delete_of(&bob, "carl", 1)),
        ] {
            assert_eq!(visible(&shared), visible(&missing), "{owner}");
            assert_eq!(shared.error(), 40400);
        }
    }
    assert_eq!(bob.get("/plants?owner=bob&owner=bob").error(), 40007);
    assert_eq!(post_to(&bob, "bob&owner=bob", 1, "Moss").error(), 40007);
    for include in ["", "owner,", "owner,owner", "tag", "id,owner,id", "id&include=owner", "ID"] {
        assert_eq!(bob.get(&format!("/plants?include={include}")).error(), 40007, "{include}");
    }
    assert_eq!(ada.ids(), [1]);
    assert_eq!(bob.get("/plants").text(), "[]");
});

engine_test!(grants_and_revocations_take_effect_within_seconds_on_every_node, |store: &Store| {
    let nodes = [store.serve(&[]), store.serve(&[])];
    let [ada, bob] = ["ada", "bob"].map(|user| store.token(user, &[]));
    nodes[0].client(&ada).plant(1, "Rose");
    let bobs = nodes.each_ref().map(|node| node.client(&bob));
    let tags = bobs.each_ref().map(|bob| bob.get("/plants").header("etag").expect("a tag").to_owned());
    grant(store, "ada", "bob", "reader");
    for (bob, tag) in bobs.iter().zip(&tags) {
        wait_until("the grant to take effect", || bob.ids() == [1]);
        // The old entity tag does not match.
        assert_eq!(bob.call("GET", "/plants", &[("If-None-Match", tag)], None).status, 200);
        assert_eq!(post_to(bob, "ada", 2, "Moss").error(), 40300);
    }
    grant(store, "ada", "bob", "editor");
    for (bob, id) in bobs.iter().zip(2..) {
        wait_until("the new role to take effect", || post_to(bob, "ada", id, "Moss").status == 200);
    }
    let shared = bobs[0].get("/plants").header("etag").expect("a tag").to_owned();
    share(store, &["revoke", "--owner", "ada", "--to", "bob"]);
    for bob in &bobs {
        wait_until("the revocation to take effect", || bob.ids().is_empty());
        assert_eq!(post_to(bob, "ada", 9, "Moss").error(), 40400);
        assert_eq!(bob.call("GET", "/plants", &[("If-None-Match", &shared)], None).status, 200);
    }
    assert_eq!(nodes[1].client(&ada).ids(), [1, 2, 3]);
});

engine_test!(pages_of_several_owners_list_every_plant_once, |Service { store, server }: &Service| {
    let [ada, bob, cyd] = clients(store, server, ["ada", "bob", "cyd"]);
    grant(store, "ada", "bob", "reader");
    grant(store, "cyd", "bob", "reader");
    let mut all = BTreeSet::new();
    for (client, name, ids) in [(&ada, "ada", -3..9), (&bob, "bob", 0..3), (&cyd, "cyd", 2..7)] {
        for id in ids.chain([i64::MIN, i64::MAX]) {
            client.plant(id, "Rose");
            all.insert((id, name.to_owned()));
        }
    }
    let all: Vec<_> = all.into_iter().collect();
    assert_eq!(owned(&bob.get("/plants?include=id,owner")), all);
    for limit in [1, 2, 3, 7, 21, 100] {
        assert_eq!(pages(&bob, &format!("/plants?limit={limit}&include=id,owner")), all, "{limit} at a time");
    }
    let of_ada: Vec<_> = all.iter().filter(|(_, owner)| owner == "ada").cloned().collect();
    assert_eq!(pages(&bob, "/plants?limit=2&include=owner,id&owner=ada"), of_ada);
    // A cursor stays valid after its plant is deleted.
    let first = bob.get("/plants?limit=5&include=id,owner");
    let (id, owner) = owned(&first).pop().expect("a plant");
    assert_eq!(delete_of(if owner == "ada" { &ada } else { &bob }, &owner, id).status, 204);
    assert_eq!(pages(&bob, &first.next().expect("a page")), all[5..]);
    // A cursor of a list with one owner continues at its position in a list with several owners.
    let own = bob.get("/plants?limit=2&include=id,owner&owner=bob").next().expect("a page").replace("&owner=bob", "");
    let after: Vec<_> = all.iter().filter(|known| **known > (0, "bob".to_owned())).cloned().collect();
    assert_eq!(pages(&bob, &own), after);
});

engine_test!(cursor_of_several_owners_is_valid_after_the_revocation, |Service { store, server }: &Service| {
    let [ada, bob] = clients(store, server, ["ada", "bob"]);
    grant(store, "ada", "bob", "reader");
    for id in 1..=3 {
        ada.plant(id, "Rose");
        bob.plant(id, "Ivy");
    }
    let after_ada = bob.get("/plants?limit=1&include=id").next().expect("a page");
    let after_bob = bob.get("/plants?limit=2&include=id").next().expect("a page");
    share(store, &["revoke", "--owner", "ada", "--to", "bob"]);
    wait_until("the revocation to take effect", || bob.ids() == [1, 2, 3]);
    assert_eq!(bob.get(&after_ada).ids(), [1]);
    assert_eq!(bob.get(&after_bob).ids(), [2, 3]);
});

// The names are long, so that lists and pages are read from the store in many steps.
engine_test!(long_lists_of_several_owners_are_streamed, |Service { store, server }: &Service| {
    let [ada, bob, cyd] = clients(store, server, ["ada", "bob", "cyd"]);
    grant(store, "ada", "bob", "reader");
    grant(store, "cyd", "bob", "editor");
    let name = "x".repeat(1_000);
    let mut all = Vec::new();
    for id in 0..150 {
        for (client, user) in [(&ada, "ada"), (&bob, "bob"), (&cyd, "cyd")] {
            if (id % 3 == 0) == (user != "ada") || id > 100 {
                client.plant(id, &name);
                all.push((id, user.to_owned()));
            }
        }
    }
    assert_eq!(owned(&bob.get("/plants?include=id,owner")), all);
    for limit in [130, 200, 1_000] {
        let page = bob.get(&format!("/plants?limit={limit}&include=id,owner"));
        assert_eq!(owned(&page), all[..limit.min(all.len())], "{limit}");
        assert_eq!(page.next().is_some(), limit < all.len());
        assert_eq!(pages(&bob, &format!("/plants?limit={limit}&include=id,owner")), all);
    }
});

// With any page size, a page that ends with the last plant has no next link.
engine_test!(the_last_page_of_several_owners_has_no_next, |Service { store, server }: &Service| {
    let [_ada, bob] = clients(store, server, ["ada", "bob"]);
    grant(store, "ada", "bob", "reader");
    for count in [127_i64, 128, 129, 255, 256, 257, 512, 1_024, 1_025] {
        store.execute(&format!(
            "DELETE FROM plants;
             WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {count})
             INSERT INTO plants (user_id, plant_id, name, version) SELECT 1, n, 'Rose', 0 FROM numbers"
        ));
        // Increments the version of ada's list, as a write through the server does.
        let users = if matches!(store.engine, Engine::Postgres) { "collections" } else { "users" };
        store.execute(&format!("UPDATE {users} SET version = version + 1 WHERE user_id = 1"));
        for (limit, next) in [(count - 1, true), (count, false), (count + 1, false)] {
            let page = bob.get(&format!("/plants?limit={limit}&include=id"));
            assert_eq!(page.ids().len(), usize::try_from(limit.min(count)).expect("few"), "{limit} of {count}");
            assert_eq!(page.next().is_some(), next, "{limit} of {count}");
        }
    }
});

engine_test!(deleting_a_user_ends_their_shares, |Service { store, server }: &Service| {
    let [ada, bob, cyd] = clients(store, server, ["ada", "bob", "cyd"]);
    grant(store, "ada", "bob", "editor");
    grant(store, "bob", "cyd", "editor");
    ada.plant(1, "Rose");
    bob.plant(2, "Ivy");
    assert_eq!((bob.ids(), cyd.ids()), (vec![1, 2], vec![2]));
    let mut deletion =
        store.command(&["user", "delete", "--yes", "bob"]).stderr(Stdio::null()).spawn().expect("the command");
    wait_until("bob to be deleted", || store.rows("SELECT user_id FROM users WHERE name = 'bob'").is_empty());
    // Servers still have bob's token in their cache, but write nothing for a deleted user or on their behalf.
    assert_eq!(post_to(&bob, "ada", 3, "Moss").error(), 40101);
    assert_eq!(delete_of(&bob, "ada", 1).error(), 40101);
    assert_eq!(post_to(&cyd, "bob", 3, "Moss").error(), 40400);
    assert_eq!(cyd.get("/plants?owner=bob").error(), 40400);
    assert_eq!(cyd.ids(), Vec::<i64>::new());
    assert_eq!(ada.ids(), [1]);
    assert!(deletion.wait().expect("the command ends").success());
    // To a new user of the same name it is an offer.
    let bob = server.client(&store.token("bob", &[]));
    assert_eq!(bob.ids(), Vec::<i64>::new());
    let listed: serde_json::Value = serde_json::from_str(&share(store, &["list", "--json"])).expect("JSON");
    assert_eq!(listed.as_array().map(Vec::len), Some(1));
    assert_eq!([&listed[0]["owner"], &listed[0]["to"], &listed[0]["state"]], ["ada", "bob", "offered"]);
});

engine_test!(entity_tag_changes_with_the_plants_of_every_owner, |Service { store, server }: &Service| {
    let [ada, bob] = clients(store, server, ["ada", "bob"]);
    grant(store, "ada", "bob", "editor");
    let mut seen = BTreeSet::new();
    let mut changed = || seen.insert(bob.get("/plants").header("etag").expect("a tag").to_owned());
    assert!(changed());
    ada.plant(1, "Rose");
    assert!(changed(), "ada's plants are in bob's list");
    bob.plant(1, "Ivy");
    assert!(changed());
    assert_eq!(delete_of(&bob, "ada", 1).status, 204);
    assert!(changed());
    assert!(!changed(), "the tag changes only after a write");
});

engine_test!(cached_list_of_several_owners_follows_all_of_them, |Service { store, server }: &Service| {
    let [ada, bob] = clients(store, server, ["ada", "bob"]);
    grant(store, "ada", "bob", "editor");
    let names = |expected: &[&str]| {
        // The second list comes from the cache.
        for _ in 0..2 {
            let list = bob.get("/plants").json();
            let names: Vec<_> = list.as_array().expect("a list").iter().map(|plant| &plant["name"]).collect();
            assert_eq!(names, expected);
        }
    };
    names(&[]);
    ada.plant(2, "Rose");
    names(&["Rose"]);
    bob.plant(1, "Ivy");
    names(&["Ivy", "Rose"]);
    assert_eq!(delete_of(&bob, "ada", 2).status, 204);
    names(&["Ivy"]);
    ada.plant(3, "Fern");
    names(&["Ivy", "Fern"]);
    share(store, &["revoke", "--owner", "ada", "--to", "bob"]);
    wait_until("the end of the share", || bob.get("/plants").json() == json!([{ "name": "Ivy" }]));
});

engine_test!(operators_list_and_change_shares, |store: &Store| {
    let [_ada, _bob] = ["ada", "bob"].map(|user| store.token(user, &[]));
    store.token("Åsa", &[]);
    let failure = |arguments: &[&str]| {
        let output = store.run(&[&["share"], arguments].concat());
        assert_eq!(output.stdout, b"");
        (output.status.code(), output.stderr_text())
    };
    for (owner, to) in [("ada", "carl"), ("carl", "ada")] {
        let (code, words) = failure(&["grant", "--owner", owner, "--to", to, "--role", "reader"]);
        assert_eq!(code, Some(1));
        let advice =
            "`plantstore user list` shows those there are, and `plantstore token create --user carl` creates one";
        assert_eq!(words, format!("error: there is no user carl: {advice}\n"));
    }
    assert_eq!(failure(&["grant", "--owner", "ada", "--to", "ada", "--role", "reader"]).0, Some(2));
    let (code, words) = failure(&["grant", "--owner", "ada", "--to", "bob", "--role", "owner"]);
    assert_eq!(code, Some(2));
    assert_contains(&words, "the roles are reader and editor");
    assert_eq!(failure(&["grant", "--owner", "ada", "--to", "bob"]).0, Some(2), "the role is required");

    grant(store, "ada", "bob", "editor");
    grant(store, "ada", "bob", "reader");
    grant(store, "Åsa", "bob", "editor");
    grant(store, "bob", "ada", "reader");
    let listed = |arguments: &[&str]| {
        let text = share(store, &[&["list", "--json"], arguments].concat());
        let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let word = |share: &serde_json::Value, key: &str| share[key].as_str().expect("text").to_owned();
        let line = |share| [word(share, "owner"), word(share, "to"), word(share, "role")].join(" ");
        json.as_array().expect("an array").iter().map(line).collect::<Vec<_>>()
    };
    assert_eq!(listed(&[]), ["ada bob reader", "bob ada reader", "Åsa bob editor"]);
    assert_eq!(listed(&["--owner", "ada"]), ["ada bob reader"]);
    assert_eq!(listed(&["--to", "bob"]), ["ada bob reader", "Åsa bob editor"]);
    assert_eq!(listed(&["--owner", "bob", "--to", "bob"]), Vec::<String>::new());
    let table = share(store, &["list"]);
    let words: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(words[0], ["OWNER", "TO", "ROLE", "STATE", "SINCE", "(UTC)"]);
    assert_eq!(words[1][..4], ["ada", "bob", "reader", "accepted"]);

    share(store, &["revoke", "--owner", "ada", "--to", "bob"]);
    let (code, words) = failure(&["revoke", "--owner", "ada", "--to", "bob"]);
    assert_eq!(code, Some(1));
    assert_contains(&words, "ada shares nothing with bob");
    assert_eq!(failure(&["revoke", "--owner", "ada", "--to", "carl"]).0, Some(1));
    assert_eq!(listed(&[]), ["bob ada reader", "Åsa bob editor"]);
});

engine_test!(the_number_of_owners_is_bounded, |store: &Store| {
    const MOST: usize = 100;
    let server = store.serve(&[]);
    let [bob] = clients(store, &server, ["bob"]);
    // Inserts users and shares directly, because 100 runs of the command would be slow.
    let users = (0..=MOST).map(|n| format!("('u{n:03}', 0)")).collect::<Vec<_>>().join(", ");
    store.execute(&format!("INSERT INTO users (name, created_at) VALUES {users}"));
    if matches!(store.engine, crate::support::Engine::Postgres) {
        store.execute("INSERT INTO collections (user_id) SELECT user_id FROM users WHERE name <> 'bob'");
    }
    store.execute(&format!(
        "INSERT INTO shares_by_name (grantee_name, owner_id, role, created_at, grantee_id)
         SELECT 'bob', owner.user_id, 'reader', 0, bob.user_id FROM users AS bob, users AS owner
         WHERE bob.name = 'bob' AND owner.name LIKE 'u%' AND owner.name < 'u{MOST:03}';
         INSERT INTO plants (user_id, plant_id, name, version)
         SELECT user_id, 1000 - user_id, name, 0 FROM users WHERE name LIKE 'u%'"
    ));
    let words = store.run(&["share", "grant", "--owner", "u100", "--to", "bob", "--role", "reader"]).failure(1);
    assert_contains(&words, "bob has accepted 100 shares already");
    grant(store, "u001", "bob", "editor");
    let listed = wait_for("the shared plants", || Some(bob.ids()).filter(|ids| !ids.is_empty()));
    assert_eq!(listed.len(), MOST);
    assert!(listed.is_sorted());
    assert_eq!(pages(&bob, "/plants?limit=7&include=id,owner").len(), MOST);
});
