//! Tests that need PostgreSQL or other programs that `scripts/test` installs. `scripts/test --quick` skips them and the
//! cases of other modules whose names begin with `requires_`.

mod bench;
mod browser;
mod clients;
mod cluster;
mod database;
mod database_start;
mod dates;
#[cfg(feature = "citus")]
mod distribution;
mod exposition;
mod faults;
mod litestream;
mod live_updates;
mod oidc_provider;
mod package;
mod power_cuts;
mod readme;
mod resources;
mod reverse_proxies;
mod sign_in;
mod system_calls;
mod tls;
mod traces;
mod workflow;
