//! `plantstore export`: writes plants as lines of JSON.

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::bail;
use clap::Args;

use super::process::{block_on, discard_partial_files_on_end_signal, start_log};
use super::store_options::{STORE_TIMEOUT, StoreOption};
use super::terminal::{ProgressBar, count, is_dash};
use super::user::unknown_user;
use plantstore_model::user::UserName;
use plantstore_store::new_file::{NewFile, NewFileError};
use plantstore_store::transfer::{self, ExportError, ExportSummary, Selection, Snapshot};

/// Write all plants, or one user's, as lines of JSON; works beside a running server
///
/// A line has the form {"owner":"ada","id":1,"name":"Monstera","tag":"indoor"}. The lines are a consistent snapshot, sorted by
/// owner and id. Tokens and shares are not included: see `backup`.
#[derive(Args)]
#[command(after_help = "Examples:
  plantstore export --output plants.ndjson
  plantstore export --user ada | gzip > ada.ndjson.gz")]
pub(super) struct Options {
    /// Only the plants of this user
    #[arg(long, value_name = "NAME", value_parser = UserName::parse)]
    user: Option<UserName>,
    /// The file to write, readable only by its owner; it appears when it is complete. `-`, the default, is standard output
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Replace the file if it exists
    #[arg(long, requires = "output")]
    force: bool,
    #[command(flatten)]
    store: StoreOption,
}

impl Options {
    pub(super) fn run(self) -> anyhow::Result<()> {
        let _log = start_log();
        let url = self.store.url()?;
        self.store.warn_of_exposure();
        block_on(async {
            let selection = self.user.clone().map_or(Selection::Plants, Selection::PlantsOf);
            let snapshot = Snapshot::open(&url, selection, STORE_TIMEOUT).await?;
            let exported = match self.output.as_deref().filter(|path| !is_dash(path)) {
                Some(path) => {
                    discard_partial_files_on_end_signal()?;
                    let file = if self.force { NewFile::replace(path) } else { NewFile::create(path) };
                    let mut file = file.map_err(advise)?;
                    let exported = write(snapshot, file.file()).await?;
                    self.reject_unknown_user(&exported)?;
                    file.finish()?;
                    exported
                }
                None => match write(snapshot, &mut io::stdout().lock()).await {
                    // A reader that closes the pipe early is not an error.
                    Err(ExportError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
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

    fn reject_unknown_user(&self, exported: &ExportSummary) -> anyhow::Result<()> {
        match &self.user {
            Some(user) if exported.users == 0 => bail!(unknown_user(user)),
            _ => Ok(()),
        }
    }
}

async fn write(snapshot: Snapshot, output: &mut impl Write) -> Result<ExportSummary, ExportError> {
    let mut bar = ProgressBar::new();
    transfer::export(snapshot, output, |progress| bar.update(progress)).await
}

fn advise(error: NewFileError) -> anyhow::Error {
    match error {
        NewFileError::Exists(path) => {
            anyhow::anyhow!("there is a file {} already: name another, or use --force to replace it", path.display())
        }
        NewFileError::NotAFile(_) | NewFileError::Lost(_) | NewFileError::Failed(..) => error.into(),
    }
}
