//! `plantstore share`: grants, lists and revokes access to the plants of other users.

use std::io::{self, Write};

use anyhow::bail;
use clap::Subcommand;
use jiff::Timestamp;

use super::environment::UsageError;
use super::store_options::{ListCommandOptions, StoreOption};
use super::table::Column::{Text, Wrapped};
use super::terminal::format_date_time;
use super::user::unknown_user;
use plantstore_model::user::{Role, UserName};
use plantstore_store::{GrantOutcome, SHARES_RECEIVED_MAX, SchemaChange, StoredShare};

#[derive(Subcommand)]
pub(super) enum ShareCommand {
    /// Share all present and future plants of a user; granting again changes the role
    #[command(after_help = "Examples:
  plantstore share grant --owner ada --to bob --role reader
  plantstore share grant --owner ada --to bob --role editor")]
    Grant {
        /// The user whose plants are shared
        #[arg(long, value_name = "NAME", value_parser = UserName::parse)]
        owner: UserName,
        /// The user who gets access
        #[arg(long, value_name = "NAME", value_parser = UserName::parse)]
        to: UserName,
        /// The role: reader (read) or editor (read, create, edit and delete)
        #[arg(long, value_name = "ROLE", value_parser = role)]
        role: Role,
        #[command(flatten)]
        store: StoreOption,
    },
    /// List shares: offered by their owners, accepted, or declined
    #[command(after_help = "Examples:
  plantstore share list
  plantstore share list --to bob --json")]
    List {
        /// Only shares of this owner
        #[arg(long, value_name = "NAME", value_parser = UserName::parse)]
        owner: Option<UserName>,
        /// Only shares with this user
        #[arg(long, value_name = "NAME", value_parser = UserName::parse)]
        to: Option<UserName>,
        #[command(flatten)]
        options: ListCommandOptions,
    },
    /// Stop sharing; it takes effect on every running server within 5 seconds
    #[command(after_help = "Examples:
  plantstore share revoke --owner ada --to bob")]
    Revoke {
        /// The user whose plants are shared
        #[arg(long, value_name = "NAME", value_parser = UserName::parse)]
        owner: UserName,
        /// The user who loses access
        #[arg(long, value_name = "NAME", value_parser = UserName::parse)]
        to: UserName,
        #[command(flatten)]
        store: StoreOption,
    },
}

fn role(text: &str) -> Result<Role, &'static str> {
    Role::from_name(text).ok_or("the roles are reader and editor")
}

impl ShareCommand {
    pub(super) fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Grant { owner, to, role, store } => grant(&owner, &to, role, &store),
            Self::List { owner, to, options } => list(owner.as_ref(), to.as_ref(), &options),
            Self::Revoke { owner, to, store } => revoke(&owner, &to, &store),
        }
    }
}

fn grant(owner: &UserName, to: &UserName, role: Role, store: &StoreOption) -> anyhow::Result<()> {
    if owner == to {
        return Err(UsageError(format!("{owner} has all rights to their own plants: name two users")).into());
    }
    let now = Timestamp::now();
    let unknown = |name| format!("{}, and `plantstore token create --user {name}` creates one", unknown_user(name));
    match store.with(SchemaChange::None, async |store| Ok(store.grant_share(owner, to, role, now).await?))? {
        GrantOutcome::Granted => {}
        GrantOutcome::NoOwner => bail!(unknown(owner)),
        GrantOutcome::NoGrantee => bail!(unknown(to)),
        GrantOutcome::TooMany => {
            bail!("{to} has accepted {SHARES_RECEIVED_MAX} shares already, which is the most: revoke one first")
        }
    }
    let role = role.name();
    writeln!(io::stderr(), "{to} is {role} of the plants of {owner}, on every running server within 5 seconds")?;
    Ok(())
}

fn list(owner: Option<&UserName>, to: Option<&UserName>, options: &ListCommandOptions) -> anyhow::Result<()> {
    let shares = options.store.with(SchemaChange::None, async |store| Ok(store.shares(owner, to).await?))?;
    let columns = [Wrapped("OWNER"), Wrapped("TO"), Text("ROLE"), Text("STATE"), Text("SINCE (UTC)")];
    options.print(&shares, columns, |share: &StoredShare| {
        [
            share.owner.to_string(),
            share.grantee.to_string(),
            share.role.name().to_owned(),
            share.state.name().to_owned(),
            format_date_time(share.created),
        ]
    })
}

fn revoke(owner: &UserName, to: &UserName, store: &StoreOption) -> anyhow::Result<()> {
    if !store.with(SchemaChange::None, async |store| Ok(store.revoke_share(owner, to).await?))? {
        bail!("{owner} shares nothing with {to}: `plantstore share list` shows what is shared");
    }
    writeln!(io::stderr(), "{owner} shares no more with {to}: every running server obeys within 5 seconds")?;
    Ok(())
}
