//! Storage engines of the service.

/// Storage engine that a test runs on.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Engine {
    Sqlite,
    Postgres,
}

/// Defines a test that runs on both engines: `engine_test!(name, |Garden { ada, .. }: &Garden| { … })`. The argument is
/// made from the engine: a [`Garden`](super::Garden), whose server gets the options before the closure, if any; or a
/// [`Store`](super::Store). The two tests are called `name::on_sqlite` and `name::on_postgres`.
macro_rules! engine_test {
    ($name:ident, $test:expr) => {
        engine_test!($name, From::from, $test,);
    };
    ($name:ident, $options:expr, $test:expr) => {
        engine_test!($name, |engine| $crate::support::Garden::new(engine, $options), $test,);
    };
    ($name:ident, $fixture:expr, $test:expr,) => {
        fn $name(engine: $crate::support::Engine) {
            $crate::support::run_with($fixture, engine, $test);
        }
        mod $name {
            #[test]
            fn on_sqlite() {
                super::$name($crate::support::Engine::Sqlite);
            }
            #[test]
            fn on_postgres() {
                super::$name($crate::support::Engine::Postgres);
            }
        }
    };
}
pub(crate) use engine_test;

/// Calls a test with the fixture for an engine.
pub(crate) fn run_with<T>(fixture: impl FnOnce(Engine) -> T, engine: Engine, test: impl FnOnce(&T)) {
    test(&fixture(engine));
}
