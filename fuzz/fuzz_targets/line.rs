//! Files of an import.
#![no_main]

use std::io::Cursor;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use plantstore_model::user::UserName;
use plantstore_store::transfer::{ImportEvent, ImportInput, StopReason, check};
use tokio::runtime::{Builder, Runtime};

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Builder::new_current_thread().build().expect("a runtime"));

fuzz_target!(|bytes: &[u8]| {
    for owner in [None, Some("ada")] {
        let input = ImportInput {
            lines: Cursor::new(bytes.to_vec()),
            size: Some(bytes.len() as u64),
            owner: owner.map(|name| UserName::parse(name).expect("a name")),
            from_line: 1,
            faults_max: 5,
            batch_plants: 3,
        };
        let mut faults = 0;
        let on_event = |event: ImportEvent<'_>| {
            if let ImportEvent::Fault { reason, .. } = event {
                faults += 1;
                assert!(!reason.is_empty() && reason.len() < 20_000);
            }
        };
        let summary = RUNTIME.block_on(check(input, on_event));
        assert_eq!(summary.faulty, faults);
        assert!(faults > 0 || summary.stop.is_none() || matches!(summary.stop, Some(StopReason::Input(_))), "{:?}", summary.stop);
    }
});
