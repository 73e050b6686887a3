//! Executable rules that neither the compiler nor Cargo can enforce. Each has a test that shows what it finds.

mod cycles;
mod documents;
mod drawing;
mod errors;
mod files;
mod modules;
mod options;
mod places;
mod rooms;
mod source;
mod wording;
mod workspace;
