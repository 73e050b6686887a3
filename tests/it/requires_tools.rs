//! Tests that need PostgreSQL or other programs that `scripts/test` installs. `scripts/test --quick` leaves them out, and
//! the cases of other modules whose names begin with `requires_`.

mod browser;
mod clients;
mod cluster;
mod database;
mod database_start;
mod dates;
mod exposition;
mod faults;
mod oidc_provider;
mod package;
mod readme;
mod tls;
mod traces;
mod workflow;
