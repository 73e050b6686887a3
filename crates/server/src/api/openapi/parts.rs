//! Types and functions that the parts of the document share.

use std::collections::BTreeMap;

use hyper::StatusCode;
use utoipa::ToSchema;
use utoipa::openapi::{Ref, RefOr, Response};

/// Responses by their status, or by their name.
pub(super) type Responses = BTreeMap<String, RefOr<Response>>;

pub(super) const JSON: &str = "application/json";

/// Returns a reference to the schema of a type among the document's components.
pub(super) fn reference<T: ToSchema>() -> Ref {
    Ref::from_schema_name(T::name())
}

/// Returns a status as a key of [`Responses`].
pub(super) fn code(status: StatusCode) -> String {
    status.as_str().to_owned()
}
