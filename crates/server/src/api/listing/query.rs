//! A list request as a handler argument.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use hyper::http::request::Parts;

use super::cursor::Cursor;
use super::parameters::{BAD_INCLUDE, Include, ListOptions, parse_limit};
use crate::api::collections::OwnerParameter;
use crate::api::entity_tag::IfNoneMatch;
use crate::api::error::ApiError;
use crate::api::negotiation::accepts_gzip;
use crate::observe::Context;
use crate::transport::BufferBudget;

/// A list request: its parameters, and the buffers of its connection.
pub(crate) struct ListQuery {
    pub(super) parameters: ListOptions,
    pub(super) if_none_match: Option<IfNoneMatch>,
    pub(super) accepts_gzip: bool,
    pub(super) context: Arc<Context>,
    pub(super) buffers: BufferBudget,
}

impl<App: Send + Sync> FromRequestParts<App> for ListQuery {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _app: &App) -> Result<Self, ApiError> {
        let mut parameters = ListOptions::default();
        let mut include = None;
        for (name, value) in form_urlencoded::parse(parts.uri.query().unwrap_or_default().as_bytes()) {
            match &*name {
                "limit" if parameters.limit.is_some() => return Err(ApiError::BadLimit("is given more than once")),
                "limit" => parameters.limit = Some(parse_limit(&value)?),
                "after" if parameters.after.is_some() => return Err(ApiError::BadCursor),
                "after" => parameters.after = Some(Cursor::decode(&value).ok_or(ApiError::BadCursor)?),
                "include" if include.is_some() => return Err(BAD_INCLUDE),
                "include" => include = Some(Include::parse(&value)?),
                "owner" => parameters.owner.set(&value)?,
                _ => {}
            }
        }
        parameters.include = include.unwrap_or_default();
        let if_none_match = IfNoneMatch::of(&parts.headers);
        let buffers = parts.extensions.get::<BufferBudget>().cloned().unwrap_or_default();
        let accepts_gzip = accepts_gzip(&parts.headers);
        Ok(Self { parameters, if_none_match, accepts_gzip, context: Context::of(parts), buffers })
    }
}

impl ListQuery {
    pub(crate) fn owner(&self) -> &OwnerParameter {
        &self.parameters.owner
    }
}

/// A request for one plant: its parameters except for the id.
pub(crate) struct PlantQuery {
    pub(crate) owner: OwnerParameter,
    pub(super) include: Include,
    pub(super) if_none_match: Option<IfNoneMatch>,
}

impl<App: Send + Sync> FromRequestParts<App> for PlantQuery {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _app: &App) -> Result<Self, ApiError> {
        let (mut owner, mut include) = (OwnerParameter::default(), None);
        for (name, value) in form_urlencoded::parse(parts.uri.query().unwrap_or_default().as_bytes()) {
            match &*name {
                "include" if include.is_some() => return Err(BAD_INCLUDE),
                "include" => include = Some(Include::parse(&value)?),
                "owner" => owner.set(&value)?,
                _ => {}
            }
        }
        let if_none_match = IfNoneMatch::of(&parts.headers);
        Ok(Self { owner, include: include.unwrap_or_default(), if_none_match })
    }
}
