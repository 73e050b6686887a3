//! Import cycles between the files of a crate.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::modules::{Crate, Edges};
use super::source::{Files, files};
use super::workspace::crates;

#[test]
fn files_do_not_import_each_other_in_cycles() {
    let tests = Crate::parse("tests/it/main.rs", &files("tests/it", "rs"));
    let edges = crates().iter().map(|package| (&*package.name, package.parsed.edges_with_reexports()));
    // All tests import from `support.rs`, and so do its parts.
    let edges = edges.chain([("tests", tests.edges())]);
    let found = edges.flat_map(|(name, edges)| cycles(&edges).into_iter().map(move |cycle| format!("{name}: {cycle}")));
    let found: Vec<_> = found.collect();
    assert!(found.is_empty(), "import cycles between files:\n{}", found.join("\n"));
}

/// Finds the shortest cycle of every dependency that is part of one, and omits those that share a dependency with a
/// shorter one. A cycle is described by its files and the imported items.
fn cycles(edges: &Edges) -> Vec<String> {
    let mut imports: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (from, to) in edges.keys() {
        imports.entry(from).or_default().insert(to);
    }
    let mut found = BTreeSet::new();
    for (from, to) in edges.keys() {
        if let Some(mut cycle) = shortest_path(&imports, to, from) {
            let first = (0..cycle.len()).min_by_key(|&at| cycle[at]).unwrap_or_default();
            cycle.rotate_left(first);
            found.insert((cycle.len(), cycle));
        }
    }
    let mut reported = BTreeSet::new();
    found.retain(|(_, cycle)| {
        let is_new = dependencies(cycle).all(|dependency| !reported.contains(&dependency));
        reported.extend(dependencies(cycle).filter(|_| is_new));
        is_new
    });
    found.into_iter().map(|(_, cycle)| describe(&cycle, edges)).collect()
}

fn dependencies<'a>(cycle: &[&'a str]) -> impl Iterator<Item = (&'a str, &'a str)> {
    (0..cycle.len()).map(|at| (cycle[at], cycle[(at + 1) % cycle.len()]))
}

/// Searches breadth-first. The path includes both ends.
fn shortest_path<'a>(
    imports: &BTreeMap<&'a str, BTreeSet<&'a str>>,
    from: &'a str,
    to: &'a str,
) -> Option<Vec<&'a str>> {
    let mut previous = BTreeMap::from([(from, from)]);
    let mut queue = VecDeque::from([from]);
    while let Some(file) = queue.pop_front() {
        if file == to {
            let mut path = vec![file];
            while path[path.len() - 1] != from {
                path.push(previous[path[path.len() - 1]]);
            }
            path.reverse();
            return Some(path);
        }
        for &next in imports.get(file).into_iter().flatten() {
            if !previous.contains_key(next) {
                previous.insert(next, file);
                queue.push_back(next);
            }
        }
    }
    None
}

fn describe(cycle: &[&str], edges: &Edges) -> String {
    let steps = dependencies(cycle).map(|(from, to)| {
        let items: Vec<_> = edges[&(from.to_owned(), to.to_owned())].iter().map(String::as_str).collect();
        format!(" -> {to} ({})", items.join(", "))
    });
    steps.fold(cycle[0].to_owned(), |text, step| text + &step)
}

fn cycles_of(files: &[(&str, &str)]) -> Vec<String> {
    let files: Files = files.iter().map(|&(path, text)| (path.to_owned(), text.to_owned())).collect();
    cycles(&Crate::parse("src/lib.rs", &files).edges_with_reexports())
}

#[test]
fn cycle_is_found_in_every_form_of_path() {
    let root = "mod a; mod b; pub use self::b::{Shared as Renamed, nested};";
    let importer = "use super::b::Shared; #[cfg(test)] mod tests {} pub struct Own;";
    for cyclic in [
        "use super::a::Own; pub struct Shared; pub mod nested {}",
        "pub struct Shared; pub mod nested {} fn f(_: crate::a::Own) {}",
        "pub struct Shared; pub mod nested {} fn f() { assert!(super::a::Own == 1); }",
        "pub struct Shared; pub mod nested {} fn f() { use super::a; a::Own; }",
        "pub struct Shared; pub mod nested {} #[derive(Debug)] struct S(#[arg(parser = super::a::Own)] u8);",
        "use crate::a as other; pub struct Shared; pub mod nested {} fn f(_: &other::Own) {}",
        "use crate::a::*; pub struct Shared; pub mod nested {} fn f(_: Own) {}",
        "pub struct Shared; pub mod nested { use super::super::a::{self, Own}; }",
        "#[cfg(test)] mod tests {} pub struct Shared; pub mod nested {} impl From<super::a::Own> for Shared {}",
    ] {
        let files = [("src/lib.rs", root), ("src/a.rs", importer), ("src/b.rs", cyclic)];
        let expected = "src/a.rs -> src/b.rs (Shared) -> src/a.rs (Own)";
        assert_eq!(cycles_of(&files), [expected], "{cyclic}");
        // The same through the names that the root gives to the items of `b`.
        let renamed = importer.replace("super::b::Shared", "crate::Renamed");
        let files = [("src/lib.rs", root), ("src/a.rs", &renamed), ("src/b.rs", cyclic)];
        assert_eq!(cycles_of(&files), [expected], "{cyclic}");
    }
}

#[test]
fn parent_that_uses_a_child_that_uses_the_parent_is_a_cycle() {
    let files =
        [("src/lib.rs", "mod a; struct State; use self::a::A;"), ("src/a.rs", "use super::State; pub struct A;")];
    assert_eq!(cycles_of(&files), ["src/a.rs -> src/lib.rs (State) -> src/a.rs (A)"]);
}

#[test]
fn longer_cycle_is_found() {
    let files = [
        ("src/lib.rs", "mod a; mod b; mod c;"),
        ("src/a.rs", "mod inner; pub struct A; use super::b::B;"),
        ("src/a/inner.rs", "pub struct Inner; use super::A;"),
        ("src/b.rs", "pub struct B; fn f() -> super::c::C {}"),
        ("src/c.rs", "pub struct C; use crate::a::inner::Inner;"),
    ];
    let expected = "src/a.rs -> src/b.rs (B) -> src/c.rs (C) -> src/a/inner.rs (Inner) -> src/a.rs (A)";
    assert_eq!(cycles_of(&files), [expected]);
}

#[test]
fn import_through_a_reexport_is_part_of_a_cycle() {
    let files = |state| {
        [
            ("src/lib.rs", "mod face; mod state;"),
            ("src/face.rs", "mod cache; pub use self::cache::Cache; pub fn list() { crate::state::State }"),
            ("src/face/cache.rs", "pub struct Cache;"),
            ("src/state.rs", state),
        ]
    };
    let expected = "src/face.rs -> src/state.rs (State) -> src/face.rs (Cache)";
    assert_eq!(cycles_of(&files("use crate::face::Cache; pub struct State(Cache);")), [expected]);
    assert_eq!(cycles_of(&files("use crate::face::*; pub struct State(Cache);")), [expected]);
    assert_eq!(cycles_of(&files("use crate::face::cache::Cache; pub struct State(Cache);")), [""; 0]);
}

#[test]
fn declarations_and_tests_are_no_cycle() {
    let files = [
        // The module `a` and its function have the same name.
        ("src/lib.rs", "mod a; mod b; pub use self::a::{Facade, a}; use self::b::B;"),
        ("src/a.rs", "mod shared; pub use self::shared::Facade; pub fn a() { super::b::B }"),
        ("src/a/shared.rs", "pub struct Facade; pub struct Other; /// [`super::a`]\n struct S;"),
        (
            "src/b.rs",
            "use crate::a::shared::{Facade, Other}; pub struct B;
            #[cfg(test)] mod tests { use crate::a::a; }
            impl B { #[cfg(all(test, unix))] fn f() { crate::a::a() } }",
        ),
    ];
    assert_eq!(cycles_of(&files), [""; 0]);
}
