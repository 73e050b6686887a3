//! `plantstore completions`: what a shell needs to know to complete our commands and options.

use std::io::Write;

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::{Cli, print};

/// Print completions for a shell, to be put where it looks for them
#[derive(Args)]
#[command(after_help = "Examples:
  plantstore completions bash > /etc/bash_completion.d/plantstore
  plantstore completions fish > ~/.config/fish/completions/plantstore.fish")]
pub(super) struct Options {
    /// The shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

impl Options {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), env!("CARGO_PKG_NAME"), &mut script);
        print(|output| output.write_all(&script))
    }
}
