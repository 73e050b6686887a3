//! Storage of users, tokens and plants in SQLite or PostgreSQL. The methods of [`Store`] are the contract of every engine.

mod accounts;
pub mod cache;
mod database;
mod error;
pub mod new_file;
mod options;
mod plants;
mod postgres;
mod reserve;
mod sql;
mod sqlite;
mod store;
pub mod transfer;
mod url;
mod watch;

pub use self::accounts::{
    AcceptOutcome, CollectionAccess, CreateTokenOutcome, GrantOutcome, SHARES_GRANTED_MAX, SHARES_RECEIVED_MAX,
    SWEEP_DELAY, ShareState, StoredName, StoredShare, StoredToken, StoredUser, TOKENS_MAX,
};
pub use self::error::{OpenError, RestoreError, StoreError};
pub use self::options::{OpenOptions, Opened, SchemaChange, WorkerAddress};
pub use self::plants::{
    IdempotencyKey, ListStep, PlantRange, PlantWrite, StoredError, Version, WriteContext, WriteOutcome,
    end_ranges_after,
};
pub use self::postgres::{PlacedTable, Placement};
pub use self::reserve::{Reserve, ReservedPlace};
pub use self::store::Store;
pub use self::url::{PasswordFileError, PostgresUrl, StoreUrl, StoreUrlError};
pub use self::watch::Watch;
