//! `plantstore export`: writes plants as lines of JSON.

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::bail;
use clap::Args;

use super::process::{block_on, discard_partial_files_on_end_signal, start_log};
use super::remote::{ListedPlant, Session, first_page};
use super::server_options::ServerOption;
use super::store_options::{STORE_TIMEOUT, StoreOption};
use super::terminal::{ProgressBar, count, is_dash, print_warning};
use super::user::unknown_user;
use plantstore_model::user::UserName;
use plantstore_store::new_file::{Existing, NewFile, NewFileError};
use plantstore_store::transfer::{
    self, ExportError, ExportSummary, LineWriter, PlantLine, Selection, Snapshot, TransferProgress,
};

/// Write all plants, or one user's, as lines of JSON; works beside a running server
///
/// A line has the form {"owner":"ada","id":1,"name":"Monstera","tag":"indoor"}. The lines are a consistent snapshot, sorted by
/// owner and id. Tokens and shares are not included: see `backup`. With --server, the plants of one user are read over HTTP, and
/// only plants that do not change meanwhile are those of one moment.
#[derive(Args)]
#[command(after_help = "Examples:
  plantstore export --output plants.ndjson
  plantstore export --user ada | gzip > ada.ndjson.gz
  plantstore export --server https://plants.example --token-file token --output mine.ndjson")]
pub(super) struct Options {
    /// Only the plants of this user. From a server, by default those of the token's user
    #[arg(long, value_name = "NAME", value_parser = UserName::parse)]
    user: Option<UserName>,
    /// The file to write, readable only by its owner; it appears when it is complete. `-`, the default, is standard output
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Replace the file if it exists
    #[arg(long, requires = "output")]
    force: bool,
    #[command(flatten)]
    server: ServerOption,
    #[command(flatten)]
    store: StoreOption,
}

enum Source {
    Store(Snapshot),
    /// The plants of one owner on a server.
    Server(Box<Session>, String),
}

impl Options {
    pub(super) fn run(self) -> anyhow::Result<()> {
        let _log = start_log();
        block_on(async {
            let source = self.source().await?;
            let exported = match self.output.as_deref().filter(|path| !is_dash(path)) {
                Some(path) => {
                    discard_partial_files_on_end_signal()?;
                    let existing = if self.force { Existing::Replace } else { Existing::Keep };
                    let mut file = NewFile::begin(path, existing).map_err(advise)?;
                    let exported = source.write(file.file()).await?;
                    self.reject_unknown_user(&exported)?;
                    file.finish()?;
                    exported
                }
                None => match source.write(&mut io::stdout().lock()).await {
                    Err(error) if is_closed_pipe(&error) => return Ok(()),
                    exported => exported?,
                },
            };
            self.reject_unknown_user(&exported)?;
            let ExportSummary { plants, owners, digest, .. } = exported;
            writeln!(
                io::stderr(),
                "exported {} of {}, sha256 {digest}",
                count(plants, "plant"),
                count(owners, "user")
            )?;
            Ok(())
        })
    }

    async fn source(&self) -> anyhow::Result<Source> {
        if let Some(access) = self.server.open()? {
            let mut session = Session::connect(access).await?;
            let own = session.user().await?;
            return Ok(Source::Server(Box::new(session), self.user.as_ref().map_or(own, ToString::to_string)));
        }
        let url = self.store.url()?;
        self.store.warn_of_exposure();
        let selection = self.user.clone().map_or(Selection::Plants, Selection::PlantsOf);
        Ok(Source::Store(Snapshot::open(&url, selection, STORE_TIMEOUT).await?))
    }

    fn reject_unknown_user(&self, exported: &ExportSummary) -> anyhow::Result<()> {
        match &self.user {
            Some(user) if exported.users == 0 => bail!(unknown_user(user)),
            _ => Ok(()),
        }
    }
}

impl Source {
    async fn write(self, output: &mut impl Write) -> anyhow::Result<ExportSummary> {
        let mut bar = ProgressBar::new();
        match self {
            Self::Store(snapshot) => Ok(transfer::export(snapshot, output, |progress| bar.update(progress)).await?),
            Self::Server(session, owner) => write_pages(session, &owner, output, bar).await,
        }
    }
}

async fn write_pages(
    mut session: Box<Session>,
    owner: &str,
    output: &mut impl Write,
    mut bar: ProgressBar,
) -> anyhow::Result<ExportSummary> {
    let mut lines = LineWriter::new(output);
    let mut page = session.page(&first_page(owner)).await?;
    let etag = page.etag.clone();
    let mut is_changed = false;
    loop {
        let plants = lines.write(page.plants.iter().map(|ListedPlant { id, name, tag }| PlantLine {
            owner,
            id: *id,
            name,
            tag: tag.as_deref(),
        }))?;
        bar.update(TransferProgress { plants, percent: None });
        let Some(next) = page.next else { break };
        page = session.page(&next).await?;
        is_changed |= page.etag != etag;
    }
    drop(bar);
    if is_changed {
        print_warning("plants were changed during the export: repeat it for the plants of one moment");
    }
    Ok(ExportSummary { users: 1, ..lines.finish()? })
}

/// Returns true if the reader of the output has closed it early, which is not an error.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(ExportError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe)
}

fn advise(error: NewFileError) -> anyhow::Error {
    match error {
        NewFileError::Exists(path) => {
            anyhow::anyhow!("there is a file {} already: name another, or use --force to replace it", path.display())
        }
        NewFileError::NotAFile(_) | NewFileError::Lost(_) | NewFileError::Failed(..) => error.into(),
    }
}
