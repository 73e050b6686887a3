//! Options of a check run.

use std::path::PathBuf;
use std::time::Duration;

use plantstore_client::Proxies;

use crate::url::ServerUrl;

/// The set of rules that are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Rules of the interface.
    Interface,
    /// Rules of the interface, and those that this project adds.
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
