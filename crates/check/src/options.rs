//! Options of a check run.

use std::path::PathBuf;
use std::time::Duration;

use plantstore_client::Proxies;

use crate::url::ServerUrl;

/// The promises that are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Those of the interface.
    Interface,
    /// Those, and what this project decided where the interface is silent.
    Full,
}

pub struct Options {
    pub url: ServerUrl,
    pub token: String,
    /// A file of authorities to trust instead of the system's.
    pub authorities: Option<PathBuf>,
    pub proxies: Proxies,
    /// Timeout of one request.
    pub timeout: Duration,
    pub level: Level,
}
