//! The parameters and header fields of each operation's requests.

use serde_json::json;
use utoipa::IntoParams;
use utoipa::openapi::path::{Parameter, ParameterBuilder, ParameterIn};
use utoipa::openapi::{KnownFormat, ObjectBuilder, Required, SchemaFormat, Type};

use super::schemas;

/// Of `GET /plants`.
pub(crate) struct ListParameters;
/// Of `POST /plants`.
pub(crate) struct WriteParameters;
/// Of `DELETE /plants/{id}`.
pub(crate) struct DeleteParameters;
/// Of `GET /plants/{id}`.
pub(crate) struct ReadPlantParameters;
/// Of `DELETE /tokens/{id}`.
pub(crate) struct RevokeTokenParameters;
/// Of `PUT /shares/{user}` and `DELETE /shares/{user}`.
pub(crate) struct ShareParameters;
/// Of `GET /openapi.json`.
pub(crate) struct OpenapiParameters;
/// Of all other reads.
pub(crate) struct ReadParameters;

impl IntoParams for ListParameters {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        vec![
            limit(),
            after(),
            include(),
            owner("Owner of the plants; all owners whose plants you can read unless given"),
            if_none_match(),
            request_id(),
        ]
    }
}

impl IntoParams for WriteParameters {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        vec![owner(OWNER_OF_WRITES), idempotency_key(), request_id()]
    }
}

impl IntoParams for DeleteParameters {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        vec![path_id(PLANT_ID), owner(OWNER_OF_WRITES), idempotency_key(), request_id()]
    }
}

impl IntoParams for ReadPlantParameters {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        let owner = owner("Owner of the plant; you unless given");
        vec![path_id(PLANT_ID), include(), owner, if_none_match(), request_id()]
    }
}

impl IntoParams for RevokeTokenParameters {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        vec![path_id("The id of the token"), request_id()]
    }
}

impl IntoParams for ShareParameters {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        vec![path_user(), request_id()]
    }
}

impl IntoParams for OpenapiParameters {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        vec![if_none_match(), request_id()]
    }
}

impl IntoParams for ReadParameters {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        vec![request_id()]
    }
}

const PLANT_ID: &str = "The id of the plant";
const OWNER_OF_WRITES: &str =
    "Owner of the plant; you unless given. Another owner must have granted you the role `editor`";

fn optional(place: ParameterIn, name: &str, description: &str, schema: ObjectBuilder) -> ParameterBuilder {
    let parameter = ParameterBuilder::new().name(name).parameter_in(place).required(Required::False);
    parameter.description(Some(description)).schema(Some(schema))
}

fn text() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String)
}

fn limit() -> Parameter {
    let schema = ObjectBuilder::new()
        .schema_type(Type::Integer)
        .format(Some(SchemaFormat::KnownFormat(KnownFormat::Int32)))
        .minimum(Some(0))
        .maximum(Some(i32::MAX));
    let description =
        "Maximum number of plants to return, all of them unless given; if there are more, `Link` has the next page";
    optional(ParameterIn::Query, "limit", description, schema).example(Some(json!(20))).build()
}

fn after() -> Parameter {
    let schema = text().format(Some(SchemaFormat::Custom("cursor".to_owned())));
    let description = "Opaque cursor from the `Link` of the previous page";
    optional(ParameterIn::Query, "after", description, schema).build()
}

fn include() -> Parameter {
    let schema = text().enum_values(Some(["id", "owner", "id,owner", "owner,id"]));
    let description = "Optional fields to include in each plant";
    optional(ParameterIn::Query, "include", description, schema).example(Some(json!("id"))).build()
}

fn owner(description: &str) -> Parameter {
    let schema = text().format(Some(user_name_format()));
    optional(ParameterIn::Query, "owner", description, schema).build()
}

fn user_name_format() -> SchemaFormat {
    SchemaFormat::Custom("user-name".to_owned())
}

fn path_user() -> Parameter {
    let parameter = ParameterBuilder::new().name("user").parameter_in(ParameterIn::Path).required(Required::True);
    let description = "The name of the user who gets or loses access";
    let schema = schemas::user_name().format(Some(user_name_format()));
    parameter.description(Some(description)).schema(Some(schema)).example(Some(json!("bob"))).build()
}

fn path_id(description: &str) -> Parameter {
    let parameter = ParameterBuilder::new().name("id").parameter_in(ParameterIn::Path).required(Required::True);
    parameter.description(Some(description)).schema(Some(schemas::id(description))).example(Some(json!(1))).build()
}

fn idempotency_key() -> Parameter {
    // Bare, or a quoted string of RFC 8941. It cannot start or end with a space, because HTTP strips these.
    let pattern = r#"^(?:[!#-~](?:[ -~]{0,253}[!-~])?|"(?:[ !#-\[\]-~]|\\["\\]){1,255}")$"#;
    let schema = text().pattern(Some(pattern));
    let description = "A new key for every new request. A request that is sent again with the same key is executed once and gets \
        the first response again";
    optional(ParameterIn::Header, "Idempotency-Key", description, schema).build()
}

fn if_none_match() -> Parameter {
    let description = "The `ETag` of a response that you have; 304 if it is still current";
    optional(ParameterIn::Header, "If-None-Match", description, text()).build()
}

fn request_id() -> Parameter {
    let description = "An id of your own for the log; 1 to 128 letters, digits and `-_.:+/=@`, others are replaced";
    optional(ParameterIn::Header, "X-Request-Id", description, text()).build()
}
