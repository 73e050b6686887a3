//! Options that are given as variables, and variables that look like options and are none.

use std::env;

use clap::{Command, CommandFactory as _};

use super::{Cli, check};

/// What the variables of this program start with.
const PREFIX: &str = "PLANTSTORE_";
/// Edits up to which another name counts as a misspelling of a known one.
const MISSPELLING_MAX: usize = 3;

/// The name by which the value of an option was given: the option itself, or its variable.
pub(super) fn origin(option: &str) -> String {
    let variable = format!("{PREFIX}{}", option.trim_start_matches('-').replace('-', "_").to_uppercase());
    #[expect(clippy::disallowed_methods, reason = "only whether it is set: the parser has read it")]
    let set = env::var_os(&variable).is_some();
    let typed = env::args()
        .skip(1)
        .any(|word| word.strip_prefix(option).is_some_and(|rest| rest.is_empty() || rest.starts_with('=')));
    if set && !typed && known_variables().contains(&variable) { variable } else { option.to_owned() }
}

/// A warning for each variable that looks like an option of this program and is none.
pub(super) fn warnings() -> Vec<String> {
    let ours = env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let ours: Vec<_> = ours.filter(|(name, _)| name.starts_with(PREFIX)).collect();
    if ours.is_empty() {
        return Vec::new();
    }
    let known = known_variables();
    let unknown = ours.into_iter().filter(|(name, value)| !known.contains(name) && !is_of_kubernetes(name, value));
    unknown
        .map(|(name, _)| {
            let nearest = known.iter().map(|known| (distance(&name, known), known)).min();
            match nearest {
                Some((edits, known)) if edits <= MISSPELLING_MAX => {
                    format!("the variable {name} is ignored: there is no such option; did you mean {known}?")
                }
                _ => format!("the variable {name} is ignored: there is no such option (see plantstore serve --help)"),
            }
        })
        .collect()
}

/// Every variable that some command reads.
fn known_variables() -> Vec<String> {
    fn collect(command: &Command, found: &mut Vec<String>) {
        found.extend(command.get_arguments().filter_map(|argument| argument.get_env()?.to_str()).map(str::to_owned));
        command.get_subcommands().for_each(|command| collect(command, found));
    }
    let mut found = vec![check::TOKEN_VARIABLE.to_owned()];
    collect(&Cli::command(), &mut found);
    found
}

/// Kubernetes tells every container of a service that is called `plantstore` where it is.
fn is_of_kubernetes(name: &str, value: &str) -> bool {
    let rest = &name[PREFIX.len()..];
    rest.starts_with("SERVICE_") || rest.starts_with("PORT_") || (rest == "PORT" && value.contains("://"))
}

/// The Levenshtein distance: the fewest characters to insert, remove or change.
fn distance(from: &str, to: &str) -> usize {
    let mut row: Vec<usize> = (0..=to.chars().count()).collect();
    for (above, left) in from.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], above + 1);
        for (column, right) in to.chars().enumerate() {
            let changed = diagonal + usize::from(left != right);
            diagonal = row[column + 1];
            row[column + 1] = changed.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_count_edits() {
        for (from, to, edits) in
            [("", "", 0), ("abc", "abc", 0), ("abc", "", 3), ("LISTN", "LISTEN", 1), ("kitten", "sitting", 3)]
        {
            assert_eq!(distance(from, to), edits, "{from} {to}");
        }
    }
}
