//! Responses of the server, and expectations: an `expect` either holds or reports what was expected and what was received.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::verdict::{CheckResult, Verdict};

const ERROR_CODES: &[i64] = &[
    40000, 40001, 40002, 40003, 40004, 40005, 40006, 40007, 40008, 40100, 40101, 40300, 40400, 40401, 40402, 40403,
    40500, 40800, 40900, 40901, 40902, 40903, 41300, 41500, 42200, 42900, 43100, 50000, 50300, 50301, 50700,
];
/// Characters of a text from the server that a message shows.
const SHOWN_CHARS: usize = 200;

#[derive(Clone, Debug)]
pub(crate) struct Response {
    pub(crate) request: String,
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

/// A plant in a response. It is parsed leniently, so that one malformed field fails one check and not all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListedPlant {
    pub(crate) id: Option<i64>,
    pub(crate) name: String,
    pub(crate) tag: Option<String>,
}

impl Response {
    /// Removes the token, so that no message shows it.
    pub(crate) fn new(request: String, response: &plantstore_client::Response, token: Option<&str>) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let redacted = |text: String| token.map_or_else(|| text.clone(), |token| text.replace(token, "(the token)"));
        let fields = response.headers.iter();
        let has_token = token.is_some_and(|token| text(&response.body).contains(token));
        Self {
            request,
            status: response.status.as_u16(),
            headers: fields.map(|(name, value)| (name.to_string(), redacted(text(value.as_bytes())))).collect(),
            body: if has_token { redacted(text(&response.body)).into_bytes() } else { response.body.to_vec() },
        }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    pub(crate) fn failure(&self, expected: impl std::fmt::Display) -> Verdict {
        let body = String::from_utf8_lossy(&self.body);
        let got = if body.is_empty() { String::new() } else { format!(" with {}", excerpt(&body)) };
        Verdict::Fails(format!("{}: expected {expected}, got {}{got}", excerpt(&self.request), self.status))
    }

    pub(crate) fn expect(&self, holds: bool, expected: impl std::fmt::Display) -> CheckResult {
        if holds { Ok(()) } else { Err(self.failure(expected)) }
    }

    pub(crate) fn expect_status(&self, status: u16) -> CheckResult {
        self.expect(self.status == status, format_args!("status {status}"))
    }

    /// Expects any status of success; the exact one is a check of its own.
    pub(crate) fn expect_success(&self) -> CheckResult {
        self.expect(self.is_success(), "success")
    }

    pub(crate) fn expect_header(&self, name: &str, value: &str) -> CheckResult {
        let got = self.header(name);
        let found = got.map_or_else(|| "none".to_owned(), |got| format!("`{}`", excerpt(got)));
        self.expect(got == Some(value), format_args!("the header `{name}: {value}` (found {found})"))
    }

    /// Expects an error code and the status that it starts with.
    pub(crate) fn expect_error(&self, code: i64) -> CheckResult {
        let found = self.json().ok().and_then(|json| json["error"].as_i64());
        let status = code / 100;
        let holds = i64::from(self.status) == status && found == Some(code);
        self.expect(holds, format_args!("status {status} with the error {code}"))
    }

    pub(crate) fn json(&self) -> CheckResult<Value> {
        serde_json::from_slice(&self.body).map_err(|_| self.failure("a JSON body"))
    }

    pub(crate) fn is_json_type(&self) -> bool {
        let essence = self.header("content-type").and_then(|value| value.split(';').next());
        essence.is_some_and(|essence| essence.trim().eq_ignore_ascii_case("application/json"))
    }

    pub(crate) fn plant(&self) -> CheckResult<ListedPlant> {
        self.expect_success()?;
        ListedPlant::of(&self.json()?).ok_or_else(|| self.failure("a plant with a `name`"))
    }

    pub(crate) fn plants(&self) -> CheckResult<Vec<ListedPlant>> {
        self.expect_success()?;
        let json = self.json()?;
        let plants = json.as_array().and_then(|array| array.iter().map(ListedPlant::of).collect());
        plants.ok_or_else(|| self.failure("an array of plants with a `name`"))
    }
}

impl ListedPlant {
    fn of(json: &Value) -> Option<Self> {
        let id = match json.get("id") {
            Some(id) => Some(id.as_i64()?),
            None => None,
        };
        let tag = json.get("tag").and_then(Value::as_str).map(str::to_owned);
        Some(Self { id, name: json.get("name")?.as_str()?.to_owned(), tag })
    }
}

/// The first violation of each rule that is about all responses, by the id of its check.
#[derive(Default)]
pub(crate) struct Observations(BTreeMap<&'static str, Verdict>);

impl Observations {
    pub(crate) fn result(&self, id: &str) -> CheckResult {
        self.0.get(id).map_or(Ok(()), |violation| Err(violation.clone()))
    }

    pub(crate) fn observe(&mut self, method: &str, response: &Response) {
        self.record("no-server-error", response.expect(response.status < 500, "no server error"));
        let has_request_id = response.header("x-request-id").is_some();
        self.record("request-id-always", response.expect(has_request_id, "an X-Request-Id"));
        self.record("nosniff-always", response.expect_header("x-content-type-options", "nosniff"));
        if method != "HEAD" && response.status >= 400 {
            self.observe_error(response);
        }
    }

    fn observe_error(&mut self, response: &Response) {
        let json = response.json().unwrap_or_default();
        let code = json["error"].as_i64();
        let message = json["message"].as_str();
        let is_int32 = code.is_some_and(|code| i32::try_from(code).is_ok());
        let is_shaped = is_int32 && message.is_some() && response.is_json_type();
        let shape = "an error as application/json: an int32 `error` and a string `message`";
        self.record("error-shape", response.expect(is_shaped, shape));
        let is_known = |code: i64| ERROR_CODES.contains(&code) && code / 100 == i64::from(response.status);
        let documented = "a documented error code that starts with the status";
        self.record("error-codes", response.expect(code.is_none_or(is_known), documented));
        let is_complete = json.as_object().is_some_and(|members| members.len() == 2) && message != Some("");
        let members = "exactly `error` and a `message` that is not empty";
        self.record("error-members", response.expect(!is_shaped || is_complete, members));
    }

    fn record(&mut self, id: &'static str, result: CheckResult) {
        if let Err(violation) = result {
            self.0.entry(id).or_insert(violation);
        }
    }
}

/// Shortens a text from the server for a message, and replaces control characters.
pub(crate) fn excerpt(text: &str) -> String {
    let plain = |character: char| if character.is_control() { '\u{fffd}' } else { character };
    let mut short: String = text.chars().take(SHOWN_CHARS).map(plain).collect();
    if text.chars().nth(SHOWN_CHARS).is_some() {
        short.push('…');
    }
    short
}
