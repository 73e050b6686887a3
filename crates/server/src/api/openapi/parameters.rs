//! What requests carry beside their body.

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
/// Of `GET /openapi.json`.
pub(crate) struct OpenapiParameters;
/// Of whatever else is read.
pub(crate) struct ReadParameters;

impl IntoParams for ListParameters {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        vec![
            limit(),
            after(),
            include(),
            owner("Whose plants: all that you can read, unless you name one owner"),
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
        vec![path_id(), owner(OWNER_OF_WRITES), idempotency_key(), request_id()]
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

const OWNER_OF_WRITES: &str = "Whose plant: your own, unless you name somebody who lets you edit theirs";

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
        "The most plants to return, all of them without it; where it leaves some out, `Link` has the next page";
    optional(ParameterIn::Query, "limit", description, schema).example(Some(json!(20))).build()
}

fn after() -> Parameter {
    let schema = text().format(Some(SchemaFormat::Custom("cursor".to_owned())));
    let description = "Where the page before has ended: opaque, from its `Link`";
    optional(ParameterIn::Query, "after", description, schema).build()
}

fn include() -> Parameter {
    let schema = text().enum_values(Some(["id", "owner", "id,owner", "owner,id"]));
    let description = "What else to show of each plant";
    optional(ParameterIn::Query, "include", description, schema).example(Some(json!("id"))).build()
}

fn owner(description: &str) -> Parameter {
    let schema = text().format(Some(SchemaFormat::Custom("user-name".to_owned())));
    optional(ParameterIn::Query, "owner", description, schema).build()
}

fn path_id() -> Parameter {
    let parameter = ParameterBuilder::new().name("id").parameter_in(ParameterIn::Path).required(Required::True);
    let description = "The number of the plant";
    parameter.description(Some(description)).schema(Some(schemas::id(description))).example(Some(json!(1))).build()
}

fn idempotency_key() -> Parameter {
    // Bare, or a string of RFC 8941; neither starts nor ends with a space, which HTTP takes away.
    let pattern = r#"^(?:[!#-~](?:[ -~]{0,253}[!-~])?|"(?:[ !#-\[\]-~]|\\["\\]){1,255}")$"#;
    let schema = text().pattern(Some(pattern));
    let description = "A new one for every new request: sent again with the same key, a request is done once, and its first \
        answer is given again";
    optional(ParameterIn::Header, "Idempotency-Key", description, schema).build()
}

fn if_none_match() -> Parameter {
    optional(ParameterIn::Header, "If-None-Match", "The `ETag` of what you have: 304 if it is still true", text())
        .build()
}

fn request_id() -> Parameter {
    let description = "An id of your own for the log; 1 to 128 letters, digits and `-_.:+/=@`, others are replaced";
    optional(ParameterIn::Header, "X-Request-Id", description, text()).build()
}
