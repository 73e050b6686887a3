//! Damaged backups: the input selects a store file of an earlier release and changes bytes of it, three bytes for each change: offset
//! and value. What can be restored must be a store that can be read.
#![no_main]

use std::fs;
use std::path::Path;
use std::sync::LazyLock;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use plantstore_store::transfer::{RestoreTarget, Selection, Snapshot, copy, export};
use plantstore_store::{SchemaChange, StoreUrl};
use tokio::runtime::{Builder, Runtime};

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Builder::new_current_thread().enable_all().build().expect("a runtime"));
static FILES: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let files = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/files");
    ["0.1.0", "0.3.0", "0.6.0", "0.7.0"].map(|release| fs::read(format!("{files}/{release}.db")).expect("a store")).into()
});

async fn restore(backup: &Path, url: &StoreUrl) -> Result<(), Box<dyn std::error::Error>> {
    let timeout = Duration::from_secs(5);
    let from = Snapshot::open_backup(backup)?;
    let to = RestoreTarget::begin(url, SchemaChange::Create, timeout).await?;
    copy(from, to, |_| {}).await?;
    let restored = Snapshot::open(url, Selection::Plants, timeout).await.expect("a store");
    let mut lines = Vec::new();
    export(restored, &mut lines, |_| {}).await.expect("an export");
    Ok(())
}

fuzz_target!(|bytes: &[u8]| {
    let Some((file, changes)) = bytes.split_first() else { return };
    let mut contents = FILES[usize::from(*file) % FILES.len()].clone();
    for change in changes.chunks_exact(3) {
        let at = usize::from(change[0]) << 8 | usize::from(change[1]);
        if let Some(byte) = contents.get_mut(at) {
            *byte = change[2];
        }
    }
    let directory = Path::new("/dev/shm").join(format!("plantstore-fuzz-{}", std::process::id()));
    fs::create_dir_all(&directory).expect("a directory in memory");
    let backup = directory.join("backup.db");
    fs::write(&backup, contents).expect("the backup is written");
    let restored = directory.join("restored.db");
    let url = format!("sqlite:{}", restored.display()).parse().expect("a URL");
    let _ = RUNTIME.block_on(restore(&backup, &url));
    fs::remove_dir_all(&directory).expect("the directory is removed");
});
