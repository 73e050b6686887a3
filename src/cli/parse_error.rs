//! Errors of the command line's parser, as one line.

use std::process::ExitCode;

use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::check::TOKEN_ARGUMENT_MESSAGE;
use super::environment::{known_variables, origin};
use super::exit::USAGE_ERROR_CODE;
use super::stdio::print_error;

/// Prints the error and returns its exit code. The parser also reports help and the version as errors; they are printed unchanged.
pub(crate) fn report(mut error: clap::Error, program: &Command) -> ExitCode {
    if matches!(
        error.kind(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    ) {
        let _ = error.print();
        return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(USAGE_ERROR_CODE));
    }
    // The parser sorts the names that are similar to a misspelled one by similarity.
    if let Some(ContextValue::Strings(names)) = error.get(ContextKind::SuggestedSubcommand)
        && let Some(best) = names.last().cloned()
    {
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::String(best));
    }
    match invalid_argument(&error) {
        Some(argument) if argument.starts_with("--token") => print_error(TOKEN_ARGUMENT_MESSAGE),
        argument => print_error(&one_line(&message(&error, argument, program))),
    }
    ExitCode::from(USAGE_ERROR_CODE)
}

fn invalid_argument(error: &clap::Error) -> Option<&str> {
    match error.get(ContextKind::InvalidArg)? {
        ContextValue::String(argument) => Some(argument),
        _ => None,
    }
}

/// Returns the parser's message, with the environment variable in place of the option if the value comes from there.
fn message(error: &clap::Error, argument: Option<&str>, program: &Command) -> String {
    let text = error.to_string();
    let Some(argument) = argument else { return text };
    let option = argument.split([' ', '=']).next().unwrap_or(argument);
    let origin = origin(option);
    if known_variables(program).contains(&origin) { text.replace(&format!("'{argument}'"), &origin) } else { text }
}

fn one_line(text: &str) -> String {
    let text = text.split("\n\nUsage:").next().unwrap_or(text);
    let text = text.split("\n\nFor more information").next().unwrap_or(text);
    let line = text.replace("tip:", "; tip:").split_whitespace().collect::<Vec<_>>().join(" ").replace(" ;", ";");
    format!("{} (see --help)", line.strip_prefix("error: ").unwrap_or(&line))
}
