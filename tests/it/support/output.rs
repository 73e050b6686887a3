//! Result of a command.

use std::process::Output;

use serde_json::Value;

/// Assertions about a command that has ended.
pub(crate) trait CommandOutput {
    fn stdout_text(&self) -> String;
    fn stderr_text(&self) -> String;
    /// Returns standard output, after checking that the command succeeded.
    fn success(&self) -> String;
    /// Returns standard error, after checking that the command succeeded.
    fn notes(&self) -> String;
    /// Returns standard error, after checking the exit code.
    fn failure(&self, code: i32) -> String;
    /// Returns standard output as JSON, after checking that the command succeeded.
    fn json(&self) -> Value;
}

impl CommandOutput for Output {
    fn stdout_text(&self) -> String {
        String::from_utf8(self.stdout.clone()).expect("UTF-8")
    }

    fn stderr_text(&self) -> String {
        String::from_utf8(self.stderr.clone()).expect("UTF-8")
    }

    #[track_caller]
    fn success(&self) -> String {
        assert!(self.status.success(), "{}\n{}\n{}", self.status, self.stdout_text(), self.stderr_text());
        self.stdout_text()
    }

    #[track_caller]
    fn notes(&self) -> String {
        self.failure(0)
    }

    #[track_caller]
    fn failure(&self, code: i32) -> String {
        assert_eq!(self.status.code(), Some(code), "{}\n{}", self.stdout_text(), self.stderr_text());
        self.stderr_text()
    }

    #[track_caller]
    fn json(&self) -> Value {
        serde_json::from_str(&self.success()).expect("JSON")
    }
}

/// Asserts that a text contains these words.
#[track_caller]
pub(crate) fn assert_contains(text: impl AsRef<str>, words: &str) {
    let text = text.as_ref();
    assert!(text.contains(words), "no {words:?} in {text}");
}
