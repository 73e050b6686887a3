//! A plant as a line of JSON: `{"owner":"ada","id":1,"name":"Monstera","tag":"indoor"}`.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::transfer::{ImportRow, PlantRecord};
use plantstore_model::plant::{BadPlant, NewPlant};
use plantstore_model::user::UserName;

#[derive(Serialize)]
struct Line<'a> {
    owner: &'a str,
    id: i64,
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    tag: Option<&'a str>,
}

/// Adds the line of a plant: text as it is stored, ids exact.
pub(super) fn write(buffer: &mut Vec<u8>, plant: &PlantRecord) {
    write_json(buffer, &Line { owner: &plant.owner, id: plant.id, name: &plant.name, tag: plant.tag.as_deref() });
}

/// Adds a value as a line.
pub(super) fn write_json(buffer: &mut Vec<u8>, value: &impl Serialize) {
    serde_json::to_writer(&mut *buffer, value).expect("memory takes whatever has string keys");
    buffer.push(b'\n');
}

#[derive(Default)]
pub(super) struct Reader {
    /// The last owner, and how they were written: lines of one owner mostly follow each other.
    last: Option<(Box<str>, Arc<UserName>)>,
}

/// The field beside those that every plant has.
#[derive(Deserialize)]
struct OwnerField<'a> {
    #[serde(borrow)]
    owner: Option<&'a RawValue>,
}

impl Reader {
    /// Reads a line by the rules that a request's body is read by, and the owner by those of user names; or returns all that is
    /// wrong with it.
    pub(super) fn read(&mut self, line: &[u8]) -> Result<ImportRow, String> {
        // With its line break, what is missing at the end would be found on a second line.
        let line = line.trim_ascii_end();
        let plant = match NewPlant::from_json(line) {
            Ok(plant) => Ok(plant),
            // Where in the line, which is but one to the parser.
            Err(BadPlant::NotJson(fault)) => {
                return Err(format!("it is not JSON: {}", fault.replace(" at line 1 column ", " at column ")));
            }
            Err(BadPlant::NotAnObject) => {
                return Err("it must be a JSON object with `owner`, `id` and `name`".to_owned());
            }
            Err(faults @ BadPlant::Fields(_)) => Err(faults.to_string()),
        };
        match (self.owner(line), plant) {
            (Ok(owner), Ok(plant)) => Ok(ImportRow { owner, plant }),
            (Ok(_) | Err(None), Err(faults)) => Err(faults),
            (Err(Some(fault)), Ok(_)) => Err(fault),
            (Err(Some(fault)), Err(faults)) => Err(format!("{fault}; {faults}")),
            (Err(None), Ok(_)) => Err("`owner` is given more than once".to_owned()),
        }
    }

    /// Reads the owner, or returns its fault; none, if the fault is one of the whole line.
    fn owner(&mut self, line: &[u8]) -> Result<Arc<UserName>, Option<String>> {
        let OwnerField { owner } = serde_json::from_slice(line).map_err(|_| None)?;
        let written = owner.map(RawValue::get).ok_or_else(|| Some("`owner` is required".to_owned()))?;
        if let Some((last, owner)) = &self.last
            && **last == *written
        {
            return Ok(Arc::clone(owner));
        }
        let wrong = || Some("`owner` must be a string".to_owned());
        let name: String = serde_json::from_str(written).map_err(|_| wrong())?;
        let name = UserName::parse(&name).map_err(|fault| Some(format!("`owner`: {fault}")))?;
        let owner = Arc::new(name);
        self.last = Some((written.into(), Arc::clone(&owner)));
        Ok(owner)
    }
}
