//! The command line: a file per subcommand or for a few small ones, with options and `run`. The only place that prints, reads the
//! environment and chooses exit codes (the store exits on its own if it cannot continue safely).

mod check;
mod documents;
mod environment;
mod export;
mod import;
mod maintenance;
pub(crate) mod process;
mod remote;
mod serve;
mod server_options;
mod share;
mod store_options;
mod table;
mod terminal;
mod token;
mod user;

use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory as _, Parser, Subcommand};

use self::environment::{known_variables, origin};
use self::process::USAGE_ERROR_CODE;
use self::terminal::{print_error, print_json, print_warning};

/// Keeps people's plants: a small HTTP/JSON service.
#[derive(Parser)]
#[command(
    version,
    arg_required_else_help = true,
    max_term_width = 100,
    after_help = "Examples:
  plantstore serve
  plantstore token create --user ada
  plantstore backup monday.db
  plantstore man serve | man -l -"
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Serve(Box<serve::Options>),
    Migrate(maintenance::Migrate),
    /// Issue, list and revoke access tokens; works beside a running server
    #[command(
        subcommand,
        arg_required_else_help = true,
        after_help = "Examples:
  plantstore token create --user ada
  plantstore token list
  plantstore token revoke 2"
    )]
    Token(token::TokenCommand),
    /// Share the plants of one user with another; works beside a running server
    #[command(
        subcommand,
        arg_required_else_help = true,
        after_help = "Examples:
  plantstore share grant --owner ada --to bob --role reader
  plantstore share list
  plantstore share revoke --owner ada --to bob"
    )]
    Share(share::ShareCommand),
    /// List and delete users; works beside a running server
    #[command(
        subcommand,
        arg_required_else_help = true,
        after_help = "Examples:
  plantstore user list
  plantstore user delete ada"
    )]
    User(user::UserCommand),
    /// Print the OpenAPI document that the service serves at /openapi.json
    #[command(after_help = "Examples:
  plantstore openapi > openapi.json")]
    Openapi,
    Export(export::Options),
    Import(import::Options),
    Backup(maintenance::Backup),
    Restore(maintenance::Restore),
    Copy(maintenance::Copy),
    Check(check::CheckOptions),
    Probe(check::ProbeOptions),
    Completions(documents::Completions),
    Man(documents::ManOptions),
}

impl Cli {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let program = Self::command();
        let warnings = environment::warnings(&program);
        // The service writes the warnings to its log.
        if !matches!(self.command, Command::Serve(_)) {
            for warning in &warnings {
                print_warning(warning);
            }
        }
        match self.command {
            Command::Serve(options) => options.run(&warnings),
            Command::Migrate(options) => options.run(),
            Command::Token(command) => command.run(),
            Command::Share(command) => command.run(),
            Command::User(command) => command.run(),
            Command::Openapi => print_json(&plantstore_server::openapi()),
            Command::Export(options) => options.run(),
            Command::Import(options) => options.run(),
            Command::Backup(options) => options.run(),
            Command::Restore(options) => options.run(),
            Command::Copy(options) => options.run(),
            Command::Check(options) => options.run(),
            Command::Probe(options) => options.run(),
            Command::Completions(options) => options.run(program),
            Command::Man(options) => options.run(program),
        }
    }
}

/// Prints the error and returns its exit code. The parser also reports help and the version as errors; they are printed unchanged.
pub(crate) fn report_parse_error(mut error: clap::Error) -> ExitCode {
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
    let argument = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(argument)) => Some(argument.as_str()),
        _ => None,
    };
    match argument {
        Some(argument) if error.kind() == ErrorKind::UnknownArgument && argument.starts_with("--token") => {
            print_error(server_options::TOKEN_ARGUMENT_MESSAGE);
        }
        argument => print_error(&one_line(&message(&error, argument))),
    }
    ExitCode::from(USAGE_ERROR_CODE)
}

/// Returns the parser's message, with the environment variable in place of the option if the value comes from there.
fn message(error: &clap::Error, argument: Option<&str>) -> String {
    let text = error.to_string();
    let Some(argument) = argument else { return text };
    let option = argument.split([' ', '=']).next().unwrap_or(argument);
    let origin = origin(option);
    if known_variables(&Cli::command()).contains(&origin) {
        text.replace(&format!("'{argument}'"), &origin)
    } else {
        text
    }
}

fn one_line(text: &str) -> String {
    let text = text.split("\n\nUsage:").next().unwrap_or(text);
    let text = text.split("\n\nFor more information").next().unwrap_or(text);
    let line = text.replace("tip:", "; tip:").split_whitespace().collect::<Vec<_>>().join(" ").replace(" ;", ";");
    format!("{} (see --help)", line.strip_prefix("error: ").unwrap_or(&line))
}
