//! Connections to a database server.

mod admin;
mod connection;
mod connector;
mod error;
mod tls;

pub(crate) use self::admin::{AdminConnection, wait_for_response};
pub(super) use self::connection::{DatabaseConnection, DatabaseSession, pause_for_worker};
pub(crate) use self::connector::Connector;
pub(super) use self::connector::{KEEPALIVES, SEARCH_PATH, backoff, lock_timeout};
pub(super) use self::error::{DatabaseError, certainly_not_committed, is_conflict, is_rejection, store_error};
pub(crate) use self::error::{NO_RESPONSE, describe};
