//! The service as its users meet it: the real binary, real sockets, real files. Files mirror routes and capabilities;
//! every test that touches a store runs on every engine from one body.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]
mod support;

mod auth;
mod browser;
mod check;
mod cli;
mod cluster;
mod console;
mod copies;
mod cors;
mod create;
mod database;
mod delete;
mod deploy;
mod docs;
mod durability;
mod errors;
mod etags;
mod export;
mod faults;
mod history;
mod http2;
mod idempotency;
mod import;
mod limits;
mod list;
mod logs;
mod manual;
mod metrics;
mod model;
mod monitoring;
mod new_files;
mod oidc;
mod openapi;
mod proxy;
mod rate_limit;
mod readme;
mod retries;
mod scale;
mod sharing;
mod shutdown;
mod store_file;
mod tidy;
mod tls;
mod traces;
