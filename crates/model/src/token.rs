//! Access tokens, as two types: plain and hashed, so that a secret is neither stored nor printed by accident.
//!
//! A token is `pst_`, 32 random base62 characters, and a checksum: the CRC-32 of all that precedes it, in 6 base62 characters.
//! The checksum lets the service reject a mistyped token without a look-up, and lets scanners find leaked tokens.

use std::fmt;

use jiff::Timestamp;
use serde::{Serialize, Serializer};
use sha2::{Digest, Sha256};
use utoipa::ToSchema;

use crate::text::{Escaped, is_invisible};
use crate::user::Role;

pub const TOKEN_PREFIX: &str = "pst_";
const JWT_MAX: usize = 16 * 1024;
const SECRET_CHARS: usize = 32;
const CHECKSUM_CHARS: usize = 6;
const BASE62: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// Maximum length of a label, in characters.
pub const LABEL_MAX_CHARS: usize = 100;

/// The secret text of a token. Without `Debug`, so that it is not printed by accident.
pub struct PlainToken(String);

impl PlainToken {
    pub fn generate() -> Result<Self, RandomSourceFailed> {
        let mut text = String::with_capacity(TOKEN_PREFIX.len() + SECRET_CHARS + CHECKSUM_CHARS);
        text.push_str(TOKEN_PREFIX);
        let mut bytes = [0; 64];
        while text.len() < TOKEN_PREFIX.len() + SECRET_CHARS {
            getrandom::fill(&mut bytes).map_err(|_| RandomSourceFailed)?;
            // 248 is the largest multiple of 62 in a byte. Larger bytes are discarded, so that all characters are equally likely.
            let uniform = bytes.iter().filter(|byte| **byte < 248);
            let missing = TOKEN_PREFIX.len() + SECRET_CHARS - text.len();
            text.extend(uniform.take(missing).map(|byte| char::from(BASE62[usize::from(byte % 62)])));
        }
        let checksum = checksum(&text);
        text.extend(checksum.map(char::from));
        Ok(Self(text))
    }

    /// Checks the format and the checksum of a token.
    pub fn is_well_formed(text: &str) -> bool {
        let has_format = text.len() == TOKEN_PREFIX.len() + SECRET_CHARS + CHECKSUM_CHARS
            && text.starts_with(TOKEN_PREFIX)
            && text[TOKEN_PREFIX.len()..].bytes().all(|byte| byte.is_ascii_alphanumeric());
        has_format && {
            let (body, found) = text.split_at(text.len() - CHECKSUM_CHARS);
            found.as_bytes() == checksum(body)
        }
    }

    pub fn hash(&self) -> TokenHash {
        TokenHash::of(&self.0)
    }

    /// Returns the secret, to show it to its user once.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

fn checksum(body: &str) -> [u8; CHECKSUM_CHARS] {
    let mut rest = crc32fast::hash(body.as_bytes());
    let mut characters = [b'0'; CHECKSUM_CHARS];
    for character in characters.iter_mut().rev() {
        *character = BASE62[(rest % 62) as usize];
        rest /= 62;
    }
    characters
}

#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the system's random source failed")]
pub struct RandomSourceFailed;

/// The SHA-256 of a token. Full-entropy secrets need no slow hash.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TokenHash([u8; 32]);

impl TokenHash {
    /// Hashes the credentials that a client sends, whether or not they are a token.
    pub fn of(text: &str) -> Self {
        Self(Sha256::digest(text.as_bytes()).into())
    }

    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    Read,
    Write,
    Delete,
    ManageTokens,
    ManageShares,
}

impl Scope {
    /// In the order of display.
    pub const ALL: [Self; 5] = [Self::Read, Self::Write, Self::Delete, Self::ManageTokens, Self::ManageShares];

    /// Returns the name in OAuth terms, such as `plants:read`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "plants:read",
            Self::Write => "plants:write",
            Self::Delete => "plants:delete",
            Self::ManageTokens => "tokens:manage",
            Self::ManageShares => "shares:manage",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scope| scope.name() == name)
    }

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scopes(u8);

impl Serialize for Scopes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter().map(Scope::name))
    }
}

impl Scopes {
    pub const ALL: Self = Self(0b1_1111);
    /// The scopes of a token that is created without any: those for plants.
    pub const DEFAULT: Self = Self(Scope::Read.bit() | Scope::Write.bit() | Scope::Delete.bit());

    pub fn of(scopes: impl IntoIterator<Item = Scope>) -> Self {
        Self(scopes.into_iter().fold(0, |bits, scope| bits | scope.bit()))
    }

    /// Returns the scopes that a token needs to do all that a role allows.
    pub fn of_role(role: Role) -> Self {
        match role {
            Role::Reader => Self::of([Scope::Read]),
            Role::Editor => Self::of([Scope::Read, Scope::Write, Scope::Delete]),
        }
    }

    pub const fn contains(self, scope: Scope) -> bool {
        self.0 & scope.bit() != 0
    }

    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    #[must_use]
    pub const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Parses names separated by spaces, and ignores unknown ones.
    pub fn from_names(names: &str) -> Self {
        Self::of(names.split(' ').filter_map(Scope::from_name))
    }

    /// Iterates in the order of display.
    pub fn iter(self) -> impl Iterator<Item = Scope> {
        Scope::ALL.into_iter().filter(move |scope| self.contains(*scope))
    }
}

impl fmt::Display for Scopes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.iter().map(Scope::name).collect();
        formatter.write_str(&names.join(" "))
    }
}

/// Number that identifies a token in logs and on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct TokenId(i64);

impl TokenId {
    pub const fn new(value: i64) -> Self {
        Self(value)
    }

    pub const fn get(self) -> i64 {
        self.0
    }
}

impl fmt::Display for TokenId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// Description of a token's purpose: up to [`LABEL_MAX_CHARS`] characters. Apart from blanks, none is invisible or changes the
/// direction of text, as in user names; labels of earlier releases may hold such characters, but no control characters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TokenLabel(String);

impl TokenLabel {
    /// Parses the label of a new token.
    pub fn parse(text: &str) -> Result<Self, TokenLabelError> {
        if text.chars().any(|character| character != ' ' && is_invisible(character)) {
            return Err(TokenLabelError);
        }
        Self::parse_stored(text)
    }

    /// Parses a label by the rules of earlier releases.
    pub fn parse_stored(text: &str) -> Result<Self, TokenLabelError> {
        if text.chars().count() > LABEL_MAX_CHARS || text.chars().any(char::is_control) {
            return Err(TokenLabelError);
        }
        Ok(Self(text.to_owned()))
    }

    /// Reads a label from the store. One that another program wrote and that is not valid is escaped and shortened.
    pub fn from_stored(text: &str) -> Self {
        let escaped = || Self(Escaped(text).to_string().chars().take(LABEL_MAX_CHARS).collect());
        Self::parse_stored(text).unwrap_or_else(|_| escaped())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a label has at most {LABEL_MAX_CHARS} characters, and no invisible ones except blanks")]
pub struct TokenLabelError;

/// The state of a token
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum TokenState {
    Active,
    Expired,
    Revoked,
}

impl TokenState {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Expired => "expired",
            Self::Revoked => "revoked",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenCreator {
    /// The operator, with a command.
    Operator,
    /// The user, with this token.
    Token(TokenId),
    /// The user, with a token of the issuer.
    Issuer,
}

impl TokenCreator {
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "operator" => Some(Self::Operator),
            "issuer" => Some(Self::Issuer),
            _ => text.strip_prefix("token ")?.parse().ok().map(|id| Self::Token(TokenId(id))),
        }
    }
}

impl Serialize for TokenCreator {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl fmt::Display for TokenCreator {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Operator => formatter.write_str("operator"),
            Self::Token(id) => write!(formatter, "token {id}"),
            Self::Issuer => formatter.write_str("issuer"),
        }
    }
}

/// Attributes of a token that are fixed at its creation.
#[derive(Clone, Debug, Serialize)]
pub struct TokenAttributes {
    pub label: TokenLabel,
    pub scopes: Scopes,
    #[serde(skip)]
    pub creator: TokenCreator,
    pub created: Timestamp,
    /// `None` for a token that never expires.
    pub expires: Option<Timestamp>,
}

/// Checks that a text has the form of a JWT, three parts in base64url, and not that of a token of the service.
pub fn is_jwt_shaped(text: &str) -> bool {
    let is_encoded =
        |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    text.len() <= JWT_MAX
        && !text.starts_with(TOKEN_PREFIX)
        && text.split('.').count() == 3
        && text.split('.').all(is_encoded)
}
