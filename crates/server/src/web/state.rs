//! The state of the pages: the OpenAPI document.

use std::sync::LazyLock;

use super::static_files::StaticFile;

pub(crate) struct Web {
    /// Generated when it is first requested.
    pub(super) openapi: LazyLock<StaticFile, Box<dyn FnOnce() -> StaticFile + Send + Sync>>,
}

impl Web {
    pub(crate) fn new(openapi: impl FnOnce() -> String + Send + Sync + 'static) -> Self {
        Self { openapi: LazyLock::new(Box::new(|| StaticFile::new(openapi(), "application/json"))) }
    }
}
