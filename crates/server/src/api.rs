//! The HTTP API: the operations, their arguments and errors, and the OpenAPI document. The only module that decides status codes.

mod audit;
mod collections;
mod cors;
mod entity_tag;
mod error;
mod extract;
mod idempotency;
mod idempotency_headers;
mod limits;
mod listing;
pub(crate) mod me;
mod negotiation;
pub(crate) mod openapi;
pub(crate) mod operation;
mod overload;
pub(crate) mod plants;
pub(crate) mod probes;
pub(crate) mod shares;
mod state;
pub(crate) mod tokens;

pub use self::cors::{Cors, OriginError};
pub(crate) use self::cors::{is_preflight, preflight};
pub(crate) use self::entity_tag::{EntityTag, IfNoneMatch, not_modified};
pub(crate) use self::error::{ApiError, ErrorReport, name_allowed_methods};
pub use self::limits::ApiLimits;
pub(crate) use self::negotiation::{accepts_gzip, accepts_html};
pub(crate) use self::state::Api;
