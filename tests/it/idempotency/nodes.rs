//! Keys on several nodes of one database.

use rstest::rstest;

use super::{LOCKS, QUIET, STORED_KEYS, assert_replays, create_bytes, delete, in_flight, is_replayed, plant, post};
use crate::support::{Client, Engine, Server, Store, postgres_test, retry_while_unavailable, wait_for, wait_until};

/// Two nodes on one database, and a client of each.
fn two_nodes(store: &Store) -> ([Server; 2], [Client; 2]) {
    let nodes = [store.serve(QUIET), store.serve(QUIET)];
    let token = store.token("ada", &[]);
    let clients = [nodes[0].client(&token), nodes[1].client(&token)];
    // Opens the connections and caches the token.
    for client in &clients {
        assert_eq!(client.ids(), [0_i64; 0]);
    }
    (nodes, clients)
}

postgres_test!(key_in_flight_on_one_node_is_in_flight_on_all, |store: &Store| {
    let (_nodes, [one, other]) = two_nodes(store);
    let held = store.hold_writes();
    let mut first = in_flight(&one, &other, create_bytes("k1", plant(1, "Rose")));
    for client in [&one, &other] {
        assert_eq!(post(client, "k1", &plant(1, "Rose")).error(), 40901);
        assert_eq!(post(client, "k1", "nonsense").error(), 40901);
        assert_eq!(delete(client, "k1", 1).error(), 40901);
    }
    drop(held);
    let response = first.read_response(false);
    assert_eq!(response.status, 200, "{}", response.wire());
    for client in [&one, &other] {
        assert_replays(&response, &post(client, "k1", &plant(1, "Rose")));
        assert_eq!(post(client, "k1", &plant(1, "Fern")).error(), 42200);
    }
    wait_until("the locks to be released", || store.rows_of_servers(LOCKS).is_empty());
});

// A client that has a response gets it again from every node, without 40901 for a lock that is about to be released.
postgres_test!(response_of_one_node_is_replayed_by_all, |store: &Store| {
    let (_nodes, [one, other]) = two_nodes(store);
    for id in 0..100 {
        let key = format!("key {id}");
        let response = post(&one, &key, &plant(id, "Rose"));
        assert_eq!(response.status, 200, "{}", response.wire());
        assert_replays(&response, &post(&other, &key, &plant(id, "Rose")));
    }
});

// The write in flight takes no effect, and its key can be used on another node.
postgres_test!(killed_node_releases_its_keys, |store: &Store| {
    let ([node, _other_node], [one, other]) = two_nodes(store);
    let held = store.hold_writes();
    // Both requests go to the same node, so this node holds the key.
    let cut = in_flight(&one, &one, create_bytes("k1", plant(1, "Rose")));
    wait_until("the lock of the key", || store.rows_of_servers(LOCKS) == [1]);
    assert_eq!(post(&other, "k1", &plant(1, "Rose")).error(), 40901);
    node.kill();
    drop(cut);
    wait_until("the locks to be released", || store.rows_of_servers(LOCKS).is_empty());
    let mut second = other.connect();
    second.send(create_bytes("k1", plant(1, "Rose"))(&other));
    wait_until("the second request to hold the lock", || store.rows_of_servers(LOCKS) == [1]);
    drop(held);
    let response = second.read_response(false);
    assert!(response.status == 200 && !is_replayed(&response), "{}", response.wire());
    assert_eq!(other.ids(), [1]);
    assert_replays(&response, &post(&other, "k1", &plant(1, "Rose")));
});

/// A trigger stores the key within the transaction, which no node does. The write fails with the insert of its key.
#[rstest]
#[case::requires_postgres()]
fn key_stored_by_another_program_stops_the_write() {
    const APPEAR: &str = "
        CREATE FUNCTION appear() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
          INSERT INTO plantstore.idempotency_keys (user_id, key, fingerprint, outcome, expires_at)
          VALUES (1, sha256('k1'), sha256(''), 200, 9999999999) ON CONFLICT DO NOTHING;
          RETURN NEW;
        END $$;
        GRANT EXECUTE ON FUNCTION appear() TO plantstore;
        CREATE TRIGGER appear AFTER INSERT ON plants FOR EACH ROW EXECUTE FUNCTION appear()";
    let store = Store::new(Engine::Postgres);
    let server = store.serve(&["--store-timeout", "5s", "--log-level", "warn"]);
    let ada = server.client(&store.token("ada", &[]));
    store.execute(APPEAR);
    let rejected = post(&ada, "k1", &plant(1, "Rose"));
    assert_eq!(rejected.error(), 50300, "{}", rejected.wire());
    assert_eq!((ada.ids(), store.rows(STORED_KEYS)), (vec![], vec![0]), "{}", server.log());
    store.execute("DROP TRIGGER appear ON plants");
    let created = retry_while_unavailable(|| post(&ada, "k1", &plant(1, "Rose")));
    assert!(created.status == 200 && !is_replayed(&created), "{}", created.wire());
}

/// TCP keepalives of the database detect a lost node. Without them, the database would hold the locks of a node without
/// power for hours.
#[rstest]
#[case::requires_postgres()]
fn keys_of_a_lost_node_are_released_within_seconds() {
    const HOLDER: &str = "SELECT client_port FROM pg_stat_activity WHERE datname = current_database() AND \
                          query LIKE 'SELECT pg_advisory_unlock%'";
    let store = Store::new(Engine::Postgres);
    let (_nodes, [one, _]) = two_nodes(&store);
    assert_eq!(post(&one, "k1", &plant(1, "Rose")).status, 200);
    let port = wait_for("the connection that holds the locks", || store.rows_of_servers(HOLDER).first().copied());
    // The kernel shows the timer of the server's socket: 02 means keepalive, and the time is in hundredths of a second.
    let from = format!(":{port:04X} 01 ");
    let timer = wait_for("the keepalive timer", || {
        let sockets = std::fs::read_to_string("/proc/net/tcp").expect("the sockets");
        let socket = sockets.lines().find(|line| line.contains(&from))?.to_owned();
        let timer = socket.split_whitespace().nth(5)?.strip_prefix("02:")?.to_owned();
        i64::from_str_radix(&timer, 16).ok()
    });
    assert!(timer <= 500, "{timer}");
}
