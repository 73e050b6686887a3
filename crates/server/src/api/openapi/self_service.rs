//! Operations on the caller's own tokens and shares: responses, and schemas of bodies.

use std::borrow::Cow;

use hyper::StatusCode;
use jiff::Timestamp;
use serde_json::{Value, json};
use utoipa::openapi::content::ContentBuilder;
use utoipa::openapi::schema::{AdditionalProperties, SchemaType};
use utoipa::openapi::{ArrayBuilder, KnownFormat, ObjectBuilder, RefOr, ResponseBuilder, Schema, SchemaFormat, Type};
use utoipa::{IntoResponses, PartialSchema, ToSchema};

use super::errors::{any_caller_errors, caller_errors, error_responses};
use super::headers;
use super::parts::{JSON, Responses, code, reference};
use super::responses::with_quota;
use super::schemas::{NO_CONTROL_CHARACTERS, id, user_name};
use crate::api::error::ApiError;
use plantstore_model::body::BodyError;
use plantstore_model::plant::PlantIdError;
use plantstore_model::self_service::{ShareRequest, TokenRequest, TokenRequestError};
use plantstore_model::token::{LABEL_MAX_CHARS, Scope};
use plantstore_model::user::Role;

/// Of `GET /me`.
pub(crate) struct MeResponses;
/// Of `GET /tokens`.
pub(crate) struct ListTokensResponses;
/// Of `POST /tokens`.
pub(crate) struct CreateTokenResponses;
/// Of `DELETE /tokens/{id}`.
pub(crate) struct RevokeTokenResponses;
/// Of `GET /shares`.
pub(crate) struct ListSharesResponses;
/// Of `PUT /shares/{user}`.
pub(crate) struct GrantShareResponses;
/// Of `DELETE /shares/{user}`.
pub(crate) struct RevokeShareResponses;

impl IntoResponses for MeResponses {
    fn responses() -> Responses {
        let success = body("Your user name and token", reference::<MeSchema>());
        complete(any_caller_errors(), StatusCode::OK, success, &["Cache-Control"])
    }
}

impl IntoResponses for ListTokensResponses {
    fn responses() -> Responses {
        let success = body("Your tokens, ascending by id", ArrayBuilder::new().items(reference::<TokenSchema>()));
        complete(caller_errors(Scope::ManageTokens), StatusCode::OK, success, &["Cache-Control"])
    }
}

impl IntoResponses for CreateTokenResponses {
    fn responses() -> Responses {
        let success = body("The token with its secret, which is not shown again", reference::<CreatedTokenSchema>());
        let bodies = ["{", r#"{"scopes":[]}"#, "{\"label\":\"\\u0000\"}"];
        let faults = bodies.map(|body| TokenRequest::from_json(body.as_bytes(), Timestamp::UNIX_EPOCH).err());
        let errors = change_errors(Scope::ManageTokens)
            .chain(with_body(faults))
            .chain([ApiError::ExceedsToken(TokenRequestError::NoDefaultScopes), ApiError::TooManyTokens]);
        complete(errors, StatusCode::CREATED, success, &["Cache-Control", "Location"])
    }
}

impl IntoResponses for RevokeTokenResponses {
    fn responses() -> Responses {
        let own_errors = [ApiError::BadPathId(PlantIdError::NotAnInteger), ApiError::UnknownToken];
        let success = ResponseBuilder::new().description("The token is revoked");
        let errors = change_errors(Scope::ManageTokens).chain(own_errors);
        complete(errors, StatusCode::NO_CONTENT, success, &[])
    }
}

impl IntoResponses for ListSharesResponses {
    fn responses() -> Responses {
        let success = body("Shares that you have granted and received", reference::<SharesSchema>());
        complete(caller_errors(Scope::ManageShares), StatusCode::OK, success, &["Cache-Control"])
    }
}

impl IntoResponses for GrantShareResponses {
    fn responses() -> Responses {
        let success = ResponseBuilder::new().description("The plants are shared with this role");
        let faults = ["{", "{}", r#"{"role":"owner"}"#].map(|body| ShareRequest::from_json(body.as_bytes()).err());
        let beyond = ApiError::ExceedsToken(TokenRequestError::NoDefaultScopes);
        let own_errors = [beyond, ApiError::TooManyGranted, ApiError::TooManyReceived];
        let errors = change_errors(Scope::ManageShares).chain(with_body(faults)).chain(own_errors);
        complete(errors, StatusCode::NO_CONTENT, success, &[])
    }
}

impl IntoResponses for RevokeShareResponses {
    fn responses() -> Responses {
        let success = ResponseBuilder::new().description("The plants are not shared any more");
        let errors = change_errors(Scope::ManageShares).chain([ApiError::UnknownShare]);
        complete(errors, StatusCode::NO_CONTENT, success, &[])
    }
}

fn change_errors(scope: Scope) -> impl Iterator<Item = ApiError> {
    caller_errors(scope).chain([ApiError::ChangeUnknown(String::new())])
}

/// Returns the errors of requests with a body, which may have these faults.
fn with_body(faults: impl IntoIterator<Item = Option<BodyError>>) -> impl Iterator<Item = ApiError> {
    let faults = faults.into_iter().flatten().map(ApiError::BadBody);
    faults.chain([ApiError::BodyUnreadable, ApiError::NotJsonType])
}

fn body(description: &str, schema: impl Into<RefOr<Schema>>) -> ResponseBuilder {
    let content = ContentBuilder::new().schema(Some(schema)).build();
    ResponseBuilder::new().description(description).content(JSON, content)
}

/// Returns the responses of an operation: its errors, and its success with these header fields.
fn complete(
    errors: impl Iterator<Item = ApiError>,
    status: StatusCode,
    success: ResponseBuilder,
    fields: &[&str],
) -> Responses {
    let mut responses = error_responses(errors);
    responses.insert(code(status), headers::with(success, fields.iter().copied()).into());
    with_quota(responses)
}

/// Declares the schema of a body, and its name in the document.
macro_rules! schema {
    ($(#[$about:meta])* $name:ident as $shown:literal, $schema:expr) => {
        $(#[$about])*
        pub(crate) struct $name;

        impl PartialSchema for $name {
            fn schema() -> RefOr<Schema> {
                $schema.into()
            }
        }

        impl ToSchema for $name {
            fn name() -> Cow<'static, str> {
                $shown.into()
            }
        }
    };
}

schema! {
    /// The schema of the response to `GET /me`.
    MeSchema as "Me", {
        let token = ObjectBuilder::new()
            .property("id", id("The id of the token; absent for a token of the issuer"))
            .property("label", label(Type::String))
            .property("issuer", text("The issuer of the token; absent for a token of this service"))
            .property("scopes", scopes(Type::Array))
            .property("expires_at", time(nullable(), "Expiry time; null for a token that never expires"))
            .required("scopes")
            .required("expires_at");
        let example = json!({"user": "ada", "token": token_example(&["id", "label", "scopes", "expires_at"])});
        let me = ObjectBuilder::new().property("user", user_name()).property("token", token);
        me.required("user").required("token").examples([example])
    }
}

schema! {
    /// The schema of a token in a list.
    TokenSchema as "Token", token().examples([token_example(&TOKEN_FIELDS)])
}

schema! {
    /// The schema of the response to the creation of a token.
    CreatedTokenSchema as "CreatedToken",
    token().property("secret", text("The access token itself, shown only here")).required("secret")
}

schema! {
    /// The schema of the body of a request for a token.
    NewTokenSchema as "NewToken", {
        let scopes_type = SchemaType::from_iter([Type::Array, Type::Null]);
        ObjectBuilder::new()
            .property("label", label(nullable()))
            .property("scopes", scopes(scopes_type).min_items(Some(1)))
            .property("expires_at", time(nullable(), "Expiry time, at most that of the token that you send; 90 days unless given"))
            .property("renew", ObjectBuilder::new().schema_type(SchemaType::from_iter([Type::Boolean, Type::Null])).description(Some(
                "The new token replaces the one that you send, which expires within 14 days: it may last 90 days",
            )))
            .additional_properties(Some(AdditionalProperties::<Schema>::FreeForm(false)))
            .examples([json!({"label": "balcony", "scopes": ["plants:read"]})])
    }
}

schema! {
    /// The schema of the response to `GET /shares`.
    SharesSchema as "Shares", {
        let granted = ObjectBuilder::new()
            .property("user", user_name())
            .property("role", role())
            .property("created_at", time(Type::String, "The time when the plants were shared first"))
            .required("user")
            .required("role")
            .required("created_at");
        let received = ObjectBuilder::new().property("owner", user_name()).property("role", role());
        let received = received.required("owner").required("role");
        ObjectBuilder::new()
            .property("granted", ArrayBuilder::new().items(granted))
            .property("received", ArrayBuilder::new().items(received))
            .required("granted")
            .required("received")
            .examples([json!({
                "granted": [{"user": "bob", "role": "reader", "created_at": "2026-11-16T12:00:00Z"}],
                "received": [{"owner": "eve", "role": "editor"}],
            })])
    }
}

schema! {
    /// The schema of the body of a request to share plants.
    NewShareSchema as "NewShare",
    ObjectBuilder::new()
        .property("role", role())
        .required("role")
        .additional_properties(Some(AdditionalProperties::<Schema>::FreeForm(false)))
        .examples([json!({"role": "reader"})])
}

/// The fields of a token in a list.
const TOKEN_FIELDS: [&str; 8] =
    ["id", "label", "scopes", "created_at", "expires_at", "last_used_at", "state", "current"];

fn token() -> ObjectBuilder {
    let state = text("The state of the token").enum_values(Some(["active", "expired", "revoked"]));
    let current = ObjectBuilder::new().schema_type(Type::Boolean);
    let token = ObjectBuilder::new()
        .property("id", id("The id of the token"))
        .property("label", label(Type::String))
        .property("scopes", scopes(Type::Array))
        .property("created_at", time(Type::String, "The time of its creation"))
        .property("expires_at", time(nullable(), "Expiry time; null for a token that never expires"))
        .property("last_used_at", time(nullable(), "The day of its last use; null for a token that was never used"))
        .property("state", state)
        .property("current", current.description(Some("True for the token that you sent")));
    TOKEN_FIELDS.iter().fold(token, |token, field| token.required(*field))
}

/// Returns these fields of a token.
fn token_example(fields: &[&str]) -> Value {
    let mut token = json!({
        "id": 2, "label": "balcony", "scopes": ["plants:read"], "created_at": "2026-11-16T12:00:00Z",
        "expires_at": "2027-02-14T12:00:00Z", "last_used_at": null, "state": "active", "current": false,
    });
    if let Some(members) = token.as_object_mut() {
        members.retain(|name, _| fields.contains(&name.as_str()));
    }
    token
}

fn nullable() -> SchemaType {
    SchemaType::from_iter([Type::String, Type::Null])
}

fn text(description: &str) -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String).description(Some(description))
}

fn label(schema_type: impl Into<SchemaType>) -> ObjectBuilder {
    let schema = text("A description of the token's purpose").schema_type(schema_type);
    schema.max_length(Some(LABEL_MAX_CHARS)).pattern(Some(NO_CONTROL_CHARACTERS))
}

fn time(schema_type: impl Into<SchemaType>, description: &str) -> ObjectBuilder {
    let format = SchemaFormat::KnownFormat(KnownFormat::DateTime);
    text(description).schema_type(schema_type).format(Some(format))
}

fn scopes(schema_type: impl Into<SchemaType>) -> ArrayBuilder {
    let scope = ObjectBuilder::new().schema_type(Type::String).enum_values(Some(Scope::ALL.map(Scope::name)));
    ArrayBuilder::new().schema_type(schema_type).items(scope)
}

fn role() -> ObjectBuilder {
    text("`reader` may list the plants; `editor` may also create and delete them")
        .enum_values(Some(Role::ALL.map(Role::name)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::tokens::ShownToken;

    #[test]
    fn token_schema_has_the_serialised_fields() {
        let token = ShownToken {
            id: 1,
            label: "",
            scopes: Vec::new(),
            created_at: String::new(),
            expires_at: None,
            last_used_at: None,
            state: "active",
            current: false,
            secret: None,
        };
        let shown = serde_json::to_value(token).expect("a token is JSON");
        let shown: Vec<_> = shown.as_object().expect("an object").keys().cloned().collect();
        let mut fields = TOKEN_FIELDS.map(str::to_owned);
        fields.sort();
        assert_eq!(shown, fields);
    }
}
