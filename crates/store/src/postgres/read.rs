//! Reads: pipelined queries, shared queries of versions, and lists.

mod lists;
mod readers;
mod versions;

pub(super) use self::readers::Readers;
pub(crate) use self::readers::get;
pub(super) use self::versions::VersionReader;
