//! Environment variables and errors of use: options given as variables, warnings about misspelled ones, and variables of other programs.

use std::env;
use std::ffi::OsString;

use clap::Command;
use strsim::levenshtein;

use plantstore_client::Proxies;

/// The variable with the token for a server. It has no option.
pub(super) const TOKEN_VARIABLE: &str = "PLANTSTORE_TOKEN";

const VARIABLE_PREFIX: &str = "PLANTSTORE_";
/// Maximum edit distance at which a name counts as a misspelling of a known one.
const MISSPELLING_DISTANCE_MAX: usize = 3;

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct UsageError(pub(super) String);

/// Reads a variable that has no option, for example one that systemd or a shell defines. Empty counts as not set.
#[expect(clippy::disallowed_methods, reason = "variables without an option")]
pub(super) fn variable(name: &str) -> Option<OsString> {
    env::var_os(name).filter(|value| !value.is_empty())
}

/// Reads `HTTP_PROXY`, `HTTPS_PROXY` and `NO_PROXY`. As in curl, the lower-case names take precedence.
pub(super) fn proxies() -> Result<Proxies, UsageError> {
    #[expect(clippy::disallowed_methods, reason = "an empty variable takes precedence, too")]
    let [http, https, none_for] = ["HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"].map(|name| {
        [name.to_lowercase().as_str(), name].into_iter().find_map(|name| env::var(name).ok()).unwrap_or_default()
    });
    Proxies::new(&http, &https, &none_for).map_err(|error| UsageError(format!("HTTP_PROXY or HTTPS_PROXY: {error}")))
}

/// Parses the variable of an option that has no value. Empty counts as not given.
pub(super) fn switch(text: &str) -> Result<bool, &'static str> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Ok(true),
        "" | "0" | "false" | "no" | "off" => Ok(false),
        _ => Err("write true or false"),
    }
}

/// Returns the source of an option's value, for messages: the option itself, or its variable. Only for options with a variable.
pub(super) fn origin(option: &str) -> String {
    let variable = format!("{VARIABLE_PREFIX}{}", option.trim_start_matches('-').replace('-', "_").to_uppercase());
    #[expect(clippy::disallowed_methods, reason = "tests only that it is set: the parser has read it")]
    let set = env::var_os(&variable).is_some();
    if set && !is_typed(option) { variable } else { option.to_owned() }
}

pub(super) fn is_typed(option: &str) -> bool {
    let is_option = |word: &str| word.strip_prefix(option).is_some_and(|rest| rest.is_empty() || rest.starts_with('='));
    env::args_os().skip(1).any(|word| word.to_str().is_some_and(is_option))
}

/// Returns a warning for each variable with the prefix of this program that no command reads.
pub(super) fn warnings(program: &Command) -> Vec<String> {
    let ours = env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let ours: Vec<_> = ours.filter(|(name, _)| name.starts_with(VARIABLE_PREFIX)).collect();
    if ours.is_empty() {
        return Vec::new();
    }
    let known = known_variables(program);
    let unknown = ours.into_iter().filter(|(name, value)| !known.contains(name) && !is_set_by_kubernetes(name, value));
    unknown.map(|(name, _)| ignored(&name, &known)).collect()
}

pub(super) fn ignored(name: &str, known: &[String]) -> String {
    let nearest = known.iter().map(|known| (levenshtein(name, known), known)).min();
    match nearest {
        Some((edits, known)) if edits <= MISSPELLING_DISTANCE_MAX => {
            format!("the variable {name} is ignored: there is no such option; did you mean {known}?")
        }
        _ => format!("the variable {name} is ignored: there is no such option (see plantstore serve --help)"),
    }
}

pub(super) fn known_variables(program: &Command) -> Vec<String> {
    fn collect(command: &Command, found: &mut Vec<String>) {
        found.extend(command.get_arguments().filter_map(|argument| argument.get_env()?.to_str()).map(str::to_owned));
        command.get_subcommands().for_each(|command| collect(command, found));
    }
    let mut found = vec![TOKEN_VARIABLE.to_owned()];
    collect(program, &mut found);
    found
}

/// Detects variables that Kubernetes sets in containers if there is a service with the name `plantstore`.
fn is_set_by_kubernetes(name: &str, value: &str) -> bool {
    let rest = &name[VARIABLE_PREFIX.len()..];
    rest.starts_with("SERVICE_") || rest.starts_with("PORT_") || (rest == "PORT" && value.contains("://"))
}
