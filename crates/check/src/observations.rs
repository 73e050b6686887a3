//! Checks each response against the general rules, and records the first violation of each rule.

use serde_json::Value;

use crate::error::{CheckError, CheckResult};
use crate::response::Response;

/// Every error code of the contract.
const ERROR_CODES: &[i64] = &[
    40000, 40001, 40002, 40003, 40004, 40005, 40006, 40007, 40008, 40100, 40101, 40300, 40400, 40401, 40402, 40403,
    40500, 40800, 40900, 40901, 40902, 40903, 41300, 41500, 42200, 42900, 43100, 50000, 50300, 50301, 50700,
];

/// The first violation of each rule.
#[derive(Default)]
pub(crate) struct Observations {
    pub(crate) malformed_error: Option<CheckError>,
    pub(crate) server_error: Option<CheckError>,
    pub(crate) wrong_code: Option<CheckError>,
    pub(crate) extra_members: Option<CheckError>,
    pub(crate) no_request_id: Option<CheckError>,
    pub(crate) no_nosniff: Option<CheckError>,
}

fn record(place: &mut Option<CheckError>, outcome: CheckResult) {
    if let (None, Err(error)) = (&place, outcome) {
        *place = Some(error);
    }
}

impl Observations {
    pub(crate) fn observe(&mut self, method: &str, response: &Response) {
        record(&mut self.server_error, response.expect(response.status < 500, "no server error"));
        record(&mut self.no_request_id, response.expect(response.header("x-request-id").is_some(), "an X-Request-Id"));
        record(&mut self.no_nosniff, response.expect_header("x-content-type-options", "nosniff"));
        if method != "HEAD" && response.status >= 400 {
            self.observe_error(response);
        }
    }

    fn observe_error(&mut self, response: &Response) {
        let json = response.json().unwrap_or_default();
        let code = json.get("error").and_then(Value::as_i64);
        let is_int32 = code.is_some_and(|code| i32::try_from(code).is_ok());
        let message = json.get("message").and_then(Value::as_str);
        let shaped = is_int32 && message.is_some() && response.is_json_type();
        record(
            &mut self.malformed_error,
            response.expect(shaped, "an error as application/json: an int32 `error` and a string `message`"),
        );
        let known = |code: i64| ERROR_CODES.contains(&code) && code / 100 == i64::from(response.status);
        record(
            &mut self.wrong_code,
            response.expect(code.is_none_or(known), "a documented error code that starts with the status"),
        );
        let members = json.as_object().map_or(0, serde_json::Map::len);
        let is_explained = message.is_none_or(|message| !message.is_empty());
        record(
            &mut self.extra_members,
            response
                .expect(!shaped || (members == 2 && is_explained), "exactly `error` and a `message` that is not empty"),
        );
    }
}
