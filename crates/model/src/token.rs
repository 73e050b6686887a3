//! Access tokens: two types, plain and hashed, so that a secret can neither be stored nor printed by accident.
//!
//! A token reads `pst_`, 32 base62 characters from the system's random source, and 6 base62 characters of the CRC-32 of
//! what precedes: garbage is refused without a look-up, and scanners can find leaked tokens.

use std::fmt;

use jiff::Timestamp;
use sha2::{Digest, Sha256};

/// What every token starts with.
pub const TOKEN_PREFIX: &str = "pst_";
/// Longest JWT that is accepted.
const JWT_MAX: usize = 16 * 1024;
const SECRET_CHARS: usize = 32;
const CHECK_CHARS: usize = 6;
const BASE62: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// Longest label, in characters.
pub const LABEL_MAX_CHARS: usize = 100;

/// A token as its holder knows it. Exists at creation and while a request is authenticated; `Debug` hides it.
pub struct PlainToken(String);

impl PlainToken {
    /// A new token from the system's random source.
    pub fn generate() -> Result<Self, RandomSourceFailed> {
        let mut text = String::with_capacity(TOKEN_PREFIX.len() + SECRET_CHARS + CHECK_CHARS);
        text.push_str(TOKEN_PREFIX);
        let mut bytes = [0; 64];
        while text.len() < TOKEN_PREFIX.len() + SECRET_CHARS {
            getrandom::fill(&mut bytes).map_err(|_| RandomSourceFailed)?;
            // 248 is the largest multiple of 62 in a byte: the rest is thrown away so that all characters are equally likely.
            let fair = bytes.iter().filter(|byte| **byte < 248);
            let missing = TOKEN_PREFIX.len() + SECRET_CHARS - text.len();
            text.extend(fair.take(missing).map(|byte| char::from(BASE62[usize::from(byte % 62)])));
        }
        let check = check_characters(&text);
        text.extend(check.map(char::from));
        Ok(Self(text))
    }

    /// Whether this can be a token, which is known without looking anything up.
    pub fn is_one(text: &str) -> bool {
        let well_formed = text.len() == TOKEN_PREFIX.len() + SECRET_CHARS + CHECK_CHARS
            && text.starts_with(TOKEN_PREFIX)
            && text[TOKEN_PREFIX.len()..].bytes().all(|byte| byte.is_ascii_alphanumeric());
        well_formed && {
            let (body, check) = text.split_at(text.len() - CHECK_CHARS);
            check.as_bytes() == check_characters(body)
        }
    }

    /// What the store keeps and looks up.
    pub fn hash(&self) -> TokenHash {
        TokenHash::of(&self.0)
    }

    /// The secret itself: for the one moment in which it is shown to its holder.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for PlainToken {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("PlainToken(hidden)")
    }
}

fn check_characters(body: &str) -> [u8; CHECK_CHARS] {
    let mut rest = crc32fast::hash(body.as_bytes());
    let mut characters = [b'0'; CHECK_CHARS];
    for character in characters.iter_mut().rev() {
        *character = BASE62[(rest % 62) as usize];
        rest /= 62;
    }
    characters
}

/// The system's random source gave nothing.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the system's random source failed")]
pub struct RandomSourceFailed;

/// The SHA-256 of a token. Full-entropy secrets need no slow hash.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TokenHash([u8; 32]);

impl TokenHash {
    /// The hash of whatever a client shows.
    pub fn of(text: &str) -> Self {
        Self(Sha256::digest(text.as_bytes()).into())
    }

    /// The bytes as the store keeps them.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for TokenHash {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("TokenHash(hidden)")
    }
}

/// One permission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// List plants.
    Read,
    /// Create plants.
    Write,
    /// Delete plants.
    Delete,
}

impl Scope {
    /// Every scope, in the order they are shown.
    pub const ALL: [Self; 3] = [Self::Read, Self::Write, Self::Delete];

    /// The scope's name on the wire.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "plants:read",
            Self::Write => "plants:write",
            Self::Delete => "plants:delete",
        }
    }

    /// The scope of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scope| scope.name() == name)
    }

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// A set of scopes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scopes(u8);

impl Scopes {
    /// Every scope: what a token has unless told otherwise.
    pub const ALL: Self = Self(0b111);

    /// The set of these scopes.
    pub fn of(scopes: impl IntoIterator<Item = Scope>) -> Self {
        Self(scopes.into_iter().fold(0, |bits, scope| bits | scope.bit()))
    }

    /// Whether the set holds `scope`.
    pub const fn allow(self, scope: Scope) -> bool {
        self.0 & scope.bit() != 0
    }

    /// Reads names separated by spaces; one that is unknown is no permission.
    pub fn from_names(names: &str) -> Self {
        Self::of(names.split(' ').filter_map(Scope::from_name))
    }

    /// The scopes in the order they are shown.
    pub fn iter(self) -> impl Iterator<Item = Scope> {
        Scope::ALL.into_iter().filter(move |scope| self.allow(*scope))
    }
}

impl fmt::Display for Scopes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.iter().map(Scope::name).collect();
        formatter.write_str(&names.join(" "))
    }
}

/// The number by which operators and logs name a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TokenId(i64);

impl TokenId {
    /// The id with this value.
    pub const fn new(value: i64) -> Self {
        Self(value)
    }

    /// The value as the store keeps it.
    pub const fn get(self) -> i64 {
        self.0
    }
}

impl fmt::Display for TokenId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// A token's label: what its holder uses it for; up to [`LABEL_MAX_CHARS`] characters, no control characters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Label(String);

impl Label {
    /// Checks the rules of a label.
    pub fn parse(text: &str) -> Result<Self, LabelFault> {
        if text.chars().count() > LABEL_MAX_CHARS || text.chars().any(char::is_control) {
            return Err(LabelFault);
        }
        Ok(Self(text.to_owned()))
    }

    /// Reads a label that is stored. One that breaks the rules, which another program wrote, is escaped and shortened.
    pub fn from_stored(text: &str) -> Self {
        let escaped = || Self(text.escape_debug().take(LABEL_MAX_CHARS).collect());
        Self::parse(text).unwrap_or_else(|_| escaped())
    }

    /// The label as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A text is no [`Label`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a label has at most {LABEL_MAX_CHARS} characters and no control characters")]
pub struct LabelFault;

/// What is said of a token when it is made.
#[derive(Clone, Debug)]
pub struct Grant {
    /// What it is for.
    pub label: Label,
    /// What it allows.
    pub scopes: Scopes,
    /// When it was made.
    pub created: Timestamp,
    /// When it stops working; `None` for never.
    pub expires: Option<Timestamp>,
}

impl Grant {
    /// Whether the token has stopped working by `now`.
    pub fn expired(&self, now: Timestamp) -> bool {
        self.expires.is_some_and(|expires| expires <= now)
    }
}

/// Checks that a text may be a JWT of an issuer: three parts in base64url. A token of the service is none.
pub fn is_jwt_shaped(text: &str) -> bool {
    let is_encoded =
        |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    text.len() <= JWT_MAX
        && !text.starts_with(TOKEN_PREFIX)
        && text.split('.').count() == 3
        && text.split('.').all(is_encoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The check characters are part of the published format: scanners rely on them.
    #[test]
    fn the_format_is_fixed() {
        let body = "pst_0123456789ABCDEFGHIJKLMNOPQRSTUV";
        let expected = {
            let mut crc = u32::MAX;
            for byte in body.bytes() {
                crc ^= u32::from(byte);
                for _ in 0..8 {
                    crc = if crc & 1 == 1 { (crc >> 1) ^ 0xEDB8_8320 } else { crc >> 1 };
                }
            }
            !crc
        };
        let check = check_characters(body);
        let value = check.iter().fold(0_u64, |value, character| {
            value * 62 + BASE62.iter().position(|known| known == character).expect("base62") as u64
        });
        assert_eq!(value, u64::from(expected));
        let token: String = body.chars().chain(check.map(char::from)).collect();
        assert!(PlainToken::is_one(&token));
    }

    #[test]
    fn any_changed_character_is_refused() {
        let token = PlainToken::generate().expect("random source");
        for index in 0..token.reveal().len() {
            let mut changed = token.reveal().to_owned().into_bytes();
            changed[index] = if changed[index] == b'a' { b'b' } else { b'a' };
            let changed = String::from_utf8(changed).expect("ascii");
            assert!(!PlainToken::is_one(&changed), "{changed}");
        }
    }

    #[test]
    fn secrets_hide_in_debug() {
        let token = PlainToken::generate().expect("random source");
        let shown = format!("{token:?} {:?}", token.hash());
        assert_eq!(shown, "PlainToken(hidden) TokenHash(hidden)");
    }
}
