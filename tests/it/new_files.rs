//! Files that commands create: complete or missing, private, and without changes to other files.

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use rstest::rstest;

use crate::support::transfer::{export, import, lines};
use crate::support::{
    CommandOutput, Engine, Store, StraceCommand, assert_contains, engine_test, engine_tool_test, tool_test, wait_for,
};

/// The commands that create a file `notes`.
const COMMANDS: [&[&str]; 2] = [&["backup", "notes"], &["export", "--output", "notes", "--force"]];

/// Delays the last sync by 5 s. The command cannot end earlier.
const DELAYED_SYNC: &str = "fsync:delay_enter=5000000";

/// Returns the names of the files in a store's directory that start with `start`.
fn files(store: &Store, start: &str) -> Vec<String> {
    let files = std::fs::read_dir(store.directory()).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.filter(|name| name.starts_with(start)).collect();
    names.sort();
    names
}

fn partial_file(store: &Store) -> Option<PathBuf> {
    let partial = files(store, "notes.").into_iter().find(|name| name.ends_with(".partial"))?;
    Some(store.directory().join(partial))
}

/// Runs a command with the umask 0.
fn run_with_umask_0(store: &Store, arguments: &[&str]) -> Output {
    store.command_through(&["sh", "-c", "umask 0; exec \"$@\"", "sh"], arguments).output().unwrap()
}

/// Creates a file of this kind at the path that an earlier release used for its partial file.
fn create_obstacle(kind: &str, partial: &Path, precious: &Path) {
    std::fs::write(precious, "precious").unwrap();
    match kind {
        "file" => {
            std::fs::write(partial, "my own notes").unwrap();
            std::fs::set_permissions(partial, std::fs::Permissions::from_mode(0o666)).unwrap();
        }
        "symlink" => symlink(precious, partial).unwrap(),
        "hard link" => std::fs::hard_link(precious, partial).unwrap(),
        "fifo" => assert!(Command::new("mkfifo").arg(partial).status().unwrap().success()),
        other => panic!("no such kind: {other}"),
    }
}

/// Returns the properties of a file that must not change.
fn state(path: &Path) -> (u64, u32, u64, Option<Vec<u8>>) {
    let metadata = path.symlink_metadata().unwrap();
    let contents = (!metadata.file_type().is_symlink() && metadata.is_file()).then(|| std::fs::read(path).unwrap());
    (metadata.ino(), metadata.mode(), metadata.nlink(), contents)
}

engine_test!(existing_files_in_the_directory_are_unchanged, |store: &Store| {
    import(store, &[], &lines(&["ada"], 10));
    let [partial, precious, made] = ["notes.partial", "precious", "notes"].map(|name| store.directory().join(name));
    for command in COMMANDS {
        for kind in ["file", "symlink", "hard link", "fifo"] {
            create_obstacle(kind, &partial, &precious);
            let before = (state(&partial), state(&precious));
            let output = run_with_umask_0(store, command);
            assert!(output.status.success(), "{command:?}, {kind}: {}", output.stderr_text());
            assert_eq!((state(&partial), state(&precious)), before, "{command:?}, {kind}");
            let metadata = made.symlink_metadata().unwrap();
            assert!(metadata.is_file() && metadata.nlink() == 1, "{command:?}, {kind}");
            assert_eq!(metadata.mode() & 0o777, 0o600, "{command:?}, {kind}: token hashes and plants are private");
            assert_eq!(files(store, "notes"), ["notes", "notes.partial"], "{command:?}, {kind}");
            for path in [&partial, &precious, &made] {
                std::fs::remove_file(path).unwrap();
            }
        }
    }
});

engine_test!(only_a_regular_file_is_replaced, |store: &Store| {
    import(store, &[], &lines(&["ada"], 10));
    let [file, link] = ["notes", "link"].map(|name| store.directory().join(name));
    std::fs::write(&file, "old").unwrap();
    symlink(&file, &link).unwrap();
    let export = |name| store.command(&["export", "--output", name, "--force"]).output().unwrap();
    assert_contains(export("link").failure(1), "link is not a regular file, and is never replaced: name another");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "old");
    assert!(export("notes").status.success());
    assert_eq!(std::fs::read_to_string(&file).unwrap(), lines(&["ada"], 10));
});

// The last sync is delayed. At that point the partial file exists, and the file with the final name does not.
engine_tool_test!(a_signal_removes_the_partial_file, requires_strace, |store: &Store| {
    import(store, &[], &lines(&["ada"], 10));
    let [backup, export_to_file] = COMMANDS;
    for (command, name, code) in
        [(backup, "INT", 130), (backup, "HUP", 129), (export_to_file, "INT", 130), (export_to_file, "TERM", 143)]
    {
        let traced = StraceCommand::start(store, DELAYED_SYNC, command);
        let partial = wait_for("the partial file", || partial_file(store));
        assert_eq!(partial.metadata().unwrap().mode() & 0o777, 0o600);
        traced.signal(name);
        let output = traced.wait();
        let reported = output.failure(code);
        assert_eq!(reported.lines().next(), Some(&*format!("error: interrupted by SIG{name}")), "{command:?}");
        assert_eq!(files(store, "notes"), [""; 0], "{command:?} {name}");
    }
    assert_eq!(export(store), lines(&["ada"], 10), "the store is unchanged");
});

engine_test!(concurrent_writers_of_one_file_leave_one_complete_file, |store: &Store| {
    import(store, &[], &lines(&["ada"], 1_000));
    let spawn = || store.command(&["backup", "notes"]).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let children: Vec<_> = (0..4).map(|_| spawn().unwrap()).collect();
    let outputs: Vec<_> = children.into_iter().map(|child| child.wait_with_output().unwrap()).collect();
    let (made, rejected): (Vec<_>, Vec<_>) = outputs.iter().partition(|output| output.status.success());
    assert_eq!(made.len(), 1, "{outputs:?}");
    for output in rejected {
        assert_contains(output.stderr_text(), "there is a file notes already");
    }
    assert_eq!(files(store, "notes"), ["notes"]);
});

#[rstest]
#[case::requires_strace()]
fn a_signal_removes_the_partial_file_of_a_restore() {
    let source = Store::new(Engine::Sqlite);
    import(&source, &[], &lines(&["ada"], 10));
    let target = Store::new(Engine::Sqlite);
    let file = source.file();
    let restore = ["restore", file.to_str().unwrap(), "--store", "sqlite:notes"];
    let traced = StraceCommand::start(&target, DELAYED_SYNC, &restore);
    wait_for("the partial file", || partial_file(&target));
    traced.signal("INT");
    assert_eq!(traced.wait().status.code(), Some(130));
    assert_eq!(files(&target, "notes"), [""; 0]);
    target.run(&restore).success();
    assert_eq!(files(&target, "notes"), ["notes"]);
}

// For example, under `nohup`.
tool_test!(ignored_sighup_does_not_interrupt_a_backup, requires_strace, |store: &Store| {
    import(store, &[], &lines(&["ada"], 10));
    let traced = StraceCommand::start_after(store, "trap '' HUP", DELAYED_SYNC, &["backup", "notes"]);
    wait_for("the partial file", || partial_file(store));
    traced.signal("HUP");
    traced.wait().success();
    assert_eq!(files(store, "notes"), ["notes"]);
});
