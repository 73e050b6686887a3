//! Reference pages of the options and commands, generated from the help texts.

use std::process::Command;

use super::generated;
use crate::support::tools::succeed;

/// Returns the help of a command, without the caller's environment: the help would show the values of variables.
fn help(command: &[String]) -> String {
    let mut program = Command::new(env!("CARGO_BIN_EXE_plantstore"));
    let text = succeed(program.args(command).arg("--help").env_clear());
    text.lines().flat_map(|line| [line.trim_end(), "\n"]).collect()
}

/// Option of a command, as its help describes it.
#[derive(Debug, Default, PartialEq, Eq)]
struct OptionHelp {
    section: String,
    name: String,
    description: String,
}

impl OptionHelp {
    /// Removes `[label: …]` from the description and returns its content.
    fn take(&mut self, label: &str) -> Option<String> {
        let opening = format!("[{label}: ");
        let begin = self.description.find(&opening)?;
        let length = self.description[begin..].find(']')?;
        let content = self.description[begin + opening.len()..begin + length].to_owned();
        self.description.replace_range(begin..=begin + length, "");
        self.description = self.description.trim().to_owned();
        Some(content)
    }
}

/// Reads the options of a help text, in order. A description starts after two spaces or on the next line.
fn options(help: &str) -> Vec<OptionHelp> {
    let mut found: Vec<OptionHelp> = Vec::new();
    let mut section = None;
    for line in help.lines() {
        let text = line.trim_start();
        if line.len() == text.len() {
            section = line.strip_suffix(':').filter(|title| !matches!(*title, "Commands" | "Arguments" | "Examples"));
        } else if let Some(section) = section.filter(|_| text.starts_with('-')) {
            let (name, description) = text.split_once("  ").unwrap_or((text, ""));
            let description = description.trim().to_owned();
            found.push(OptionHelp { section: section.to_owned(), name: name.to_owned(), description });
        } else if let Some(option) = found.last_mut().filter(|_| section.is_some()) {
            let space = if option.description.is_empty() { "" } else { " " };
            option.description = [option.description.as_str(), space, text].concat();
        }
    }
    found.retain(|option| !option.name.contains("--help"));
    found
}

fn code(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("`{text}`") }
}

/// Describes the options of `serve`, with a table for each section of the help.
fn configuration() -> String {
    let mut lines: Vec<String> = Vec::new();
    let mut section = String::new();
    for mut option in options(&help(&["serve".to_owned()])) {
        let variable = option.take("env").unwrap_or_default();
        let default = option.take("default").unwrap_or_default();
        let values = option.take("possible values").map_or(String::new(), |values| format!(" (one of: {values})"));
        if option.section != section {
            let title = if option.section == "Options" { "General" } else { &option.section };
            lines.extend([String::new(), format!("## {title}"), String::new()]);
            lines.push("| option | variable | default | description |\n| --- | --- | --- | --- |".to_owned());
            section.clone_from(&option.section);
        }
        let (name, variable, default) = (code(&option.name), code(variable.trim_end_matches('=')), code(&default));
        let row = format!("| {name} | {variable} | {default} | {}{values} |", option.description);
        lines.push(row.replace("|  |", "| |"));
    }
    lines.join("\n")
}

/// Appends the help of all subcommands that have no subcommands themselves. `serve` has its own page.
fn commands(above: &[String], found: &mut Vec<String>) {
    let text = help(above);
    let Some((_, list)) = text.split_once("Commands:\n") else {
        found.push(format!("### plantstore {}\n\n```text\n{}```", above.join(" "), text.trim_start()));
        return;
    };
    let names = list.lines().take_while(|line| !line.is_empty()).filter(|line| !line.starts_with("   "));
    for name in
        names.filter_map(|line| line.split_whitespace().next()).filter(|name| !matches!(*name, "help" | "serve"))
    {
        commands(&[above, &[name.to_owned()]].concat(), found);
    }
}

#[test]
fn configuration_reference_lists_the_options_of_serve() {
    let text = configuration();
    assert!(text.contains("| `--write-queue <NUMBER>` | `PLANTSTORE_WRITE_QUEUE` | `1024` |"), "{text}");
    generated::check("docs/reference/configuration.md", "configuration", &text);
}

#[test]
fn command_reference_has_the_help_of_every_command() {
    let mut found = Vec::new();
    commands(&[], &mut found);
    assert!(found.iter().any(|text| text.starts_with("### plantstore token create\n")), "{found:?}");
    generated::check("docs/reference/cli.md", "commands", &found.join("\n\n"));
}

#[test]
fn options_are_read_from_both_layouts_of_a_help_text() {
    let help = "Run\n\nOptions:\n      --a <[HOST:]PORT>  Text that\n                         goes on [env: A=] [default: 1]\n  -h, --help\n\
        Limits:\n      --b\n          Text [env: B=]\n\nExamples:\n  plantstore --c\n";
    let mut found = options(help);
    assert_eq!(found.len(), 2, "{found:?}");
    assert_eq!((&*found[0].name, &*found[0].section), ("--a <[HOST:]PORT>", "Options"));
    assert_eq!([found[0].take("env"), found[0].take("default")], [Some("A=".to_owned()), Some("1".to_owned())]);
    assert_eq!(found[0].description, "Text that goes on");
    assert_eq!((&*found[1].description, &*found[1].section), ("Text [env: B=]", "Limits"));
}
