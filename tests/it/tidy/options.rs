//! Options of the command line and environment variables, and their documentation.

use std::collections::BTreeSet;

use proc_macro2::{TokenStream, TokenTree};
use syn::parse::Parser as _;
use syn::punctuated::Punctuated;
use syn::{Expr, ExprLit, Lit, Meta, Token};

use super::source::{Found, code_tokens, files, read, scan};

const VARIABLE_PREFIX: &str = "PLANTSTORE_";
const OTEL_PREFIX: &str = "OTEL_";

#[test]
fn every_option_is_documented() {
    let mut names = BTreeSet::new();
    for (file, text) in files("src", "rs") {
        let tokens = code_tokens(&file, &text);
        names.extend(variables(tokens.clone()));
        names.extend(options(tokens));
    }
    for known in ["--store", "PLANTSTORE_STORE", "--store-timeout", "PLANTSTORE_TOKEN", "OTEL_SERVICE_NAME"] {
        assert!(names.contains(known), "{known} is not found in the sources");
    }
    let documents: String = files("docs", "md").into_values().chain([read("README.md")]).collect();
    let words: BTreeSet<_> = documents.split(|character| !is_part_of_a_name(character)).collect();
    // The documents describe how the variable of an option is named, and need not list each.
    let is_of_option = |variable: &str| {
        let name = variable.strip_prefix(VARIABLE_PREFIX).map(|name| name.to_lowercase().replace('_', "-"));
        name.is_some_and(|name| names.contains(&format!("--{name}")))
    };
    let missing: Vec<_> = names.iter().filter(|name| !words.contains(&***name) && !is_of_option(name)).collect();
    assert!(missing.is_empty(), "neither the README nor docs/ has {missing:?}");
}

fn is_part_of_a_name(character: char) -> bool {
    character.is_ascii_alphanumeric() || matches!(character, '-' | '_')
}

/// Returns the string literals that are names of environment variables.
fn variables(tokens: TokenStream) -> impl Iterator<Item = String> {
    let is_variable = |text: &String| {
        let name = [VARIABLE_PREFIX, OTEL_PREFIX].iter().find_map(|prefix| text.strip_prefix(prefix));
        name.is_some_and(|name| !name.is_empty() && !name.ends_with('_') && name.chars().all(is_part_of_a_name))
    };
    let texts = scan(tokens).into_iter().filter_map(|found| match found {
        Found::Text(text) => Some(text),
        _ => None,
    });
    texts.filter(is_variable)
}

/// Returns the options of fields with `#[arg(long)]`, with the name that `clap` derives.
fn options(tokens: TokenStream) -> Vec<String> {
    let tokens: Vec<_> = tokens.into_iter().collect();
    let mut found = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        let TokenTree::Group(group) = token else { continue };
        let content: Vec<_> = group.stream().into_iter().collect();
        if let [TokenTree::Ident(name), TokenTree::Group(arguments)] = &*content
            && name == "arg"
            && let Ok(arguments) = Punctuated::<Meta, Token![,]>::parse_terminated.parse2(arguments.stream())
        {
            found.extend(arguments.iter().find_map(|argument| option_name(argument, &tokens[at + 1..])));
        }
        found.extend(options(group.stream()));
    }
    found
}

/// Returns the name of an option. `after` has the tokens after the attribute: other attributes, the visibility, the
/// field.
fn option_name(argument: &Meta, after: &[TokenTree]) -> Option<String> {
    match argument {
        Meta::NameValue(pair) if pair.path.is_ident("long") => match &pair.value {
            Expr::Lit(ExprLit { lit: Lit::Str(name), .. }) => Some(format!("--{}", name.value())),
            _ => panic!("the name of an option is not a literal"),
        },
        Meta::Path(path) if path.is_ident("long") => {
            let mut idents = after.iter().filter_map(|token| match token {
                TokenTree::Ident(ident) if ident != "pub" => Some(ident.to_string()),
                _ => None,
            });
            Some(format!("--{}", idents.next().expect("a field").trim_start_matches("r#").replace('_', "-")))
        }
        _ => None,
    }
}

#[test]
fn options_are_found_by_their_attributes() {
    let tokens = code_tokens(
        "",
        "struct Options { #[arg(long, env = \"PLANTSTORE_A_B\")] pub(super) a_b: u8, #[arg(value_name = \"LONG\")] c: u8,
            #[arg(env = name(), value_parser = number::<u32>(1..=2), long = \"dd\")] /** doc */ #[x] d: u8, /** #[arg(long)] */ e: u8 }",
    );
    assert_eq!(options(tokens.clone()), ["--a-b", "--dd"]);
    assert_eq!(variables(tokens).collect::<Vec<_>>(), ["PLANTSTORE_A_B"]);
}
