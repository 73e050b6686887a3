//! The `plantstore` command: parse, run, exit code.

mod cli;

use std::process::ExitCode;

use clap::Parser as _;

use self::cli::process::exit_code;
use self::cli::{Cli, report_parse_error};

fn main() -> ExitCode {
    match Cli::try_parse() {
        Ok(cli) => exit_code(cli.run()),
        Err(error) => report_parse_error(error),
    }
}
