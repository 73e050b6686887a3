//! A real OpenID provider, `oidc-provider` of npm: `tests/node/oidc-provider.mjs`, run by Node.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use tempfile::NamedTempFile;

use super::tools::{external, in_tests};

/// The resources that it knows, whose tokens have the audiences `plants` and `other`.
pub(crate) const PLANTS: &str = "https://plants.example";
pub(crate) const OTHER: &str = "https://other.example";

/// A running provider with one client, `garden`.
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
        let input = process.stdin.take().expect("its input");
        let output = BufReader::new(process.stdout.take().expect("its output"));
        let mut provider = Self { process, input, output, errors, issuer: String::new() };
        provider.issuer = provider.read_line();
        provider
    }

    /// Its address, which is also its name in tokens.
    pub(crate) fn issuer(&self) -> &str {
        &self.issuer
    }

    /// An access token of the client credentials grant, signed with this algorithm; `opaque` for one that is not a JWT.
    #[track_caller]
    pub(crate) fn token(&mut self, algorithm: &str, resource: &str) -> String {
        self.ask(&format!("token {algorithm} {resource}"))
    }

    /// Replaces all of its signing keys.
    #[track_caller]
    pub(crate) fn rotate_keys(&mut self) {
        assert_eq!(self.ask("rotate"), "rotated");
    }

    #[track_caller]
    fn ask(&mut self, line: &str) -> String {
        writeln!(self.input, "{line}").expect("it reads");
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
