//! Plants, users and tokens: types that cannot hold an invalid value. No I/O, no HTTP, no SQL.

pub mod body;
pub mod plant;
mod schema;
pub mod self_service;
pub mod text;
pub mod token;
pub mod user;
