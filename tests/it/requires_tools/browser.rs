//! Pages of the real server in a real browser, driven by the scripts in `tests/browser/`.

use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use rstest::rstest;

use crate::support::tools::succeed;
use crate::support::transfer::import;
use crate::support::{BrowserScript, Engine, Server, Service, Store, engine_test, sqlite_test, wait_for, wait_until};

// Tests the harness: a script gets responses to its commands, and a script that fails fails its test with its output.
sqlite_test!(a_script_drives_the_browser, |Service { server, .. }: &Service| {
    BrowserScript::new("harness", "harness", server, "").run_with_commands(str::to_owned);
    let script = BrowserScript::new("harness", "harness-failing", server, "").with("EXPECTED", "something else");
    let failure = catch_unwind(AssertUnwindSafe(|| script.run())).expect_err("a failure");
    let message = failure.downcast_ref::<String>().expect("a message");
    assert!(message.contains("something else") && message.contains("AssertionError"), "{message}");
    let (_, directory) = message.split_once("pages are in ").expect("the directory of the screenshots");
    let (directory, _) = directory.split_once(')').expect("its end");
    assert!(Path::new(directory).join("failed-1.png").is_file(), "{message}");
});

/// Runs the console on a server that its script can stop, restart at the same address and change with commands.
fn use_the_console(store: &Store) {
    let token = store.token("ada", &[]);
    let bob = store.token("bob", &[]);
    let reads = store.token("ada", &["--scope", "plants:read", "--label", "reads"]);
    let writes = store.token("ada", &["--scope", "plants:write"]);
    let revoked = revoked_token(store);
    let mut server = store.serve(&[]);
    let case = format!("console-{:?}", store.engine).to_lowercase();
    let script = BrowserScript::new("console", &case, &server, &token);
    let script = script.with("BOB", &bob).with("READS_ONLY", &reads).with("WRITES_ONLY", &writes);
    let script = script.with("REVOKED", &revoked);
    let address = server.address().to_string();
    script.run_with_commands(|command| {
        match command {
            "stop" => return server.stop().to_string(),
            "start" => server = Server::start(store.command(&["serve", "--no-first-token", "--listen", &address])),
            "revoke" => operate(store, &["token", "revoke", "3"]),
            other => share(store, other),
        }
        "done".to_owned()
    });
}

fn operate(store: &Store, command: &[&str]) {
    succeed(&mut store.command(command));
}

/// Runs the script command `share ROLE`: shares ada's plants with bob.
fn share(store: &Store, command: &str) {
    let role = command.strip_prefix("share ").unwrap_or_else(|| panic!("the script asks to {command}"));
    operate(store, &["share", "grant", "--owner", "ada", "--to", "bob", "--role", role]);
}

/// Returns a token with a valid checksum that every server rejects.
fn revoked_token(store: &Store) -> String {
    let token = store.token("carol", &[]);
    let listed = store.run(&["token", "list", "--user", "carol"]);
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let id = listed.split_whitespace().find(|word| word.parse::<u32>().is_ok()).expect("the token's id").to_owned();
    operate(store, &["token", "revoke", &id]);
    token
}

engine_test!(console_signs_in_lists_creates_and_deletes, |store: &Store| {
    use_the_console(store);
});

#[test]
fn the_console_shows_thousands_of_plants() {
    let store = Store::new(Engine::Sqlite);
    let token = store.token("ada", &[]);
    let server = store.serve(&[]);
    let ada = server.client(&token);
    let mut lines = String::new();
    for id in 1..=5_000 {
        let tag = match id {
            _ if id % 100 == 0 => "hundredth",
            _ if id % 10 == 0 => "tenth",
            _ => "ordinary",
        };
        let _ = writeln!(lines, r#"{{"owner":"ada","id":{id},"name":"Plant number-{id:04}","tag":"{tag}"}}"#);
    }
    import(&store, &[], &lines);
    BrowserScript::new("console-many", "console-many", &server, &token).run_with_commands(|command| {
        assert_eq!(command, "grow");
        store.execute(
            "WITH RECURSIVE more (id) AS (SELECT 5001 UNION ALL SELECT id + 1 FROM more WHERE id < 50002)
             INSERT INTO plants (user_id, plant_id, name, version) SELECT user_id, id, 'Another', 0 FROM users, more;",
        );
        let body = serde_json::json!({ "id": 50_003, "name": "One too many", "tag": "rare" });
        assert_eq!(ada.post(body.to_string()).status, 200);
        "grown".to_owned()
    });
}

#[test]
fn console_is_accessible_in_every_state() {
    let store = Store::new(Engine::Sqlite);
    let token = store.token("ada", &[]);
    let [bob, reads] = [store.token("bob", &[]), store.token("ada", &["--scope", "plants:read"])];
    let server = store.serve(&[]);
    let garden: Vec<(String, String)> = serde_json::from_str(include_str!("../../browser/garden.json")).unwrap();
    for (id, (name, tag)) in (1..).zip(garden) {
        let body = serde_json::json!({ "id": id, "name": name, "tag": tag });
        assert_eq!(server.client(&token).post(body.to_string()).status, 200);
    }
    let script =
        BrowserScript::new("console-looks", "console", &server, &token).with("BOB", &bob).with("READS_ONLY", &reads);
    let script = script.with("REVOKED", &revoked_token(&store));
    script.run_with_commands(|command| {
        assert_eq!(command, "share");
        let done = store.run(&["share", "grant", "--owner", "ada", "--to", "bob", "--role", "editor"]);
        // The grant takes effect when the server's cache entry for bob has expired.
        let shared = || server.client(&bob).get("/plants").text().contains("Monstera").then_some(());
        wait_for("the grant to take effect", shared);
        done.status.to_string()
    });
}

/// Runs one part of a script about the console: for ada, with bob as a user to share with, each also with a token for
/// everything, and with a read-only and a revoked token.
#[rstest]
#[case::console_sign_in_extracts_the_token_from_a_pasted_command_or_header("console-sign-in", "pasting")]
#[case::console_distinguishes_mistyped_rejected_and_expired_tokens("console-sign-in", "failing")]
#[case::console_shows_only_its_own_text_and_loads_in_a_handful_of_requests("console-sign-in", "loading")]
#[case::every_deletion_in_the_console_can_be_undone_for_10_seconds("console-undo", "all")]
#[case::console_user_edits_a_plant_and_undoes_it("console-edit", "editing")]
#[case::edit_in_the_console_is_sent_again_with_its_key_and_stored_once("console-edit", "safety")]
#[case::console_offers_to_edit_only_what_the_token_and_role_allow("console-edit", "allowed")]
#[case::changes_of_other_clients_appear_in_the_console_by_themselves("console-live", "appearing")]
#[case::live_updates_of_the_console_do_not_move_what_the_user_reads_or_types("console-live", "undisturbed")]
#[case::undo_in_the_console_respects_changes_of_other_clients("console-live", "undoing")]
#[case::console_works_without_the_stream_of_events_and_opens_it_again("console-live", "away")]
#[case::console_user_selects_several_plants_and_deletes_them_with_one_undo("console-select", "pointer")]
#[case::console_user_selects_several_plants_with_the_keyboard("console-select", "keyboard")]
#[case::console_user_selects_several_plants_on_a_phone("console-select", "phone")]
#[case::console_offers_the_choice_of_owner_when_plants_are_shared("console-sharing", "choosing")]
#[case::console_hides_what_the_token_or_role_does_not_allow("console-sharing", "rejected")]
#[case::console_user_makes_and_revokes_tokens("console-access", "tokens")]
#[case::console_renews_its_token_from_14_days_before_its_end("console-access", "renewal")]
#[case::console_user_shares_plants_and_ends_the_share("console-access", "shares")]
#[case::console_user_shares_only_with_the_consent_of_the_other("console-access", "offers")]
#[case::access_page_explains_what_the_scopes_of_the_token_do_not_allow("console-access", "forbidden")]
#[case::console_keeps_what_was_typed_when_the_token_ends("console-access", "drafts")]
#[case::console_filters_are_in_the_address_and_survive_a_reload("console-address", "filters")]
#[case::back_closes_a_dialog_of_the_console("console-address", "back")]
#[case::console_shows_its_keyboard_shortcuts_and_links_to_the_api_documentation("console-address", "help")]
#[case::a_long_tag_does_not_squeeze_the_id_in_the_console("console-layout", "tags")]
#[case::the_add_button_covers_no_delete_button_on_a_phone("console-layout", "adding")]
#[case::console_draws_an_unknown_species_with_neutral_foliage("console-layout", "drawings")]
fn the_console(#[case] script: &str, #[case] part: &str) {
    let store = Store::new(Engine::Sqlite);
    let [token, bob] = [store.token("ada", &[]), store.token("bob", &[])];
    let reads = store.token("ada", &["--scope", "plants:read"]);
    let revoked = revoked_token(&store);
    let scopes = ["plants:read", "plants:write", "plants:delete", "tokens:manage", "shares:manage"];
    let scopes = scopes.iter().flat_map(|scope| ["--scope", scope]).chain(["--label", "full"]).collect::<Vec<_>>();
    let [full, bob_full] = ["ada", "bob"].map(|user| store.token(user, &scopes));
    let server = store.serve(&[]);
    let script = BrowserScript::new(script, &format!("{script}-{part}"), &server, &token).with("PART", part);
    let script = script.with("BOB", &bob).with("READS_ONLY", &reads).with("REVOKED", &revoked).with("FULL", &full);
    let script = script.with("BOB_FULL", &bob_full);
    script.run_with_commands(|command| {
        match command {
            "share of bob" => operate(&store, &["share", "grant", "--owner", "bob", "--to", "ada", "--role", "reader"]),
            "revoke first" => operate(&store, &["token", "revoke", "1"]),
            other => share(&store, other),
        }
        "done".to_owned()
    });
}

#[test]
fn console_reports_rate_limits() {
    let store = Store::new(Engine::Sqlite);
    let token = store.token("ada", &[]);
    store.serve(&[]).client(&token).plant(1, "Rose");
    let server = store.serve(&["--rate-limit", "20/h", "--rate-burst", "2"]);
    BrowserScript::new("console-limits", "console-limits", &server, &token).run();
}

/// A real browser enforces CORS. `cors.rs` tests the header fields.
#[test]
fn a_page_of_an_allowed_origin_uses_the_service_and_another_cannot() {
    let store = Store::new(Engine::Sqlite);
    let token = store.token("ada", &[]);
    let closed = store.serve(&[]);
    closed.client(&token).plant(9, "Oak");
    let mut open = None;
    BrowserScript::new("cors", "cors", &closed, &token).run_with_commands(|command| {
        let origin = command.strip_prefix("allow ").expect("an origin");
        let server = store.serve(&["--cors-origin", origin, "--rate-limit", "1/h", "--rate-burst", "20"]);
        format!("http://{}", open.insert(server).address())
    });
    let open = open.expect("a server that allows an origin");
    wait_until("a preflight in the log", || open.log().contains(r#""method":"OPTIONS""#));
}
