//! `plantstore check`: checks that a live server meets the API contract, as a smoke test after a deployment.

use std::fs;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::{Args, ValueEnum};
use serde::Serialize;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::environment::TOKEN_VARIABLE;
use super::exit::UsageError;
use super::format::strip_os_error_codes;
use super::proxies::proxies;
use super::runtime::block_on;
use super::stdio::{is_dash, print, print_json, print_warning};
use super::style::{Style, Styler};
use super::value_parser::duration;
use plantstore_check::{self, Finding, Level, ServerUrl, Verdict};
use plantstore_client::Proxies;
use plantstore_model::text::Escaped;
use plantstore_model::token::TOKEN_PREFIX;

/// The error message about a token that is passed as an argument.
pub(super) const TOKEN_ARGUMENT_MESSAGE: &str = "a token does not belong on the command line, where every user of this \
                                                 machine can see it: put it into PLANTSTORE_TOKEN or a file named by --token-file";
/// Maximum size of a token file in bytes; JWTs are long.
const TOKEN_FILE_BYTES_MAX: u64 = 16 * 1024;

/// Check that a live server keeps the contract, and leave nothing behind
///
/// The token is read from the variable `PLANTSTORE_TOKEN` or from the file that --token-file names. It cannot be an argument,
/// because every user of the machine can see arguments. Plants are created with unused ids and deleted again, also after
/// Ctrl-C. The exit code is 0 if all checks hold, 1 if one does not, and 2 for a wrong option.
#[derive(Args)]
#[command(after_help = "Examples:
  plantstore check http://127.0.0.1:8080 --token-file plantstore.db.first-token
  plantstore check https://plants.example --ca authorities.pem --json")]
pub(super) struct Options {
    /// The server: http://HOST:PORT or https://HOST:PORT
    #[arg(value_name = "URL")]
    url: String,
    /// A file with the token; `-` is standard input
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// The checks to run: `interface` for the published API, `full` also for behaviour that only this project specifies
    #[arg(long, value_name = "LEVEL", default_value = "full")]
    level: LevelOption,
    /// A file of certificate authorities to trust instead of the system's
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Time limit for each response
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    timeout: Duration,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    // Accepted only for a better error message.
    #[arg(hide = true)]
    more: Vec<String>,
}

#[derive(Clone, Copy, ValueEnum)]
enum LevelOption {
    Interface,
    Full,
}

impl Options {
    pub(super) fn run(self) -> anyhow::Result<()> {
        if self.more.iter().chain([&self.url]).any(|word| word.starts_with(TOKEN_PREFIX)) {
            return Err(UsageError(TOKEN_ARGUMENT_MESSAGE.to_owned()).into());
        }
        if let Some(word) = self.more.first() {
            return Err(UsageError(format!("one server at a time: leave out `{word}`")).into());
        }
        let url: ServerUrl = self.url.parse().map_err(|error| UsageError(format!("{error}")))?;
        let token = self.token()?;
        if url.is_exposed() {
            print_warning(&format!("without https:// the token can be read on the way to {url}"));
        }
        let (shown_url, level) = (url.to_string(), self.level.into());
        let proxies = if url.is_loopback() { Proxies::default() } else { proxies()? };
        let (authorities, timeout) = (self.ca, self.timeout);
        let options = plantstore_check::Options { url, token, authorities, proxies, timeout, level };
        let findings = block_on(async { Ok(plantstore_check::run(options, interruptions()?).await?) })?;
        if self.json {
            print_findings(&shown_url, level, &findings)?;
        } else {
            print_table(&findings)?;
        }
        let summary = Summary::of(&findings);
        if !summary.keeps() {
            bail!("{shown_url} does not keep the contract: {summary}");
        }
        if self.json { Ok(()) } else { print(|output| writeln!(output, "\n{shown_url} keeps the contract: {summary}")) }
    }

    fn token(&self) -> anyhow::Result<String> {
        let text = match &self.token_file {
            Some(file) => read_token(file)?,
            None => variable(TOKEN_VARIABLE).ok_or_else(|| {
                UsageError(format!("no token: put it into {TOKEN_VARIABLE} or a file named by --token-file"))
            })?,
        };
        let token = text.trim();
        if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(UsageError("not a token: a token is one word of printable characters".to_owned()).into());
        }
        Ok(token.to_owned())
    }
}

#[expect(clippy::disallowed_methods, reason = "an option of this name would invite a token onto the command line")]
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn read_token(file: &std::path::Path) -> anyhow::Result<String> {
    let mut text = String::new();
    let read = if is_dash(file) {
        io::stdin().lock().take(TOKEN_FILE_BYTES_MAX).read_to_string(&mut text)
    } else {
        fs::File::open(file).and_then(|file| file.take(TOKEN_FILE_BYTES_MAX).read_to_string(&mut text))
    };
    read.with_context(|| format!("cannot read the token from {}", file.display()))?;
    Ok(text)
}

impl From<LevelOption> for Level {
    fn from(option: LevelOption) -> Self {
        match option {
            LevelOption::Interface => Self::Interface,
            LevelOption::Full => Self::Full,
        }
    }
}

/// Returns a channel that receives a message for each SIGINT and SIGTERM.
fn interruptions() -> anyhow::Result<UnboundedReceiver<()>> {
    let listen = |kind| signal(kind).context("cannot listen for signals");
    let mut signals: [Signal; 2] = [listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?];
    let (sender, receiver) = unbounded_channel();
    tokio::spawn(async move {
        let [interrupt, terminate] = &mut signals;
        loop {
            tokio::select! { _ = interrupt.recv() => {} _ = terminate.recv() => {} }
            let _ = writeln!(io::stderr(), "interrupted: deleting the created plants; a second signal stops at once");
            if sender.send(()).is_err() {
                return;
            }
        }
    });
    Ok(receiver)
}

/// Number of checks per verdict.
#[derive(Clone, Copy, Default)]
struct Summary {
    hold: usize,
    fail: usize,
    not_applicable: usize,
    untried: usize,
}

impl Summary {
    fn of(findings: &[Finding]) -> Self {
        let mut summary = Self::default();
        for finding in findings {
            match finding.verdict {
                Verdict::Holds => summary.hold += 1,
                Verdict::Fails(_) => summary.fail += 1,
                Verdict::NotApplicable(_) => summary.not_applicable += 1,
                Verdict::Untried(_) => summary.untried += 1,
            }
        }
        summary
    }

    /// Returns true if the contract is kept. A check that could not be tried counts as not kept.
    fn keeps(self) -> bool {
        self.fail == 0 && self.untried == 0
    }
}

impl std::fmt::Display for Summary {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { hold, fail, not_applicable, untried } = self;
        write!(formatter, "{hold} hold, {fail} fail, {not_applicable} not applicable, {untried} untried")
    }
}

/// Returns the verdict's name, its details, and its style on a terminal.
fn describe(verdict: &Verdict) -> (&'static str, Option<&str>, Style) {
    match verdict {
        Verdict::Holds => ("holds", None, Style::Success),
        Verdict::Fails(why) => ("fails", Some(why), Style::Error),
        Verdict::NotApplicable(why) => ("not applicable", Some(why), Style::Faint),
        Verdict::Untried(why) => ("untried", Some(why), Style::Warning),
    }
}

/// Prints a line for each check, and its details below it.
fn print_table(findings: &[Finding]) -> anyhow::Result<()> {
    let styler = Styler::new(&io::stdout());
    let width = |texts: &mut dyn Iterator<Item = &str>| texts.map(str::len).max().unwrap_or_default();
    let verdicts = width(&mut findings.iter().map(|finding| describe(&finding.verdict).0)).max("VERDICT".len());
    let ids = width(&mut findings.iter().map(|finding| finding.id));
    print(|output| {
        writeln!(output, "{:verdicts$}  {:ids$}  WHAT MUST HOLD", "VERDICT", "CHECK")?;
        for finding in findings {
            let (word, detail, style) = describe(&finding.verdict);
            let word = styler.apply(style, &format!("{word:verdicts$}"));
            writeln!(output, "{word}  {:ids$}  {}", finding.id, finding.description)?;
            if let Some(detail) = detail {
                let detail = strip_os_error_codes(detail);
                writeln!(output, "{:verdicts$}  {:ids$}  {}", "", "", Escaped(&detail))?;
            }
        }
        Ok(())
    })
}

/// The findings as `--json` prints them.
#[derive(Serialize)]
struct JsonFindings<'a> {
    url: &'a str,
    level: &'static str,
    keeps_the_contract: bool,
    checks: Vec<JsonFinding<'a>>,
}

#[derive(Serialize)]
struct JsonFinding<'a> {
    check: &'a str,
    about: &'a str,
    level: &'static str,
    what_must_hold: &'a str,
    verdict: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<&'a str>,
}

fn level_name(level: Level) -> &'static str {
    match level {
        Level::Interface => "interface",
        Level::Full => "full",
    }
}

fn print_findings(url: &str, level: Level, findings: &[Finding]) -> anyhow::Result<()> {
    fn shown(finding: &Finding) -> JsonFinding<'_> {
        let Finding { id, description, group, level, verdict } = finding;
        let (verdict, detail, _) = describe(verdict);
        JsonFinding { check: id, about: group, level: level_name(*level), what_must_hold: description, verdict, detail }
    }
    let findings = JsonFindings {
        url,
        level: level_name(level),
        keeps_the_contract: Summary::of(findings).keeps(),
        checks: findings.iter().map(shown).collect(),
    };
    print_json(&findings)
}
