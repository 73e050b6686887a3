//! Source files as tokens, without the items that only tests compile.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use proc_macro2::{Delimiter, Spacing, TokenStream, TokenTree};
use quote::ToTokens;
use syn::punctuated::Punctuated;
use syn::{Attribute, ImplItem, Item, Meta, Token, TraitItem, UseTree};

/// Directories without files of the project.
const SKIPPED: [&str; 3] = ["target", "node_modules", "fuzz"];

/// File contents by path. Paths are relative to the root of the repository.
pub(super) type Files = BTreeMap<String, String>;

pub(super) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub(super) fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Reads all files below a directory that have this extension.
pub(super) fn files(directory: &str, extension: &str) -> Files {
    fn walk(directory: &Path, extension: &str, found: &mut Files) {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            if path.is_dir() {
                if !SKIPPED.contains(&name) && !name.starts_with('.') {
                    walk(&path, extension, found);
                }
            } else if path.extension().is_some_and(|found| found == extension) {
                let relative = path.strip_prefix(root()).unwrap().to_str().unwrap();
                found.insert(relative.to_owned(), read(relative));
            }
        }
    }
    let mut found = Files::new();
    walk(&root().join(directory), extension, &mut found);
    found
}

/// Parses a file and removes the items that only tests compile.
pub(super) fn parse(path: &str, text: &str) -> Vec<Item> {
    let file = syn::parse_file(text).unwrap_or_else(|error| panic!("{path}: {error}"));
    without_tests(file.items)
}

/// Tokens of a file without the items that only tests compile.
pub(super) fn code_tokens(path: &str, text: &str) -> TokenStream {
    parse(path, text).iter().map(ToTokens::to_token_stream).collect()
}

fn without_tests(items: Vec<Item>) -> Vec<Item> {
    let mut kept: Vec<Item> =
        items.into_iter().filter(|item| !item_attributes(item).iter().any(is_for_tests)).collect();
    for item in &mut kept {
        match item {
            Item::Mod(module) => {
                if let Some((_, items)) = &mut module.content {
                    *items = without_tests(std::mem::take(items));
                }
            }
            Item::Impl(block) => block.items.retain(|item| !impl_item_attributes(item).iter().any(is_for_tests)),
            Item::Trait(definition) => {
                definition.items.retain(|item| !trait_item_attributes(item).iter().any(is_for_tests));
            }
            _ => {}
        }
    }
    kept
}

/// Returns true for `#[cfg(…)]` with a condition that is true only in tests.
fn is_for_tests(attribute: &Attribute) -> bool {
    fn needs_test(condition: &Meta) -> bool {
        if condition.path().is_ident("test") {
            return true;
        }
        let Meta::List(list) = condition else { return false };
        let parts = list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated).unwrap_or_default();
        if list.path.is_ident("any") {
            !parts.is_empty() && parts.iter().all(needs_test)
        } else {
            list.path.is_ident("all") && parts.iter().any(needs_test)
        }
    }
    attribute.path().is_ident("cfg") && attribute.parse_args::<Meta>().is_ok_and(|condition| needs_test(&condition))
}

fn item_attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::ExternCrate(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::ForeignMod(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::TraitAlias(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

fn impl_item_attributes(item: &ImplItem) -> &[Attribute] {
    match item {
        ImplItem::Const(item) => &item.attrs,
        ImplItem::Fn(item) => &item.attrs,
        ImplItem::Type(item) => &item.attrs,
        ImplItem::Macro(item) => &item.attrs,
        _ => &[],
    }
}

fn trait_item_attributes(item: &TraitItem) -> &[Attribute] {
    match item {
        TraitItem::Const(item) => &item.attrs,
        TraitItem::Fn(item) => &item.attrs,
        TraitItem::Type(item) => &item.attrs,
        TraitItem::Macro(item) => &item.attrs,
        _ => &[],
    }
}

/// Part of a source file that a rule can check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Identifier or path, such as `std::env::var`; also within macros and attributes.
    Path(Vec<String>),
    /// Path of a macro that is called.
    Macro(Vec<String>),
    /// Imported path and the name it has here.
    Import(Vec<String>, String),
    /// Path whose content is imported with `*`.
    Glob(Vec<String>),
    Text(String),
    Number(u64),
}

/// Lists the parts of an item in order, without doc comments.
pub(super) fn scan_item(item: &Item) -> Vec<Found> {
    scan(item.to_token_stream())
}

/// Lists the parts of a token stream in order, without doc comments.
pub(super) fn scan(tokens: TokenStream) -> Vec<Found> {
    let mut found = Vec::new();
    scan_into(&tokens.into_iter().collect::<Vec<_>>(), &mut found);
    found
}

fn scan_into(tokens: &[TokenTree], found: &mut Vec<Found>) {
    let mut at = 0;
    while at < tokens.len() {
        match &tokens[at] {
            TokenTree::Punct(punct) if punct.as_char() == '#' && is_doc_comment(&tokens[at + 1..]) => at += 1,
            TokenTree::Group(group) => scan_into(&group.stream().into_iter().collect::<Vec<_>>(), found),
            TokenTree::Literal(literal) => found.extend(scan_literal(literal.clone())),
            TokenTree::Ident(ident) if ident == "use" => {
                let end = tokens[at..].iter().position(|token| is_punct(token, ';')).map_or(at, |length| at + length);
                let tree = tokens[at + 1..end.max(at + 1)].iter().cloned().collect::<TokenStream>();
                if let Ok(tree) = syn::parse2::<UseTree>(tree) {
                    imports(&tree, &mut Vec::new(), found);
                    at = end;
                }
            }
            TokenTree::Ident(_) if is_member(&tokens[..at]) => {}
            TokenTree::Ident(ident) => {
                let mut path = vec![ident.to_string()];
                while let [colon, second, TokenTree::Ident(next), ..] = &tokens[at + 1..]
                    && is_punct(colon, ':')
                    && is_punct(second, ':')
                {
                    path.push(next.to_string());
                    at += 3;
                }
                let is_macro = matches!(&tokens[at + 1..], [TokenTree::Punct(punct), TokenTree::Group(_), ..]
                    if punct.as_char() == '!' && punct.spacing() == Spacing::Alone);
                found.push(if is_macro { Found::Macro(path) } else { Found::Path(path) });
            }
            TokenTree::Punct(_) => {}
        }
        at += 1;
    }
}

fn is_punct(token: &TokenTree, character: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == character)
}

/// Returns true after `.` (a field or method) and after `::` that follows generic arguments.
fn is_member(before: &[TokenTree]) -> bool {
    match before {
        [.., first, second] if is_punct(second, '.') => !is_punct(first, '.'),
        [.., angle, first, second] if is_punct(first, ':') && is_punct(second, ':') => is_punct(angle, '>'),
        _ => false,
    }
}

fn is_doc_comment(after: &[TokenTree]) -> bool {
    let group = after.iter().find(|token| !is_punct(token, '!'));
    matches!(group, Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Bracket
        && group.stream().into_iter().next().is_some_and(|first| first.to_string() == "doc"))
}

fn scan_literal(literal: proc_macro2::Literal) -> Option<Found> {
    match syn::Lit::new(literal) {
        syn::Lit::Str(text) => Some(Found::Text(text.value())),
        syn::Lit::ByteStr(bytes) => Some(Found::Text(String::from_utf8_lossy(&bytes.value()).into_owned())),
        syn::Lit::CStr(text) => Some(Found::Text(text.value().to_string_lossy().into_owned())),
        syn::Lit::Int(number) => number.base10_parse().ok().map(Found::Number),
        _ => None,
    }
}

fn imports(tree: &UseTree, prefix: &mut Vec<String>, found: &mut Vec<Found>) {
    let joined = |prefix: &[String], name: &syn::Ident| {
        let mut path = prefix.to_vec();
        path.push(name.to_string());
        path
    };
    match tree {
        UseTree::Path(path) => {
            prefix.push(path.ident.to_string());
            imports(&path.tree, prefix, found);
            prefix.pop();
        }
        // `a::{self}` imports the module `a`, not a function of that name: the last segment says so.
        UseTree::Name(name) if name.ident == "self" => {
            found.push(Found::Import(joined(prefix, &name.ident), prefix.last().cloned().unwrap_or_default()));
        }
        UseTree::Name(name) => found.push(Found::Import(joined(prefix, &name.ident), name.ident.to_string())),
        UseTree::Rename(name) => found.push(Found::Import(joined(prefix, &name.ident), name.rename.to_string())),
        UseTree::Glob(_) => found.push(Found::Glob(prefix.clone())),
        UseTree::Group(group) => group.items.iter().for_each(|tree| imports(tree, prefix, found)),
    }
}
