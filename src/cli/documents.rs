//! Documents generated from the command line itself: `plantstore completions` and `man`.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::{Args, Command};
use clap_complete::Shell;
use clap_mangen::Man;

use super::environment::UsageError;
use super::terminal::{count, print};

/// Print the completion script of a shell
#[derive(Args)]
#[command(after_help = "Examples:
  plantstore completions bash > /etc/bash_completion.d/plantstore
  plantstore completions fish > ~/.config/fish/completions/plantstore.fish")]
pub(super) struct Completions {
    /// The shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

impl Completions {
    pub(super) fn run(&self, mut program: Command) -> anyhow::Result<()> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut program, env!("CARGO_PKG_NAME"), &mut script);
        print(|output| output.write_all(&script))
    }
}

/// Print a manual page, or write all of them into a directory
#[derive(Args)]
#[command(after_help = "Examples:
  plantstore man serve | man -l -
  plantstore man --output /usr/local/share/man/man1")]
pub(super) struct ManOptions {
    /// The command of the page, for example `token create`; the overview unless given
    #[arg(value_name = "COMMAND", conflicts_with = "output")]
    command: Vec<String>,
    /// Write the pages of all commands into this directory
    #[arg(long, value_name = "DIRECTORY")]
    output: Option<PathBuf>,
}

impl ManOptions {
    pub(super) fn run(&self, program: Command) -> anyhow::Result<()> {
        let mut program = program.disable_help_subcommand(true);
        program.build();
        if let Some(directory) = &self.output {
            let pages = write_all(&program, directory)
                .with_context(|| format!("cannot write the manual into {}", directory.display()))?;
            writeln!(io::stderr(), "wrote {} into {}", count(pages, "page"), directory.display())?;
            return Ok(());
        }
        let page = page(find(&program, &self.command)?)?;
        print(|output| output.write_all(&page))
    }
}

fn find<'a>(program: &'a Command, path: &[String]) -> Result<&'a Command, UsageError> {
    path.iter().try_fold(program, |command, name| {
        command.find_subcommand(name).ok_or_else(|| {
            let known: Vec<&str> = command.get_subcommands().map(Command::get_name).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            UsageError(format!("`{}` has no command `{name}`; there are: {known}", command.get_name()))
        })
    })
}

fn page(command: &Command) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    let program = concat!(env!("CARGO_PKG_NAME"), " ", env!("CARGO_PKG_VERSION"));
    // The examples get a section of their own, without line filling.
    let examples = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let without = command.clone().after_help(None::<&str>);
    Man::new(without).source(program).manual("plantstore").render(&mut page)?;
    writeln!(page, ".SH EXAMPLES\n.nf")?;
    for line in examples.lines().skip(1) {
        writeln!(page, "{}", line.trim_start().replace('\\', "\\e").replace('-', "\\-"))?;
    }
    writeln!(page, ".fi")?;
    Ok(page)
}

/// Writes a page for the command and for each of its subcommands, and returns how many.
fn write_all(command: &Command, directory: &Path) -> io::Result<u64> {
    fs::create_dir_all(directory)?;
    let name = command.get_display_name().unwrap_or(command.get_name());
    fs::write(directory.join(format!("{name}.1")), page(command)?)?;
    command.get_subcommands().try_fold(1, |pages, command| Ok(pages + write_all(command, directory)?))
}
