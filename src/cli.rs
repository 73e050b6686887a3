//! The command line: one file a subcommand, with its options and its `run`. The one place that prints, reads the
//! environment and decides exit codes: 0 for success, 1 for failure, 2 for wrong use, 128 and the signal's number after a signal.

mod backup;
mod check;
mod colour;
mod completions;
mod copy;
mod environment;
mod export;
mod import;
mod man;
mod migrate;
mod openapi;
mod options;
mod probe;
mod progress;
mod proxies;
mod restore;
mod serve;
mod share;
mod signals;
mod table;
mod token;
mod user;
mod value;
mod words;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Parser, Subcommand};
use tracing::Level;

use self::colour::{Colours, Style};
use self::environment::origin;
use self::signals::Interrupted;
use self::words::{count, without_os_codes};
use crate::cli::options::{CreateOption, StoreOption};
use plantstore_store::{OpenOptions, PostgresUrl, Store, StoreUrl};
use plantstore_telemetry::logging;

/// How long a command waits for a server that writes without a pause.
const PATIENCE: Duration = Duration::from_secs(60);

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
struct Cli {
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
    Check(check::Options),
    Probe(probe::Options),
    Completions(completions::Options),
    Man(man::Options),
}

/// Parses, runs, and tells the truth in the exit code.
pub(crate) fn main() -> ExitCode {
    let done = match Cli::try_parse() {
        Ok(cli) => run(cli.command),
        Err(error) => return report_wrong_use(&error),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report(&format!("{error:#}"));
            ExitCode::from(exit_code(&error))
        }
    }
}

fn exit_code(error: &anyhow::Error) -> u8 {
    match error.downcast_ref::<Interrupted>() {
        Some(interrupted) => interrupted.exit_code(),
        None if error.is::<WrongUse>() => 2,
        None => 1,
    }
}

fn run(command: Command) -> anyhow::Result<()> {
    // The service puts them into its log.
    if !matches!(command, Command::Serve(_)) {
        for warning in environment::warnings() {
            warn(&warning);
        }
    }
    match command {
        Command::Serve(options) => options.run(),
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
        Command::Completions(options) => options.run(),
        Command::Man(options) => options.run(),
    }
}

/// Something in the command itself has to change.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct WrongUse(String);

/// Says why a command failed.
fn report(message: &str) {
    let mut errors = io::stderr();
    let label = Colours::of(&errors).paint(Style::Error, "error:");
    let _ = writeln!(errors, "{label} {}", without_os_codes(message));
}

/// Says what may not be as it was meant.
fn warn(message: &str) {
    let mut errors = io::stderr();
    let label = Colours::of(&errors).paint(Style::Warning, "warning:");
    let _ = writeln!(errors, "{label} {message}");
}

/// Prints what a command found; whoever stops reading has seen enough, which is no failure.
fn print(write: impl FnOnce(&mut io::StdoutLock<'_>) -> io::Result<()>) -> anyhow::Result<()> {
    let mut output = io::stdout().lock();
    match write(&mut output).and_then(|()| output.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error).context("cannot print"),
        _ => Ok(()),
    }
}

/// One line that says what is wrong; help and the version as they are.
fn report_wrong_use(error: &clap::Error) -> ExitCode {
    let helpful =
        [ErrorKind::DisplayHelp, ErrorKind::DisplayVersion, ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand];
    if helpful.contains(&error.kind()) {
        let _ = error.print();
        return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
    }
    if matches!(error.get(ContextKind::InvalidArg), Some(ContextValue::String(option)) if option.starts_with("--token"))
    {
        report(check::NO_TOKEN_HERE);
        return ExitCode::from(2);
    }
    let text = named_by_its_variable(error);
    let words = text.split("\n\nUsage:").next().unwrap_or(&text);
    let words = words.split("\n\nFor more information").next().unwrap_or(words);
    let line = words.replace("tip:", "; tip:").split_whitespace().collect::<Vec<_>>().join(" ").replace(" ;", ";");
    report(&format!("{} (see --help)", line.strip_prefix("error: ").unwrap_or(&line)));
    ExitCode::from(2)
}

/// The parser's message, which names the option, with the variable in its place if the value comes from there.
fn named_by_its_variable(error: &clap::Error) -> String {
    let text = error.to_string();
    let Some(ContextValue::String(argument)) = error.get(ContextKind::InvalidArg) else {
        return text;
    };
    let option = argument.split([' ', '=']).next().unwrap_or(argument);
    let origin = origin(option);
    if origin == option { text } else { text.replace(&format!("'{argument}'"), &origin) }
}

/// What a command may do to the schema of the store that it opens.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SchemaChange {
    /// Nothing; only a file is brought up to date.
    None,
    /// Bring it up to date.
    Update,
    /// Make the store if there is none.
    Create,
}

impl CreateOption {
    fn schema_change(self) -> SchemaChange {
        if self.create { SchemaChange::Create } else { SchemaChange::Update }
    }
}

impl StoreOption {
    fn url(&self) -> anyhow::Result<StoreUrl> {
        store_url(&origin("--store"), &self.store)
    }

    /// How the store was named, for messages that ask for another.
    #[expect(clippy::unused_self, reason = "an option is asked about itself")]
    fn named(&self) -> String {
        match origin("--store").as_str() {
            option @ "--store" => format!("with {option}"),
            variable => format!("in {variable}"),
        }
    }

    fn warn_of_visible_password(&self) {
        warn_of_visible_password("--store", &self.store, ", or PLANTSTORE_STORE");
    }

    /// Runs one of the operator's commands on the store, beside a running server or without one.
    fn with<T>(&self, change: SchemaChange, work: impl AsyncFnOnce(&Store) -> anyhow::Result<T>) -> anyhow::Result<T> {
        let _log = logging::start(logging::Format::Human, Level::WARN);
        let url = self.url()?;
        self.warn_of_visible_password();
        run_to_end(async {
            let options = OpenOptions {
                create: change == SchemaChange::Create,
                migrate: change != SchemaChange::None,
                write_queue: 1,
                readers: 1,
                patience: PATIENCE,
                timeout: PATIENCE,
                await_server: false,
            };
            let (store, created) = Store::open(&url, options).await?;
            if created {
                writeln!(io::stderr(), "made a new store: {url}")?;
            }
            let done = work(&store).await;
            store.close().await;
            done
        })
    }
}

/// Runs one of the operator's commands on this thread.
fn run_to_end<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start")?.block_on(work)
}

/// Where a store is, as this option names it, with the password of its database.
fn store_url(option: &str, text: &str) -> anyhow::Result<StoreUrl> {
    let mut url = text.parse().map_err(|fault| WrongUse(format!("{option}: {fault}")))?;
    if let StoreUrl::Postgres(url) = &mut url {
        find_password(url)?;
    }
    Ok(url)
}

/// Arguments are for everybody on the machine to see.
fn warn_of_visible_password(option: &str, text: &str, or: &str) {
    let has_password = matches!(text.parse(), Ok(StoreUrl::Postgres(url)) if url.has_password());
    if has_password && std::env::args().any(|argument| argument.ends_with(text)) {
        tracing::warn!(
            "the password in {option} can be seen by everybody on this machine: \
             put it into PGPASSWORD, a file named by PGPASSFILE{or}"
        );
    }
}

/// The password of a database: in its URL, or else where PostgreSQL's own programs look for it.
fn find_password(url: &mut PostgresUrl) -> anyhow::Result<()> {
    #[expect(clippy::disallowed_methods, reason = "names that PostgreSQL has given; they are no options of ours")]
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    if url.has_password() {
        return Ok(());
    }
    if let Some(password) = variable("PGPASSWORD") {
        url.set_password(&password.to_string_lossy());
        return Ok(());
    }
    let usual = || variable("HOME").map(|home| PathBuf::from(home).join(".pgpass")).filter(|file| file.exists());
    match (variable("PGPASSFILE"), usual()) {
        (Some(file), _) => Ok(url.set_password_from(&PathBuf::from(file))?),
        // Nobody has asked for this one: if it is of no use, there may be no need for a password.
        (None, Some(file)) => {
            let _ = url.set_password_from(&file);
            Ok(())
        }
        (None, None) => Ok(()),
    }
}

/// Whether this stands for standard input or output, as it does with most commands.
fn is_dash(path: &Path) -> bool {
    path == Path::new("-")
}

/// The store in a file that somebody names.
fn store_file(path: PathBuf) -> Result<StoreUrl, WrongUse> {
    if is_dash(&path) {
        return Err(WrongUse("a store is a file, and cannot go through a pipe: name one".to_owned()));
    }
    Ok(StoreUrl::Sqlite(path))
}
