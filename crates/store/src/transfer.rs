//! Stores on the move: a snapshot of one, handed over piece by piece; a new one that is filled with it; and plants that
//! come in batches.

mod rules;

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::sync::mpsc;

pub use self::rules::BadRow;
pub(super) use self::rules::{KEYS, PLANTS, SHARES, TOKENS, Table, USERS, hex};
use super::{OpenError, Store, StoreError, StoreUrl, postgres, sqlite};
use crate::new_file::NewFileError;
use plantstore_model::plant::NewPlant;
use plantstore_model::user::UserName;

/// Rows in a piece at the most, and bytes of plants after which it ends: what is under way is bounded.
pub(super) const PIECE_ROWS: usize = 4_096;
pub(super) const PIECE_BYTES: usize = 256 * 1024;
/// Pieces that wait to be taken.
pub(super) const PIECES_WAITING: usize = 4;

/// What of a store is to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    /// All there is, save what deleted users have left behind.
    Everything,
    /// All plants.
    Plants,
    /// The plants of one user.
    PlantsOf(UserName),
}

impl Selection {
    /// The only user whose plants are wanted.
    pub(super) fn user(&self) -> Option<&str> {
        match self {
            Self::PlantsOf(user) => Some(user.as_str()),
            Self::Everything | Self::Plants => None,
        }
    }
}

/// How much there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Users.
    pub users: u64,
    /// Tokens, revoked and expired ones included.
    pub tokens: u64,
    /// Shares.
    pub shares: u64,
    /// Idempotency keys.
    pub keys: u64,
    /// Plants.
    pub plants: u64,
}

/// The highest numbers that a store has given out. Users and tokens that were deleted count: a number never names two of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    /// The highest number of a user; 0 when there was none.
    pub user: i64,
    /// The highest number of a token; 0 when there was none.
    pub token: i64,
}

/// A user as the store keeps them.
#[derive(Clone, Debug, Serialize)]
pub struct UserRecord {
    pub id: i64,
    pub name: String,
    pub version: i64,
    pub created_at: i64,
}

/// A token as the store keeps it.
#[derive(Clone, Debug, Serialize)]
pub struct TokenRecord {
    pub id: i64,
    pub hash: Vec<u8>,
    pub user_id: i64,
    pub label: String,
    pub scopes: String,
    pub created_at: i64,
    pub expires_at: Option<i64>,
    pub revoked_at: Option<i64>,
    pub last_used_at: Option<i64>,
}

/// A share as the store keeps it.
#[derive(Clone, Debug, Serialize)]
pub struct ShareRecord {
    pub grantee_id: i64,
    pub owner_id: i64,
    pub role: String,
    pub created_at: i64,
}

/// An idempotency key as the store keeps it.
#[derive(Clone, Debug, Serialize)]
pub struct KeyRecord {
    pub user_id: i64,
    pub key: Vec<u8>,
    pub fingerprint: Vec<u8>,
    pub outcome: i32,
    pub message: Option<String>,
    pub expires_at: i64,
}

/// A plant as the store keeps it, and the name of its owner.
#[derive(Clone, Debug)]
pub struct PlantRecord {
    pub user_id: i64,
    pub owner: Arc<str>,
    pub id: i64,
    pub name: String,
    pub tag: Option<String>,
    pub version: i64,
}

impl PlantRecord {
    /// About how much room it takes.
    pub(super) fn bytes(&self) -> usize {
        self.name.len() + self.tag.as_ref().map_or(0, String::len)
    }
}

/// Some rows of one kind.
#[derive(Clone, Debug)]
pub enum Piece {
    /// How much there is in all; the first piece, and the only one of its kind.
    Total(Counts),
    /// The numbers that are not to be given out again; one piece.
    Numbers(Numbers),
    /// In the order of their names, byte by byte.
    Users(Vec<UserRecord>),
    /// In the order of their numbers.
    Tokens(Vec<TokenRecord>),
    /// In the order of both users' numbers.
    Shares(Vec<ShareRecord>),
    /// In the order of users' numbers and of keys.
    Keys(Vec<KeyRecord>),
    /// In the order of the owners' names, byte by byte, and of ids.
    Plants(Vec<PlantRecord>),
}

/// What goes from whoever reads a store to whoever wants it; after the last piece there is none.
pub(super) type Handed = Result<Option<Piece>, StoreError>;

/// A store at one moment: whatever is written meanwhile is not in it, and nobody who writes waits for it. It is read on the
/// way, in bounded memory; dropping it ends that.
pub struct Snapshot {
    pieces: mpsc::Receiver<Handed>,
}

impl Snapshot {
    /// Begins to read the store as it is, without changing anything: a file of an earlier release is not brought up to date.
    pub async fn open(url: &StoreUrl, selection: Selection, patience: Duration) -> Result<Self, OpenError> {
        match url {
            StoreUrl::Sqlite(path) => sqlite::snapshot(path, selection),
            StoreUrl::Postgres(url) => postgres::snapshot(url, selection, patience).await,
        }
    }

    pub(super) fn new(pieces: mpsc::Receiver<Handed>) -> Self {
        Self { pieces }
    }

    /// The next piece, in the order of [`Piece`]; `None` after the last. Whoever takes none for a minute may find that there
    /// are no more, which is an error.
    pub async fn next(&mut self) -> Result<Option<Piece>, StoreError> {
        let given_up = || {
            Err(StoreError::Unavailable(
                "nobody has taken what was read for a minute, and a snapshot is not held for longer".to_owned(),
            ))
        };
        self.pieces.recv().await.unwrap_or_else(given_up)
    }
}

/// Why a store cannot be filled. The messages are meant for the operator.
#[derive(Debug, thiserror::Error)]
pub enum FillError {
    /// It holds something already.
    #[error("{0} holds {1} already, and is left as it is: name a store that is new or empty")]
    Occupied(StoreUrl, &'static str),
    /// It does not open.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Its file cannot be made.
    #[error(transparent)]
    File(#[from] NewFileError),
    /// It fails.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A new store that is being filled with what another holds, numbers and versions included. Nobody sees anything of it until
/// it is finished; dropped before that, it never was.
pub enum Filling {
    /// Of the embedded engine: a file that is renamed at the end.
    Sqlite(sqlite::Filling),
    /// Of the scale-out engine: one transaction.
    Postgres(postgres::Filling),
}

impl Filling {
    /// Begins to fill a store that is new, or a database that holds nothing.
    pub async fn begin(url: &StoreUrl, patience: Duration) -> Result<Self, FillError> {
        match url {
            StoreUrl::Sqlite(path) => sqlite::Filling::begin(path).map(Self::Sqlite),
            StoreUrl::Postgres(url) => postgres::Filling::begin(url, patience).await.map(Self::Postgres),
        }
    }

    /// Puts a piece in. They come in the order of [`Piece`].
    pub async fn put(&mut self, piece: &Piece) -> Result<(), StoreError> {
        match self {
            Self::Sqlite(filling) => filling.put(piece),
            Self::Postgres(filling) => filling.put(piece).await,
        }
    }

    /// What is in it, as [`Snapshot::open`] would read it. After this nothing more is put in.
    pub async fn contents(&mut self) -> Result<Snapshot, StoreError> {
        match self {
            Self::Sqlite(filling) => filling.contents(),
            Self::Postgres(filling) => filling.contents().await,
        }
    }

    /// Makes it a store, durably.
    pub async fn finish(self) -> Result<(), FillError> {
        match self {
            Self::Sqlite(filling) => filling.finish(),
            Self::Postgres(filling) => filling.finish().await,
        }
    }
}

/// A plant that is to be somebody's.
#[derive(Clone, Debug)]
pub struct Planting {
    /// Whose, by name; made if there is nobody of that name.
    pub owner: Arc<UserName>,
    /// The plant.
    pub plant: NewPlant,
}

/// What a plant met when it was to be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Met {
    /// Nothing: it is stored.
    Nothing,
    /// A plant of that id with the same name and tag.
    Same,
    /// A plant of that id with another name or tag; it is untouched.
    Different,
}

/// What became of a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// For each plant in turn. Where it was to stop at an id that is taken, the last is the one that met it, and what would
    /// have followed was not done.
    pub met: Vec<Met>,
    /// Users that were made.
    pub new_users: u64,
}

/// Puts batches of plants into a store, beside servers that go on writing.
pub enum Importer {
    /// Of the embedded engine.
    Sqlite(sqlite::Importer),
    /// Of the scale-out engine.
    Postgres(postgres::Importer),
}

impl Importer {
    /// An importer on this store.
    pub async fn start(store: &Store) -> Result<Self, StoreError> {
        match store {
            Store::Sqlite(engine) => engine.importer().map(Self::Sqlite),
            Store::Postgres(engine) => engine.importer().await.map(Self::Postgres),
        }
    }

    /// Stores a batch in one commit, with users that are not there yet. The versions of those whose lists change move.
    /// Whether an id is taken is decided by the key of the table alone. With `stop`, the first that is taken ends it.
    pub async fn put(&mut self, batch: &[Planting], stop: bool) -> Result<Imported, StoreError> {
        match self {
            Self::Sqlite(importer) => importer.put(batch, stop).await,
            Self::Postgres(importer) => importer.put(batch, stop).await,
        }
    }

    /// Returns whether there is a user of this name.
    pub async fn has_user(&self, name: &UserName) -> Result<bool, StoreError> {
        match self {
            Self::Sqlite(importer) => importer.has_user(name),
            Self::Postgres(importer) => importer.has_user(name).await,
        }
    }

    /// Ends what it has started. Nothing that was put waits for it.
    pub fn finish(self) {
        match self {
            Self::Sqlite(importer) => importer.finish(),
            // Its connection ends with it.
            Self::Postgres(_) => {}
        }
    }
}
