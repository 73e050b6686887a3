//! All checks, by group.

mod access;
mod account;
mod all_responses;
mod create;
mod delete;
mod list;
mod page;
mod protocol;
mod read;
mod reject;
mod retry;

use crate::check::Check;

/// The groups in the order in which they run: later checks rely on the results of earlier ones.
pub(crate) const GROUPS: &[(&str, &[Check])] = &[
    ("create", create::CHECKS),
    ("delete", delete::CHECKS),
    ("reject", reject::CHECKS),
    ("list", list::CHECKS),
    ("page", page::CHECKS),
    ("access", access::CHECKS),
    ("read", read::CHECKS),
    ("account", account::CHECKS),
    ("retry", retry::CHECKS),
    ("protocol", protocol::CHECKS),
    // These verify the responses to all earlier requests.
    ("always", all_responses::CHECKS),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn ids_are_unique() {
        let ids = GROUPS.iter().flat_map(|(_, checks)| checks.iter().map(|check| check.id));
        let mut known = BTreeSet::from(["nothing-left"]);
        ids.for_each(|id| assert!(known.insert(id), "{id} is there twice"));
    }
}
