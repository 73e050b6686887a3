//! URLs of stores.

mod postgres;

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

pub(crate) use self::postgres::TlsMode;
pub use self::postgres::{PasswordFileError, PostgresUrl, PostgresUrlError};

/// Characters of an unknown scheme that the error message shows.
const SCHEME_SHOWN_CHARS: usize = 20;

/// URL of a store: `sqlite:PATH` or `postgres://…`. Displayed without the password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreUrl {
    Sqlite(PathBuf),
    Postgres(Box<PostgresUrl>),
}

impl FromStr for StoreUrl {
    type Err = StoreUrlError;

    fn from_str(text: &str) -> Result<Self, StoreUrlError> {
        let Some((scheme, rest)) = text.split_once(':') else {
            return Err(StoreUrlError::NoScheme);
        };
        if scheme == "postgres" || scheme == "postgresql" {
            return Ok(Self::Postgres(Box::new(text.parse()?)));
        }
        if scheme != "sqlite" {
            // The rest may contain a password.
            return Err(StoreUrlError::UnknownScheme(scheme.chars().take(SCHEME_SHOWN_CHARS).collect()));
        }
        match rest.strip_prefix("//").unwrap_or(rest) {
            "" => Err(StoreUrlError::NoPath),
            ":memory:" => Err(StoreUrlError::InMemory),
            path => Ok(Self::Sqlite(path.into())),
        }
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(path) => write!(formatter, "sqlite:{}", path.display()),
            Self::Postgres(url) => url.fmt(formatter),
        }
    }
}

/// Errors of parsing a [`StoreUrl`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreUrlError {
    #[error("a store is written as sqlite:PATH or postgres://user@host/database, for example sqlite:plantstore.db")]
    NoScheme,
    #[error("unknown store scheme `{0}`: use sqlite:PATH or postgres://user@host/database")]
    UnknownScheme(String),
    /// `sqlite:` alone.
    #[error("the path is missing: use sqlite:PATH, for example sqlite:plantstore.db")]
    NoPath,
    /// `sqlite::memory:`.
    #[error("a store in memory would forget everything: use sqlite:PATH, for example sqlite:plantstore.db")]
    InMemory,
    #[error(transparent)]
    Postgres(#[from] PostgresUrlError),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn store_url_is_parsed_or_rejected() {
        let path = |text: &str| match text.parse()? {
            StoreUrl::Sqlite(path) => Ok(path),
            StoreUrl::Postgres(url) => panic!("{url}"),
        };
        assert_eq!(path("sqlite:plantstore.db"), Ok("plantstore.db".into()));
        assert_eq!(path("sqlite:/var/lib/p.db"), Ok("/var/lib/p.db".into()));
        assert_eq!(path("sqlite:///var/lib/p.db"), Ok("/var/lib/p.db".into()));
        assert_eq!(path("plantstore.db"), Err(StoreUrlError::NoScheme));
        assert_eq!(path("mysql://u:secret@h/d"), Err(StoreUrlError::UnknownScheme("mysql".into())));
        assert_eq!(path("sqlite:"), Err(StoreUrlError::NoPath));
        assert_eq!(path("sqlite::memory:"), Err(StoreUrlError::InMemory));
    }
}
