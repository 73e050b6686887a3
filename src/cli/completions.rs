//! `plantstore completions`: completion scripts for shells.

use std::io::Write;

use clap::{Args, Command};
use clap_complete::Shell;

use super::stdio::print;

/// Print the completion script of a shell
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
    pub(super) fn run(&self, mut program: Command) -> anyhow::Result<()> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut program, env!("CARGO_PKG_NAME"), &mut script);
        print(|output| output.write_all(&script))
    }
}
