//! Users: their names, their ids, and their roles for the plants of other users.

use std::fmt;

use serde::Serialize;
use utoipa::ToSchema;

use crate::text::is_invisible;

/// Maximum length of a user name, in characters.
pub const USER_NAME_MAX_CHARS: usize = 255;

/// Name of a user: 1 to [`USER_NAME_MAX_CHARS`] characters, without white space, control characters and invisible characters,
/// because operators act on the names that they read. The name of a new user must also pass
/// [`UserName::check_new`], which earlier releases did not have.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct UserName(String);

impl UserName {
    pub fn parse(text: &str) -> Result<Self, UserNameError> {
        let has = text.chars().count();
        if has == 0 || has > USER_NAME_MAX_CHARS {
            return Err(UserNameError::Length(has));
        }
        if text
            .chars()
            .any(|character| character.is_whitespace() || character.is_control() || is_zero_width_or_bidi(character))
        {
            return Err(UserNameError::Character);
        }
        Ok(Self(text.to_owned()))
    }

    /// Checks the rules for new users: no character is invisible or looks like a blank, so that no names look alike.
    pub fn check_new(&self) -> Result<(), UserNameError> {
        match self.0.chars().find(|character| is_invisible(*character)) {
            Some(invisible) => Err(UserNameError::Invisible(u32::from(invisible))),
            None => Ok(()),
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for UserName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// Matches the zero-width characters and the bidirectional controls that all releases have rejected.
fn is_zero_width_or_bidi(character: char) -> bool {
    matches!(character, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UserNameError {
    #[error("a user name has 1 to {USER_NAME_MAX_CHARS} characters, this one has {0}")]
    Length(usize),
    #[error("a user name holds no white space, no control characters and no invisible ones")]
    Character,
    /// The code point of a character that the name of a new user must not have.
    #[error("a new user name holds no invisible or blank-looking characters (found U+{0:04X})")]
    Invisible(u32),
}

/// `reader` may read the plants; `editor` may also create, edit and delete them
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    Reader,
    Editor,
}

impl Role {
    pub const ALL: [Self; 2] = [Self::Reader, Self::Editor];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Reader => "reader",
            Self::Editor => "editor",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.name() == name)
    }
}

/// Number that identifies a user in the store. Clients never see it, and it is never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UserId(i64);

impl UserId {
    pub const fn new(value: i64) -> Self {
        Self(value)
    }

    pub const fn get(self) -> i64 {
        self.0
    }
}
