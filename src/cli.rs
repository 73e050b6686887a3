//! The command line: one file per subcommand, with its options and its `run`. The only place that prints, reads the environment
//! and chooses exit codes (the store exits on its own if it cannot continue safely).

mod backup;
mod check;
mod completions;
mod copy;
mod environment;
pub(crate) mod exit;
mod export;
mod format;
mod import;
mod man;
mod migrate;
mod openapi;
pub(crate) mod parse_error;
mod progress;
mod proxies;
mod restore;
mod runtime;
mod serve;
mod share;
mod signals;
mod stdio;
mod store_options;
mod store_url;
mod style;
mod table;
mod token;
mod user;
mod value_parser;

use clap::{CommandFactory as _, Parser, Subcommand};

use self::stdio::print_warning;

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
    Migrate(migrate::Options),
    Token(token::Options),
    Share(share::Options),
    User(user::Options),
    Openapi(openapi::Options),
    Export(export::Options),
    Import(import::Options),
    Backup(backup::Options),
    Restore(restore::Options),
    Copy(copy::Options),
    Check(check::CheckOptions),
    Probe(check::ProbeOptions),
    Completions(completions::Options),
    Man(man::Options),
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
            Command::Token(options) => options.run(),
            Command::Share(options) => options.run(),
            Command::User(options) => options.run(),
            Command::Openapi(options) => options.run(),
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
