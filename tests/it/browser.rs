//! Pages as people meet them: the real server in a real browser, driven by the scripts in `tests/browser/`.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::support::{Engine, Script, Site};

/// The harness itself: a script is answered, and one that fails fails its test with what it said.
#[test]
fn a_script_drives_the_browser() {
    let site = Site::new(Engine::Sqlite);
    let server = site.serve(&[]);
    Script::new("harness", "harness", &server, "").run_asking(str::to_owned);
    let script = Script::new("harness", "harness-failing", &server, "").with("EXPECTED", "something else");
    let failure = catch_unwind(AssertUnwindSafe(|| script.run())).expect_err("a failure");
    let message = failure.downcast_ref::<String>().expect("a message");
    assert!(message.contains("something else") && message.contains("AssertionError"), "{message}");
}
