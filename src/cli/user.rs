//! `plantstore user`: lists and deletes users.

use std::io::{self, BufRead, Write};
use std::time::Duration;

use anyhow::bail;
use clap::{Args, Subcommand};

use super::store_options::{ListCommandOptions, StoreOption};
use super::table::Column::{Number, Text, Wrapped};
use super::terminal::{count, format_date_time};
use plantstore_model::text::Escaped;
use plantstore_model::user::UserName;
use plantstore_server::value_parser::group_digits;
use plantstore_store::{SWEEP_DELAY, SchemaChange, Store, StoreError, StoredUser};

/// Pause between two batches of a removal, in which servers can write.
pub(super) const SWEEP_PAUSE: Duration = Duration::from_millis(10);

#[derive(Subcommand)]
pub(super) enum UserCommand {
    /// List users with their numbers of tokens and plants
    #[command(after_help = "Examples:
  plantstore user list
  plantstore user list --json")]
    List(ListCommandOptions),
    Delete(DeleteUser),
}

/// Delete a user with all their tokens and plants, permanently
#[derive(Args)]
#[command(after_help = "Examples:
  plantstore user delete ada
  plantstore user delete --yes ada")]
pub(super) struct DeleteUser {
    /// The user to delete
    #[arg(value_name = "NAME", value_parser = UserName::parse)]
    name: UserName,
    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    store: StoreOption,
}

impl UserCommand {
    pub(super) fn run(self) -> anyhow::Result<()> {
        match self {
            Self::List(options) => list(&options),
            Self::Delete(options) => {
                options.store.with(SchemaChange::None, async |store| options.delete_from(store).await)
            }
        }
    }
}

fn list(options: &ListCommandOptions) -> anyhow::Result<()> {
    let users = options.store.with(SchemaChange::None, async |store| Ok(store.users(None).await?))?;
    let columns = [Wrapped("USER"), Number("TOKENS"), Number("PLANTS"), Text("CREATED (UTC)")];
    options.print(&users, columns, |user: &StoredUser| {
        [user.name.to_string(), group_digits(user.tokens), group_digits(user.plants), format_date_time(user.created)]
    })
}

impl DeleteUser {
    async fn delete_from(&self, store: &Store) -> anyhow::Result<()> {
        let Some(user) = store.users(Some(&self.name)).await?.pop() else {
            // An interrupted deletion has removed the name but may have left plants: they are removed now.
            tokio::time::sleep(SWEEP_DELAY).await;
            sweep(store).await?;
            bail!(unknown_user(&self.name));
        };
        if !self.yes && !confirmed(&user)? {
            bail!("nothing was deleted: confirm with the user's name, or use --yes");
        }
        if !store.delete_user(&self.name).await? {
            bail!("another process has just deleted the user {}", self.name);
        }
        let tokens = count(user.tokens, "active token");
        writeln!(io::stderr(), "user {} is deleted, with {tokens} and {}", self.name, count(user.plants, "plant"))?;
        // The plants are inaccessible already; if they cannot be removed yet, the deletion has still succeeded.
        tokio::time::sleep(SWEEP_DELAY).await;
        if let Err(error) = sweep(store).await {
            let error = error.to_string();
            let error = Escaped(&error);
            writeln!(io::stderr(), "a server on this store will free the disk space within minutes: {error}")?;
        }
        Ok(())
    }
}

pub(super) fn unknown_user(name: &UserName) -> String {
    format!("there is no user {name}: `plantstore user list` shows those there are")
}

/// Removes the plants of deleted users in small batches, so that servers can write in between.
async fn sweep(store: &Store) -> Result<(), StoreError> {
    while store.sweep_deleted_users().await? > 0 {
        tokio::time::sleep(SWEEP_PAUSE).await;
    }
    Ok(())
}

fn confirmed(user: &StoredUser) -> io::Result<bool> {
    let mut errors = io::stderr();
    write!(
        errors,
        "This permanently deletes {} with {} and {}. Type the name to confirm: ",
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
