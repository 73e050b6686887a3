//! Reads: pipelined queries, shared reads of versions, and lists.

mod lists;
mod readers;

pub(crate) use self::readers::{Readers, VersionReader, get};
