//! HTTP response: status, header fields and body.

use std::collections::BTreeMap;
use std::fmt::Write as _;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) reason: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Response {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("a body in UTF-8")
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("a JSON body, not {:?}", self.text()))
    }

    /// Returns the body as JSON; null for another body.
    pub(crate) fn json_or_null(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// Returns the error code, after checking that the response has exactly the error shape.
    #[track_caller]
    pub(crate) fn error(&self) -> i64 {
        let json = self.json();
        let shape = json.as_object().expect("an object");
        assert_eq!(shape.keys().collect::<Vec<_>>(), ["error", "message"], "{}", self.text());
        assert!(shape["message"].as_str().is_some_and(|message| !message.is_empty()));
        assert_eq!(self.header("content-type"), Some("application/json"));
        assert!(self.header("x-request-id").is_some());
        let code = shape["error"].as_i64().expect("an error code");
        assert_eq!(code / 100, i64::from(self.status), "the error code starts with the status");
        code
    }

    pub(crate) fn message(&self) -> String {
        self.json()["message"].as_str().expect("a message").to_owned()
    }

    /// Returns status, header fields and body, with placeholders for values that differ between runs. Fields that
    /// every response has once are listed only if there is not exactly one.
    pub(crate) fn wire(&self) -> String {
        let mut text = format!("{} {}\n", self.status, self.reason);
        for (name, value) in &self.headers {
            match name.as_str() {
                "date" | "x-request-id" => {}
                "x-content-type-options" if value == "nosniff" => {}
                "etag" => text.push_str("etag: (a tag)\n"),
                _ => drop(writeln!(text, "{name}: {value}")),
            }
        }
        for name in ["date", "x-request-id", "x-content-type-options"] {
            let count = self.headers.iter().filter(|(known, _)| known == name).count();
            if count != 1 {
                let _ = writeln!(text, "{count} fields {name}");
            }
        }
        text + "\n" + self.text()
    }

    /// Returns the URL of the next page from the `Link` header.
    pub(crate) fn next(&self) -> Option<String> {
        let link = self.header("link")?;
        let address = link.strip_prefix('<').and_then(|link| link.strip_suffix(">; rel=\"next\""));
        Some(address.unwrap_or_else(|| panic!("an RFC 8288 link, not {link}")).to_owned())
    }

    pub(crate) fn ids(&self) -> Vec<i64> {
        let json = self.json();
        json.as_array().expect("an array").iter().map(|plant| plant["id"].as_i64().expect("an id")).collect()
    }

    /// Returns the plants of a list with ids; `None` if the store was unavailable.
    #[track_caller]
    pub(crate) fn listed(&self) -> Option<BTreeMap<i64, String>> {
        if self.status != 200 {
            assert!(matches!(self.error(), 50300 | 50301), "unexpected response to a list: {}", self.wire());
            return None;
        }
        let json = self.json();
        let plants = json.as_array().expect("an array");
        let listed: BTreeMap<i64, String> = plants
            .iter()
            .map(|plant| (plant["id"].as_i64().expect("an id"), plant["name"].as_str().expect("a name").to_owned()))
            .collect();
        assert_eq!(listed.len(), plants.len(), "the list has an id twice: {}", self.text());
        Some(listed)
    }
}
