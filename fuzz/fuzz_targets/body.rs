//! Bodies of requests and lines of an import.
#![no_main]

use libfuzzer_sys::fuzz_target;
use plantstore_model::body::unique_members;
use plantstore_model::plant::{NewPlant, PlantId};
use plantstore_model::self_service::{ShareRequest, TokenRequest};

fuzz_target!(|bytes: &[u8]| {
    let _ = unique_members(bytes);
    let _ = ShareRequest::from_json(bytes);
    let _ = TokenRequest::from_json(bytes, jiff::Timestamp::UNIX_EPOCH);
    let plant = NewPlant::from_json(bytes);
    match &plant {
        // What is shown of a plant is a valid body with the same content.
        Ok(plant) => {
            // Only a create has a shorter way of parsing.
            assert_eq!(NewPlant::replacing(plant.id, bytes).as_ref(), Ok(plant));
            let shown = serde_json::to_vec(&plant.shown()).expect("JSON");
            let again = NewPlant::replacing(plant.id, &shown).expect("a valid body");
            assert_eq!(again.name, plant.name);
            assert_eq!(again.tag, plant.tag);
        }
        Err(error) => assert!(error.to_string().len() < 20_000),
    }
    let _ = NewPlant::replacing(PlantId::new(0), bytes);
});
