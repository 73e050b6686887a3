//! Client of `GET /events`.

use super::{Client, Connection, Response};

/// An open stream over HTTP/1.1.
pub(crate) struct Events {
    pub(crate) head: Response,
    connection: Connection,
}

impl Events {
    /// Opens a stream, which must succeed, and reads the first chunk: `retry`, and perhaps an event.
    #[track_caller]
    pub(crate) fn open(client: &Client, path: &str, headers: &[(&str, &str)]) -> (Self, Option<String>) {
        Self::try_open(client, path, headers).expect("the token is valid")
    }

    /// Opens a stream of the client's list, unless the token has expired before.
    #[track_caller]
    pub(crate) fn try_of(client: &Client) -> Option<Self> {
        Self::try_open(client, "/events", &[]).map(|(events, _)| events)
    }

    #[track_caller]
    fn try_open(client: &Client, path: &str, headers: &[(&str, &str)]) -> Option<(Self, Option<String>)> {
        let mut connection = client.connect();
        connection.send(client.bytes("GET", path, headers, None));
        let head = connection.read_head();
        if head.status == 401 {
            return None;
        }
        assert_eq!(head.status, 200, "{head:?}");
        let mut events = Self { head, connection };
        let first = events.chunk().expect("the first chunk");
        let first = first.strip_prefix("retry: 2000\n\n").expect("the time of reconnection");
        let tag = (!first.is_empty()).then(|| tag_of(first));
        Some((events, tag))
    }

    /// Opens a stream of the client's list; returns it and the tag of its first event.
    #[track_caller]
    pub(crate) fn of(client: &Client) -> (Self, String) {
        let (events, tag) = Self::open(client, "/events", &[]);
        (events, tag.expect("a first event"))
    }

    /// Returns the tag of the next event; `None` if the server has ended the stream. Skips comments.
    #[track_caller]
    pub(crate) fn next(&mut self) -> Option<String> {
        loop {
            match self.chunk()? {
                comment if comment.starts_with(':') => {}
                event => return Some(tag_of(&event)),
            }
        }
    }

    /// Reads events until the tag is the one that the list has now, which must be different from `before`.
    #[track_caller]
    pub(crate) fn wait_for_current(&mut self, client: &Client, path: &str, before: &str) -> String {
        loop {
            let tag = self.next().expect("an event");
            assert_ne!(tag, before, "an event reports a change");
            let list = client.call("GET", path, &[("If-None-Match", &tag)], None);
            if list.status == 304 {
                return tag;
            }
        }
    }

    fn chunk(&mut self) -> Option<String> {
        let chunk = self.connection.read_chunk().expect("a chunk, or the end of the stream");
        (!chunk.is_empty()).then(|| String::from_utf8(chunk).expect("text"))
    }
}

/// Returns the tag of an event, after checking its form.
#[track_caller]
fn tag_of(event: &str) -> String {
    let fields = event.strip_prefix("event: plants\nid: ").and_then(|rest| rest.strip_suffix("\n\n"));
    let (id, data) =
        fields.and_then(|rest| rest.split_once("\ndata: ")).unwrap_or_else(|| panic!("an event, not {event:?}"));
    let data: serde_json::Value = serde_json::from_str(data).expect("JSON");
    assert_eq!(data, serde_json::json!({ "etag": id }));
    id.to_owned()
}
