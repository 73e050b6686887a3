//! Clients of `GET /events` during a workload. What they conclude from events becomes part of its history.

use std::collections::{BTreeMap, HashMap};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::history::{Action, History, Operation};
use super::{Client, Connection, TIMEOUT, wait_for};

/// Pause before the next attempt to connect.
const PAUSE: Duration = Duration::from_millis(5);
const PATH: &str = "/plants?include=id";

/// The plants of a list: their names by id.
type List = BTreeMap<i64, String>;

/// Lists by user and entity tag; `None` if a tag had two lists: on Citus, a list may be newer than its tag.
#[derive(Default)]
pub(super) struct TaggedLists(Mutex<HashMap<(usize, String), Option<List>>>);

impl TaggedLists {
    pub(super) fn add(&self, user: usize, tag: &str, list: &List) {
        let mut lists = self.0.lock().expect("the lists");
        let known = lists.entry((user, tag.to_owned())).or_insert_with(|| Some(list.clone()));
        if known.as_ref() != Some(list) {
            *known = None;
        }
    }
}

/// A client that follows the events of one user on one node. It reconnects when its stream ends.
pub(super) struct Watcher<'a> {
    pub(super) user: usize,
    pub(super) client: Client,
    pub(super) history: &'a History,
    pub(super) lists: &'a TaggedLists,
    /// Tag of the last event.
    last: Mutex<String>,
    /// The open stream, so that another thread can end it.
    open: Mutex<Option<TcpStream>>,
    is_over: AtomicBool,
    /// Time and tag of each conditional request whose response was 304.
    unchanged: Mutex<Vec<(Duration, Duration, String)>>,
}

impl<'a> Watcher<'a> {
    pub(super) fn new(
        user: usize,
        token: &str,
        node: SocketAddr,
        history: &'a History,
        lists: &'a TaggedLists,
    ) -> Self {
        Self {
            user,
            client: Client { address: node, token: Some(token.to_owned()) },
            history,
            lists,
            last: Mutex::default(),
            open: Mutex::default(),
            is_over: AtomicBool::new(false),
            unchanged: Mutex::default(),
        }
    }

    /// Follows events until [`Self::finish`].
    pub(super) fn follow(&self) {
        while !self.is_over.load(Ordering::SeqCst) {
            if self.follow_stream().is_err() {
                std::thread::park_timeout(PAUSE);
            }
        }
    }

    fn follow_stream(&self) -> std::io::Result<()> {
        let mut stream = Connection::try_open_with(self.client.address, TIMEOUT)?;
        *self.open.lock().expect("the stream") = Some(stream.stream().try_clone()?);
        if self.is_over.load(Ordering::SeqCst) {
            return Ok(());
        }
        let last = self.last.lock().expect("the tag").clone();
        let condition = [("Last-Event-ID", last.as_str())];
        stream.try_send(self.client.bytes("GET", "/events", &condition[..usize::from(!last.is_empty())], None))?;
        if stream.try_read_head()?.status != 200 {
            return Err(std::io::ErrorKind::Other.into());
        }
        loop {
            let chunk = String::from_utf8(stream.read_chunk()?).expect("text");
            if chunk.is_empty() {
                return Ok(());
            }
            if let Some(tag) = chunk.lines().find_map(|line| line.strip_prefix("id: ")) {
                tag.clone_into(&mut self.last.lock().expect("the tag"));
                // A list that fails is not recorded, because the connection of the event remains.
                let _ = self.list(tag);
            }
        }
    }

    /// Requests the list unless it is still that of an event.
    fn list(&self, tag: &str) -> std::io::Result<()> {
        let called = self.history.now();
        let mut connection = Connection::try_open_with(self.client.address, TIMEOUT)?;
        connection.try_send(self.client.bytes("GET", PATH, &[("If-None-Match", tag)], None))?;
        let response = connection.try_read_response(false)?;
        let returned = self.history.now();
        if response.status == 304 {
            self.unchanged.lock().expect("the requests").push((called, returned, tag.to_owned()));
        } else if let Some(list) = response.listed() {
            self.lists.add(self.user, response.header("etag").expect("every list has an entity tag"), &list);
            self.record(called, returned, list);
        }
        Ok(())
    }

    fn record(&self, called: Duration, returned: Duration, list: List) {
        let action = Action::List(Some(list));
        self.history.record(Operation { user: self.user, called, returned, action });
    }

    /// Waits, after the last write, until the last change is reported, and ends the stream. Records the lists that were
    /// unchanged since an event, as far as another client has read them.
    #[track_caller]
    pub(super) fn finish(&self) {
        wait_for("an event with the current tag", || {
            let list = self.client.get(PATH);
            let is_current = list.header("etag") == Some(&self.last.lock().expect("the tag"));
            (list.status == 200 && is_current).then_some(())
        });
        self.end();
        let lists = self.lists.0.lock().expect("the lists");
        for (called, returned, tag) in self.unchanged.lock().expect("the requests").drain(..) {
            if let Some(Some(list)) = lists.get(&(self.user, tag)) {
                self.record(called, returned, list.clone());
            }
        }
    }

    /// Ends the stream.
    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::SeqCst);
        if let Some(stream) = &*self.open.lock().expect("the stream") {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// Ends the streams also if the test fails: a scope waits for all of its threads.
pub(super) struct Watchers<'a>(pub(super) &'a [Watcher<'a>]);

impl Drop for Watchers<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(Watcher::end);
    }
}
