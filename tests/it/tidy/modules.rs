//! Module tree of a crate, and the resolution of paths to the file that defines the item.

use std::collections::{BTreeMap, BTreeSet};

use syn::Item;

use super::source::{Files, Found, parse, scan_item};

/// Crate as its module tree. The first module is the crate's root.
pub(super) struct Crate {
    modules: Vec<Module>,
}

struct Module {
    file: String,
    parent: Option<usize>,
    names: BTreeMap<String, BTreeSet<Definition>>,
    found: Vec<Found>,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Definition {
    Item,
    Module(usize),
    Import(Vec<String>),
}

/// Definition that a path leads to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Target {
    Module(usize),
    /// Item of this name, defined in this module.
    Item(usize, String),
    /// Path into another crate, a local variable or a keyword.
    External(Vec<String>),
}

/// Steps of the resolution of a path.
#[derive(Default)]
struct Walk {
    /// Imports that are being followed, because imports can be circular.
    pending: Vec<(usize, Vec<String>)>,
    /// Modules that import the item themselves, and so may re-export it.
    importers: BTreeSet<usize>,
}

/// Dependencies between files: importing file, file that defines the items or re-exports them, and the names of the items.
pub(super) type Edges = BTreeMap<(String, String), BTreeSet<String>>;

impl Crate {
    /// Parses the file and every file below it that it declares with `mod`.
    pub(super) fn parse(root: &str, files: &Files) -> Self {
        let mut parsed = Self { modules: Vec::new() };
        let directory = root.rsplit_once('/').map_or("", |(directory, _)| directory);
        parsed.add_file(root, directory, None, files);
        parsed
    }

    fn add_file(&mut self, file: &str, directory: &str, parent: Option<usize>, files: &Files) -> usize {
        let text = files.get(file).unwrap_or_else(|| panic!("{file} is declared as a module and does not exist"));
        self.add_module(file, directory, parent, &parse(file, text), files)
    }

    /// Adds a module and its children, whose files are in `directory`.
    fn add_module(
        &mut self,
        file: &str,
        directory: &str,
        parent: Option<usize>,
        items: &[Item],
        files: &Files,
    ) -> usize {
        let index = self.modules.len();
        self.modules.push(Module { file: file.to_owned(), parent, names: BTreeMap::new(), found: Vec::new() });
        for item in items {
            if let Item::Mod(module) = item {
                assert!(!module.attrs.iter().any(|attribute| attribute.path().is_ident("path")), "{file}: #[path]");
                let name = module.ident.to_string();
                let below = format!("{directory}/{name}");
                let child = match &module.content {
                    Some((_, items)) => self.add_module(file, &below, Some(index), items, files),
                    None => self.add_file(&format!("{below}.rs"), &below, Some(index), files),
                };
                self.define(index, name, Definition::Module(child));
                continue;
            }
            if let Some(name) = item_name(item) {
                self.define(index, name, Definition::Item);
            }
            for found in scan_item(item) {
                if let Found::Import(path, name) = &found {
                    self.define(index, name.clone(), Definition::Import(path.clone()));
                }
                self.modules[index].found.push(found);
            }
        }
        index
    }

    fn define(&mut self, module: usize, name: String, definition: Definition) {
        self.modules[module].names.entry(name).or_default().insert(definition);
    }

    /// Returns the modules of the crate, with their files and contents.
    pub(super) fn contents(&self) -> impl Iterator<Item = (usize, &str, &[Found])> {
        self.modules.iter().enumerate().map(|(index, module)| (index, &*module.file, &*module.found))
    }

    /// Resolves a path in a module. A name may refer to both a module and a function.
    pub(super) fn resolve(&self, module: usize, path: &[String]) -> BTreeSet<Target> {
        self.resolve_path(module, path, &mut Walk::default())
    }

    fn resolve_path(&self, module: usize, path: &[String], walk: &mut Walk) -> BTreeSet<Target> {
        let is_local = matches!(&*path[0], "self" | "super") || !self.look_up(module, &path[0], walk).is_empty();
        match &*path[0] {
            "crate" => self.descend(0, &path[1..], walk),
            _ if is_local => self.descend(module, path, walk),
            // `std::io::{self}` is `std::io`.
            _ => {
                BTreeSet::from([Target::External(path.iter().filter(|segment| *segment != "self").cloned().collect())])
            }
        }
    }

    fn descend(&self, module: usize, path: &[String], walk: &mut Walk) -> BTreeSet<Target> {
        let Some((name, rest)) = path.split_first() else {
            return BTreeSet::from([Target::Module(module)]);
        };
        let mut targets = match &**name {
            "self" => BTreeSet::from([Target::Module(module)]),
            "super" => BTreeSet::from([Target::Module(self.modules[module].parent.expect("a parent"))]),
            _ => self.look_up(module, name, walk),
        };
        if targets.is_empty() {
            // A macro of this module defines the name.
            return BTreeSet::from([Target::Item(module, name.clone())]);
        }
        if rest.is_empty() {
            return targets;
        }
        if targets.iter().any(|target| matches!(target, Target::Module(_))) {
            targets.retain(|target| matches!(target, Target::Module(_)));
        }
        let continued = targets.into_iter().flat_map(|target| match target {
            Target::Module(module) => self.descend(module, rest, walk),
            Target::External(path) => BTreeSet::from([Target::External([&path, rest].concat())]),
            item @ Target::Item(..) => BTreeSet::from([item]),
        });
        continued.collect()
    }

    /// Finds the definitions of a name in a module, through imports.
    fn look_up(&self, module: usize, name: &str, walk: &mut Walk) -> BTreeSet<Target> {
        let mut targets = BTreeSet::new();
        for definition in self.modules[module].names.get(name).into_iter().flatten() {
            match definition {
                Definition::Item => _ = targets.insert(Target::Item(module, name.to_owned())),
                Definition::Module(child) => _ = targets.insert(Target::Module(*child)),
                Definition::Import(path) => {
                    let imported =
                        self.follow(module, path, walk, |crate_, walk| crate_.resolve_path(module, path, walk));
                    // A module of the same name was meant, or may have been.
                    let is_module = targets.iter().any(|target| matches!(target, Target::Module(_)));
                    if !imported.is_empty() && !is_module {
                        walk.importers.insert(module);
                    }
                    targets.extend(imported);
                }
            }
        }
        if !targets.is_empty() {
            return targets;
        }
        for found in &self.modules[module].found {
            let Found::Glob(path) = found else { continue };
            targets.extend(self.follow(module, path, walk, |crate_, walk| {
                let sources = crate_.resolve_path(module, path, walk);
                let names = sources.into_iter().map(|source| match source {
                    Target::Module(source) => crate_.look_up(source, name, walk),
                    _ => BTreeSet::new(),
                });
                names.flatten().collect()
            }));
        }
        if !targets.is_empty() {
            walk.importers.insert(module);
        }
        targets
    }

    fn follow(
        &self,
        module: usize,
        path: &[String],
        walk: &mut Walk,
        resolve: impl FnOnce(&Self, &mut Walk) -> BTreeSet<Target>,
    ) -> BTreeSet<Target> {
        let import = (module, path.to_vec());
        if walk.pending.contains(&import) {
            return BTreeSet::new();
        }
        walk.pending.push(import);
        let targets = resolve(self, walk);
        walk.pending.pop();
        targets
    }

    /// Returns the dependencies between files: one uses items that the other defines.
    pub(super) fn edges(&self) -> Edges {
        self.edges_to(|targets, _| targets)
    }

    /// Returns the dependencies between files: one uses items that the other defines or re-exports.
    pub(super) fn edges_with_reexports(&self) -> Edges {
        self.edges_to(|defined, reexported| defined.into_iter().chain(reexported).collect())
    }

    /// Returns the dependencies on the chosen ones of the modules that define and that re-export each item.
    fn edges_to(&self, choose: impl Fn(Vec<(usize, String)>, Vec<(usize, String)>) -> Vec<(usize, String)>) -> Edges {
        let mut edges = Edges::new();
        for (module, file, found) in self.contents() {
            for found in found {
                let (Found::Path(path) | Found::Macro(path) | Found::Import(path, _) | Found::Glob(path)) = found
                else {
                    continue;
                };
                let mut walk = Walk::default();
                let targets = self.resolve_path(module, path, &mut walk);
                let defined = targets.into_iter().filter_map(|target| match target {
                    Target::Item(definer, name) => Some((definer, name)),
                    _ => None,
                });
                let name = path.last().expect("a name");
                let reexported = walk.importers.into_iter().map(|importer| (importer, name.clone()));
                for (provider, name) in choose(defined.collect(), reexported.collect()) {
                    let provider = &self.modules[provider].file;
                    if provider != file {
                        edges.entry((file.to_owned(), provider.clone())).or_default().insert(name);
                    }
                }
            }
        }
        edges
    }
}

fn item_name(item: &Item) -> Option<String> {
    let name = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::TraitAlias(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(name.to_string())
}
