//! `plantstore check` and `plantstore probe`: ask a live server, as a smoke test after a deployment and as a readiness probe.

use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use serde::Serialize;
use tokio::sync::mpsc::unbounded_channel;

use super::environment::{TOKEN_VARIABLE, UsageError, proxies, variable};
use super::process::{block_on, current_thread_runtime, on_end_signal};
use super::terminal::{Style, Styler, is_dash, print, print_json, print_warning, strip_os_error_codes};
use plantstore_check::{self, Finding, Level, Verdict, server_url};
use plantstore_client::{HttpUrl, Proxies};
use plantstore_model::text::Escaped;
use plantstore_model::token::TOKEN_PREFIX;
use plantstore_server::value_parser::duration;

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
pub(super) struct CheckOptions {
    /// The server: http://HOST:PORT or https://HOST:PORT
    #[arg(value_name = "URL")]
    url: String,
    /// A file with the token; `-` is standard input
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// The checks to run: `interface` for the published API, `full` also for behaviour that only this project specifies
    #[arg(
        long,
        value_name = "LEVEL",
        default_value = "full",
        value_parser = PossibleValuesParser::new(["interface", "full"]).map(|name| level(&name))
    )]
    level: Level,
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

fn level(name: &str) -> Level {
    if name == "interface" { Level::Interface } else { Level::Full }
}

impl CheckOptions {
    pub(super) fn run(self) -> anyhow::Result<()> {
        if self.more.iter().chain([&self.url]).any(|word| word.starts_with(TOKEN_PREFIX)) {
            return Err(UsageError(TOKEN_ARGUMENT_MESSAGE.to_owned()).into());
        }
        if let Some(word) = self.more.first() {
            return Err(UsageError(format!("one server at a time: leave out `{word}`")).into());
        }
        let url = server_url(&self.url).map_err(|error| UsageError(error.to_string()))?;
        let token = self.token()?;
        let origin = url.origin();
        if url.is_exposed() {
            print_warning(&format!("without https:// the token can be read on the way to {origin}"));
        }
        let options = plantstore_check::Options {
            token,
            authorities: self.ca,
            proxies: proxies_to(&url)?,
            timeout: self.timeout,
            level: self.level,
            url,
        };
        let (sender, interruptions) = unbounded_channel();
        on_end_signal(move |_| {
            let _ = writeln!(io::stderr(), "interrupted: deleting the created plants; a second signal stops at once");
            let _ = sender.send(());
        })?;
        let findings = block_on(async { Ok(plantstore_check::run(options, interruptions).await?) })?;
        let keeps_the_contract = findings.iter().all(|finding| is_kept(&finding.verdict));
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

    fn token(&self) -> anyhow::Result<String> {
        let text = match &self.token_file {
            Some(file) => read_token(file)?,
            // An option of this name would invite a token onto the command line.
            None => variable(TOKEN_VARIABLE).and_then(|token| token.into_string().ok()).ok_or_else(|| {
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

fn read_token(file: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    let read = if is_dash(file) {
        io::stdin().lock().take(TOKEN_FILE_BYTES_MAX).read_to_string(&mut text)
    } else {
        fs::File::open(file).and_then(|file| file.take(TOKEN_FILE_BYTES_MAX).read_to_string(&mut text))
    };
    read.with_context(|| format!("cannot read the token from {}", file.display()))?;
    Ok(text)
}

/// Returns the proxies for requests to a server.
fn proxies_to(url: &HttpUrl) -> Result<Proxies, UsageError> {
    if url.is_loopback() { Ok(Proxies::default()) } else { proxies() }
}

/// The result as `--json` prints it.
#[derive(Serialize)]
struct Report<'a> {
    url: &'a str,
    level: Level,
    keeps_the_contract: bool,
    checks: &'a [Finding],
}

/// Returns true if the verdict is no violation. A check that could not be tried counts as one.
fn is_kept(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Holds | Verdict::NotApplicable(_))
}

fn summarize(findings: &[Finding]) -> String {
    let count = |is: fn(&Verdict) -> bool| findings.iter().filter(|finding| is(&finding.verdict)).count();
    format!(
        "{} hold, {} fail, {} not applicable, {} untried",
        count(|verdict| matches!(verdict, Verdict::Holds)),
        count(|verdict| matches!(verdict, Verdict::Fails(_))),
        count(|verdict| matches!(verdict, Verdict::NotApplicable(_))),
        count(|verdict| matches!(verdict, Verdict::Untried(_)))
    )
}

fn word(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Holds => "holds",
        Verdict::Fails(_) => "fails",
        Verdict::NotApplicable(_) => "not applicable",
        Verdict::Untried(_) => "untried",
    }
}

fn style(verdict: &Verdict) -> Style {
    match verdict {
        Verdict::Holds => Style::Success,
        Verdict::Fails(_) => Style::Error,
        Verdict::NotApplicable(_) => Style::Faint,
        Verdict::Untried(_) => Style::Warning,
    }
}

/// Prints a line for each check, and its details below it.
fn print_table(findings: &[Finding]) -> anyhow::Result<()> {
    let styler = Styler::new(&io::stdout());
    let verdicts = findings.iter().map(|finding| word(&finding.verdict).len()).fold("VERDICT".len(), usize::max);
    let ids = findings.iter().map(|finding| finding.id.len()).max().unwrap_or_default();
    print(|output| {
        writeln!(output, "{:verdicts$}  {:ids$}  WHAT MUST HOLD", "VERDICT", "CHECK")?;
        for Finding { id, description, verdict, .. } in findings {
            let word = styler.apply(style(verdict), &format!("{:verdicts$}", word(verdict)));
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
        let url = server_url(&self.url).map_err(|error| UsageError(error.to_string()))?;
        let proxies = proxies_to(&url)?;
        let ready = plantstore_check::ready(url, self.ca, proxies, self.timeout);
        current_thread_runtime()?.block_on(ready).map_err(|reason| anyhow!(reason))?;
        print(|output| writeln!(output, "ready"))
    }
}
