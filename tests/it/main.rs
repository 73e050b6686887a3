//! Integration tests of the real binary with real sockets and real files. Files mirror routes and capabilities. Tests
//! of behaviour common to both engines run on both, from one body.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]
mod support;

mod auth;
mod check;
mod cli;
mod compressed_lists;
mod compression;
mod console;
mod copies;
mod copy_validation;
mod cors;
mod create;
mod delete;
mod deploy;
mod docs;
mod durability;
mod errors;
mod etags;
mod export;
mod first_token;
mod flow_control;
mod framing;
mod history;
mod http2;
mod idempotency;
mod import;
mod limits;
mod list;
mod logs;
mod lost_file;
mod man_pages;
mod metrics;
mod monitoring;
mod new_files;
mod oidc;
mod openapi;
mod outgoing;
mod own_shares;
mod probes;
mod random_operations;
mod rate_limit;
mod read;
mod requires_tools;
mod retries;
mod scale;
mod sharing;
mod shutdown;
mod slow_readers;
mod store_file;
mod tcp_proxy;
mod tidy;
mod tokens;
mod trusted_proxies;
mod user_names;
