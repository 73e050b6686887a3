//! Rules for the rows of a store that is copied: those that the service and an import hold every value to. A row that another
//! program wrote is found here, before the service meets it.

use std::fmt::{self, Display, Write as _};

use jiff::Timestamp;

use super::{KeyRecord, Numbers, Piece, PlantRecord, ShareRecord, TokenRecord, UserRecord};
use plantstore_model::plant::{PlantName, Tag};
use plantstore_model::token::{Label, Scope};
use plantstore_model::user::{Role, UserName};

/// A table, and the columns by which messages name its rows.
pub(crate) struct Table {
    name: &'static str,
    key: &'static [&'static str],
}

pub(crate) const USERS: Table = Table { name: "users", key: &["user_id"] };
pub(crate) const TOKENS: Table = Table { name: "tokens", key: &["token_id"] };
pub(crate) const SHARES: Table = Table { name: "shares", key: &["grantee_id", "owner_id"] };
pub(crate) const KEYS: Table = Table { name: "idempotency_keys", key: &["user_id", "key"] };
pub(crate) const PLANTS: Table = Table { name: "plants", key: &["user_id", "plant_id"] };

/// A row that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadRow {
    table: &'static str,
    row: String,
    fault: String,
}

impl Display for BadRow {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "table {}, {}: {}", self.table, self.row, self.fault)
    }
}

impl Table {
    /// Names the row with these values of the key.
    pub(crate) fn bad_row(&self, values: &[String], fault: impl Display) -> BadRow {
        let row = self.key.iter().zip(values).map(|(column, value)| format!("{column} {value}")).collect::<Vec<_>>();
        BadRow { table: self.name, row: row.join(", "), fault: fault.to_string() }
    }

    /// The number of key columns.
    pub(crate) fn key_columns(&self) -> usize {
        self.key.len()
    }
}

/// Bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

impl Piece {
    /// Checks every row by the rules of the service; reports the first that breaks one.
    pub fn check(&self) -> Result<(), BadRow> {
        match self {
            Self::Total(_) => Ok(()),
            Self::Numbers(numbers) => check_numbers(*numbers),
            Self::Users(rows) => check(rows, user, |row| USERS.bad_row(&[row.id.to_string()], "")),
            Self::Tokens(rows) => check(rows, token, |row| TOKENS.bad_row(&[row.id.to_string()], "")),
            Self::Shares(rows) => {
                check(rows, share, |row| SHARES.bad_row(&[row.grantee_id.to_string(), row.owner_id.to_string()], ""))
            }
            Self::Keys(rows) => check(rows, key, |row| KEYS.bad_row(&[row.user_id.to_string(), hex(&row.key)], "")),
            Self::Plants(rows) => {
                check(rows, plant, |row| PLANTS.bad_row(&[row.user_id.to_string(), row.id.to_string()], ""))
            }
        }
    }
}

fn check<T>(rows: &[T], rules: fn(&T) -> Result<(), String>, named: impl Fn(&T) -> BadRow) -> Result<(), BadRow> {
    rows.iter().try_for_each(|row| rules(row).map_err(|fault| BadRow { fault, ..named(row) }))
}

/// The last number that there is would leave none for the next user or token.
fn check_numbers(Numbers { user, token }: Numbers) -> Result<(), BadRow> {
    for (table, last) in [("users", user), ("tokens", token)] {
        if !(0..i64::MAX).contains(&last) {
            let fault = format!("must be at least 0 and less than {}", i64::MAX);
            return Err(BadRow { table, row: format!("last number given out {last}"), fault });
        }
    }
    Ok(())
}

fn user(row: &UserRecord) -> Result<(), String> {
    number("user_id", row.id)?;
    UserName::parse(&row.name).map_err(|fault| fault.to_string())?;
    version(row.version)?;
    time("created_at", Some(row.created_at))
}

fn token(row: &TokenRecord) -> Result<(), String> {
    number("token_id", row.id)?;
    digest("hash", &row.hash)?;
    Label::parse(&row.label).map_err(|fault| fault.to_string())?;
    if let Some(unknown) = row.scopes.split(' ').find(|name| Scope::from_name(name).is_none()) {
        return Err(format!("`scopes` has the unknown scope `{}`", unknown.escape_debug()));
    }
    time("created_at", Some(row.created_at))?;
    time("expires_at", row.expires_at)?;
    time("revoked_at", row.revoked_at)?;
    time("last_used_at", row.last_used_at)
}

fn share(row: &ShareRecord) -> Result<(), String> {
    if row.grantee_id == row.owner_id {
        return Err("a user cannot share with themselves".to_owned());
    }
    if Role::from_name(&row.role).is_none() {
        return Err(format!("`role` is `{}`, which is none of reader and editor", row.role.escape_debug()));
    }
    time("created_at", Some(row.created_at))
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

/// Numbers are given out from 1; the last one there is would leave none for the next.
fn number(column: &str, value: i64) -> Result<(), String> {
    if (1..i64::MAX).contains(&value) {
        return Ok(());
    }
    Err(format!("`{column}` must be at least 1 and less than {}", i64::MAX))
}

/// Versions are microseconds since 1970. One beyond the calendar would soon have none after it.
fn version(value: i64) -> Result<(), String> {
    let last = Timestamp::MAX.as_microsecond();
    if (0..=last).contains(&value) { Ok(()) } else { Err(format!("`version` is {value}, must be from 0 to {last}")) }
}

fn time(column: &str, seconds: Option<i64>) -> Result<(), String> {
    match seconds.map(Timestamp::from_second) {
        Some(Err(_)) => Err(format!("`{column}` is beyond what a calendar can tell")),
        Some(Ok(_)) | None => Ok(()),
    }
}

fn digest(column: &str, bytes: &[u8]) -> Result<(), String> {
    if bytes.len() == 32 { Ok(()) } else { Err(format!("`{column}` has {} bytes, must have 32", bytes.len())) }
}
