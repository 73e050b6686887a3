//! Layers (top-level modules) of the server's crate, and which of them may import which.

use std::collections::{BTreeMap, BTreeSet};

use super::modules::Crate;
use super::workspace::crates;

const SOURCE: &str = "crates/server/src/";

/// Each layer and the layers that it may import. The crate's root may import all layers; no layer may import the root.
const LAYERS: [(&str, &[&str]); 6] = [
    ("options", &[]),
    ("transport", &["options"]),
    ("observe", &["transport"]),
    ("auth", &["options", "transport", "observe"]),
    ("api", &["options", "transport", "observe", "auth"]),
    ("web", &["transport", "observe", "auth", "api"]),
];

/// Files that are in no layer.
pub(super) const ROOT: &str = "root";

/// Imports between layers, with the files and items.
pub(super) type Imports = BTreeMap<(&'static str, &'static str), BTreeSet<String>>;

pub(super) fn server_imports() -> Imports {
    imports(&crates().iter().find(|package| package.name == "server").expect("the server").parsed)
}

fn imports(parsed: &Crate) -> Imports {
    let mut imports = Imports::new();
    for ((from, to), items) in parsed.edges() {
        let layers = (layer(&from), layer(&to));
        if layers.0 != layers.1 {
            imports.entry(layers).or_default().extend(items.iter().map(|item| format!("{from} -> {to} ({item})")));
        }
    }
    imports
}

fn layer(file: &str) -> &'static str {
    let path = file.strip_prefix(SOURCE).expect("a file of the server");
    let first = path.split(['/', '.']).next().unwrap_or_default();
    LAYERS.iter().map(|(layer, _)| *layer).find(|layer| *layer == first).unwrap_or(ROOT)
}

fn forbidden(imports: &Imports) -> Vec<String> {
    let allowed = |from: &str, to: &str| {
        from == ROOT || LAYERS.iter().any(|(layer, below)| *layer == from && below.contains(&to))
    };
    let forbidden = imports.iter().filter(|((from, to), _)| !allowed(from, to));
    forbidden
        .flat_map(|((from, to), items)| items.iter().map(move |item| format!("{from} imports {to}: {item}")))
        .collect()
}

#[test]
fn layers_import_only_layers_below_them() {
    let imports = server_imports();
    for (name, _) in LAYERS {
        assert!(imports.keys().any(|(from, to)| *from == name || *to == name), "there is no layer `{name}`");
    }
    let forbidden = forbidden(&imports);
    assert!(forbidden.is_empty(), "{}", forbidden.join("\n"));
}

#[test]
fn import_of_a_higher_layer_is_found() {
    let files = [
        (
            "lib.rs",
            "mod api; mod observe; mod transport; mod web; pub use self::api::error::Error; use self::web::Page; struct App;",
        ),
        ("transport.rs", "use crate::Error; pub struct Listener;"),
        ("observe.rs", "use super::transport::Listener;"),
        ("api.rs", "pub mod error; use crate::App;"),
        ("api/error.rs", "use crate::transport::Listener; pub struct Error;"),
        ("web.rs", "pub struct Page(crate::Error);"),
    ];
    let files = files.into_iter().map(|(path, text)| (format!("{SOURCE}{path}"), text.to_owned())).collect();
    let found = forbidden(&imports(&Crate::parse(&format!("{SOURCE}lib.rs"), &files)));
    let expected = [
        "api imports root: crates/server/src/api.rs -> crates/server/src/lib.rs (App)",
        "transport imports api: crates/server/src/transport.rs -> crates/server/src/api/error.rs (Error)",
    ];
    assert_eq!(found, expected);
}
