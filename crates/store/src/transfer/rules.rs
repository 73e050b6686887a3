//! Validation of copied records by the rules of the service, so that rows that another program wrote are not copied if they are
//! invalid.

use jiff::Timestamp;

use super::records::{KeyRecord, LastIds, PlantRecord, Record, ShareRecord, SnapshotChunk, TokenRecord, UserRecord};
use crate::error::BadRow;
use plantstore_model::plant::{PlantName, Tag};
use plantstore_model::text::Escaped;
use plantstore_model::token::{Scope, TokenCreator, TokenLabel};
use plantstore_model::user::{Role, UserName};

impl SnapshotChunk {
    /// Validates every row, and returns the first that violates a rule.
    pub fn check(&self) -> Result<(), BadRow> {
        match self {
            Self::Total(_) => Ok(()),
            Self::LastIds(ids) => last_ids(*ids),
            Self::Users(rows) => check(rows, user),
            Self::Tokens(rows) => check(rows, token),
            Self::Shares(rows) => check(rows, share),
            Self::Keys(rows) => check(rows, key),
            Self::Plants(rows) => check(rows, plant),
        }
    }
}

fn check<T: Record>(rows: &[T], rules: fn(&T) -> Result<(), String>) -> Result<(), BadRow> {
    rows.iter().try_for_each(|row| {
        rules(row).map_err(|fault| {
            let key: Vec<_> = row.values()[..T::TABLE.key_columns].iter().map(|value| value.describe()).collect();
            T::TABLE.bad_row(&key, fault)
        })
    })
}

/// The maximum id must not be in use, because there would be none for the next user or token.
fn last_ids(LastIds { user, token }: LastIds) -> Result<(), BadRow> {
    for (table, last) in [(UserRecord::TABLE, user), (TokenRecord::TABLE, token)] {
        if !(0..i64::MAX).contains(&last) {
            let fault = format!("must be at least 0 and less than {}", i64::MAX);
            return Err(BadRow::new(table.name, format!("last assigned id {last}"), fault));
        }
    }
    Ok(())
}

fn user(row: &UserRecord) -> Result<(), String> {
    id("user_id", row.id)?;
    UserName::parse(&row.name).map_err(|fault| fault.to_string())?;
    version(row.version)?;
    time("created_at", Some(row.created_at))
}

fn token(row: &TokenRecord) -> Result<(), String> {
    id("token_id", row.id)?;
    digest("hash", &row.hash)?;
    TokenLabel::parse_stored(&row.label).map_err(|fault| fault.to_string())?;
    if let Some(unknown) = row.scopes.split(' ').find(|name| Scope::from_name(name).is_none()) {
        return Err(format!("`scopes` has the unknown scope `{}`", Escaped(unknown)));
    }
    if TokenCreator::parse(&row.created_by).is_none() {
        return Err(format!("`created_by` is `{}`, which no release wrote", Escaped(&row.created_by)));
    }
    time("created_at", Some(row.created_at))?;
    time("expires_at", row.expires_at)?;
    time("revoked_at", row.revoked_at)?;
    time("last_used_at", row.last_used_at)
}

fn share(row: &ShareRecord) -> Result<(), String> {
    UserName::parse(&row.grantee_name).map_err(|fault| fault.to_string())?;
    if row.grantee_id == Some(row.owner_id) {
        return Err("a user cannot share with themselves".to_owned());
    }
    if row.grantee_id.is_some() && row.declined_at.is_some() {
        return Err("it is both accepted and declined".to_owned());
    }
    role(&row.role)?;
    time("created_at", Some(row.created_at))?;
    time("declined_at", row.declined_at)
}

fn key(row: &KeyRecord) -> Result<(), String> {
    digest("key", &row.key)?;
    digest("fingerprint", &row.fingerprint)?;
    // The status of a success, or an error code, which starts with its status.
    let (outcomes, message) = match &row.message {
        None => (200..300, ""),
        Some(message) => (40_000..60_000, message.as_str()),
    };
    if !outcomes.contains(&row.outcome) {
        return Err(format!("`outcome` is {}, must be from {} to {}", row.outcome, outcomes.start, outcomes.end - 1));
    }
    if message.chars().any(char::is_control) {
        return Err("`message` must not hold control characters".to_owned());
    }
    time("expires_at", Some(row.expires_at))
}

fn plant(row: &PlantRecord) -> Result<(), String> {
    PlantName::check(&row.name).map_err(|fault| format!("`name` {fault}"))?;
    row.tag.as_deref().map_or(Ok(()), Tag::check).map_err(|fault| format!("`tag` {fault}"))?;
    version(row.version)
}

/// Ids start at 1, and the maximum must not be in use, because there would be none for the next.
fn id(column: &str, value: i64) -> Result<(), String> {
    if (1..i64::MAX).contains(&value) {
        return Ok(());
    }
    Err(format!("`{column}` must be at least 1 and less than {}", i64::MAX))
}

fn role(name: &str) -> Result<(), String> {
    match Role::from_name(name) {
        Some(_) => Ok(()),
        None => Err(format!("`role` is `{}`, which is neither reader nor editor", Escaped(name))),
    }
}

/// Versions are Unix time in microseconds. A version near the maximum would leave none for the next change.
fn version(value: i64) -> Result<(), String> {
    let last = Timestamp::MAX.as_microsecond();
    if (0..=last).contains(&value) { Ok(()) } else { Err(format!("`version` is {value}, must be from 0 to {last}")) }
}

fn time(column: &str, seconds: Option<i64>) -> Result<(), String> {
    match seconds.map(Timestamp::from_second) {
        Some(Err(_)) => Err(format!("`{column}` is not a valid time")),
        Some(Ok(_)) | None => Ok(()),
    }
}

fn digest(column: &str, bytes: &[u8]) -> Result<(), String> {
    if bytes.len() == 32 { Ok(()) } else { Err(format!("`{column}` has {} bytes, must have 32", bytes.len())) }
}
