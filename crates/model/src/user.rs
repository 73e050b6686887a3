//! Users: their names, their ids, and their roles for the plants of other users.

mod unseen;

use std::fmt;

use self::unseen::is_unseen;

/// Longest user name, in characters.
pub const USER_NAME_MAX_CHARS: usize = 255;

/// A user's name: 1 to [`USER_NAME_MAX_CHARS`] characters, none of them white space, a control character, or one that
/// cannot be seen: names stand in tables and prompts that operators decide by. A new name is held to
/// [`UserName::check_new`] as well, which earlier releases did not know.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UserName(String);

impl UserName {
    /// Checks the rules of a user name.
    pub fn parse(text: &str) -> Result<Self, UserNameFault> {
        let has = text.chars().count();
        if has == 0 || has > USER_NAME_MAX_CHARS {
            return Err(UserNameFault::Length(has));
        }
        if text.chars().any(|character| character.is_whitespace() || character.is_control() || is_invisible(character))
        {
            return Err(UserNameFault::Character);
        }
        Ok(Self(text.to_owned()))
    }

    /// Checks the rules that only a new user's name must meet: nothing in it is invisible or looks like a blank, so that no two
    /// users look alike for that reason.
    pub fn check_new(&self) -> Result<(), UserNameFault> {
        match self.0.chars().find(|character| is_unseen(*character)) {
            Some(unseen) => Err(UserNameFault::Unseen(u32::from(unseen))),
            None => Ok(()),
        }
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for UserName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// Zero-width characters, and those that turn the direction of the text around them.
fn is_invisible(character: char) -> bool {
    matches!(character, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// Why a text is no [`UserName`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UserNameFault {
    /// Too short or too long.
    #[error("a user name has 1 to {USER_NAME_MAX_CHARS} characters, this one has {0}")]
    Length(usize),
    /// Holds white space, a control character, or one that cannot be seen.
    #[error("a user name holds no white space, no control characters and no invisible ones")]
    Character,
    /// Holds a character that is invisible or looks like a blank, which a new name must not.
    #[error("a new user name holds no invisible or blank-looking characters (found U+{0:04X})")]
    Unseen(u32),
}

/// What a user may do with plants that another user shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// List them.
    Reader,
    /// List, create and delete them.
    Editor,
}

impl Role {
    /// Every role, the lesser first.
    pub const ALL: [Self; 2] = [Self::Reader, Self::Editor];

    /// The role's name, for operators and in the store.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reader => "reader",
            Self::Editor => "editor",
        }
    }

    /// The role of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.name() == name)
    }
}

/// The number the store knows a user by: never shown to clients, never given out twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UserId(i64);

impl UserId {
    /// The id with this value.
    pub const fn new(value: i64) -> Self {
        Self(value)
    }

    /// The value as the store keeps it.
    pub const fn get(self) -> i64 {
        self.0
    }
}
