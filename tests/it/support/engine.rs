//! Storage engines of the service.

/// Storage engine that a test runs on.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Engine {
    Sqlite,
    Postgres,
}
