//! Drawing of the module graph in the architecture document.

use std::collections::BTreeSet;

use super::generated;
use super::layers::{self, ROOT};
use super::workspace::crates;

const DOCUMENT: &str = "ARCHITECTURE.md";

/// Draws the crates and the layers of the server as a Mermaid flowchart, with arrows from importer to imported.
fn draw() -> String {
    let imports = layers::server_imports();
    let layers: BTreeSet<_> = imports.keys().flat_map(|(from, to)| [*from, *to]).collect();
    let label = |layer: &'static str| if layer == ROOT { "lib.rs" } else { layer };
    let mut lines = vec!["```mermaid".to_owned(), "flowchart TD".to_owned(), "  subgraph server".to_owned()];
    lines.extend(layers.into_iter().map(|layer| format!("    server_{layer}[{}]", label(layer))));
    lines.extend(imports.keys().map(|(from, to)| format!("    server_{from} --> server_{to}")));
    lines.push("  end".to_owned());
    for package in crates() {
        lines.extend(package.dependencies.iter().map(|dependency| format!("  {} --> {dependency}", package.name)));
    }
    lines.join("\n") + "\n```\n"
}

#[test]
fn drawn_module_graph_matches_the_imports() {
    generated::check(DOCUMENT, "module graph", &draw());
}
