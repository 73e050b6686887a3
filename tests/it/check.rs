//! `plantstore check`: the service passes it, each violation of a server is reported, and no test data is left behind.

mod violations;

use std::collections::BTreeSet;
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::Value;

use crate::support::issuer::Authority;
use crate::support::rewriting_proxy::{ProxiedRequest, Reply, RewritingProxy, Upstream};
use crate::support::tools::external;
use crate::support::transfer::feed;
use crate::support::{
    Client, CommandOutput, Engine, Server, Service, Store, assert_contains, engine_test, signal, sqlite_test, tool_test,
};
use crate::tokens::ALL_SCOPES;

/// Plants of the checked user, which must be unchanged after the check. They include ids that the checks use if
/// they are free.
const OWN: [i64; 4] = [i64::MIN, 0, 7, i64::MAX];

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn command(token: &str, url: &str, more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_plantstore"));
    command.args(["check", url]);
    if !more.contains(&"--timeout") {
        // On a machine that is busy with other tests, a response may be slow.
        command.args(["--timeout", "60s"]);
    }
    command.args(more).env("PLANTSTORE_TOKEN", token).stdin(Stdio::null());
    command
}

fn check(token: &str, url: &str, more: &[&str]) -> Output {
    command(token, url, more).output().expect("the check runs")
}

fn url(server: &Server) -> String {
    format!("http://{}", server.address())
}

/// Returns the name and the verdict of each check.
fn verdicts(output: &Output) -> Vec<(String, String)> {
    let json: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", output.stderr_text()));
    let word = |check: &Value, name: &str| check[name].as_str().unwrap().to_owned();
    let checks = json["checks"].as_array().unwrap();
    let found: Vec<_> = checks.iter().map(|check| (word(check, "check"), word(check, "verdict"))).collect();
    let names: BTreeSet<_> = found.iter().map(|(name, _)| name).collect();
    assert_eq!(names.len(), found.len(), "names are unique");
    found
}

fn with_verdict(output: &Output, verdict: &str) -> BTreeSet<String> {
    verdicts(output).into_iter().filter(|(_, found)| found == verdict).map(|(check, _)| check).collect()
}

fn names(words: &[&str]) -> BTreeSet<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// Creates a user with plants of these ids, and returns a client.
fn user_with_plants(store: &Store, server: &Server, user: &str, own: &[i64]) -> Client {
    let client = server.client(&store.token(user, &["--scope", ALL_SCOPES]));
    for id in own {
        client.plant(*id, &format!("own {id}"));
    }
    client
}

fn token(client: &Client) -> &str {
    client.token.as_deref().unwrap()
}

engine_test!(service_passes_every_check, |Service { store, server }: &Service| {
    let ada = user_with_plants(store, server, "ada", &OWN);
    let before = ada.get("/plants?include=id").body;
    let output = check(token(&ada), &url(server), &[]);
    let table = output.success();
    let head = "VERDICT         CHECK                       WHAT MUST HOLD\nholds           create-response  ";
    assert!(table.starts_with(head), "{table}");
    let holding = table.matches("\nholds ").count();
    let summary = format!("keeps the contract: {holding} hold, 0 fail, 1 not applicable, 0 untried\n");
    assert!(table.ends_with(&format!("{} {summary}", url(server))), "{table}");
    assert!(!table.contains('\u{1b}') && !table.contains(token(&ada)));
    assert_eq!(ada.get("/plants?include=id").body, before, "the check deletes its own plants and no others");

    let json = check(token(&ada), &url(server), &["--level", "interface", "--json"]).json();
    assert_eq!((&json["level"], &json["keeps_the_contract"]), (&"interface".into(), &true.into()));
    let checks = json["checks"].as_array().unwrap();
    assert!(checks.len() >= 15 && checks.iter().all(|check| check["level"] == "interface"), "{json}");
    let [create, ..] = &checks[..] else { panic!("checks") };
    assert_eq!(
        (&create["about"], &create["verdict"], &create["detail"]),
        (&"create".into(), &"holds".into(), &Value::Null)
    );
    assert_eq!(ada.get("/plants?include=id").body, before);
});

engine_test!(token_with_few_scopes_runs_the_checks_they_allow, |Service { store, server }: &Service| {
    for (scope, holds, not_applicable) in [
        ("plants:read", "list-response", "create-response"),
        ("plants:write", "access-scope", "create-response"),
        ("plants:delete", "delete-invalid-id", "list-response"),
    ] {
        let token = store.token("ada", &["--scope", scope]);
        let output = check(&token, &url(server), &["--json"]);
        assert_eq!(output.status.code(), Some(0), "{scope}: {}", output.stdout_text());
        assert!(with_verdict(&output, "holds").contains(holds), "{scope}: {}", output.stdout_text());
        assert!(with_verdict(&output, "not applicable").contains(not_applicable), "{scope}");
    }
    assert_eq!(server.client(&store.token("ada", &[])).ids(), [0_i64; 0], "a check that cannot delete creates nothing");
});

engine_test!(check_does_not_read_a_long_list_to_its_end, |Service { store, server }: &Service| {
    let token = store.token("ada", &["--scope", ALL_SCOPES]);
    // More plants than a check reads.
    let all = 25_000;
    let columns = match store.engine {
        Engine::Sqlite => format!(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {all}) \
            INSERT INTO plants (user_id, plant_id, name, version) SELECT 1, i, printf('%0200d', i), 0 FROM n"
        ),
        Engine::Postgres => format!(
            "INSERT INTO plants (user_id, plant_id, name, version) \
            SELECT 1, i, lpad(i::text, 200, '0'), 0 FROM generate_series(1, {all}) i"
        ),
    };
    store.execute(&columns);
    let output = check(&token, &url(server), &["--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", output.stdout_text());
    let not_applicable = with_verdict(&output, "not applicable");
    assert_eq!(not_applicable, names(&["access-scope", "page-walk"]), "{}", output.stdout_text());
    assert_eq!(store.rows("SELECT count(*) FROM plants"), [all]);
});

engine_test!(check_passes_while_other_clients_write, |Service { store, server }: &Service| {
    let ada = user_with_plants(store, server, "ada", &OWN);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for id in (1_000..).take_while(|_| !stop.load(Ordering::Relaxed)) {
                ada.plant(id, "in between");
                assert_eq!(ada.delete(id).status, 204);
            }
        });
        let output = check(token(&ada), &url(server), &["--json"]);
        stop.store(true, Ordering::Relaxed);
        assert_eq!(output.status.code(), Some(0), "{}", output.stdout_text());
    });
    assert_eq!(ada.ids(), OWN);
});

engine_test!(check_waits_for_the_rate_limit, |store: &Store| {
    let server = store.serve(&["--rate-limit", "20/s", "--rate-burst", "150"]);
    check(&store.token("ada", &[]), &url(&server), &["--json"]).success();
});

// Control for the tests with violations: the proxy itself does not break a check.
sqlite_test!(proxy_without_a_violation_passes_every_check, |Service { store, server }: &Service| {
    let proxy = RewritingProxy::start(server.address(), |request, server| Reply::Response(server.send(request)));
    check(&store.token("ada", &[]), &proxy.url(), &[]).success();
});

// Requests reach different nodes: a token that one has revoked is valid on the other for a moment.
engine_test!(check_passes_with_two_nodes_behind_a_balancer, |store: &Store| {
    let (server, other) = (store.serve(&[]), store.serve(&[]));
    let ada = user_with_plants(store, &server, "ada", &OWN);
    let other = Upstream::at(other.address());
    let balancer = RewritingProxy::start(server.address(), move |request, server| {
        let node = if request.is("GET", "/me") { other } else { server };
        Reply::Response(node.send(request))
    });
    let output = check(token(&ada), &balancer.url(), &["--json"]);
    assert_eq!(with_verdict(&output, "fails"), names(&[]), "{}", output.stdout_text());
});

sqlite_test!(check_ends_when_the_server_hangs, |Service { store, server }: &Service| {
    let ada = user_with_plants(store, server, "ada", &OWN);
    let proxy = RewritingProxy::start(server.address(), |request, server| {
        if request.method == "HEAD" { Reply::Silence } else { Reply::Response(server.send(request)) }
    });
    let output = check(token(&ada), &proxy.url(), &["--json", "--timeout", "2s"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(with_verdict(&output, "fails").contains("list-head"), "{}", output.stdout_text());
    // The server responds to the first three requests, which determine the scopes of the token, and then to none.
    let requests = AtomicUsize::new(0);
    let proxy = RewritingProxy::start(server.address(), move |request, server| {
        if requests.fetch_add(1, Ordering::Relaxed) < 3 {
            Reply::Response(server.send(request))
        } else {
            Reply::Silence
        }
    });
    let output = check(token(&ada), &proxy.url(), &["--json", "--timeout", "2s"]);
    assert_eq!(output.status.code(), Some(1));
    let of_any_response = ["no-server-error", "nosniff-always", "request-id-always"];
    let of_errors = ["error-members", "error-codes", "error-shape"];
    assert_eq!(with_verdict(&output, "holds"), names(&[of_any_response, of_errors].concat()));
    assert!(with_verdict(&output, "untried").len() > 40);
    assert_contains(output.stdout_text(), "possibly left on the server: the plants -");
    assert_eq!(ada.ids(), OWN);
});

// A missing response does not mean a missing scope: the checks that need the scope still run.
sqlite_test!(missing_response_is_not_a_missing_scope, |Service { store, server }: &Service| {
    let ada = user_with_plants(store, server, "ada", &OWN);
    // The first three requests determine the scopes of the token. The second and the third get no response.
    let requests = AtomicUsize::new(0);
    let proxy = RewritingProxy::start(server.address(), move |request, server| {
        if [1, 2].contains(&requests.fetch_add(1, Ordering::Relaxed)) {
            Reply::Cut
        } else {
            Reply::Response(server.send(request))
        }
    });
    let output = check(token(&ada), &proxy.url(), &["--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", output.stdout_text());
    assert_eq!(with_verdict(&output, "not applicable"), names(&["access-scope"]), "{}", output.stdout_text());
    assert_eq!(ada.ids(), OWN);
});

// A create without a response may take effect later. The cleanup deletes its plant in that case, too.
sqlite_test!(plant_of_a_delayed_create_is_deleted, |Service { store, server }: &Service| {
    for (number, after) in ["/plants/-", "/plants?include=id"].into_iter().enumerate() {
        let ada = user_with_plants(store, server, &format!("user-{number}"), &OWN);
        let delayed = DelayedCreate::default();
        let proxy =
            RewritingProxy::start(server.address(), move |request, server| delayed.serve(request, server, after));
        let output = check(token(&ada), &proxy.url(), &["--json"]);
        assert_eq!(with_verdict(&output, "fails"), names(&["create-location"]), "{}", output.stdout_text());
        assert!(with_verdict(&output, "holds").contains("nothing-left"), "{}", output.stdout_text());
        assert_eq!(ada.ids(), OWN, "after {after}");
    }
});

/// Holds back one create and forwards it to the server later.
#[derive(Default)]
struct DelayedCreate {
    held: Mutex<Option<ProxiedRequest>>,
    delete_seen: AtomicBool,
}

impl DelayedCreate {
    /// Forwards a request. The first request to a path that starts with `after`, from the delete of the held plant on,
    /// is followed by the held create.
    fn serve(&self, request: &ProxiedRequest, server: Upstream, after: &str) -> Reply {
        let plant = request.json().unwrap_or_default();
        if plant["name"].as_str().is_some_and(|name| name.ends_with(" location")) {
            *self.held.lock().unwrap() = Some(request.clone());
            return Reply::Cut;
        }
        let response = server.send(request);
        let mut held = self.held.lock().unwrap();
        let id = held.as_ref().and_then(ProxiedRequest::json).map(|plant| plant["id"].to_string());
        if id.is_some_and(|id| request.is("DELETE", &format!("/plants/{id}"))) {
            self.delete_seen.store(true, Ordering::Relaxed);
        }
        if self.delete_seen.load(Ordering::Relaxed) && request.path.starts_with(after) {
            held.take().map(|create| server.send(&create));
        }
        Reply::Response(response)
    }
}

// If a create may take effect after the cleanup, the check reports its plant.
sqlite_test!(create_of_unknown_outcome_is_reported, |Service { store, server }: &Service| {
    let ada = user_with_plants(store, server, "ada", &OWN);
    let proxy = RewritingProxy::start(server.address(), |request, server| {
        let never = text(&request.body).contains(" location\"");
        if never { Reply::Cut } else { Reply::Response(server.send(request)) }
    });
    let output = check(token(&ada), &proxy.url(), &["--json"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(with_verdict(&output, "fails"), names(&["create-location"]), "{}", output.stdout_text());
    assert_eq!(with_verdict(&output, "untried"), names(&["nothing-left"]), "{}", output.stdout_text());
    assert_contains(output.stdout_text(), ", whose creates got no response");
    assert_eq!(ada.ids(), OWN);
});

#[test]
fn interrupted_check_deletes_its_plants() {
    for name in ["INT", "TERM"] {
        let store = Store::new(Engine::Sqlite);
        let server = store.serve(&[]);
        let ada = user_with_plants(&store, &server, "ada", &OWN);
        let held = |request: &ProxiedRequest, server: Upstream| {
            if request.method == "HEAD" { Reply::Silence } else { Reply::Response(server.send(request)) }
        };
        let proxy = RewritingProxy::start(server.address(), held);
        let mut child = command(token(&ada), &proxy.url(), &["--json", "--timeout", "60s"]);
        let child = child.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // The fixture plants exist, and the checks of lists have begun.
        server.wait_for_log("\"status\":304");
        assert!(ada.ids().len() > OWN.len());
        signal(child.id(), name);
        let output = child.wait_with_output().unwrap();
        assert_contains(output.failure(1), "interrupted: deleting the created plants");
        assert!(with_verdict(&output, "untried").contains("retry-create"), "{}", output.stdout_text());
        // The proxy may lose the response to the body that is too large, if the server closes the connection first. Then the
        // check cannot know that this plant does not appear later.
        let holds = with_verdict(&output, "holds");
        let is_known = holds.contains("reject-too-large");
        assert_eq!(holds.contains("nothing-left"), is_known, "{}", output.stdout_text());
        assert_eq!(ada.ids(), OWN);
    }
}

sqlite_test!(a_token_is_never_shown, |Service { store, server }: &Service| {
    let ada = user_with_plants(store, server, "ada", &OWN);
    // The server returns the token in a header field of each response, and in the body of each error.
    let proxy = RewritingProxy::start(server.address(), |request, server| {
        let bearer = request.header("authorization").unwrap_or_default().to_owned();
        let response = server.send(request).with("location", &bearer);
        let response = if response.status >= 400 { response.with_json(&bearer.clone().into()) } else { response };
        Reply::Response(response)
    });
    let output = check(token(&ada), &proxy.url(), &[]);
    assert_eq!(output.status.code(), Some(1));
    let all = output.stdout_text() + &output.stderr_text();
    assert_contains(&all, "Bearer (the token)");
    assert!(!all.contains(&token(&ada)[4..20]), "{all}");
    // Terminal escape sequences of a response are not printed either.
    let proxy = RewritingProxy::start(server.address(), |request, server| {
        let response = server.send(request);
        Reply::Response(if response.status >= 400 { response.with_json(&"\u{1b}[2J\u{9b}2J".into()) } else { response })
    });
    let output = check(token(&ada), &proxy.url(), &[]);
    assert!(!output.stdout_text().contains(['\u{1b}', '\u{9b}']));
});

sqlite_test!(check_reads_the_token_from_each_source, |Service { store, server }: &Service| {
    let token = store.token("ada", &[]);
    let url = url(server);
    let file = store.directory().join("token");
    std::fs::write(&file, format!("{token}\n")).unwrap();
    let run = |words: &[&str], input: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_plantstore"));
        command.arg("check").args(words).env_remove("PLANTSTORE_TOKEN").current_dir(store.directory());
        let output = feed(command, input.as_bytes());
        (output.status.code().unwrap(), output.stderr_text())
    };
    let level = ["--level", "interface"];
    assert_eq!(run(&[&[&*url, "--token-file", "token"], &level[..]].concat(), "").0, 0);
    assert_eq!(run(&[&[&*url, "--token-file", "-"], &level[..]].concat(), &token).0, 0);
    for words in [vec![&*url, "--token", &token], vec![&*url, &token], vec![&*token]] {
        let (code, stderr) = run(&words, "");
        assert!(code == 2 && stderr.contains("a token does not belong on the command line"), "{stderr}");
        assert!(!stderr.contains(&token), "{stderr}");
    }
    for (words, code, says) in [
        (vec![&*url], 2, "no token: put it into PLANTSTORE_TOKEN"),
        (vec![&*url, "--token-file"], 2, "a value is required for '--token-file <FILE>'"),
        (vec![&*url, "--token-file", "nowhere"], 1, "cannot read the token from nowhere"),
        (vec![&*url, "--token-file", "/dev/null"], 2, "not a token"),
        (vec![&*url, "http://two"], 2, "one server at a time: leave out `http://two`"),
        (vec!["127.0.0.1:8080", "--token-file", "token"], 2, "write the server's address as http://HOST:PORT"),
        (vec!["http://x/plants", "--token-file", "token"], 2, "leave out everything after host and port"),
        (vec!["http://x/?a=b", "--token-file", "token"], 2, "leave out everything after host and port"),
        (vec!["http://ada:secret@x", "--token-file", "token"], 2, "remove user name and password from the URL"),
        (
            vec!["http://127.0.0.1:1", "--token-file", "token"],
            1,
            "cannot connect to 127.0.0.1:1: Connection refused: is the server running",
        ),
        (vec!["https://127.0.0.1:1", "--token-file", "token", "--ca", "token"], 1, "cannot use the certificates in"),
        (vec![], 2, "<URL>"),
    ] {
        let (found, stderr) = run(&words, "");
        assert!(found == code && stderr.contains(says), "{words:?}: {found} {stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    }
    assert_contains(check("pst_unknown", &url, &[]).failure(1), "the server does not accept the token");
});

// Only a certificate of a trusted authority is accepted.
tool_test!(check_verifies_certificates_over_https, requires_openssl, |store: &Store| {
    let authority = Authority::new();
    let [certificate, key] = ["server.crt", "server.key"].map(|name| authority.path(name).display().to_string());
    let server = store.serve(&["--tls-cert", &certificate, "--tls-key", &key]);
    let url = format!("https://{}", server.address());
    let authorities = authority.file().display().to_string();
    let token = store.token("ada", &[]);
    check(&token, &url, &["--ca", &authorities]).success();
    store.run(&["probe", &url, "--ca", &authorities, "--timeout", "30s"]).success();
    let stranger = Authority::new();
    let reported = check(&token, &url, &["--ca", &stranger.file().display().to_string()]).failure(1);
    assert!(reported.contains("invalid peer certificate") && reported.contains("signed it with --ca"), "{reported}");
    let plain_http = store.serve(&[]);
    let output = store.run(&["probe", &format!("https://{}", plain_http.address()), "--ca", &authorities]);
    assert_contains(output.stderr_text(), "it speaks plain HTTP, so write http://");
    // The server presents a CA certificate, which is what `openssl req -x509` creates by default.
    let [own, key] = ["root.crt", "root.key"].map(|name| authority.path(name).display().to_string());
    let server = store.serve(&["--tls-cert", &own, "--tls-key", &key]);
    let output = store.run(&["probe", &format!("https://{}", server.address()), "--ca", &authorities]);
    assert_contains(output.stderr_text(), "basicConstraints=CA:FALSE");
});

tool_test!(check_uses_colours_only_on_a_terminal, requires_script, |Service { store, server }: &Service| {
    let token = store.token("ada", &[]);
    let words = format!("{} check {} --level interface", env!("CARGO_BIN_EXE_plantstore"), url(server));
    let on_a_terminal = |no_color: &str| {
        let mut script = external("script");
        script.args(["-qec", &words, "/dev/null"]).env("PLANTSTORE_TOKEN", &token).env("NO_COLOR", no_color);
        text(&script.stdin(Stdio::null()).output().unwrap().stdout)
    };
    assert!(on_a_terminal("").contains("\u{1b}[32mholds"), "{}", on_a_terminal(""));
    let plain = on_a_terminal("1");
    assert!(plain.contains("holds") && !plain.contains('\u{1b}'), "{plain}");
});
