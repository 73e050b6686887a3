//! Short texts of requests and commands: ids in paths, names of users, labels, scopes, tokens and JWTs.
#![no_main]

use libfuzzer_sys::fuzz_target;
use plantstore_model::plant::PlantId;
use plantstore_model::token::{PlainToken, Scopes, TokenCreator, TokenLabel, is_jwt_shaped};
use plantstore_model::user::UserName;

fuzz_target!(|text: &str| {
    // JSON has a negative zero, which is 0.
    if let Ok(id) = PlantId::parse(text)
        && text != "-0"
    {
        assert_eq!(id.to_string(), text);
    }
    if let Ok(name) = UserName::parse(text) {
        assert_eq!(name.as_str(), text);
    }
    if let Ok(label) = TokenLabel::parse(text) {
        assert_eq!(TokenLabel::parse_stored(label.as_str()).expect("a stored label").as_str(), label.as_str());
    }
    if let Some(creator) = TokenCreator::parse(text) {
        assert_eq!(TokenCreator::parse(&creator.to_string()), Some(creator));
    }
    let scopes = Scopes::from_names(text);
    assert_eq!(Scopes::from_names(&scopes.to_string()), scopes);
    assert!(!(PlainToken::is_well_formed(text) && is_jwt_shaped(text)));
});
