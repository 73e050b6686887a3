//! Reference of the benchmark for creates: one thread that inserts plants into a store file and updates the versions of their
//! owners, a batch per transaction, each synced to the disk, with SQLite as the service builds it and without anything else.
//!
//! `sqlite_alone FILE ORDER BATCH SECONDS SEED` prints the number of rows and the seconds as JSON. ORDER is `random` or the
//! first of ascending ids.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rusqlite::{Connection, params};

/// Page cache, in KiB, as large as that of the service's writer.
const CACHE_KIB: i64 = 16_384;
/// Random ids have 15 digits and are lower than ascending ones.
const RANDOM_IDS: (u64, u64) = (100_000_000_000_000, 800_000_000_000_000);

enum Order {
    Random(u64),
    Ascending(i64),
}

impl Order {
    fn parse(text: &str, seed: u64) -> Result<Self, std::num::ParseIntError> {
        // Odd, because a state of zero would only give zeros.
        if text == "random" { Ok(Self::Random(seed << 1 | 1)) } else { Ok(Self::Ascending(text.parse()?)) }
    }

    fn next_id(&mut self) -> i64 {
        match self {
            Self::Random(state) => {
                // splitmix64
                *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
                let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
                let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
                (RANDOM_IDS.0 + (mixed ^ (mixed >> 31)) % RANDOM_IDS.1).cast_signed()
            }
            Self::Ascending(id) => {
                *id += 1;
                *id
            }
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [file, order, batch, seconds, seed] = &arguments[..] else {
        return Err("usage: sqlite_alone FILE ORDER BATCH SECONDS SEED".into());
    };
    let (batch, time) = (batch.parse::<usize>()?, Duration::from_secs(seconds.parse()?));
    let mut order = Order::parse(order, seed.parse()?)?;
    #[expect(clippy::disallowed_methods, reason = "the file is named by the benchmark and has no scheme")]
    let connection = Connection::open(file)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "cache_size", -CACHE_KIB)?;
    let mut users = connection.prepare("SELECT user_id FROM users")?;
    let users = users.query_map([], |row| row.get(0))?.collect::<Result<Vec<i64>, _>>()?;
    let mut users = users.iter().cycle();
    let mut insert = connection.prepare(
        "INSERT INTO plants (user_id, plant_id, name, tag, version) VALUES (?1, ?2, 'Monstera deliciosa', 'indoor', ?3) ON CONFLICT DO NOTHING",
    )?;
    let mut select = connection.prepare("SELECT version FROM users WHERE user_id = ?1")?;
    let mut update = connection.prepare("UPDATE users SET version = ?2 WHERE user_id = ?1")?;
    let (begun, mut rows) = (Instant::now(), 0);
    while begun.elapsed() < time {
        connection.execute_batch("BEGIN IMMEDIATE")?;
        let mut versions = BTreeMap::new();
        for owner in users.by_ref().take(batch) {
            let version = match versions.get(owner) {
                Some(version) => *version,
                None => select.query_row([owner], |row| row.get::<_, i64>(0))? + 1,
            };
            versions.insert(*owner, version);
            rows += insert.execute(params![owner, order.next_id(), version])?;
        }
        for (owner, version) in versions {
            update.execute([owner, version])?;
        }
        connection.execute_batch("COMMIT")?;
    }
    let seconds = begun.elapsed().as_secs_f64();
    #[expect(clippy::print_stdout, reason = "the result")]
    {
        println!("{{\"rows\":{rows},\"seconds\":{seconds}}}");
    }
    Ok(())
}
