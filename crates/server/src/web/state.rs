//! The state of the pages: the OpenAPI document, and the console's settings.

use std::sync::LazyLock;

use super::sign_in::SignIn;
use super::static_files::StaticFile;

pub(crate) struct Web {
    /// Generated when it is first requested.
    pub(super) openapi: LazyLock<StaticFile, Box<dyn FnOnce() -> StaticFile + Send + Sync>>,
    /// The issuer that users of the console can sign in with.
    pub(crate) sign_in: Option<SignIn>,
}

impl Web {
    pub(crate) fn new(openapi: impl FnOnce() -> String + Send + Sync + 'static, sign_in: Option<SignIn>) -> Self {
        Self { openapi: LazyLock::new(Box::new(|| StaticFile::new(openapi(), "application/json"))), sign_in }
    }
}
