//! One promise of the interface, and the function that checks it.

use futures_util::future::BoxFuture;

use crate::error::Outcome;
use crate::options::Level;
use crate::run::Run;

pub(crate) struct Check {
    pub(crate) id: &'static str,
    pub(crate) description: &'static str,
    pub(crate) level: Level,
    pub(crate) run: for<'a> fn(&'a mut Run) -> BoxFuture<'a, Outcome>,
}

impl Check {
    pub(crate) const fn new(
        level: Level,
        id: &'static str,
        description: &'static str,
        run: for<'a> fn(&'a mut Run) -> BoxFuture<'a, Outcome>,
    ) -> Self {
        Self { id, description, level, run }
    }
}
