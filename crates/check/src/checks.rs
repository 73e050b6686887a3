//! All checks, by group.

mod access;
mod account;
mod create;
mod list;
mod one_plant;
mod protocol;
mod reject;
mod retry;

use crate::run::Check;

/// The groups in the order in which they run: later checks rely on the results of earlier ones.
pub(crate) const GROUPS: &[(&str, &[Check])] = &[
    ("create", create::CHECKS),
    ("delete", one_plant::DELETE),
    ("reject", reject::CHECKS),
    ("list", list::LIST),
    ("page", list::PAGE),
    ("access", access::CHECKS),
    ("read", one_plant::READ),
    ("replace", one_plant::REPLACE),
    ("account", account::CHECKS),
    ("retry", retry::CHECKS),
    ("protocol", protocol::CHECKS),
    ("always", protocol::ALL_RESPONSES),
];
