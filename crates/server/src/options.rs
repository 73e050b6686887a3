//! Helpers for limits that are options of the command line.

mod defaults;
pub mod value_parser;

pub(crate) use self::defaults::defaults;
