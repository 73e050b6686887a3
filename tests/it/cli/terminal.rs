//! The command line on a terminal, and without one.

use std::process::Stdio;

use rstest::rstest;

use crate::support::tools::external;
use crate::support::{
    Client, CommandOutput, Connection, Engine, Store, Terminal, assert_contains, engine_test, free_port, tool_test,
    wait_for, wait_until,
};

// For example, the parent process may have closed its end of the pipe.
engine_test!(the_service_runs_with_its_output_closed, |store: &Store| {
    let free = std::net::SocketAddr::from(([127, 0, 0, 1], free_port()));
    let mut command = store.command(&["serve", "--listen", &free.to_string(), "--no-first-token"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    drop(child.stdout.take());
    wait_for("a response", || {
        let mut connection = Connection::try_open(free).ok()?;
        connection.try_send("GET /livez HTTP/1.1\r\nHost: x\r\n\r\n").ok()?;
        connection.try_read_response(false).ok().filter(|response| response.status == 200)
    });
    assert!(child.try_wait().unwrap().is_none());
    child.kill().unwrap();
    child.wait().unwrap();
});

// Closing the terminal window ends the service: it does not continue in the background. A SIGHUP while the terminal is
// open only reloads the certificate.
tool_test!(the_service_ends_with_its_terminal, requires_script, |store: &Store| {
    let mut terminal = Terminal::serve(store, &[]);
    terminal.signal("HUP");
    wait_until("the warning about SIGHUP without a certificate", || {
        terminal.screen().contains("no certificate to reload")
    });
    assert!(!terminal.service_has_ended());
    terminal.close();
    wait_until("the server to end", || terminal.service_has_ended());
    assert!(!store.file().with_extension("db-wal").exists(), "a clean stop removes the WAL");
});

tool_test!(service_started_with_nohup_outlives_its_terminal, requires_script, |store: &Store| {
    let mut terminal = Terminal::serve_ignoring_hangup(store);
    let anonymous = Client { address: terminal.address().unwrap(), token: None };
    terminal.close();
    for _ in 0..50 {
        assert_eq!(anonymous.get("/livez").status, 200);
    }
    assert!(!terminal.service_has_ended());
});

// A terminal that closes during a graceful stop does not cut off requests in flight.
tool_test!(requests_in_flight_are_finished_after_the_terminal_closes, requires_script, |store: &Store| {
    let token = store.token("ada", &[]);
    let mut terminal = Terminal::serve(store, &["--shutdown-grace", "100d"]);
    let client = Client { address: terminal.address().unwrap(), token: Some(token) };
    let mut connection = client.connect();
    let headers = [("Content-Type", "application/json"), ("Content-Length", "19"), ("Expect", "100-continue")];
    assert_eq!(connection.ask(client.bytes("POST", "/plants", &headers, None)).status, 100);
    terminal.signal("TERM");
    wait_until("the shutdown to begin", || terminal.screen().contains("shutting down: finishing"));
    terminal.close();
    assert_eq!(connection.ask(r#"{"id":1,"name":"a"}"#).status, 200);
    drop(connection);
    wait_until("the server to end", || terminal.service_has_ended());
});

#[rstest]
#[case::requires_script()]
fn a_request_is_a_short_line_on_a_terminal() {
    let request_line = |options: &[&str]| {
        let store = Store::new(Engine::Sqlite);
        let token = store.token("ada", &[]);
        let terminal = Terminal::serve(&store, options);
        let ada = Client { address: terminal.address().unwrap(), token: Some(token) };
        let response = ada.call("DELETE", "/plants/5", &[("X-Request-Id", "seen")], None);
        assert_eq!(response.status, 404);
        assert_eq!(ada.get("/livez").status, 200);
        let line = wait_for("the line of the request", || {
            let screen = terminal.raw_screen();
            screen.lines().find(|line| line.contains("DELETE")).map(|line| line.trim_end().to_owned())
        });
        (line, terminal.screen())
    };
    let (line, screen) = request_line(&[]);
    let words: Vec<&str> = line.split(' ').collect();
    let [time, "DELETE", "/plants/{id}", "\x1b[33m404\x1b[0m", duration, "ada"] = words[..] else {
        panic!("the line of a request, not {line:?}");
    };
    assert!(time.len() == 8 && time.split(':').count() == 3 && duration.ends_with("ms"), "{line:?}");
    assert!(!screen.contains("/livez"), "{screen}");
    let (line, _) = request_line(&["--log-level", "debug"]);
    let details = ["ada request_id=\"seen\" client=\"127.0.0.1\"", " error=40400 token_id=1 bytes=", " complete=true"];
    assert!(details.iter().all(|detail| line.contains(detail)), "{line:?}");
}

/// Returns the output of a command on a terminal.
fn on_a_terminal(store: &Store, arguments: &str, no_color: &str) -> String {
    let line = format!("{} {arguments}", env!("CARGO_BIN_EXE_plantstore"));
    let mut script = external("script");
    script.args(["--quiet", "--command", &line, "/dev/null"]).current_dir(store.directory()).stdin(Stdio::null());
    let output = script.env("TERM", "xterm").env("NO_COLOR", no_color).output();
    output.expect("script, from the package bsdutils").stdout_text()
}

tool_test!(errors_are_coloured_only_on_a_terminal, requires_script, |store: &Store| {
    for arguments in ["user list --store sqlite:missing.db", "serve --listen x"] {
        let coloured = on_a_terminal(store, arguments, "");
        assert!(coloured.starts_with("\x1b[31;1merror:\x1b[0m "), "{coloured:?}");
        let plain = on_a_terminal(store, arguments, "1");
        assert!(plain.starts_with("error: ") && !plain.contains('\x1b'), "NO_COLOR: {plain:?}");
        let words: Vec<&str> = arguments.split(' ').collect();
        assert!(!store.run(&words).stderr_text().contains('\x1b'), "not on a terminal");
    }
});

tool_test!(the_banner_is_coloured_on_a_terminal, requires_script, |store: &Store| {
    let terminal = Terminal::serve(store, &[]);
    assert!(terminal.raw_screen().contains(concat!("\x1b[1mplantstore ", env!("CARGO_PKG_VERSION"), "\x1b[0m")));
    assert_contains(terminal.screen(), concat!(env!("CARGO_PKG_VERSION"), " keeps its plants in sqlite:"));
});
