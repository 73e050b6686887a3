//! The `plantstore` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    plantstore::cli::main()
}
