//! Lines of an import, one for each plant: `{"owner":"ada","id":1,"name":"Monstera","tag":"indoor"}`.

use std::io;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::error::StoreError;
use plantstore_model::body::BodyError;
use plantstore_model::plant::{NewPlant, PlantId};
use plantstore_model::user::UserName;

#[derive(Clone, Debug)]
pub struct ImportRow {
    /// Number of the line, from 1.
    pub line: u64,
    /// In a store, created if there is no user of that name.
    pub owner: Arc<UserName>,
    pub plant: NewPlant,
}

impl ImportRow {
    /// Returns the reason to stop if the id is taken.
    pub fn taken(&self) -> StopReason {
        StopReason::Taken { line: self.line, owner: UserName::clone(&self.owner), id: self.plant.id }
    }
}

/// Behaviour of an import if the owner already has a plant with the id of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnDuplicate {
    Stop,
    Skip,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImportOutcome {
    Stored,
    /// The plant exists already with the same name and tag.
    Same,
    /// The plant exists already with a different name or tag, and is unchanged.
    Different,
    /// The plant may have been stored or not.
    Unknown,
}

#[derive(Debug, Default)]
pub struct ImportResult {
    /// One per plant, in order; fewer if the import stops.
    pub outcomes: Vec<ImportOutcome>,
    pub new_users: u64,
    pub stop: Option<StopReason>,
}

#[derive(Debug)]
pub enum StopReason {
    /// Some lines are invalid. Nothing from the first of them on is stored.
    Faults,
    Taken {
        line: u64,
        owner: UserName,
        id: PlantId,
    },
    /// The plant of this line cannot be stored.
    Rejected {
        line: u64,
        reason: String,
    },
    Store(StoreError),
    /// The input has fewer lines than `from_line`.
    Short {
        lines: u64,
    },
    Input(io::Error),
    Interrupted,
}

pub(super) struct LineReader {
    /// The owner of all lines, instead of those that they name.
    owner: Option<Arc<UserName>>,
    /// The last owner with their JSON text: the lines of an owner are usually consecutive.
    last: Option<(Box<str>, Arc<UserName>)>,
}

/// The field that a line has in addition to those of a plant.
#[derive(Deserialize)]
struct OwnerField<'a> {
    #[serde(borrow)]
    owner: Option<&'a RawValue>,
}

impl LineReader {
    pub(super) fn new(owner: Option<UserName>) -> Self {
        Self { owner: owner.map(Arc::new), last: None }
    }

    /// Parses a line: the plant as a request body, the owner as a user name. An error describes all faults.
    pub(super) fn read(&mut self, number: u64, line: &[u8]) -> Result<ImportRow, String> {
        // Without the line feed, so that the parser reports a premature end on the first line.
        let line = line.trim_ascii_end();
        let plant = match NewPlant::from_json(line) {
            Ok(plant) => Ok(plant),
            // To the parser every line is line 1.
            Err(BodyError::NotJson(fault)) => {
                return Err(format!("it is not JSON: {}", fault.replace(" at line 1 column ", " at column ")));
            }
            Err(BodyError::NotAnObject(_)) => {
                return Err("it must be a JSON object with `owner`, `id` and `name`".to_owned());
            }
            Err(faults @ BodyError::Fields(_)) => Err(faults.to_string()),
        };
        match (self.owner(line), plant) {
            (Ok(owner), Ok(plant)) => Ok(ImportRow { line: number, owner, plant }),
            (Ok(_) | Err(None), Err(faults)) => Err(faults),
            (Err(Some(fault)), Ok(_)) => Err(fault),
            (Err(Some(fault)), Err(faults)) => Err(format!("{fault}; {faults}")),
            (Err(None), Ok(_)) => Err("`owner` is given more than once".to_owned()),
        }
    }

    /// Parses the owner, or returns its fault: `None` if the whole line is invalid.
    fn owner(&mut self, line: &[u8]) -> Result<Arc<UserName>, Option<String>> {
        if let Some(owner) = &self.owner {
            return Ok(Arc::clone(owner));
        }
        let OwnerField { owner } = serde_json::from_slice(line).map_err(|_| None)?;
        let json = owner.map(RawValue::get).ok_or_else(|| Some("`owner` is required".to_owned()))?;
        if let Some((last, owner)) = &self.last
            && **last == *json
        {
            return Ok(Arc::clone(owner));
        }
        let wrong = || Some("`owner` must be a string".to_owned());
        let name: String = serde_json::from_str(json).map_err(|_| wrong())?;
        let name = UserName::parse(&name).map_err(|fault| Some(format!("`owner`: {fault}")))?;
        let owner = Arc::new(name);
        self.last = Some((json.into(), Arc::clone(&owner)));
        Ok(owner)
    }
}
