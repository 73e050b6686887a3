//! The `plantstore` command: parse, run, exit code.

mod cli;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};

use self::cli::{Cli, exit, parse_error};

fn main() -> ExitCode {
    match Cli::try_parse() {
        Ok(cli) => exit::exit_code(cli.run()),
        Err(error) => parse_error::report(error, &Cli::command()),
    }
}
