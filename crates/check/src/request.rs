//! Requests of the checks.

use serde_json::json;

#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) method: &'static str,
    pub(crate) path: String,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Option<String>,
}

impl Request {
    pub(crate) fn new(method: &'static str, path: impl Into<String>) -> Self {
        Self { method, path: path.into(), headers: Vec::new(), body: None }
    }

    /// Returns a create with this body, as JSON.
    pub(crate) fn create(body: impl Into<String>) -> Self {
        Self::json("POST", "/plants", body)
    }

    /// Returns a request with this body, as JSON.
    pub(crate) fn json(method: &'static str, path: impl Into<String>, body: impl Into<String>) -> Self {
        Self::new(method, path).with("content-type", "application/json").body(body)
    }

    pub(crate) fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    fn body(mut self, body: impl Into<String>) -> Self {
        self.body = Some(body.into());
        self
    }

    /// Describes the request for messages, without its header fields, which hold the token.
    pub(crate) fn describe(&self) -> String {
        match &self.body {
            Some(body) => format!("{} {} with {body}", self.method, self.path),
            None => format!("{} {}", self.method, self.path),
        }
    }
}

/// Returns the body of a create.
pub(crate) fn plant_json(id: i64, name: &str, tag: Option<&str>) -> String {
    match tag {
        Some(tag) => json!({ "id": id, "name": name, "tag": tag }).to_string(),
        None => json!({ "id": id, "name": name }).to_string(),
    }
}
