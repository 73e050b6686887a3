//! The OpenAPI document. The annotations of the handlers declare the operations; this module adds the parts that they share and
//! the description of the service.
//!
//! Facts are derived, not repeated: lengths come from the model; statuses, error codes, messages and header fields of errors
//! from [`ApiError`](crate::api::ApiError).

mod errors;
mod headers;
mod parameters;
mod parts;
mod responses;
mod schemas;
mod self_service;

use utoipa::openapi::path::{Operation, PathItem};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{Components, Info, License, OpenApi, RefOr, Server, Tag};
use utoipa::{PartialSchema as _, ToSchema as _};

pub(crate) use self::parameters::{
    DeleteParameters, ListParameters, OpenapiParameters, ReadParameters, ReadPlantParameters, RevokeTokenParameters,
    ShareParameters, WriteParameters,
};
pub(crate) use self::responses::{
    CreateResponses, DeleteResponses, ListResponses, LiveResponses, OpenapiResponses, ReadPlantResponses,
    ReadyResponses,
};
pub(crate) use self::schemas::NewPlantSchema;
use self::schemas::{ErrorSchema, PlantSchema};
pub(crate) use self::self_service::{
    CreateTokenResponses, GrantShareResponses, ListSharesResponses, ListTokensResponses, MeResponses, NewShareSchema,
    NewTokenSchema, RevokeShareResponses, RevokeTokenResponses,
};
use self::self_service::{CreatedTokenSchema, MeSchema, SharesSchema, TokenSchema};

/// Version of the API, not of the program: it changes when clients have to change.
const INTERFACE_VERSION: &str = "1.0.0";
/// Name of the security scheme.
const BEARER: &str = "bearer";
/// Tags of operations.
pub(crate) const PLANTS: &str = "plants";
pub(crate) const SELF_SERVICE: &str = "self-service";
pub(crate) const SERVICE: &str = "service";

/// Completes the document that is generated from the annotations of the handlers.
pub(crate) fn complete(mut document: OpenApi) -> OpenApi {
    document.info = info();
    document.servers = Some(vec![Server::builder().url("/").description(Some("The server of this document")).build()]);
    document.tags = Some(vec![
        Tag::builder().name(PLANTS).description(Some("Create, list, read and delete plants.")).build(),
        Tag::builder().name(SELF_SERVICE).description(Some("Your own tokens and shares.")).build(),
        Tag::builder().name(SERVICE).description(Some("About the service itself; no token is needed.")).build(),
    ]);
    add_components(document.components.get_or_insert_default());
    for item in document.paths.paths.values_mut() {
        mark_public(item);
        add_head(item);
    }
    document
}

fn info() -> Info {
    let description = "A small HTTP/JSON service that keeps people's plants: each user sees only what is theirs, and what \
        others share with them.\n\n\
        Every response that is neither a success nor a 304 is `{\"error\": <error code>, \"message\": <what to do>}`. Error codes \
        are stable: match on them, and show the message to people. Each response lists its codes in `x-error-codes`; treat a \
        code that you do not know by its status, because later releases may add some. Beside the errors of each operation, \
        an address that does not exist is answered as `components/responses/NoSuchAddress` says, a method that an address \
        does not have as `MethodNotAllowed`, and, where the operator allows pages of other origins, a preflight request as \
        `Preflight`. A person who opens an address in a browser (`Accept: text/html`, no `Authorization`) gets pages in place of \
        these errors: where there is none, a 404 in HTML that is the same at every address.\n\n\
        **Ids in JavaScript:** an id is any integer of 64 bits. `JSON.parse` and `fetch` read integers beyond ±(2^53 − 1) as \
        the nearest number that they can represent, without an error: choose ids within that range, or parse the body with \
        a library that reads such integers as `BigInt`.";
    Info::builder()
        .title("plantstore")
        .version(INTERFACE_VERSION)
        .description(Some(description))
        .license(Some(License::builder().name("MIT or Apache 2.0").identifier(Some("MIT OR Apache-2.0")).build()))
        .build()
}

fn add_components(components: &mut Components) {
    let scheme = HttpBuilder::new()
        .scheme(HttpAuthScheme::Bearer)
        .description(Some(
            "An access token of this service, or one of the OpenID Connect issuer that the service trusts.",
        ))
        .build();
    components.add_security_scheme(BEARER, SecurityScheme::Http(scheme));
    components.schemas.extend([
        (PlantSchema::name().into_owned(), PlantSchema::schema()),
        (NewPlantSchema::name().into_owned(), NewPlantSchema::schema()),
        (MeSchema::name().into_owned(), MeSchema::schema()),
        (TokenSchema::name().into_owned(), TokenSchema::schema()),
        (NewTokenSchema::name().into_owned(), NewTokenSchema::schema()),
        (CreatedTokenSchema::name().into_owned(), CreatedTokenSchema::schema()),
        (SharesSchema::name().into_owned(), SharesSchema::schema()),
        (NewShareSchema::name().into_owned(), NewShareSchema::schema()),
        (ErrorSchema::name().into_owned(), ErrorSchema::schema()),
    ]);
    components.headers.extend(headers::all());
    components.responses.extend(responses::outside_of_operations());
}

/// Adds `security: []` to the operations that need no token: without it, tools cannot tell "public" from "forgotten".
fn mark_public(item: &mut PathItem) {
    for operation in [&mut item.get, &mut item.post, &mut item.put, &mut item.delete].into_iter().flatten() {
        operation.security.get_or_insert_default();
    }
}

/// Adds `HEAD`, which is `GET` without response bodies.
fn add_head(item: &mut PathItem) {
    let Some(get) = &item.get else { return };
    let mut head = get.clone();
    head.operation_id = head.operation_id.map(|id| format!("{id}Head"));
    head.summary = head.summary.map(|summary| format!("{summary}: the header fields alone"));
    remove_bodies(&mut head);
    item.head = Some(head);
}

fn remove_bodies(operation: &mut Operation) {
    for response in operation.responses.responses.values_mut() {
        if let RefOr::T(response) = response {
            response.content.clear();
            response.links.clear();
        }
    }
}
