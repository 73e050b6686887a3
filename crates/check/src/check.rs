//! A check: one rule of the contract, and the function that verifies it.

use futures_util::future::BoxFuture;

use crate::error::CheckResult;
use crate::options::Level;
use crate::run::Run;

pub(crate) struct Check {
    pub(crate) id: &'static str,
    pub(crate) description: &'static str,
    pub(crate) level: Level,
    pub(crate) run: for<'a> fn(&'a mut Run) -> BoxFuture<'a, CheckResult>,
}

impl Check {
    pub(crate) const fn new(
        level: Level,
        id: &'static str,
        description: &'static str,
        run: for<'a> fn(&'a mut Run) -> BoxFuture<'a, CheckResult>,
    ) -> Self {
        Self { id, description, level, run }
    }
}

/// Defines a check whose function is an `async fn(&mut Run) -> CheckResult`.
macro_rules! check {
    ($level:ident, $id:literal, $description:literal, $run:ident) => {
        Check::new(crate::options::Level::$level, $id, $description, |run| Box::pin($run(run)))
    };
}
pub(crate) use check;
