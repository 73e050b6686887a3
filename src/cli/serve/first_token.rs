//! The first token of a new store, for the user `gardener`.
//!
//! For an embedded store it is written to a file beside the store. The file is on disk before the token is committed, and a store
//! counts as new until it has a user: after an interrupted first start, the next start generates another token and replaces the
//! file. So the token in the file of a store that has a user is valid.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use crate::cli::environment::UsageError;
use crate::cli::token::default_attributes;
use plantstore_model::token::{PlainToken, Scopes, TokenAttributes, TokenId, TokenLabel};
use plantstore_model::user::UserName;
use plantstore_store::new_file::{Existing, NewFile, NewFileError, beside};
use plantstore_store::{Store, StoreUrl};

const FIRST_USER: &str = "gardener";

pub(super) struct FirstToken {
    pub(super) id: TokenId,
    pub(super) token: PlainToken,
    pub(super) user: UserName,
    /// Its expiry time in words, such as "valid until 2030-01-31 12:00 UTC".
    pub(super) validity: String,
    /// The file that holds it, for an embedded store.
    pub(super) file: Option<PathBuf>,
}

/// Issues the first token if the store is new and the token can be delivered: in a file beside an embedded store, or on a
/// terminal for a database, which has no directory for such a file.
pub(super) async fn issue(store: &Store, url: &StoreUrl) -> anyhow::Result<Option<FirstToken>> {
    let file = match url {
        StoreUrl::Sqlite(path) => Some(beside(path, ".first-token")),
        StoreUrl::Postgres(_) if io::stderr().is_terminal() => None,
        StoreUrl::Postgres(_) => return Ok(None),
    };
    if !store.is_unused().await? {
        return Ok(None);
    }
    let user = UserName::parse(FIRST_USER).map_err(|error| UsageError(error.to_string()))?;
    let token = PlainToken::generate()?;
    let label = TokenLabel::parse("first token").unwrap_or_default();
    let attributes = TokenAttributes { scopes: Scopes::ALL, ..default_attributes(label) };
    let end = attributes.expires.unwrap_or(Timestamp::MAX);
    let validity = end.strftime("valid until %Y-%m-%d %H:%M UTC").to_string();
    if let Some(file) = &file {
        write(file, &token, &user, &validity).map_err(|error| {
            anyhow::anyhow!(
                "cannot write the first token to {}: {error}; remove what is there, or start with --no-first-token and \
                 issue one with `plantstore token create --user {user} --store {url}`",
                file.display()
            )
        })?;
    }
    let id = store.create_token(&user, &token.hash(), &attributes).await?;
    Ok(Some(FirstToken { id, token, user, validity, file }))
}

/// Writes the token to its file, alone so that a shell can read it with `cat`, and a note about it beside it.
fn write(path: &Path, token: &PlainToken, user: &UserName, validity: &str) -> Result<(), NewFileError> {
    let note = format!(
        "The first token of this store, for the user {user}, is {validity}.\nThe web console renews it from 14 days before its \
         end; `plantstore token create --user {user}` issues another at any time.\n"
    );
    write_file(&beside(path, ".txt"), &note)?;
    write_file(path, &format!("{}\n", token.reveal()))
}

fn write_file(path: &Path, text: &str) -> Result<(), NewFileError> {
    // Replaces the file of a deleted store or of an interrupted start, whose token is not valid.
    let mut file = NewFile::begin(path, Existing::Replace)?;
    let written = file.file().write_all(text.as_bytes());
    written.map_err(|error| NewFileError::Failed(path.to_owned(), error))?;
    file.finish()
}
