//! User names: characters of new names, and names that earlier releases allowed.

use serde_json::json;

use crate::support::issuer::{Issuer, SigningKey};
use crate::support::transfer::{export, feed, import};
use crate::support::{CommandOutput, Engine, Store, assert_contains, engine_test};

/// Invisible characters, and characters that look like a blank.
const INVISIBLE: &str = "\t \u{85}\u{a0}\u{ad}\u{34f}\u{61c}\u{115f}\u{1160}\u{1680}\u{17b5}\u{180e}\u{2003}\u{200b}\u{200d}\u{2028}\
                         \u{202e}\u{202f}\u{205f}\u{2065}\u{206f}\u{2800}\u{3000}\u{3164}\u{fe0f}\u{feff}\u{ffa0}\u{fff4}\u{fffb}\
                         \u{1343f}\u{16fe4}\u{1bca2}\u{1d159}\u{1d17a}\u{e0001}\u{e0061}\u{e01ef}\u{e0fff}";
/// A name that earlier releases allowed.
const EARLIER: &str = "ada\u{3164}";

engine_test!(new_user_name_with_an_invisible_character_is_rejected, |store: &Store| {
    store.token("ada", &[]);
    for character in INVISIBLE.chars() {
        let output = store.run(&["token", "create", "--user", &format!("ada{character}")]);
        assert!(!output.status.success() && output.stdout.is_empty(), "U+{:04X}", u32::from(character));
        assert_contains(output.stderr_text(), "invisible");
    }
    let reported = store.run(&["token", "create", "--user", EARLIER]).stderr_text();
    assert_eq!(reported, "error: a new user name holds no invisible or blank-looking characters (found U+3164)\n");
    for name in [
        "Ωmega",
        "数学あ",
        "Ada09~!@example.com",
        "žluťß",
        "🌵\u{2801}",
        "\u{900}अदा",
        "a-b_c.d",
        "아다\u{1100}",
        "жאب\u{fffd}",
    ] {
        store.token(name, &[]);
    }
    assert_eq!(store.users().len(), 10);
});

engine_test!(user_name_allowed_by_an_earlier_release_still_works, |store: &Store| {
    let token = store.token("other", &[]);
    store.token("bob", &[]);
    store.execute(&format!("UPDATE users SET name = '{EARLIER}' WHERE name = 'other'"));
    let server = store.serve(&[]);
    server.client(&token).plant(1, "Rose");
    assert_eq!(server.client(&store.token(EARLIER, &[])).ids(), [1]);
    store.share(EARLIER, "bob", "reader");
    import(store, &[], &format!("{{\"owner\":\"{EARLIER}\",\"id\":2,\"name\":\"Fern\"}}\n"));
    let copied = Store::new(Engine::Sqlite);
    let output = store.run(&["copy", "--from", &store.url(), "--to", &copied.url()]);
    assert!(output.status.success(), "{}", output.stderr_text());
    assert_eq!(export(&copied), export(store));
    assert_eq!(copied.users(), [EARLIER, "bob"]);
    store.run(&["user", "delete", EARLIER, "--yes"]).success();
    assert_eq!(store.users(), ["bob"]);
    // After the deletion it would be a new name.
    assert!(!store.run(&["token", "create", "--user", EARLIER]).status.success());
});

engine_test!(import_creates_no_user_with_an_invisible_character, |store: &Store| {
    store.token("ada", &[]);
    let line = |owner: &str, id| format!("{{\"owner\":\"{owner}\",\"id\":{id},\"name\":\"Rose\"}}\n");
    let input = [line("ada", 1), line("ada", 2), line(EARLIER, 3), line("ada", 4)].concat();
    let reported = feed(store.command(&["import"]), input.as_bytes()).failure(1);
    let fault = "line 3: `owner`: a new user name holds no invisible or blank-looking characters (found U+3164)";
    assert_contains(&reported, fault);
    assert_eq!(export(store), [line("ada", 1), line("ada", 2)].concat(), "the lines before it are stored");
    assert_eq!(store.users(), ["ada"]);
});

engine_test!(first_sign_in_creates_no_user_with_an_invisible_character, |store: &Store| {
    let key = SigningKey::ed25519("d");
    let issuer = Issuer::start(&[&key]);
    let server = store.serve(&issuer.options());
    let signed_in = |name: &str| server.client(&key.token(&issuer.claims(name))).get("/plants");
    assert_eq!(signed_in("ada").status, 200);
    for character in INVISIBLE.chars() {
        assert_eq!(signed_in(&format!("ada{character}")).error(), 40101, "U+{:04X}", u32::from(character));
    }
    assert_eq!(store.users(), ["ada"]);
    store.execute(&format!("UPDATE users SET name = '{EARLIER}'"));
    let mut claims = issuer.claims(EARLIER);
    // A new token, because the rejection of the first one is cached.
    claims.as_object_mut().unwrap().insert("jti".to_owned(), json!("2"));
    assert_eq!(server.client(&key.token(&claims)).get("/plants").status, 200);
});
