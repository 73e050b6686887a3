//! Schemas of the values in request and response bodies, for the OpenAPI document. Structs and enums of words derive theirs.

use std::borrow::Cow;

use utoipa::openapi::schema::Schema;
use utoipa::openapi::{KnownFormat, ObjectBuilder, RefOr, SchemaFormat, Type};
use utoipa::{PartialSchema, ToSchema};

use crate::plant::{NAME_MAX_CHARS, PlantId, PlantName, TAG_MAX_CHARS, Tag};
use crate::token::{LABEL_MAX_CHARS, Scope, TokenId, TokenLabel};
use crate::user::{USER_NAME_MAX_CHARS, UserName};

/// Excludes the Unicode category Cc, in a syntax that all dialects of regular expressions share.
const NO_CONTROL_CHARACTERS: &str = r"^[^\u0000-\u001F\u007F-\u009F]*$";

/// Declares the schema of a type, and its name in the document.
macro_rules! component {
    ($type:ty, $name:literal, $schema:expr) => {
        impl PartialSchema for $type {
            fn schema() -> RefOr<Schema> {
                $schema.into()
            }
        }

        impl ToSchema for $type {
            fn name() -> Cow<'static, str> {
                $name.into()
            }
        }
    };
}

component!(PlantId, "PlantId", id("The id of a plant, chosen by the client; unique among its owner's plants"));
component!(TokenId, "TokenId", id("The id of a token"));
component!(
    PlantName,
    "PlantName",
    text("The name of a plant, stored exactly as sent")
        .min_length(Some(1))
        .max_length(Some(NAME_MAX_CHARS))
        .pattern(Some(NO_CONTROL_CHARACTERS))
);
component!(
    Tag,
    "Tag",
    text("Tag that specifies the type of a plant").max_length(Some(TAG_MAX_CHARS)).pattern(Some(NO_CONTROL_CHARACTERS))
);
component!(
    UserName,
    "UserName",
    text("The name of a user")
        .min_length(Some(1))
        .max_length(Some(USER_NAME_MAX_CHARS))
        .format(Some(SchemaFormat::Custom("user-name".to_owned())))
);
component!(
    TokenLabel,
    "TokenLabel",
    text("A description of a token's purpose").max_length(Some(LABEL_MAX_CHARS)).pattern(Some(NO_CONTROL_CHARACTERS))
);
component!(Scope, "Scope", text("A permission of a token").enum_values(Some(Scope::ALL.map(Scope::name))));

fn text(description: &str) -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String).description(Some(description))
}

/// Returns the schema of a 64-bit integer, with a warning that generated clients repeat.
fn id(description: &str) -> ObjectBuilder {
    let inexact = "Beyond ±(2^53 − 1), that is ±9007199254740991, JavaScript reads it inexactly as a number";
    ObjectBuilder::new()
        .schema_type(Type::Integer)
        .format(Some(SchemaFormat::KnownFormat(KnownFormat::Int64)))
        .minimum(Some(i64::MIN))
        .maximum(Some(i64::MAX))
        .description(Some(format!("{description}. {inexact}")))
}
