//! Options given as environment variables, and warnings about variables that are misspelled.

use std::env;

use clap::Command;

/// The variable with the token for `plantstore check`. It has no option.
pub(super) const TOKEN_VARIABLE: &str = "PLANTSTORE_TOKEN";

const VARIABLE_PREFIX: &str = "PLANTSTORE_";
/// Maximum edit distance at which a name counts as a misspelling of a known one.
const MISSPELLING_DISTANCE_MAX: usize = 3;

/// Returns the source of an option's value, for messages: the option itself, or its variable. Only for options with a variable.
pub(super) fn origin(option: &str) -> String {
    let variable = format!("{VARIABLE_PREFIX}{}", option.trim_start_matches('-').replace('-', "_").to_uppercase());
    #[expect(clippy::disallowed_methods, reason = "tests only that it is set: the parser has read it")]
    let set = env::var_os(&variable).is_some();
    let typed = env::args()
        .skip(1)
        .any(|word| word.strip_prefix(option).is_some_and(|rest| rest.is_empty() || rest.starts_with('=')));
    if set && !typed { variable } else { option.to_owned() }
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

/// Returns the warning about a variable that is not among the known ones.
pub(super) fn ignored(name: &str, known: &[String]) -> String {
    let nearest = known.iter().map(|known| (edit_distance(name, known), known)).min();
    match nearest {
        Some((edits, known)) if edits <= MISSPELLING_DISTANCE_MAX => {
            format!("the variable {name} is ignored: there is no such option; did you mean {known}?")
        }
        _ => format!("the variable {name} is ignored: there is no such option (see plantstore serve --help)"),
    }
}

/// Returns the variables of all commands.
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

/// Returns the Levenshtein distance: the fewest characters to insert, remove or change.
fn edit_distance(from: &str, to: &str) -> usize {
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
    fn edit_distance_counts_edits() {
        for (from, to, edits) in
            [("", "", 0), ("abc", "abc", 0), ("abc", "", 3), ("LISTN", "LISTEN", 1), ("kitten", "sitting", 3)]
        {
            assert_eq!(edit_distance(from, to), edits, "{from} {to}");
        }
    }
}
