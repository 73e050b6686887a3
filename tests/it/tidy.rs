//! Executable rules that neither the compiler nor Cargo can enforce. Each has a test that shows violations it finds.

mod api_reference;
mod citus;
mod cli_reference;
mod cycles;
mod documents;
mod drawing;
mod errors;
mod files;
mod generated;
mod guarantees;
mod layers;
mod log_reference;
mod modules;
mod options;
mod restrictions;
mod source;
mod wording;
mod workspace;
