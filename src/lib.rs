//! plantstore keeps people's plants: an HTTP/JSON service with three operations and bearer tokens.
//!
//! The modules in reading order:
//!
//! - [`plant`], [`user`], [`token`]: what there is, and its rules; they know nothing of HTTP or SQL.
//! - [`trust`], [`newfile`]: whose certificates are trusted; files that appear when they are complete.
//! - [`metrics`], [`trace`]: what is counted, and the page it is told on; what a request spends its time on.
//! - [`store`]: where it is kept; the one place with SQL.
//! - [`archive`]: data in and out, streamed.
//! - [`http`]: how it is served; the one place that knows status codes.
//! - [`check`]: whether a live server keeps the contract, seen from outside.
//! - [`telemetry`], [`config`]: logs; the options that several commands share.
//! - [`cli`]: the commands; the one place that prints or reads the environment.

pub mod archive;
pub mod check;
pub mod cli;
pub mod config;
pub mod http;
pub mod memory;
pub mod metrics;
pub mod newfile;
pub mod plant;
pub mod store;
pub mod telemetry;
pub mod token;
pub mod trace;
pub mod trust;
pub mod user;
