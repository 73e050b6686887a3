//! Plants, users and tokens: types that cannot hold an invalid value. No I/O, no HTTP, no SQL.

pub mod plant;
pub mod token;
pub mod user;
