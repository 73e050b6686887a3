//! A real OpenID provider, `oidc-provider` of npm: `tests/node/oidc-provider.mjs`, run by Node.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use tempfile::NamedTempFile;

use super::tools::{external, in_tests};

/// The resources of the provider. Their tokens have the audiences `plants` and `other`.
pub(crate) const PLANTS: &str = "https://plants.example";
pub(crate) const OTHER: &str = "https://other.example";

/// A resource whose tokens have its URL as their audience.
pub(crate) const GARDEN: &str = "https://garden.example";

/// A running provider with the client `garden`; `register` adds another.
pub(crate) struct Provider {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    errors: NamedTempFile,
    issuer: String,
}

impl Provider {
    #[track_caller]
    pub(crate) fn start() -> Self {
        let libraries = in_tests("node/node_modules");
        assert!(libraries.is_dir(), "{} is missing: scripts/test installs it", libraries.display());
        let errors = NamedTempFile::new().expect("a file");
        let mut process = external("node")
            .arg(in_tests("node/oidc-provider.mjs"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(errors.reopen().expect("the file"))
            .spawn()
            .expect("node is missing: scripts/test installs it");
        let input = process.stdin.take().expect("standard input is piped");
        let output = BufReader::new(process.stdout.take().expect("standard output is piped"));
        let mut provider = Self { process, input, output, errors, issuer: String::new() };
        provider.issuer = provider.read_line();
        provider
    }

    /// Returns its URL, which is also the `iss` claim of its tokens.
    pub(crate) fn issuer(&self) -> &str {
        &self.issuer
    }

    /// Returns an access token of the client credentials grant, signed with this algorithm, or one that is no JWT for
    /// `opaque`.
    #[track_caller]
    pub(crate) fn token(&mut self, algorithm: &str, resource: &str) -> String {
        self.ask(&format!("token {algorithm} {resource}"))
    }

    /// Replaces all of its signing keys.
    #[track_caller]
    pub(crate) fn rotate_keys(&mut self) {
        assert_eq!(self.ask("rotate"), "rotated");
    }

    /// Adds the public client `console`, whose users come back to this URL from the provider's login page.
    #[track_caller]
    pub(crate) fn register(&mut self, url: &str) {
        assert_eq!(self.ask(&format!("register {url}")), "registered");
    }

    /// Executes a command of `tests/node/oidc-provider.mjs`.
    #[track_caller]
    pub(crate) fn ask(&mut self, line: &str) -> String {
        writeln!(self.input, "{line}").expect("the provider reads commands");
        self.read_line()
    }

    #[track_caller]
    fn read_line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("text");
        let errors = || std::fs::read_to_string(&self.errors).expect("text");
        assert!(line.ends_with('\n'), "the provider ended: {}", errors());
        line.trim_end().to_owned()
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
