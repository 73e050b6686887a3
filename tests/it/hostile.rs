//! Many hostile clients at a time: each is disconnected or costs little, and another user is served meanwhile.

use std::collections::BTreeSet;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::fairness::raise_file_limit;
use crate::support::http2::{
    CANCEL, CONTINUATION, DATA, END_HEADERS, END_STREAM, ENHANCE_YOUR_CALM, Frames, HEADERS, PING, RST_STREAM,
    SETTINGS, WINDOW_UPDATE, field, frame, head,
};
use crate::support::{
    Client, Engine, Events, Fault, Garden, JSON, Server, StopOnDrop, Store, campaign_factor, engine_test, wait_until,
};

/// Clients of each kind in the suite.
const CLIENTS: usize = 100;
/// Deadlines of slow clients in the suite and in a campaign, which opens all of its connections before the first deadline.
const DEADLINES: [&str; 2] = ["5s", "60s"];
const STREAMS_OF_USER: usize = 10;
/// One of this many users opens the event streams over HTTP/1.1, each on a connection: the number of open files of a process is limited.
const HTTP1_ONE_IN: usize = 4;
/// Threads that create users.
const CREATORS: usize = 4;
/// Bound on the memory of the server for each client, in KiB.
const MEMORY_MAX: u64 = 256;
/// Bound on the processor time of the server for a flood of frames. Much more than it takes.
const FLOOD_TIME_MAX: Duration = Duration::from_secs(1);
/// Held by a test with thousands of connections: two at a time would have more open files than a process may.
static THOUSANDS: Mutex<()> = Mutex::new(());

/// Returns the number of clients of a kind: this many in a campaign.
fn clients(in_campaign: usize) -> usize {
    if campaign_factor() > 1 { in_campaign } else { CLIENTS }
}

/// Prints a measurement.
#[expect(clippy::print_stdout, reason = "a figure, which the test does not compare")]
fn report(measured: &str) {
    println!("{measured}");
}

/// Returns the result of `attack`, during which requests of this user must succeed, and counts them.
fn served_during<T>(fault: &Fault, polite: &Client, attack: impl FnOnce() -> T) -> T {
    let (ended, writes) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                for (method, path, body) in [
                    ("POST", "/plants", Some(&br#"{"id":-1,"name":"Rose"}"#[..])),
                    ("GET", "/plants/-1", None),
                    ("DELETE", "/plants/-1", None),
                ] {
                    let response = polite.call(method, path, &[JSON], body);
                    assert!(response.status < 300, "{}", response.wire());
                }
                writes.fetch_add(2, Ordering::Relaxed);
            }
        });
        let stop = StopOnDrop(&ended);
        wait_until("the first request", || writes.load(Ordering::Relaxed) > 0);
        let result = attack();
        drop(stop);
        let writes = writes.load(Ordering::Relaxed);
        fault.count(writes + writes / 2, writes);
        result
    })
}

/// Sends the beginning of a request.
fn begin(client: &Client, request: &[u8]) -> TcpStream {
    let mut connection = client.connect();
    connection.send(request);
    connection.into_stream()
}

engine_test!(slow_clients_are_disconnected_while_others_are_served, |engine: &Engine| {
    let _alone = THOUSANDS.lock().unwrap_or_else(PoisonError::into_inner);
    raise_file_limit();
    let clients = clients(2_500);
    let fault = Fault::on(*engine, &format!("{} slow heads, bodies and readers", 4 * clients), 1);
    let deadline = DEADLINES[usize::from(clients > CLIENTS)];
    let deadlines = ["--header-timeout", "--request-timeout", "--write-timeout", "--idle-timeout"];
    let options = deadlines.map(|option| [option, deadline]).concat();
    let options = [&options[..], &["--max-connections", "40000", "--metrics-listen", "0"]].concat();
    let Garden { server, store, ada } = &Garden::new(*engine, &options);
    store.insert_plants(20_000, "a plant of this name and number ");
    let polite = server.client(&store.token("polite", &[]));
    let metrics = server.metrics();
    let connections = || metrics.value("plantstore_http_connections", &[]);
    fault.begin_round();
    served_during(&fault, &polite, || {
        let before = server.resident();
        let body = ada.bytes("POST", "/plants", &[JSON], Some(br#"{"id":-7,"name":"slow"}"#));
        let idle = ada.bytes("GET", "/me", &[], None);
        let slow: Vec<_> = (0..clients)
            .flat_map(|_| {
                let beginnings = [&body[..30], &body[..body.len() - 1], &idle].map(|bytes| begin(ada, bytes));
                beginnings.into_iter().chain([ada.unread_list(&[])])
            })
            .collect();
        let open = u64::try_from(connections()).unwrap();
        assert!(open > slow.len() as u64 / 2, "{open} connections are open");
        let each = server.resident().saturating_sub(before) / open;
        report(&format!("{engine:?}: {} slow clients, {open} connected, {each} KiB each", slow.len()));
        assert!(each <= MEMORY_MAX, "{each} KiB each");
        fault.count(slow.len(), 0);
        // One connection may be that of the polite user.
        wait_until("the server to disconnect", || connections() <= 1);
    });
    assert_eq!(ada.get("/plants/-7").error(), 40400, "an incomplete request has no effect");
});

/// The event streams of one user.
enum Streams {
    Http1(Vec<Events>),
    Http2(Frames<TcpStream>),
}

impl Streams {
    fn open(user: &Client, over_http1: bool) -> Self {
        if over_http1 {
            return Self::Http1((0..STREAMS_OF_USER).map(|_| Events::of(user).0).collect());
        }
        let mut connection = Frames::open(user.address, &[]);
        for number in (0..).take(STREAMS_OF_USER) {
            connection.send(HEADERS, END_HEADERS | END_STREAM, 2 * number + 1, &head(user, "GET", "/events", &[]));
        }
        let mut streams = Self::Http2(connection);
        streams.wait_for(&current_tag(user));
        streams
    }

    /// Reads from each stream until it has reported this entity tag.
    fn wait_for(&mut self, tag: &str) {
        match self {
            Self::Http1(streams) => {
                for stream in streams {
                    while stream.next().expect("an event") != tag {}
                }
            }
            Self::Http2(connection) => {
                let id = format!("\nid: {tag}\n");
                let mut reported = BTreeSet::new();
                while reported.len() < STREAMS_OF_USER {
                    let frame = connection.next_of(DATA);
                    if String::from_utf8_lossy(&frame.payload).contains(&id) {
                        reported.insert(frame.stream);
                    }
                }
            }
        }
    }
}

fn current_tag(user: &Client) -> String {
    user.get("/plants").header("etag").expect("an entity tag").to_owned()
}

/// Creates users whose tokens do not expire.
fn create_users(store: &Store, server: &Server, count: usize) -> Vec<Client> {
    let create = |number: usize| server.client(&store.token(&format!("user-{number}"), &["--expires", "never"]));
    thread::scope(|scope| {
        let creators: Vec<_> = (0..CREATORS)
            .map(|first| scope.spawn(move || (first..count).step_by(CREATORS).map(create).collect::<Vec<_>>()))
            .collect();
        creators.into_iter().flat_map(|creator| creator.join().expect("users")).collect()
    })
}

engine_test!(idle_connections_and_event_streams_cost_little, |engine: &Engine| {
    let _alone = THOUSANDS.lock().unwrap_or_else(PoisonError::into_inner);
    raise_file_limit();
    let clients = clients(10_000);
    let fault = Fault::on(*engine, &format!("{clients} idle connections and {clients} event streams"), 1);
    let options = ["--max-connections", "40000", "--metrics-listen", "0", "--idle-timeout", "1h"];
    let Garden { server, store, ada } = &Garden::new(*engine, &options);
    let users = create_users(store, server, clients / STREAMS_OF_USER);
    fault.begin_round();
    served_during(&fault, ada, || {
        let before = server.resident();
        let idle: Vec<_> = (0..clients)
            .map(|_| {
                let mut connection = ada.connect();
                assert_eq!(connection.ask(ada.bytes("GET", "/me", &[], None)).status, 200);
                connection
            })
            .collect();
        let mut streams: Vec<_> = users
            .iter()
            .enumerate()
            .map(|(number, user)| (user, Streams::open(user, number % HTTP1_ONE_IN == 0)))
            .collect();
        let each = server.resident().saturating_sub(before) / (2 * clients) as u64;
        report(&format!("{engine:?}: {clients} idle connections and {clients} event streams, {each} KiB each"));
        assert!(each <= MEMORY_MAX, "{each} KiB each");
        for (user, streams) in &mut streams {
            user.plant(1, "Fern");
            streams.wait_for(&current_tag(user));
        }
        fault.count(clients * 2 + users.len(), users.len());
        for mut connection in idle {
            assert_eq!(connection.ask(ada.bytes("GET", "/me", &[], None)).status, 200);
        }
    });
});

/// Kinds of frames.
const KINDS: [&str; 6] = ["rapid resets", "CONTINUATION", "empty DATA", "PING", "SETTINGS", "WINDOW_UPDATE"];

#[test]
fn floods_of_frames_end_the_connection_while_others_are_served() {
    // No deadline ends a connection before the server has noticed the flood.
    let deadlines = ["--header-timeout", "1h", "--request-timeout", "1h", "--idle-timeout", "1h"];
    let options = [&deadlines[..], &["--log-level", "error"]].concat();
    let Garden { server, store, ada } = &Garden::new(Engine::Sqlite, &options);
    let polite = server.client(&store.token("polite", &[]));
    let fault = Fault::new("flood of frames of HTTP/2", 12);
    let list = head(ada, "GET", "/plants", &[]);
    let post = frame(HEADERS, END_HEADERS, 1, &head(ada, "POST", "/plants", &[JSON]));
    let flood = |kind: usize, number: u32| match kind {
        0 => {
            let stream = 2 * number + 1;
            let request = frame(HEADERS, END_HEADERS | END_STREAM, stream, &list);
            [request, frame(RST_STREAM, 0, stream, &CANCEL.to_be_bytes())].concat()
        }
        1 if number == 0 => frame(HEADERS, END_STREAM, 1, &list),
        1 => frame(CONTINUATION, 0, 1, &field("x-more", "and more")),
        2 if number == 0 => post.clone(),
        2 => frame(DATA, 0, 1, b""),
        3 => frame(PING, 0, 0, b"eightful"),
        4 => frame(SETTINGS, 0, 0, &[]),
        _ => frame(WINDOW_UPDATE, 0, 0, &1_u32.to_be_bytes()),
    };
    let attack = |kind: usize| {
        fault.begin_round();
        let before = server.processor_time();
        let mut connection = Frames::open(server.address(), &[]);
        // The server may disconnect before everything is sent.
        let _ = connection.try_send(&(0..10_000).flat_map(|number| flood(kind, number)).collect::<Vec<_>>());
        // The reason is lost if the server closes the connection before it has read everything.
        let reason = connection.ending();
        assert!(matches!(reason, None | Some(ENHANCE_YOUR_CALM)), "flood {kind}: {reason:?}");
        fault.count(1, 0);
        server.processor_time().saturating_sub(before)
    };
    for round in 0..fault.rounds / 2 {
        let kind = round % KINDS.len();
        let used = attack(kind);
        report(&format!("flood of {}: {used:?} of processor time", KINDS[kind]));
        assert!(used < FLOOD_TIME_MAX, "flood of {}: {used:?} of processor time", KINDS[kind]);
    }
    served_during(&fault, &polite, || {
        for round in fault.rounds / 2..fault.rounds {
            attack(round % KINDS.len());
        }
    });
    assert_eq!(server.log(), "");
}
