//! Entity tags: an unchanged list is a 304, and a changed one never is.

use std::thread;
use std::time::{Duration, Instant};

use crate::support::{
    Client, Cluster, CommandOutput, Engine, Garden, History, Response, Service, Store, TcpProxy, Workload,
    assert_snapshot, engine_test, postgres_test, sqlite_test, wait_for, wait_until,
};

/// Requests a list with these tags in `If-None-Match`.
#[track_caller]
fn get(client: &Client, path: &str, known: &str) -> Response {
    client.call("GET", path, &[("If-None-Match", known)], None)
}

#[track_caller]
fn tag(client: &Client, path: &str) -> String {
    let response = client.get(path);
    assert_eq!(response.status, 200, "{}", response.wire());
    response.header("etag").expect("every list has a tag").to_owned()
}

engine_test!(matching_if_none_match_gets_304, |Garden { ada, .. }: &Garden| {
    ada.plant(1, "Rose");
    let known = tag(ada, "/plants");
    assert!(known.starts_with("W/\"") && known.ends_with('"'), "{known} is a weak tag");
    assert_eq!(tag(ada, "/plants"), known, "the tag is the same until a change");
    assert_snapshot!(get(ada, "/plants", &known).wire(), @r"
    304 Not Modified
    etag: (a tag)
    cache-control: private, no-cache
    vary: Authorization, Accept-Encoding
    ");
    assert_eq!(get(ada, "/plants", &known).header("etag"), Some(&*known));
    let head = ada.call("HEAD", "/plants", &[("If-None-Match", &known)], None);
    assert_eq!((head.status, head.header("etag")), (304, Some(&*known)));
    assert_eq!(ada.call("HEAD", "/plants", &[], None).header("etag"), Some(&*known));
});

engine_test!(tags_are_compared_by_the_rules_of_http, |Garden { server, ada, .. }: &Garden| {
    let known = tag(ada, "/plants");
    let strong = known.strip_prefix("W/").expect("a weak tag");
    let matching = ["*", strong, &known, &format!("\"x\", {known}"), &format!("W/\"a,b\" , {strong}, \"y\"")];
    for matching in matching.map(str::to_owned) {
        assert_eq!(get(ada, "/plants", &matching).status, 304, "{matching}");
    }
    let bare = strong.trim_matches('"');
    for other in ["\"x\"", "W/\"\"", bare, &strong.to_uppercase(), &format!("\"x{bare}\""), "\"", "", "garbage, *"] {
        assert_eq!(get(ada, "/plants", other).status, 200, "{other}");
    }
    let twice = ada.call("GET", "/plants", &[("If-None-Match", "\"x\""), ("If-None-Match", &known)], None);
    assert_eq!(twice.status, 304, "several header lines are one list");
    assert_eq!(get(ada, "/plants?limit=x", "*").error(), 40004, "an invalid request is rejected");
    assert_eq!(get(&server.anonymous(), "/plants", "*").error(), 40100, "a request without a token is rejected");
});

engine_test!(only_changes_of_the_own_plants_change_the_tag, |Service { store, server }: &Service| {
    let [ada, ben] = ["ada", "ben"].map(|user| server.client(&store.token(user, &[])));
    let mut seen = vec![tag(&ada, "/plants"), tag(&ben, "/plants")];
    assert_ne!(seen[0], seen[1], "two users have different tags for equal lists");
    for _ in 0..3 {
        ada.plant(1, "Rose");
        seen.push(tag(&ada, "/plants"));
        assert_eq!(ada.delete(1).status, 204);
        seen.push(tag(&ada, "/plants"));
    }
    assert_eq!(tag(&ben, "/plants"), seen[1], "changes of another user do not change ben's tag");
    assert_eq!(ada.post("{}").status, 400);
    assert_eq!(tag(&ada, "/plants"), *seen.last().expect("some"), "a rejected request does not change the tag");
    let all = seen.len();
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), all, "no tag is used twice, even for equal lists");
});

engine_test!(pages_and_views_have_the_tag_of_the_collection, |Garden { ada, .. }: &Garden| {
    (1..=5).for_each(|id| ada.plant(id, "Rose"));
    let known = tag(ada, "/plants");
    let first = ada.get("/plants?limit=2&include=id");
    let second = first.next().expect("a second page");
    for path in ["/plants?limit=0", "/plants?include=id", "/plants?owner=ada", &second] {
        for _ in 0..2 {
            assert_eq!(tag(ada, path), known, "{path}");
            assert_eq!(get(ada, path, &known).status, 304, "{path}");
        }
    }
    // Each view is cached separately.
    for _ in 0..2 {
        assert_eq!(first.ids(), [1, 2]);
        let page = ada.get(&second);
        assert_eq!(page.ids(), [3, 4]);
        assert_eq!(ada.get(&page.next().expect("a third page")).ids(), [5]);
        assert_eq!(ada.get("/plants?limit=1").text(), r#"[{"name":"Rose"}]"#);
        assert_eq!(ada.get("/plants?limit=1&include=id").text(), r#"[{"id":1,"name":"Rose"}]"#);
        assert_eq!(ada.get("/plants?limit=1&include=id,owner").text(), r#"[{"id":1,"owner":"ada","name":"Rose"}]"#);
    }
});

engine_test!(a_streamed_list_has_a_tag_too, |Garden { ada, .. }: &Garden| {
    let name = "x".repeat(1_000);
    (1..=150).for_each(|id| ada.plant(id, &name));
    let known = tag(ada, "/plants");
    assert_eq!(get(ada, "/plants", &known).status, 304);
    ada.plant(151, &name);
    let response = get(ada, "/plants?include=id", &known);
    assert_eq!((response.status, response.ids().len()), (200, 151));
});

engine_test!(a_tag_survives_a_restart, |store: &Store| {
    let token = store.token("ada", &[]);
    let server = store.serve(&[]);
    server.client(&token).plant(1, "Rose");
    let known = tag(&server.client(&token), "/plants");
    server.stop();
    let server = store.serve(&[]);
    assert_eq!(get(&server.client(&token), "/plants", &known).status, 304);
});

engine_test!(writes_of_other_processes_are_visible_at_once, |store: &Store| {
    let servers = [store.serve(&[]), store.serve(&[])];
    let token = store.token("ada", &[]);
    let [here, there] = servers.each_ref().map(|server| server.client(&token));
    for id in 1..=50 {
        let before = tag(&here, "/plants?include=id");
        there.plant(id, "by another");
        let response = get(&here, "/plants?include=id", &before);
        assert_eq!((response.status, response.ids().len()), (200, usize::try_from(id).expect("few")));
        // Both nodes have the same tag.
        assert_eq!(get(&there, "/plants", response.header("etag").expect("a tag")).status, 304);
    }
});

engine_test!(user_created_again_has_new_tags, |Garden { store, server, ada }: &Garden| {
    let before = tag(ada, "/plants");
    store.run(&["user", "delete", "--yes", "ada"]).success();
    assert_eq!(get(ada, "/plants", &before).error(), 40101);
    let again = server.client(&store.token("ada", &[]));
    assert_eq!(get(&again, "/plants", &before).status, 200);
    assert_ne!(tag(&again, "/plants"), before);
});

engine_test!(documented_statement_changes_the_tag_after_a_change_with_sql, |Garden { store, ada, .. }: &Garden| {
    ada.plant(1, "Rose");
    let before = tag(ada, "/plants");
    store.execute(&documented_statement(store.engine, "UPDATE plants"));
    assert_eq!(get(ada, "/plants", &before).status, 304, "the change alone does not change the tag");
    store.execute(&documented_statement(store.engine, "SET version"));
    let response = get(ada, "/plants", &before);
    assert_eq!((response.status, response.text()), (200, r#"[{"name":"Monstera"}]"#));
    let moved = tag(ada, "/plants");
    ada.plant(2, "Fern");
    assert_eq!(get(ada, "/plants", &moved).status, 200, "the next create changes the tag again");
});

// Few writers and many readers, so that nearly all lists come from the cache or are a 304.
engine_test!(cached_lists_are_never_stale, |store: &Store| {
    let tokens = ["ada", "ben"].map(|user| store.token(user, &[])).to_vec();
    let servers = [store.serve(&["--log-level", "warn"]), store.serve(&["--log-level", "warn"])];
    let nodes = servers.iter().map(crate::support::Server::address).collect();
    let workload = Workload {
        nodes,
        tokens,
        writers: 2,
        listers: 6,
        watchers: 0,
        ids: 4,
        pause: Duration::from_millis(1),
        uses_all_operations: true,
    };
    let history = History::new();
    workload.run(&history, || wait_until("writes", || history.acknowledged() >= 400));
    workload.record_final_lists(&history);
    let summary = history.check().unwrap();
    assert!(summary.operations > 3 * summary.acknowledged, "{summary:?}");
});

// All queries for versions that a node sends are in flight when another node writes: two, or one for each worker of Citus. A list
// that is requested afterwards must not use them.
postgres_test!(list_does_not_use_a_query_that_was_sent_before_it, |store: &Store| {
    let proxy = TcpProxy::start(Cluster::shared().address());
    let mut arguments = vec!["--metrics-listen", "127.0.0.1:0", "--store-timeout", "60s"];
    let workers = Cluster::shared().workers().iter();
    let mapped =
        workers.map(|worker| format!("{}={}", worker.address(), proxy.address())).collect::<Vec<_>>().join(",");
    let mut queries_max = 2;
    if !mapped.is_empty() {
        arguments.extend(["--worker-address", &mapped]);
        queries_max = 1;
    }
    let servers = [store.through(&proxy).serve(&arguments), store.serve(&[])];
    let metrics = servers[0].metrics();
    let token = store.token("ada", &[]);
    let [here, there] = servers.each_ref().map(|server| server.client(&token));
    let mut plants = 0;
    // Tried again if the token, which is looked up every 2 seconds, was looked up in between: these are queries, too.
    wait_for("a list that waits for its versions", || {
        // Puts the list into the cache of this node.
        assert_eq!(here.ids().len(), plants);
        proxy.hold_responses();
        thread::scope(|scope| {
            let in_flight = (1..=queries_max).all(|queries| {
                scope.spawn(|| here.ids());
                let deadline = Instant::now() + Duration::from_secs(2);
                while proxy.held_responses() < queries && Instant::now() < deadline {
                    thread::park_timeout(Duration::from_millis(5));
                }
                proxy.held_responses() == queries
            });
            plants += 1;
            there.plant(i64::try_from(plants).expect("few"), "by another");
            let list = scope.spawn(|| here.ids());
            let all_wait = in_flight
                && (0..5).any(|_| {
                    metrics.value("plantstore_reads_in_flight", &[]) == i64::try_from(queries_max + 1).expect("few")
                });
            proxy.heal();
            assert_eq!(list.join().expect("a list").len(), plants);
            all_wait.then_some(())
        })
    });
});

/// Returns the statement that contains `words` from docs/how-to/change-rows-with-sql.md.
fn documented_statement(engine: Engine, words: &str) -> String {
    let document =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/how-to/change-rows-with-sql.md")).unwrap();
    let block = document.split("```sql\n").nth(match engine {
        Engine::Sqlite => 1,
        Engine::Postgres => 2,
    });
    let block = block.and_then(|rest| rest.split("```").next()).expect("a block of SQL");
    let statement = block.split(';').find(|statement| statement.contains(words)).expect("the statement");
    // The test runs each statement of the documented transaction on its own.
    statement.replace("BEGIN IMMEDIATE", "").replace("BEGIN", "")
}

// The store file is replaced by an earlier copy, and other plants are created from there.
sqlite_test!(restored_store_does_not_reuse_a_tag, |store: &Store| {
    let token = store.token("ada", &[]);
    let server = store.serve(&[]);
    server.client(&token).plant(1, "Rose");
    server.stop();
    let copy = std::fs::read(store.file()).expect("the store");
    let server = store.serve(&[]);
    server.client(&token).plant(2, "Fern");
    let known = tag(&server.client(&token), "/plants");
    server.stop();
    std::fs::write(store.file(), copy).expect("the copy is restored");
    let server = store.serve(&[]);
    let ada = server.client(&token);
    ada.plant(3, "Ivy");
    assert_eq!(get(&ada, "/plants?include=id", &known).ids(), [1, 3]);
});

sqlite_test!(list_cache_is_bounded, &["--list-cache-bytes", "1000000"], |Garden { store, server, ada }: &Garden| {
    let name = "x".repeat(1_000);
    (1..=70).for_each(|id| ada.plant(id, &name));
    let after = (1..=10).map(|limit| ada.get(&format!("/plants?limit={limit}")).next().expect("another page"));
    let cursors: Vec<String> = after.map(|next| next.split("after=").nth(1).expect("a cursor").to_owned()).collect();
    let mut connection = ada.connect();
    let mut list = |limit: usize, cursor: &str, include: &str| {
        let path = format!("/plants?limit={limit}&after={cursor}{include}");
        assert_eq!(connection.ask(ada.bytes("GET", &path, &[], None)).json().as_array().expect("a list").len(), limit);
    };
    (1..=60).for_each(|limit| list(limit, &cursors[0], ""));
    let before = server.resident();
    // 2,400 different lists of about 30 KB each: seventy times the size of the cache.
    for cursor in &cursors {
        for include in ["", "&include=id", "&include=owner", "&include=id,owner"] {
            (1..=60).for_each(|limit| list(limit, cursor, include));
        }
    }
    let grown = server.resident().saturating_sub(before);
    assert!(grown < 16 * 1024, "the memory grew by {grown} KiB");
    let off = store.serve(&["--list-cache-bytes", "0"]);
    let ada = off.client(ada.token.as_deref().expect("a token"));
    (0..2).for_each(|_| assert_eq!(ada.ids().len(), 70));
    assert_eq!(get(&ada, "/plants", &tag(&ada, "/plants")).status, 304);
});
