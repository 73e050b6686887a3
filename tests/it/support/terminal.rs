//! Service on a terminal.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Stdio};

use super::postgres::ended;
use super::tools::external;
use super::{Site, signal, wait_for};

/// A terminal, which `script` plays, and the service on it; both end with it.
pub(crate) struct Terminal {
    script: Child,
    screen: PathBuf,
    id: PathBuf,
}

impl Terminal {
    /// Starts the service on a terminal of its own, and waits until it listens.
    pub(crate) fn serve(site: &Site, options: &[&str]) -> Self {
        // The tests may have been started with other signal dispositions.
        let store = site.url();
        Self::start(site, "--default-signal=HUP", &[&["--store", &store], options].concat())
    }

    /// The same with the default store of the service.
    pub(crate) fn serve_default_store(site: &Site, options: &[&str]) -> Self {
        Self::start(site, "--default-signal=HUP", options)
    }

    /// The same as `nohup` does it: the service is to go on without its terminal.
    pub(crate) fn serve_for_good(site: &Site) -> Self {
        Self::start(site, "--ignore-signal=HUP", &["--store", &site.url()])
    }

    fn start(site: &Site, hangups: &str, options: &[&str]) -> Self {
        let [screen, id] = ["screen", "id"].map(|name| site.directory().join(name));
        let program = env!("CARGO_BIN_EXE_plantstore");
        let serve = format!(
            "env {hangups} --unset=NO_COLOR TERM=xterm {program} serve --listen 127.0.0.1:0 {}",
            options.join(" ")
        );
        let script = external("script")
            .args(["--quiet", "--flush", "--command", &format!("echo $$ > {}; exec {serve}", id.display())])
            .arg(&screen)
            .current_dir(site.directory())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("script, from the package bsdutils, runs");
        let terminal = Self { script, screen, id };
        wait_for("the service", || terminal.address());
        terminal
    }

    /// Address of the service, once it prints it.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.address_after("Listening on ")
    }

    /// Address of its metrics, once it prints it.
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

    /// All that was written on it.
    pub(crate) fn raw_screen(&self) -> String {
        std::fs::read_to_string(&self.screen).expect("what was written")
    }

    /// All that was written on it, without colours.
    pub(crate) fn screen(&self) -> String {
        without_colours(&self.raw_screen())
    }

    pub(crate) fn signal(&self, name: &str) {
        signal(self.service().expect("it has started"), name);
    }

    pub(crate) fn service_has_ended(&self) -> bool {
        self.service().is_none_or(ended)
    }

    /// Closes it, as the window of a terminal is closed.
    pub(crate) fn close(&mut self) {
        self.script.kill().expect("script is ended");
        self.script.wait().expect("its end");
    }
}

/// A text without the escape sequences that colour it.
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
