//! Lanes: for each server that has plants, the connections to it, a writer with its queue, and a shared reader of versions.
//!
//! PostgreSQL is one lane. Citus has one for each worker, and the main lane to the coordinator. The plants of a user are read and
//! written through the lane of the server that has them, so that a commit is local to this server. This placement is a hint: Citus
//! executes a statement correctly on any server, only at a higher cost. A worker that this node cannot connect to has a lane
//! through the coordinator.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::citus::{Copies, ShardServer, Shards, hash, read_catalog};
use super::connect::{ConnectionRole, Connector};
use super::read::{Readers, VersionReader};
use super::write::{KeyLocks, Writer};
use crate::error::StoreError;
use crate::options::OpenOptions;
use crate::plants::WriteContext;
use crate::url::PostgresUrl;
use plantstore_model::user::UserId;

/// Name of the lane to the server of the URL.
const MAIN: &str = "main";
/// Minimum number of read connections.
const READERS_MIN: usize = 2;
/// Number of statements about versions in flight. With two, one silent connection does not hold up all requests.
const VERSION_STATEMENTS: usize = 2;
/// The same on a worker of Citus. The requests of a node are divided among workers, so that fewer of them share a statement.
const VERSION_STATEMENTS_OF_WORKER: usize = 1;
/// Time between two looks at the placement, and between attempts to connect to a worker that has a lane through the coordinator.
const REFRESH_INTERVAL: Duration = Duration::from_secs(5);

pub(super) struct Lane {
    /// Address of the server, as in the catalog of Citus.
    pub(super) server: String,
    /// False if the server is reached through the coordinator.
    is_direct: bool,
    pub(super) connector: Arc<Connector>,
    pub(super) readers: Arc<Readers>,
    pub(super) version_reader: VersionReader,
    pub(super) writer: Writer,
    pub(super) key_locks: KeyLocks,
    shards: Arc<Shards>,
}

impl Lane {
    fn start(server: String, connector: &Arc<Connector>, is_direct: bool, options: &OpenOptions) -> Arc<Self> {
        let readers = options.readers.max(if options.write_queue > 1 { READERS_MIN } else { 1 });
        let shards = Arc::<Shards>::default();
        let readers = Arc::new(Readers::new(connector, readers, &shards));
        Arc::new(Self {
            is_direct,
            version_reader: VersionReader::start(
                &readers,
                if server == MAIN { VERSION_STATEMENTS } else { VERSION_STATEMENTS_OF_WORKER },
            ),
            readers,
            writer: Writer::start(connector, options.write_queue, &shards),
            key_locks: KeyLocks::new(connector),
            connector: Arc::clone(connector),
            server,
            shards,
        })
    }

    pub(super) async fn ping(&self) -> Result<(), StoreError> {
        let deadline = Instant::now() + self.connector.timeout;
        self.writer.ping(deadline).await?;
        self.key_locks.ping(deadline).await?;
        self.readers.query(None, "SELECT user_id FROM plantstore.users LIMIT 1", &[]).await.map(|_| ())
    }

    pub(super) fn is_connected(&self) -> bool {
        self.writer.is_connected() && !self.readers.are_lost()
    }
}

/// The lanes of users, by the hash of their id. Without shards, all users have the main lane.
#[derive(Default)]
pub(super) struct Placement {
    /// In the order of hashes.
    shards: Vec<(RangeInclusive<i32>, Arc<Lane>)>,
    lanes: Vec<Arc<Lane>>,
    pub(super) copies: Copies,
}

pub(super) struct Lanes {
    pub(super) main: Arc<Lane>,
    placement: RwLock<Arc<Placement>>,
    next: AtomicUsize,
    url: PostgresUrl,
    options: OpenOptions,
}

impl Lanes {
    pub(super) fn start(url: &PostgresUrl, connector: &Arc<Connector>, options: OpenOptions) -> Self {
        Self {
            main: Lane::start(MAIN.to_owned(), connector, true, &options),
            placement: RwLock::default(),
            next: AtomicUsize::new(0),
            url: url.clone(),
            options,
        }
    }

    pub(super) fn placement(&self) -> Arc<Placement> {
        Arc::clone(&self.placement.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns true if plants may be on several servers.
    pub(super) fn are_several(&self) -> bool {
        !self.placement().shards.is_empty()
    }

    pub(super) fn of(&self, user: UserId) -> Arc<Lane> {
        let placement = self.placement.read().unwrap_or_else(PoisonError::into_inner);
        let hash = hash(user.get());
        let shard = placement.shards.partition_point(|(range, _)| *range.end() < hash);
        Arc::clone(placement.shards.get(shard).map_or(&self.main, |(_, lane)| lane))
    }

    /// Returns the lane for a write. One that needs rows of two servers goes through the coordinator: it locks rows in the same order
    /// whichever node sends it, and other lanes lock rows of one server only, so that no two of them deadlock.
    pub(super) fn of_write(&self, context: WriteContext) -> Arc<Lane> {
        let lane = self.of(context.owner);
        if context.user == context.owner || Arc::ptr_eq(&lane, &self.of(context.user)) {
            lane
        } else {
            Arc::clone(&self.main)
        }
    }

    /// Returns a lane for reads of tables that every server has: the lanes in turn, without those that are not connected.
    pub(super) fn any(&self) -> Arc<Lane> {
        let lanes = &self.placement().lanes;
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        let mut in_turn = (0..lanes.len()).map(|offset| &lanes[first.wrapping_add(offset) % lanes.len()]);
        let connected = in_turn.find(|lane| lane.readers.is_connected() || lane.is_connected());
        Arc::clone(connected.unwrap_or(&self.main))
    }

    /// Returns the lanes of users: the main lane if there are no others.
    pub(super) fn serving(&self) -> Vec<Arc<Lane>> {
        let lanes = self.placement().lanes.clone();
        if lanes.is_empty() { vec![Arc::clone(&self.main)] } else { lanes }
    }

    /// Returns all lanes, the main lane first.
    pub(super) fn all(&self) -> Vec<Arc<Lane>> {
        let others = self.placement().lanes.clone();
        let others = others.into_iter().filter(|lane| !Arc::ptr_eq(lane, &self.main));
        std::iter::once(Arc::clone(&self.main)).chain(others).collect()
    }

    /// Reads the placement, and starts lanes for servers that have none.
    pub(super) async fn refresh(&self) -> Result<(), StoreError> {
        let lane = self.any();
        let (servers, copies) = lane.readers.read(|session| async move { read_catalog(&session.client).await }).await?;
        let lanes = join_all(servers.iter().map(|server| self.lane_to(server))).await;
        let mut placement = Placement { shards: Vec::new(), lanes: lanes.clone(), copies };
        for (ShardServer { shards, .. }, lane) in servers.iter().zip(lanes) {
            lane.shards.set(shards);
            placement.shards.extend(shards.iter().map(|shard| (shard.hashes.clone(), Arc::clone(&lane))));
        }
        placement.shards.sort_by_key(|(hashes, _)| *hashes.start());
        *self.placement.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(placement);
        Ok(())
    }

    /// Returns the lane to a server: the present one, or a new one.
    async fn lane_to(&self, server: &ShardServer) -> Arc<Lane> {
        if server.is_coordinator {
            return Arc::clone(&self.main);
        }
        let name = format!("{}:{}", server.host, server.port);
        let present = self.placement().lanes.iter().find(|lane| lane.server == name).cloned();
        if let Some(lane) = present.as_ref().filter(|lane| lane.is_direct) {
            return Arc::clone(lane);
        }
        let mapped = self.options.worker_addresses.iter().flatten().find(|mapped| mapped.known_as == name);
        let (host, port) = mapped.map_or((&server.host, server.port), |mapped| (&mapped.host, mapped.port));
        let connector = Arc::new(self.main.connector.for_server(&self.url, host, port));
        match (connector.connect(ConnectionRole::Admin).await, present) {
            (Ok(_), _) => {
                let lane = Lane::start(name, &connector, true, &self.options);
                lane.writer.connect(connector.timeout).await;
                lane
            }
            (Err(_), Some(present)) => present,
            (Err(failure), None) => {
                let error = failure.describe();
                tracing::warn!(worker = name, error, "cannot connect to a worker: using the coordinator for its users");
                Lane::start(name, &self.main.connector, false, &self.options)
            }
        }
    }
}

/// Reads the placement again and again, until the lanes are dropped.
pub(super) fn keep_current(lanes: &Arc<Lanes>) -> JoinHandle<()> {
    let lanes: Weak<Lanes> = Arc::downgrade(lanes);
    tokio::spawn(async move {
        loop {
            sleep(REFRESH_INTERVAL).await;
            let Some(lanes) = lanes.upgrade() else { return };
            if let Err(error) = lanes.refresh().await {
                tracing::debug!(%error, "cannot read the placement of users");
            }
        }
    })
}
