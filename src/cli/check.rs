//! `plantstore check` and `plantstore probe`: ask a live server, as a smoke test after a deployment and as a readiness probe.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{anyhow, bail};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use serde::Serialize;
use tokio::sync::mpsc::unbounded_channel;

use super::environment::UsageError;
use super::process::{block_on, current_thread_runtime, on_end_signal};
use super::server_options::{AccessOptions, ServerAccess, TOKEN_ARGUMENT_MESSAGE, parse_server_url, proxies_to};
use super::terminal::{Style, Styler, print, print_json, strip_os_error_codes};
use plantstore_check::{self, Finding, Level, Verdict};
use plantstore_client::Server;
use plantstore_model::text::Escaped;
use plantstore_model::token::TOKEN_PREFIX;
use plantstore_server::value_parser::duration;

/// Check that a live server keeps the contract, and leave nothing behind
///
/// The token is read from the variable `PLANTSTORE_TOKEN` or from the file that --token-file names. It cannot be an argument,
/// because every user of the machine can see arguments. Plants are created with unused ids and deleted again, also after
/// Ctrl-C. The exit code is 0 if all checks hold, 1 if one does not, and 2 for a wrong option.
#[derive(Args)]
#[command(after_help = "Examples:
  plantstore check http://127.0.0.1:8080 --token-file plantstore.db.first-token
  plantstore check https://plants.example --ca authorities.pem --json")]
pub(super) struct CheckOptions {
    /// The server: http://HOST:PORT or https://HOST:PORT
    #[arg(value_name = "URL")]
    url: String,
    #[command(flatten)]
    access: AccessOptions,
    /// The checks to run: `interface` for the published API, `full` also for behaviour that only this project specifies
    #[arg(
        long,
        value_name = "LEVEL",
        default_value = "full",
        value_parser = PossibleValuesParser::new(["interface", "full"])
            .map(|name| if name == "interface" { Level::Interface } else { Level::Full })
    )]
    level: Level,
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

impl CheckOptions {
    pub(super) fn run(self) -> anyhow::Result<()> {
        if self.more.iter().chain([&self.url]).any(|word| word.starts_with(TOKEN_PREFIX)) {
            return Err(UsageError(TOKEN_ARGUMENT_MESSAGE.to_owned()).into());
        }
        if let Some(word) = self.more.first() {
            return Err(UsageError(format!("one server at a time: leave out `{word}`")).into());
        }
        let ServerAccess { server, token } = self.access.open(&self.url)?;
        let origin = server.url.origin();
        let options = plantstore_check::Options { server, token, timeout: self.timeout, level: self.level };
        let (sender, interruptions) = unbounded_channel();
        on_end_signal(move |_| {
            let _ = writeln!(io::stderr(), "interrupted: deleting the created plants; a second signal stops at once");
            let _ = sender.send(());
        })?;
        let findings = block_on(async { Ok(plantstore_check::run(options, interruptions).await?) })?;
        let keeps_the_contract = findings.iter().all(|finding| finding.verdict.is_kept());
        if self.json {
            print_json(&Report { url: &origin, level: self.level, keeps_the_contract, checks: &findings })?;
        } else {
            print_table(&findings)?;
        }
        let summary = summarize(&findings);
        if !keeps_the_contract {
            bail!("{origin} does not keep the contract: {summary}");
        }
        if self.json { Ok(()) } else { print(|output| writeln!(output, "\n{origin} keeps the contract: {summary}")) }
    }
}

/// The result as `--json` prints it.
#[derive(Serialize)]
struct Report<'a> {
    url: &'a str,
    level: Level,
    keeps_the_contract: bool,
    checks: &'a [Finding],
}

fn summarize(findings: &[Finding]) -> String {
    let count = |kind: &str| findings.iter().filter(|finding| finding.verdict.name() == kind).count();
    let [hold, fail, not_applicable, untried] = ["holds", "fails", "not applicable", "untried"].map(count);
    format!("{hold} hold, {fail} fail, {not_applicable} not applicable, {untried} untried")
}

fn style(verdict: &Verdict) -> Style {
    match verdict {
        Verdict::Holds => Style::SUCCESS,
        Verdict::Fails(_) => Style::ERROR,
        Verdict::NotApplicable(_) => Style::FAINT,
        Verdict::Untried(_) => Style::WARNING,
    }
}

/// Prints a line for each check, and its details below it.
fn print_table(findings: &[Finding]) -> anyhow::Result<()> {
    let styler = Styler::new(&io::stdout());
    let verdicts = findings.iter().map(|finding| finding.verdict.name().len()).fold("VERDICT".len(), usize::max);
    let ids = findings.iter().map(|finding| finding.id.len()).max().unwrap_or_default();
    print(|output| {
        writeln!(output, "{:verdicts$}  {:ids$}  WHAT MUST HOLD", "VERDICT", "CHECK")?;
        for Finding { id, description, verdict, .. } in findings {
            let word = styler.apply(style(verdict), &format!("{:verdicts$}", verdict.name()));
            writeln!(output, "{word}  {id:ids$}  {description}")?;
            if let Some(detail) = verdict.detail() {
                let detail = strip_os_error_codes(detail);
                writeln!(output, "{:verdicts$}  {:ids$}  {}", "", "", Escaped(&detail))?;
            }
        }
        Ok(())
    })
}

/// Check that a server is ready for requests
#[derive(Args)]
#[command(after_help = "Examples:
  plantstore probe
  plantstore probe https://plants.example --ca authorities.pem --timeout 1s")]
pub(super) struct ProbeOptions {
    /// The server: http://HOST:PORT or https://HOST:PORT
    #[arg(value_name = "URL", default_value = "http://127.0.0.1:8080")]
    url: String,
    /// A file of certificate authorities to trust instead of the system's
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Time limit for the response
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = duration)]
    timeout: Duration,
}

impl ProbeOptions {
    pub(super) fn run(self) -> anyhow::Result<()> {
        let url = parse_server_url(&self.url)?;
        let server = Server { proxies: proxies_to(&url)?, authorities: self.ca, url };
        let ready = plantstore_check::ready(server, self.timeout);
        current_thread_runtime()?.block_on(ready).map_err(|reason| anyhow!(reason))?;
        print(|output| writeln!(output, "ready"))
    }
}
