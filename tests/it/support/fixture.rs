//! Fixtures of tests, and tests that run on both engines.

use super::{Client, Engine, Server, Store};

/// A store with a server.
pub(crate) struct Service {
    // Dropped, and so ended, before the store.
    pub(crate) server: Server,
    pub(crate) store: Store<'static>,
}

impl Service {
    /// Creates a store and starts a server with these options.
    #[track_caller]
    pub(crate) fn new(engine: Engine, options: &[&str]) -> Self {
        let store = Store::new(engine);
        Self { server: store.serve(options), store }
    }
}

/// A store with a server and a user, which most tests start with.
pub(crate) struct Garden {
    pub(crate) server: Server,
    pub(crate) store: Store<'static>,
    pub(crate) ada: Client,
}

impl Garden {
    /// Creates a store, starts a server with these options, and creates a token for the user `ada`.
    #[track_caller]
    pub(crate) fn new(engine: Engine, options: &[&str]) -> Self {
        let Service { server, store } = Service::new(engine, options);
        let ada = server.client(&store.token("ada", &[]));
        Self { server, store, ada }
    }
}

/// Argument of a test that runs on both engines.
pub(crate) trait Fixture {
    /// Creates the fixture; its server gets these options.
    fn create(engine: Engine, options: &[&str]) -> Self;
}

impl Fixture for Garden {
    fn create(engine: Engine, options: &[&str]) -> Self {
        Self::new(engine, options)
    }
}

impl Fixture for Service {
    fn create(engine: Engine, options: &[&str]) -> Self {
        Self::new(engine, options)
    }
}

impl Fixture for Store<'static> {
    fn create(engine: Engine, options: &[&str]) -> Self {
        assert_eq!(options, [""; 0], "there is no server that gets options");
        Self::new(engine)
    }
}

impl Fixture for Engine {
    fn create(engine: Engine, options: &[&str]) -> Self {
        assert_eq!(options, [""; 0], "there is no server that gets options");
        engine
    }
}

/// Calls a test with its fixture.
pub(crate) fn run_on<T: Fixture>(engine: Engine, options: &[&str], test: impl FnOnce(&T)) {
    test(&T::create(engine, options));
}

/// Defines a test that runs on both engines: `engine_test!(name, |Garden { ada, .. }: &Garden| { … })`. The type of the
/// argument is a [`Fixture`]; options of its server may be given before the closure. The two tests are called
/// `name::on_sqlite` and `name::on_postgres`.
macro_rules! engine_test {
    ($name:ident, $test:expr) => {
        engine_test!($name, &[], $test);
    };
    ($name:ident, $options:expr, $test:expr) => {
        fn $name(engine: $crate::support::Engine) {
            $crate::support::run_on(engine, $options, $test);
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

/// Defines a test like [`engine_test`] that starts an installed program:
/// `engine_tool_test!(name, requires_strace, |…| { … })` is called `name::requires_strace::on_sqlite` and `…::on_postgres`.
macro_rules! engine_tool_test {
    ($name:ident, $tool:ident, $test:expr) => {
        fn $name(engine: $crate::support::Engine) {
            $crate::support::run_on(engine, &[], $test);
        }
        mod $name {
            mod $tool {
                #[test]
                fn on_sqlite() {
                    super::super::$name($crate::support::Engine::Sqlite);
                }
                #[test]
                fn on_postgres() {
                    super::super::$name($crate::support::Engine::Postgres);
                }
            }
        }
    };
}
pub(crate) use engine_tool_test;

/// Defines a test like [`engine_test`] that runs on SQLite only: it is called `name::on_sqlite`.
macro_rules! sqlite_test {
    ($name:ident, $($options_and_test:expr),+) => {
        $crate::support::tool_test!($name, on_sqlite, $($options_and_test),+);
    };
}
pub(crate) use sqlite_test;

/// Defines a test like [`sqlite_test`] that starts an installed program: `tool_test!(name, requires_script, |…| { … })`
/// is called `name::requires_script`.
macro_rules! tool_test {
    ($name:ident, $tool:ident, $($options_and_test:expr),+) => {
        $crate::support::one_engine_test!($name, $tool, Sqlite, $($options_and_test),+);
    };
}
pub(crate) use tool_test;

/// Defines a test like [`engine_test`] that runs on PostgreSQL only: it is called `name::on_postgres`.
macro_rules! postgres_test {
    ($name:ident, $($options_and_test:expr),+) => {
        $crate::support::one_engine_test!($name, on_postgres, Postgres, $($options_and_test),+);
    };
}
pub(crate) use postgres_test;

macro_rules! one_engine_test {
    ($name:ident, $suffix:ident, $engine:ident, $test:expr) => {
        $crate::support::one_engine_test!($name, $suffix, $engine, &[], $test);
    };
    ($name:ident, $suffix:ident, $engine:ident, $options:expr, $test:expr) => {
        fn $name() {
            $crate::support::run_on($crate::support::Engine::$engine, $options, $test);
        }
        mod $name {
            #[test]
            fn $suffix() {
                super::$name();
            }
        }
    };
}
pub(crate) use one_engine_test;
