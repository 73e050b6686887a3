//! What holds for every answer, whatever was asked: noted with each, and judged at the end.

use serde_json::Value;

use super::answer::Answer;
use super::{Check, Level, Outcome, Trouble};

/// Every error number of the contract.
const NUMBERS: &[i64] = &[
    40000, 40001, 40002, 40003, 40004, 40005, 40006, 40007, 40100, 40101, 40300, 40400, 40401, 40500, 40800, 40900,
    40901, 41300, 41500, 42200, 42900, 43100, 50000, 50300, 50301, 50700,
];

pub(super) const CHECKS: &[Check] = &[
    Check::new(Level::Interface, "error-shape", "errors are JSON with an int32 `error` and a `message`", |visit| {
        Box::pin(async { verdict(visit.seen.misshapen.as_ref()) })
    }),
    Check::new(Level::Interface, "no-server-error", "no request is answered with a server error", |visit| {
        Box::pin(async { verdict(visit.seen.server_error.as_ref()) })
    }),
    Check::new(
        Level::Full,
        "error-numbers",
        "error numbers are those of the table and start with the status",
        |visit| Box::pin(async { verdict(visit.seen.misnumbered.as_ref()) }),
    ),
    Check::new(
        Level::Full,
        "error-members",
        "an error has exactly two members, and its message says something",
        |visit| Box::pin(async { verdict(visit.seen.overloaded.as_ref()) }),
    ),
    Check::new(Level::Full, "request-id-always", "every answer has an X-Request-Id", |visit| {
        Box::pin(async { verdict(visit.seen.nameless.as_ref()) })
    }),
    Check::new(Level::Full, "nosniff-always", "every answer has X-Content-Type-Options: nosniff", |visit| {
        Box::pin(async { verdict(visit.seen.sniffable.as_ref()) })
    }),
];

/// The first answer, if any, that broke a rule of all.
#[derive(Default)]
pub(super) struct Seen {
    misshapen: Option<Trouble>,
    server_error: Option<Trouble>,
    misnumbered: Option<Trouble>,
    overloaded: Option<Trouble>,
    nameless: Option<Trouble>,
    sniffable: Option<Trouble>,
}

fn verdict(trouble: Option<&Trouble>) -> Outcome {
    trouble.map_or(Ok(()), |trouble| Err(trouble.clone()))
}

fn note(place: &mut Option<Trouble>, outcome: Outcome) {
    if let (None, Err(trouble)) = (&place, outcome) {
        *place = Some(trouble);
    }
}

impl Seen {
    pub(super) fn note(&mut self, method: &str, answer: &Answer) {
        note(&mut self.server_error, answer.expect(answer.status < 500, "no server error"));
        note(&mut self.nameless, answer.expect(answer.header("x-request-id").is_some(), "an X-Request-Id"));
        note(&mut self.sniffable, answer.expect_header("x-content-type-options", "nosniff"));
        if method != "HEAD" && answer.status >= 400 {
            self.note_error(answer);
        }
    }

    fn note_error(&mut self, answer: &Answer) {
        let json = answer.json().unwrap_or_default();
        let number = json.get("error").and_then(Value::as_i64);
        let is_int32 = number.is_some_and(|number| i32::try_from(number).is_ok());
        let message = json.get("message").and_then(Value::as_str);
        let shaped = is_int32 && message.is_some() && answer.is_json_type();
        note(
            &mut self.misshapen,
            answer.expect(shaped, "an error as application/json: an int32 `error` and a text `message`"),
        );
        let known = |number: i64| NUMBERS.contains(&number) && number / 100 == i64::from(answer.status);
        note(
            &mut self.misnumbered,
            answer.expect(number.is_none_or(known), "an error number of the table that starts with the status"),
        );
        let members = json.as_object().map_or(0, serde_json::Map::len);
        let says_something = message.is_none_or(|message| !message.is_empty());
        note(
            &mut self.overloaded,
            answer.expect(!shaped || (members == 2 && says_something), "`error` and a `message`, and nothing else"),
        );
    }
}
