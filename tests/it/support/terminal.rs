//! The server on a pseudo-terminal.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Stdio};

use super::postgres::ended;
use super::tools::external;
use super::{Store, signal, wait_for};

/// A pseudo-terminal by `script`, and the server on it. Both end when this is dropped.
pub(crate) struct Terminal {
    script: Child,
    screen: PathBuf,
    id: PathBuf,
}

impl Terminal {
    /// Starts the server on a new terminal, and waits until it listens.
    pub(crate) fn serve(store: &Store, options: &[&str]) -> Self {
        // The test process may ignore SIGHUP, and child processes inherit that.
        let url = store.url();
        Self::start(store, "--default-signal=HUP", &[&["--store", &url], options].concat())
    }

    /// Starts the server without `--store`.
    pub(crate) fn serve_default_store(store: &Store, options: &[&str]) -> Self {
        Self::start(store, "--default-signal=HUP", options)
    }

    /// Starts the server with SIGHUP ignored, as `nohup` does.
    pub(crate) fn serve_ignoring_hangup(store: &Store) -> Self {
        Self::start(store, "--ignore-signal=HUP", &["--store", &store.url()])
    }

    fn start(store: &Store, hangups: &str, options: &[&str]) -> Self {
        let [screen, id] = ["screen", "id"].map(|name| store.directory().join(name));
        let program = env!("CARGO_BIN_EXE_plantstore");
        let serve = format!(
            "env {hangups} --unset=NO_COLOR TERM=xterm PLANTSTORE_STORE_TIMEOUT=60s {program} serve --listen 127.0.0.1:0 {}",
            options.join(" ")
        );
        let script = external("script")
            .args(["--quiet", "--flush", "--command", &format!("echo $$ > {}; exec {serve}", id.display())])
            .arg(&screen)
            .current_dir(store.directory())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("script, from the package bsdutils, runs");
        let terminal = Self { script, screen, id };
        wait_for("the server to listen", || terminal.address());
        terminal
    }

    /// Returns the address of the server after the server has printed it.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.address_after("Listening on ")
    }

    /// Returns the address of the metrics listener after the server has printed it.
    pub(crate) fn metrics_address(&self) -> Option<SocketAddr> {
        self.address_after("Metrics on ")
    }

    fn address_after(&self, words: &str) -> Option<SocketAddr> {
        let screen = without_colours(&std::fs::read_to_string(&self.screen).ok()?);
        let line = screen.split(words).nth(1)?.split_once('\n')?.0;
        line.split("://").nth(1)?.trim_end().trim_end_matches("/metrics").parse().ok()
    }

    fn service(&self) -> Option<u32> {
        std::fs::read_to_string(&self.id).ok()?.trim_end().parse().ok()
    }

    /// Returns all output, with escape sequences.
    pub(crate) fn raw_screen(&self) -> String {
        std::fs::read_to_string(&self.screen).expect("the output")
    }

    /// Returns all output without colours.
    pub(crate) fn screen(&self) -> String {
        without_colours(&self.raw_screen())
    }

    pub(crate) fn signal(&self, name: &str) {
        signal(self.service().expect("the server has started"), name);
    }

    pub(crate) fn service_has_ended(&self) -> bool {
        self.service().is_none_or(ended)
    }

    /// Closes the terminal, so that the server gets SIGHUP.
    pub(crate) fn close(&mut self) {
        self.script.kill().expect("script is ended");
        self.script.wait().expect("script ends");
    }
}

/// Removes the escape sequences for colours.
fn without_colours(text: &str) -> String {
    let mut pieces = text.split("\x1b[");
    let first = pieces.next().unwrap_or_default().to_owned();
    pieces.fold(first, |plain, piece| plain + piece.split_once('m').map_or(piece, |(_, rest)| rest))
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if !self.service_has_ended() {
            self.signal("KILL");
        }
        let _ = self.script.kill();
        let _ = self.script.wait();
    }
}
