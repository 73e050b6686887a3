//! User names: characters of new names, and names that earlier releases allowed.

use rstest::rstest;
use serde_json::json;

use crate::support::issuer::{Issuer, SigningKey};
use crate::support::transfer::{export, feed, import, stderr};
use crate::support::{Engine, Site};

/// Invisible characters, and characters that look like a blank.
const INVISIBLE: &[char] = &[
    '\u{ad}',
    '\u{34f}',
    '\u{61c}',
    '\u{115f}',
    '\u{1160}',
    '\u{180e}',
    '\u{202e}',
    '\u{2800}',
    '\u{3164}',
    '\u{fe0f}',
    '\u{ffa0}',
    '\u{e0061}',
    '\u{a0}',
    '\u{3000}',
];
/// A name that earlier releases allowed.
const EARLIER: &str = "ada\u{3164}";

/// Returns the names of all users.
fn users(site: &Site) -> Vec<String> {
    let output = site.run(&["user", "list", "--json"]);
    let users: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).unwrap();
    users.iter().map(|user| user["name"].as_str().unwrap().to_owned()).collect()
}

#[rstest]
fn new_user_name_with_an_invisible_character_is_rejected(#[values(Engine::Sqlite, Engine::Postgres)] engine: Engine) {
    let site = &Site::new(engine);
    site.token("ada", &[]);
    for character in INVISIBLE {
        let output = site.run(&["token", "create", "--user", &format!("ada{character}")]);
        assert!(!output.status.success() && output.stdout.is_empty(), "U+{:04X}", u32::from(*character));
        assert!(stderr(&output).contains("invisible"), "{}", stderr(&output));
    }
    let reported = stderr(&site.run(&["token", "create", "--user", EARLIER]));
    assert_eq!(reported, "error: a new user name holds no invisible or blank-looking characters (found U+3164)\n");
    for name in ["Ωmega", "数学", "ada@example.com", "žluť", "🌵", "अदा", "a-b_c.d", "아다"] {
        site.token(name, &[]);
    }
    assert_eq!(users(site).len(), 9);
}

#[rstest]
fn user_name_allowed_by_an_earlier_release_still_works(#[values(Engine::Sqlite, Engine::Postgres)] engine: Engine) {
    let site = &Site::new(engine);
    let token = site.token("other", &[]);
    site.token("bob", &[]);
    site.execute(&format!("UPDATE users SET name = '{EARLIER}' WHERE name = 'other'"));
    let server = site.serve(&[]);
    server.client(&token).plant(1, "Rose");
    assert_eq!(server.client(&site.token(EARLIER, &[])).ids(), [1]);
    assert!(site.run(&["share", "grant", "--owner", EARLIER, "--to", "bob", "--role", "reader"]).status.success());
    import(site, &[], &format!("{{\"owner\":\"{EARLIER}\",\"id\":2,\"name\":\"Fern\"}}\n"));
    let copied = Site::new(Engine::Sqlite);
    let output = site.run(&["copy", "--from", &site.url(), "--to", &copied.url()]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(export(&copied), export(site));
    assert_eq!(users(&copied), [EARLIER, "bob"]);
    assert!(site.run(&["user", "delete", EARLIER, "--yes"]).status.success());
    assert_eq!(users(site), ["bob"]);
    assert!(
        !site.run(&["token", "create", "--user", EARLIER]).status.success(),
        "after the deletion it would be a new name"
    );
}

#[rstest]
fn import_creates_no_user_with_an_invisible_character(#[values(Engine::Sqlite, Engine::Postgres)] engine: Engine) {
    let site = &Site::new(engine);
    site.token("ada", &[]);
    let line = |owner: &str, id| format!("{{\"owner\":\"{owner}\",\"id\":{id},\"name\":\"Rose\"}}\n");
    let input = [line("ada", 1), line("ada", 2), line(EARLIER, 3), line("ada", 4)].concat();
    let output = feed(site.command(&["import"]), input.as_bytes());
    assert_eq!(output.status.code(), Some(1));
    let reported = stderr(&output);
    let fault = "line 3: `owner`: a new user name holds no invisible or blank-looking characters (found U+3164)";
    assert!(reported.contains(fault), "{reported}");
    assert_eq!(export(site), [line("ada", 1), line("ada", 2)].concat(), "the lines before it are stored");
    assert_eq!(users(site), ["ada"]);
}

#[rstest]
fn first_sign_in_creates_no_user_with_an_invisible_character(
    #[values(Engine::Sqlite, Engine::Postgres)] engine: Engine,
) {
    let site = &Site::new(engine);
    let key = SigningKey::ed25519("d");
    let issuer = Issuer::start(&[&key]);
    let server = site.serve(&issuer.options());
    let signed_in = |name: &str| server.client(&key.token(&issuer.claims(name))).get("/plants");
    assert_eq!(signed_in("ada").status, 200);
    for character in INVISIBLE {
        assert_eq!(signed_in(&format!("ada{character}")).error(), 40101, "U+{:04X}", u32::from(*character));
    }
    assert_eq!(users(site), ["ada"]);
    site.execute(&format!("UPDATE users SET name = '{EARLIER}'"));
    let mut claims = issuer.claims(EARLIER);
    // A new token, because the rejection of the first one is cached.
    claims.as_object_mut().unwrap().insert("jti".to_owned(), json!("2"));
    assert_eq!(server.client(&key.token(&claims)).get("/plants").status, 200);
}
