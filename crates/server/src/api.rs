//! The HTTP API: the operations, their arguments and errors, and the OpenAPI document. The only module that decides status codes.

mod account_change;
mod collections;
mod cors;
mod error;
pub(crate) mod events;
mod extract;
mod idempotency;
mod listing;
pub(crate) mod openapi;
pub(crate) mod operation;
mod overload;
pub(crate) mod plants;
pub(crate) mod probes;
mod representation;
mod response;
pub(crate) mod shares;
mod state;
pub(crate) mod tokens;

pub use self::cors::{Cors, OriginError};
pub(crate) use self::cors::{is_preflight, preflight};
pub(crate) use self::error::{ApiError, ErrorReport};
pub(crate) use self::representation::{EntityTag, IfNoneMatch, accepts_gzip, accepts_html};
pub(crate) use self::response::not_modified;
pub(crate) use self::state::{Api, RequestState};

#[cfg(fuzzing)]
include!("../../../fuzz/hooks/head.rs");
