//! `plantstore user`: see who there is, and delete somebody with all they have.

use std::io::{self, BufRead, Write};
use std::time::Duration;

use anyhow::bail;
use clap::{Args, Subcommand};
use serde::Serialize;

use super::words::{grouped, shown};
use super::{SchemaChange, count, print, table};
use crate::cli::options::StoreOption;
use plantstore_model::user::UserName;
use plantstore_store::{SWEEP_DELAY, Store, StoreError, StoredUser};

/// What a server gets to write between two steps of a deletion.
const SWEEP_PAUSE: Duration = Duration::from_millis(10);

/// List and delete users; works beside a running server
#[derive(Args)]
#[command(
    arg_required_else_help = true,
    after_help = "Examples:
  plantstore user list
  plantstore user delete ada"
)]
pub(super) struct Options {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    List(List),
    Delete(Delete),
}

/// List users with how many tokens and plants they have
#[derive(Args)]
#[command(after_help = "Examples:
  plantstore user list
  plantstore user list --json")]
struct List {
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: StoreOption,
}

/// Delete a user with all their tokens and plants, for good
#[derive(Args)]
#[command(after_help = "Examples:
  plantstore user delete ada
  plantstore user delete --yes ada")]
struct Delete {
    /// The user to delete
    #[arg(value_name = "NAME", value_parser = UserName::parse)]
    name: UserName,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    store: StoreOption,
}

impl Options {
    pub(super) fn run(self) -> anyhow::Result<()> {
        match self.action {
            Action::List(options) => options.run(),
            Action::Delete(options) => options.run(),
        }
    }
}

impl List {
    fn run(self) -> anyhow::Result<()> {
        let users = self.store.with(SchemaChange::None, async |store| Ok(store.users(None).await?))?;
        if self.json {
            let shown: Vec<_> = users.iter().map(ShownUser::new).collect();
            let text = serde_json::to_string_pretty(&shown)?;
            return print(|output| writeln!(output, "{text}"));
        }
        let rows: Vec<_> = users
            .iter()
            .map(|user| [user.name.to_string(), grouped(user.tokens), grouped(user.plants), shown(user.created)])
            .collect();
        table::print(["USER", "TOKENS", "PLANTS", "CREATED (UTC)"], &rows, &[0])
    }
}

impl Delete {
    fn run(self) -> anyhow::Result<()> {
        self.store.with(SchemaChange::None, async |store| self.delete_from(store).await)
    }

    async fn delete_from(&self, store: &Store) -> anyhow::Result<()> {
        let Some(user) = store.users(Some(&self.name)).await?.pop() else {
            // A deletion that was interrupted has taken the name already: what is left of it goes now.
            tokio::time::sleep(SWEEP_DELAY).await;
            sweep(store).await?;
            bail!("there is no user {}: `plantstore user list` shows those there are", self.name);
        };
        if !self.yes && !confirmed(&user)? {
            bail!("nothing was deleted: confirm with the user's name, or use --yes");
        }
        if !store.delete_user(&self.name).await? {
            bail!("somebody else has just deleted the user {}", self.name);
        }
        let (tokens, plants) = (count(user.tokens, "token"), count(user.plants, "plant"));
        writeln!(io::stderr(), "user {} is deleted, with {tokens} and {plants}", self.name)?;
        // Nobody can reach the plants any more; that they still take room is no failure of the deletion.
        tokio::time::sleep(SWEEP_DELAY).await;
        if let Err(error) = sweep(store).await {
            writeln!(io::stderr(), "a service that runs on this store frees their room within minutes: {error}")?;
        }
        Ok(())
    }
}

/// Removes the plants of deleted users, in small steps that leave room for a server's writes.
async fn sweep(store: &Store) -> Result<(), StoreError> {
    while store.sweep().await? > 0 {
        tokio::time::sleep(SWEEP_PAUSE).await;
    }
    Ok(())
}

fn confirmed(user: &StoredUser) -> io::Result<bool> {
    let mut errors = io::stderr();
    write!(
        errors,
        "This deletes {} with {} and {}, for good. Type the name to confirm: ",
        user.name,
        count(user.tokens, "token"),
        count(user.plants, "plant")
    )?;
    errors.flush()?;
    let mut answer = String::new();
    if io::stdin().lock().read_line(&mut answer)? == 0 {
        writeln!(errors)?;
    }
    Ok(answer.trim_end_matches(['\r', '\n']) == user.name.as_str())
}

/// A user as `--json` shows them.
#[derive(Serialize)]
struct ShownUser {
    name: String,
    tokens: u64,
    plants: u64,
    created: String,
}

impl ShownUser {
    fn new(user: &StoredUser) -> Self {
        Self {
            name: user.name.as_str().to_owned(),
            tokens: user.tokens,
            plants: user.plants,
            created: user.created.to_string(),
        }
    }
}
