//! The description of an operation, by which requests are dispatched and from which the OpenAPI document is made.

use axum::extract::Request;
use axum::response::{IntoResponse as _, Response};
use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use utoipa::ToSchema;
use utoipa::openapi::{RefOr, Schema};

use super::error::ApiError;
use super::state::RequestState;
use plantstore_model::token::Scope;

/// An operation of the API, as the route table has it.
pub(crate) struct Operation {
    pub(crate) call: fn(Request, RequestState) -> BoxFuture<'static, Response>,
    /// Method and path.
    pub(crate) line: (&'static str, &'static str),
    pub(crate) access: Access,
    /// Names of parameters of `openapi.json`, beside `X-Request-Id`. An operation with `If-None-Match` may respond 304.
    pub(crate) parameters: &'static [&'static str],
    /// The body of requests.
    pub(crate) takes: Option<BodyType>,
    /// The body of a success.
    pub(crate) returns: Option<BodyType>,
    /// Names of the header fields of a success, beside those that every response may have.
    pub(crate) headers: &'static [&'static str],
    /// Error codes, beside those of all operations with this access.
    pub(crate) errors: &'static [i32],
}

/// Fields that most operations leave out.
pub(crate) const DEFAULT: Operation = Operation {
    call: |_, _| Box::pin(async { ApiError::NoRoute.into_response() }),
    line: ("", ""),
    access: Access::Public,
    parameters: &[],
    takes: None,
    returns: None,
    headers: &[],
    errors: &[],
};

impl Operation {
    pub(super) fn tag(&self) -> &'static str {
        match self.access {
            Access::Public => "service",
            Access::Scope(Scope::Read | Scope::Write | Scope::Delete) => "plants",
            Access::AnyToken | Access::Scope(Scope::ManageTokens | Scope::ManageShares) => "self-service",
        }
    }

    pub(crate) fn method(&self) -> &'static str {
        self.line.0
    }

    pub(crate) fn path(&self) -> &'static str {
        self.line.1
    }
}

#[derive(Clone, Copy)]
pub(crate) enum Access {
    Public,
    AnyToken,
    Scope(Scope),
}

#[derive(Clone, Copy)]
pub(crate) struct BodyType {
    pub(super) schema: fn() -> Value,
    /// Adds the named schemas that the type consists of.
    pub(super) components: fn(&mut Vec<(String, RefOr<Schema>)>),
}

/// Returns the type of a body with one `T`.
pub(crate) const fn one<T: ToSchema>() -> BodyType {
    BodyType { schema: || reference("schemas", &T::name()), components: add_components::<T> }
}

/// Returns the type of a body with an array of `T`.
pub(crate) const fn list<T: ToSchema>() -> BodyType {
    BodyType {
        schema: || json!({"type": "array", "items": reference("schemas", &T::name())}),
        components: add_components::<T>,
    }
}

/// Returns the type of a body with this schema, which has no name.
pub(crate) const fn inline(schema: fn() -> Value) -> BodyType {
    BodyType { schema, components: |_| {} }
}

fn add_components<T: ToSchema>(schemas: &mut Vec<(String, RefOr<Schema>)>) {
    schemas.push((T::name().into_owned(), T::schema()));
    T::schemas(schemas);
}

pub(super) fn reference(kind: &str, name: &str) -> Value {
    json!({"$ref": format!("#/components/{kind}/{name}")})
}
