//! Clocks: the `Date` header field follows the wall-clock time, also when it is set back, and a stream of events ends after an hour.

use std::path::Path;
use std::time::{Duration, SystemTime};

use crate::support::http2::Http2;
use crate::support::{Events, Response, Server, Store, sqlite_test, wait_for, wait_until};

/// Path of the `faketime` library on Debian.
const LIBRARY: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1";
/// Offset of the clock before it is set back.
const AHEAD: Duration = Duration::from_secs(2 * 60 * 60);
/// Largest difference between a `Date`, which has whole seconds, and the clock when the response is checked.
const TOLERANCE: Duration = Duration::from_secs(5);

/// Clocks that a server reads from a file.
#[derive(PartialEq, Eq)]
pub(super) enum Clocks {
    WallClock,
    /// Also the one that timeouts use.
    All,
}

/// Starts a server whose clocks are ahead by the number of seconds in a file. `faketime` reads the file whenever the
/// server reads the clock.
pub(super) fn serve_with(clocks: &Clocks, store: &Store, file: &Path) -> Server {
    let library = ["/usr/lib/aarch64-linux-gnu/faketime/libfaketime.so.1", LIBRARY];
    let library = library.into_iter().find(|library| Path::new(library).exists());
    let library = library.expect("libfaketime, which scripts/test installs");
    let mut command = store.command(&["serve", "--listen", "127.0.0.1:0", "--no-first-token"]);
    command.env("LD_PRELOAD", library).env("FAKETIME_TIMESTAMP_FILE", file).env("FAKETIME_NO_CACHE", "1");
    if *clocks == Clocks::WallClock {
        command.env("DONT_FAKE_MONOTONIC", "1").env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    }
    Server::start(command)
}

/// Sets the server's clock this far ahead of the real one.
fn set_ahead(file: &Path, ahead: Duration) {
    set_clock(file, &format!("+{}s", ahead.as_secs()));
}

/// Sets the server's clock to an offset in the syntax of `faketime`.
pub(super) fn set_clock(file: &Path, offset: &str) {
    // Renamed, so that the server never reads an empty file.
    let new = file.with_extension("new");
    std::fs::write(&new, format!("{offset}\n")).unwrap();
    std::fs::rename(new, file).unwrap();
}

/// Checks that a response was dated this far ahead of the real clock.
fn is_dated(response: &Response, ahead: Duration) -> bool {
    let date = httpdate::parse_http_date(response.header("date").expect("a date")).expect("an HTTP date");
    let now = SystemTime::now() + ahead;
    date <= now + TOLERANCE && date + TOLERANCE >= now
}

/// Returns responses over HTTP/1.1 and over HTTP/2.
fn responses(server: &Server) -> Vec<Response> {
    // Several responses, because each thread of the server may cache its own date.
    let mut all: Vec<Response> = (0..12).map(|_| server.anonymous().get("/livez")).collect();
    all.push(Http2::open(&server.anonymous()).get("/livez"));
    all
}

sqlite_test!(date_follows_a_clock_that_is_set_back, |store: &Store| {
    let file = store.directory().join("clock");
    set_ahead(&file, AHEAD);
    let server = serve_with(&Clocks::WallClock, store, &file);
    let dated = wait_for("dates of the future", || {
        Some(responses(&server)).filter(|all| all.iter().all(|response| is_dated(response, AHEAD)))
    });
    for response in dated {
        assert_eq!(response.headers.iter().filter(|(name, _)| name == "date").count(), 1, "the response has one date");
    }
    set_ahead(&file, Duration::ZERO);
    wait_until("dates of the present", || responses(&server).iter().all(|response| is_dated(response, Duration::ZERO)));
    set_ahead(&file, AHEAD);
    wait_until("dates of the future", || responses(&server).iter().all(|response| is_dated(response, AHEAD)));
});

sqlite_test!(stream_of_events_ends_after_an_hour, |store: &Store| {
    let file = store.directory().join("clock");
    set_ahead(&file, Duration::ZERO);
    let server = serve_with(&Clocks::All, store, &file);
    let ada = server.client(&store.token("ada", &[]));
    let (mut events, mut last) = Events::of(&ada);
    // A change wakes the stream, which then reads the clock. The random part of its time is less than 6 minutes.
    for (minute, id) in [(30, 1), (53, 2)] {
        set_ahead(&file, Duration::from_secs(minute * 60));
        ada.plant(id, "Rose");
        last = events.wait_for_current(&ada, "/plants", &last);
    }
    set_ahead(&file, Duration::from_secs(61 * 60));
    ada.plant(3, "Rose");
    assert_eq!(events.next(), None);
});
