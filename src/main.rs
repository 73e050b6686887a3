//! The `plantstore` command: parse, run, exit code.

mod cli;

use std::process::ExitCode;

use clap::Parser as _;
use rustix::process::{Resource, Rlimit, setrlimit};

use self::cli::process::exit_code;
use self::cli::{Cli, report_parse_error};

fn main() -> ExitCode {
    // No core file: the memory of every command may hold tokens and passwords.
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    match Cli::try_parse() {
        Ok(cli) => exit_code(cli.run()),
        Err(error) => report_parse_error(error),
    }
}
