//! Defaults and value parsers of limits that are command line options.

pub mod value_parser;

use clap::builder::Resettable;
use clap::{Args, Command};

/// Returns the options with their defaults; environment variables are ignored.
pub(crate) fn defaults<T: Args>() -> T {
    let command = T::augment_args(Command::new("defaults")).mut_args(|option| option.env(Resettable::Reset));
    T::from_arg_matches(&command.get_matches_from(["defaults"])).expect("every option has a default or is optional")
}
