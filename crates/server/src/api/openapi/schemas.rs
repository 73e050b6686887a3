//! Schemas of request and response bodies, with the limits of [`plantstore_model::plant`].

use std::borrow::Cow;

use serde_json::json;
use utoipa::openapi::schema::SchemaType;
use utoipa::openapi::{KnownFormat, ObjectBuilder, RefOr, Schema, SchemaFormat, Type};
use utoipa::{PartialSchema, ToSchema};

use plantstore_model::plant::{NAME_MAX_CHARS, TAG_MAX_CHARS};
use plantstore_model::user::USER_NAME_MAX_CHARS;

/// Excludes the Unicode category Cc, in a syntax that all dialects of regular expressions share.
pub(super) const NO_CONTROL_CHARACTERS: &str = r"^[^\u0000-\u001F\u007F-\u009F]*$";

/// Warning in the description of every id, which generated clients repeat.
const INEXACT_IN_JAVASCRIPT: &str =
    "Beyond ±(2^53 − 1), that is ±9007199254740991, JavaScript reads it inexactly as a number";

/// The schema of the body of every error response.
pub(crate) struct ErrorSchema;

impl PartialSchema for ErrorSchema {
    fn schema() -> RefOr<Schema> {
        let code = ObjectBuilder::new()
            .schema_type(Type::Integer)
            .format(Some(SchemaFormat::KnownFormat(KnownFormat::Int32)))
            .description(Some(
                "The error code: stable, never reused; its first three digits are the status. Each response lists the codes that \
                 it can have; accept others, because later releases may add some",
            ));
        let message = ObjectBuilder::new()
            .schema_type(Type::String)
            .description(Some("What is wrong and what to do, for people to read"));
        let shape = ObjectBuilder::new().property("error", code).property("message", message);
        shape.required("error").required("message").into()
    }
}

impl ToSchema for ErrorSchema {
    fn name() -> Cow<'static, str> {
        "Error".into()
    }
}

/// The schema of a plant in a response.
pub(crate) struct PlantSchema;

impl PartialSchema for PlantSchema {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new()
            .property("id", id("The id of the plant; present with `include=id`"))
            .property("owner", user_name().description(Some("The name of the owner; present with `include=owner`")))
            .property("name", name())
            .property("tag", tag(Type::String))
            .required("name")
            .examples([json!({"name": "Monstera", "tag": "indoor"})])
            .into()
    }
}

impl ToSchema for PlantSchema {
    fn name() -> Cow<'static, str> {
        "Plant".into()
    }
}

/// The schema of the body of a create request.
pub(crate) struct NewPlantSchema;

impl PartialSchema for NewPlantSchema {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new()
            .property("id", id("The id of the plant, chosen by the client; unique among its owner's plants"))
            .property("name", name())
            .property("tag", tag(SchemaType::from_iter([Type::String, Type::Null])))
            .required("id")
            .required("name")
            .examples([json!({"id": 1, "name": "Monstera", "tag": "indoor"})])
            .into()
    }
}

impl ToSchema for NewPlantSchema {
    fn name() -> Cow<'static, str> {
        "NewPlant".into()
    }
}

/// Returns the schema of a 64-bit integer.
pub(super) fn id(description: &str) -> ObjectBuilder {
    ObjectBuilder::new()
        .description(Some(format!("{description}. {INEXACT_IN_JAVASCRIPT}")))
        .schema_type(Type::Integer)
        .format(Some(SchemaFormat::KnownFormat(KnownFormat::Int64)))
        .minimum(Some(i64::MIN))
        .maximum(Some(i64::MAX))
}

fn name() -> ObjectBuilder {
    ObjectBuilder::new()
        .schema_type(Type::String)
        .min_length(Some(1))
        .max_length(Some(NAME_MAX_CHARS))
        .pattern(Some(NO_CONTROL_CHARACTERS))
        .description(Some("The name of the plant, stored exactly as sent"))
}

fn tag(schema_type: impl Into<SchemaType>) -> ObjectBuilder {
    ObjectBuilder::new()
        .schema_type(schema_type)
        .max_length(Some(TAG_MAX_CHARS))
        .pattern(Some(NO_CONTROL_CHARACTERS))
        .description(Some("Tag that specifies the type"))
}

pub(super) fn user_name() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String).min_length(Some(1)).max_length(Some(USER_NAME_MAX_CHARS))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use plantstore_model::plant::{NewPlant, Plant, PlantId};

    fn schema<T: PartialSchema>() -> Value {
        serde_json::to_value(T::schema()).expect("a schema is JSON")
    }

    fn keys(value: &Value) -> Vec<&String> {
        value.as_object().expect("an object").keys().collect()
    }

    #[test]
    fn plant_schema_has_the_serialised_fields() {
        let plant = Plant { id: Some(PlantId::new(1)), owner: Some("ada"), name: "Rose", tag: Some("thorny") };
        let shown = serde_json::to_value(plant).expect("a plant is JSON");
        assert_eq!(keys(&schema::<PlantSchema>()["properties"]), keys(&shown));
        let least = serde_json::to_value(Plant { id: None, owner: None, tag: None, ..plant }).expect("a plant is JSON");
        assert_eq!(schema::<PlantSchema>()["required"], json!(keys(&least)));
    }

    #[test]
    fn examples_of_new_plants_are_valid() {
        for example in schema::<NewPlantSchema>()["examples"].as_array().expect("examples") {
            NewPlant::from_json(example.to_string().as_bytes()).expect("a plant");
        }
    }
}
