//! `plantstore import`: stores plants from lines of JSON.

use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal as _, Write};
use std::iter;
use std::path::PathBuf;

use anyhow::{Context as _, anyhow, bail};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use futures_util::FutureExt as _;

use super::environment::UsageError;
use super::process::{EndSignal, Interrupted, block_on, first_end_signal};
use super::remote::RemoteImporter;
use super::server_options::ServerOption;
use super::store_options::{CreateOption, StoreOption};
use super::terminal::{ProgressBar, count, is_dash};
use plantstore_model::text::Escaped;
use plantstore_model::user::UserName;
use plantstore_server::value_parser::{group_digits, number};
use plantstore_store::StoreError;
use plantstore_store::transfer::{self, ImportEvent, ImportInput, ImportRow, ImportSummary, OnDuplicate, StopReason};

/// Number of plants that are stored in one commit, and of those that are sent to a server before progress is reported.
const BATCH_PLANTS: usize = 4_096;
const REMOTE_BATCH_PLANTS: usize = 1_024;
const BUFFER_BYTES: usize = 256 * 1024;
/// Maximum number of skipped lines that are reported one by one; further ones are only counted.
const DIFFERENT_SHOWN: u64 = 10;

/// Store plants from lines of JSON; works beside a running server
///
/// Every line is checked by the rules of POST /plants, and `owner` names its user, who is created if necessary. Lines are stored
/// in order, some thousand per commit. The import stops at an invalid line, an id that exists, or Ctrl-C: all lines before are
/// stored, none after, and the message says how to continue. With --server, the plants are created over HTTP, several at a time,
/// and a plant that exists with the same name and tag is no conflict, so that the same command continues an import.
#[derive(Args)]
#[command(after_help = "Examples:
  plantstore import plants.ndjson --check
  plantstore import plants.ndjson --on-conflict skip
  gunzip --stdout plants.ndjson.gz | plantstore import
  plantstore import mine.ndjson --server https://plants.example --token-file token")]
pub(super) struct Options {
    /// The file to read; `-`, the default, is standard input
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// Store all plants for this user; the lines need no `owner`
    #[arg(long, value_name = "NAME", value_parser = UserName::parse)]
    user: Option<UserName>,
    /// Behaviour if the owner already has a plant with the line's id: `fail` stops, `skip` skips the line
    #[arg(
        long,
        value_name = "WHAT",
        default_value = "fail",
        value_parser = PossibleValuesParser::new(["fail", "skip"])
            .map(|what| if what == "skip" { OnDuplicate::Skip } else { OnDuplicate::Stop })
    )]
    on_conflict: OnDuplicate,
    /// Start at this line
    #[arg(long, value_name = "LINE", default_value_t = 1, value_parser = number::<u64>(1..=u64::MAX))]
    from_line: u64,
    /// Stop after this many invalid lines
    #[arg(long, value_name = "COUNT", default_value_t = 100, value_parser = number::<u64>(1..=u64::MAX))]
    max_faults: u64,
    /// Validate all lines and store nothing; existing ids are not checked
    #[arg(long)]
    check: bool,
    #[command(flatten)]
    server: ServerOption,
    #[command(flatten)]
    store: StoreOption,
    #[command(flatten)]
    new_store: CreateOption,
}

impl Options {
    pub(super) fn run(self) -> anyhow::Result<()> {
        let input = self.input()?;
        let mut reporter = Reporter { bar: ProgressBar::new(), different: 0 };
        if self.check {
            let summary = block_on(async { Ok(transfer::check(input, |event| reporter.report(&event)).await) })?;
            drop(reporter);
            return report_check(summary);
        }
        let (summary, signal) = match self.server.open()? {
            Some(access) => block_on(async {
                let mut importer = RemoteImporter::start(access, self.on_conflict).await?;
                let signal = first_end_signal("the last lines may be stored; run it again")?.shared();
                let store = async |batch: &[ImportRow]| Ok(importer.store(batch, signal.clone()).await);
                let on_event = |event: ImportEvent<'_>| reporter.report(&event);
                let summary = transfer::import_with(input, signal.clone().map(drop), on_event, store).await;
                Ok((summary, signal.now_or_never()))
            }),
            None => self.store.with(self.new_store.schema_change(), async |store| {
                let advice = "the last lines may be stored; run it again with --on-conflict skip";
                let signal = first_end_signal(advice)?.shared();
                let on_event = |event: ImportEvent<'_>| reporter.report(&event);
                let summary =
                    transfer::import(store, input, self.on_conflict, signal.clone().map(drop), on_event).await?;
                Ok((summary, signal.now_or_never()))
            }),
        }?;
        drop(reporter);
        self.report(summary, signal)
    }

    fn input(&self) -> anyhow::Result<ImportInput<Box<dyn BufRead + Send>>> {
        let (lines, size): (Box<dyn BufRead + Send>, _) = match self.file.as_deref().filter(|path| !is_dash(path)) {
            None if self.server.reads_standard_input() => {
                let message = "standard input cannot be both the token and the lines: name a file for one of them";
                return Err(UsageError(message.to_owned()).into());
            }
            None => {
                if io::stdin().is_terminal() {
                    writeln!(io::stderr(), "reading lines from this terminal; Ctrl-D ends them")?;
                }
                (Box::new(BufReader::with_capacity(BUFFER_BYTES, io::stdin())), None)
            }
            Some(path) => {
                let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
                let metadata = file.metadata().ok();
                if metadata.as_ref().is_some_and(std::fs::Metadata::is_dir) {
                    bail!("cannot read {}: it is a directory", path.display());
                }
                let size = metadata.filter(std::fs::Metadata::is_file).map(|file| file.len());
                (Box::new(BufReader::with_capacity(BUFFER_BYTES, file)), size)
            }
        };
        let batch_plants = if self.server.is_given() { REMOTE_BATCH_PLANTS } else { BATCH_PLANTS };
        Ok(ImportInput {
            lines,
            size,
            owner: self.user.clone(),
            from_line: self.from_line,
            faults_max: self.max_faults,
            batch_plants,
        })
    }

    fn report(&self, mut summary: ImportSummary, signal: Option<EndSignal>) -> anyhow::Result<()> {
        let ImportSummary { stored, same, different, new_users, .. } = summary;
        let others = [
            (new_users, format!("created {}", count(new_users, "user"))),
            (same, format!("skipped {} that exist already", group_digits(same))),
            (different, format!("skipped {} that exist with another name or tag", group_digits(different))),
        ];
        let others = others.into_iter().filter(|(number, _)| *number > 0).map(|(_, text)| text);
        let parts: Vec<_> = iter::once(format!("stored {}", count(stored, "plant"))).chain(others).collect();
        writeln!(io::stderr(), "{}", parts.join(", "))?;
        match summary.stop.take() {
            None => Ok(()),
            Some(stop) => Err(self.stopped(stop, &summary, signal)),
        }
    }

    /// Returns the error of an import that ended before the last line: what is stored, and how to continue.
    fn stopped(&self, stop: StopReason, summary: &ImportSummary, signal: Option<EndSignal>) -> anyhow::Error {
        let known = || self.stored_lines(summary).unwrap_or_else(|| "no line is known to be stored".to_owned());
        let so_far = match (self.stored_lines(summary), self.on_conflict) {
            _ if self.server.is_given() => format!("{}, and some after may be", known()),
            (None, _) => "nothing was stored".to_owned(),
            (Some(lines), OnDuplicate::Stop) => format!("{lines}, and none after"),
            // Later lines may have been stored by an earlier run.
            (Some(lines), OnDuplicate::Skip) => format!("{lines}, and this run stored none after"),
        };
        let next = summary.through + 1;
        let skip = if self.on_conflict == OnDuplicate::Skip { " --on-conflict skip" } else { "" };
        let resume = format!("{so_far}; go on with --from-line {next}{skip}");
        match stop {
            StopReason::Interrupted => match signal {
                Some(signal) => Interrupted { signal, details: format!(": {resume}") }.into(),
                None => anyhow!("interrupted: {resume}"),
            },
            StopReason::Faults => anyhow!(
                "{}: {so_far}; correct the input and go on with --from-line {next}{skip}",
                count(summary.faulty, "invalid line")
            ),
            StopReason::Taken { line, owner, id } => {
                let how = if self.server.is_given() { "with another name or tag" } else { "already" };
                anyhow!(
                    "line {line}: {owner} has a plant {id} {how}: {so_far}; \
                     go on with --from-line {next} --on-conflict skip to skip such lines"
                )
            }
            StopReason::Store(StoreError::OutcomeUnknown(why)) => {
                let known = known();
                anyhow!("{why}: {known}, and some after may be; go on with --from-line {next} --on-conflict skip")
            }
            StopReason::Rejected { line, reason } => anyhow!("line {line}: {reason}: {resume}"),
            StopReason::Short { lines } => anyhow!("{}", too_short(lines)),
            StopReason::Store(error) => anyhow!("{error}: {resume}"),
            StopReason::Input(error) => anyhow!("cannot read on: {error}: {resume}"),
        }
    }

    /// Describes the lines that this run has stored or skipped; `None` if there are none.
    fn stored_lines(&self, summary: &ImportSummary) -> Option<String> {
        let last = summary.through;
        let lines = match self.from_line {
            first if last < first => return None,
            1 => format!("all lines up to {last}"),
            first => format!("all lines from {first} to {last}"),
        };
        let skipped = summary.same + summary.different > 0;
        Some(format!("{lines} are {}", if skipped { "stored or skipped" } else { "stored" }))
    }
}

fn too_short(lines: u64) -> String {
    format!("the input ends after {}, before the one that --from-line names: nothing was stored", count(lines, "line"))
}

fn report_check(summary: ImportSummary) -> anyhow::Result<()> {
    let valid = count(summary.stored, "plant");
    match summary.stop {
        None => Ok(writeln!(io::stderr(), "{valid}, no invalid lines; nothing was stored")?),
        Some(StopReason::Input(error)) => bail!("cannot read on: {error}"),
        Some(StopReason::Short { lines }) => bail!("{}", too_short(lines)),
        // The other reasons are those of imports that store.
        Some(_) => bail!("{}; nothing was stored", count(summary.faulty, "invalid line")),
    }
}

/// Reports progress and invalid lines on standard error.
struct Reporter {
    bar: ProgressBar,
    /// Number of skipped lines that differ from the stored plant.
    different: u64,
}

impl Reporter {
    fn report(&mut self, event: &ImportEvent<'_>) {
        match event {
            ImportEvent::Progress(progress) => self.bar.update(*progress),
            ImportEvent::Fault { line, reason } => self.print(&format!("line {line}: {reason}")),
            ImportEvent::Skipped { line, owner, id } => {
                self.different += 1;
                if self.different <= DIFFERENT_SHOWN {
                    self.print(&format!("line {line}: skipped: {owner} has a plant {id} with another name or tag"));
                }
                if self.different == DIFFERENT_SHOWN {
                    self.print("further lines of this kind are counted and not shown");
                }
            }
        }
    }

    fn print(&mut self, text: &str) {
        self.bar.clear();
        let _ = writeln!(io::stderr(), "{}", Escaped(text));
    }
}
