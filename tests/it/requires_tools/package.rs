//! The packages that `scripts/package` builds from the tested program: their contents, and installation, upgrade and
//! removal of the .deb in a scratch root.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use serde_json::Value;
use tempfile::TempDir;

use crate::support::tools::{python_tool, succeed};
use crate::support::{CommandOutput, Server, assert_contains};

const PROGRAM: &str = env!("CARGO_BIN_EXE_plantstore");
/// Directory of the package for an embedded database.
const STATE: &str = "var/lib/plantstore";
const OPTIONS: &str = "etc/plantstore/environment";
/// Search path with the system directories, which dpkg requires.
const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// Packages that all tests share.
static PACKAGES: LazyLock<PathBuf> = LazyLock::new(|| {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("packages");
    build(&directory);
    directory
});

/// Architecture other than that of this machine: its name, Debian's name and its number in the header of a program.
const FOREIGN: (&str, &str, u16) =
    if cfg!(target_arch = "x86_64") { ("aarch64", "arm64", 0xb7) } else { ("x86_64", "amd64", 0x3e) };

/// Returns the command that packages a program into this directory.
fn package(program: &Path, directory: &Path) -> Command {
    let mut script = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/package"));
    script.arg("--program").arg(program).arg("--output").arg(directory);
    // Set, so that the script needs no Git repository.
    script.env("SOURCE_DATE_EPOCH", "1700000000");
    script
}

/// Builds the packages into an empty directory.
fn build(directory: &Path) {
    let _ = fs::remove_dir_all(directory);
    succeed(&mut package(PROGRAM.as_ref(), directory));
}

/// Returns the file of the directory whose name ends with `ending`.
fn file_in(directory: &Path, ending: &str) -> PathBuf {
    let mut files = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    files.find(|path| path.to_str().unwrap().ends_with(ending)).unwrap_or_else(|| panic!("no {ending}"))
}

fn plantstore(arguments: &[&str]) -> String {
    succeed(Command::new(PROGRAM).args(arguments))
}

/// Asserts that a package has installed all generated files below this directory.
fn assert_complete(prefix: &Path, zsh: &str, doc: &[&str]) {
    let read = |path: &str| fs::read_to_string(prefix.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    assert_eq!(succeed(Command::new(prefix.join("bin/plantstore")).arg("--version")), plantstore(&["--version"]));
    assert_eq!(read("share/bash-completion/completions/plantstore"), plantstore(&["completions", "bash"]));
    assert_eq!(read(&format!("share/zsh/{zsh}/_plantstore")), plantstore(&["completions", "zsh"]));
    assert_eq!(read("share/fish/vendor_completions.d/plantstore.fish"), plantstore(&["completions", "fish"]));
    let manual = tempfile::tempdir().unwrap();
    plantstore(&["man", "--output", manual.path().to_str().unwrap()]);
    let names = |directory: &Path| -> BTreeSet<String> {
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    };
    let compressed: BTreeSet<_> = names(manual.path()).into_iter().map(|page| page + ".gz").collect();
    assert_eq!(names(&prefix.join("share/man/man1")), compressed);
    for name in [&["README.md", "docs/reference/errors.md", "third-party-licences.txt.gz"], doc].concat() {
        assert!(prefix.join("share/doc/plantstore").join(name).exists(), "{name} is missing");
    }
}

#[test]
fn archive_is_complete() {
    let directory = tempfile::tempdir().unwrap();
    let archive = file_in(&PACKAGES, ".tar.gz");
    succeed(Command::new("tar").args(["--strip-components=1", "-xzf"]).arg(archive).arg("-C").arg(directory.path()));
    let doc = ["CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT", "environment"];
    assert_complete(directory.path(), "site-functions", &doc);
    let unit = fs::read_to_string(directory.path().join("lib/systemd/system/plantstore.service")).unwrap();
    assert_contains(&unit, "\nExecStart=/usr/local/bin/plantstore serve\n");
    succeed(
        Command::new("sha256sum")
            .args(["--check", "--quiet"])
            .arg(file_in(&PACKAGES, ".sha256"))
            .current_dir(&*PACKAGES),
    );
}

/// Validates a `CycloneDX` document against the schema of its version, reads it, and prints the number of components.
const READ_CYCLONEDX: &str = "
import json, sys
from cyclonedx.model.bom import Bom
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
text = open(sys.argv[1]).read()
if error := JsonStrictValidator(SchemaVersion.V1_5).validate_str(text):
    sys.exit(f'{error}')
print(len(Bom.from_json(json.loads(text)).components))
";

/// The list is a document, and data in the program in the form of `cargo auditable`.
#[test]
fn packages_list_what_is_linked_into_the_program() {
    let directory = tempfile::tempdir().unwrap();
    let archive = file_in(&PACKAGES, ".tar.gz");
    succeed(Command::new("tar").args(["--strip-components=1", "-xzf"]).arg(archive).arg("-C").arg(directory.path()));
    let file = directory.path().join("share/doc/plantstore/plantstore.cdx.json");
    let document: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let components = document["components"].as_array().unwrap();
    let read = succeed(python_tool("python").args(["-c", READ_CYCLONEDX]).arg(&file));
    assert_eq!(read.trim_end(), components.len().to_string());
    let sqlite = components.iter().find(|component| component["name"] == "libsqlite3-sys").expect("SQLite");
    assert_eq!(sqlite["hashes"][0]["content"].as_str().unwrap().len(), 64);

    let section = directory.path().join("section");
    let dump = format!("--dump-section=.dep-v0={}", section.display());
    succeed(Command::new("objcopy").arg(dump).arg(directory.path().join("bin/plantstore")).arg("/dev/null"));
    let mut data = String::new();
    flate2::read::ZlibDecoder::new(&*fs::read(section).unwrap()).read_to_string(&mut data).unwrap();
    let data: Value = serde_json::from_str(&data).unwrap();
    let names = |list: &Value| -> BTreeSet<String> {
        list.as_array().unwrap().iter().map(|entry| entry["name"].as_str().unwrap().to_owned()).collect()
    };
    let mut expected = names(&document["components"]);
    expected.insert("plantstore".to_owned());
    assert_eq!(names(&data["packages"]), expected);
    let root = data["packages"].as_array().unwrap().iter().find(|entry| entry["root"] == true).expect("the program");
    assert_eq!(root["name"], "plantstore");
}

#[test]
fn the_same_program_gives_the_same_packages() {
    let again = tempfile::tempdir().unwrap();
    build(again.path());
    for ending in [".tar.gz", ".deb"] {
        let [first, second] =
            [&**PACKAGES, again.path()].map(|directory| fs::read(file_in(directory, ending)).unwrap());
        assert!(first == second, "{ending}: different bytes");
    }
}

/// Lists the files of an archive or a .deb, below its root.
fn files_of(package: &Path) -> BTreeSet<String> {
    let command = if package.extension().unwrap() == "deb" { "dpkg-deb --fsys-tarfile" } else { "gunzip -c" };
    let list = format!("{command} \"$0\" | tar --list");
    let listed = succeed(Command::new("bash").args(["-o", "pipefail", "-c", &list]).arg(package));
    listed.lines().map(|path| path.split_once('/').unwrap().1.to_owned()).collect()
}

#[test]
fn packages_of_another_architecture_have_the_same_files_and_its_name() {
    let (architecture, debian, machine) = FOREIGN;
    let directory = tempfile::tempdir().unwrap();
    // The tested program with another architecture in its header, instead of a build with a cross compiler.
    let (foreign, output) = (directory.path().join("foreign"), directory.path().join("packages"));
    let mut program = fs::read(PROGRAM).unwrap();
    program[18..20].copy_from_slice(&machine.to_le_bytes());
    fs::write(&foreign, program).unwrap();
    succeed(package(&foreign, &output).args(["--architecture", architecture, "--native", PROGRAM]));
    for ending in [".tar.gz", ".deb"] {
        assert_eq!(files_of(&file_in(&output, ending)), files_of(&file_in(&PACKAGES, ending)), "{ending}");
    }
    file_in(&output, &format!("-linux-{architecture}.tar.gz"));
    let package_file = file_in(&output, &format!("_{debian}.deb"));
    let field = succeed(Command::new("dpkg-deb").arg("--field").arg(package_file).arg("Architecture"));
    assert_eq!(field.trim_end(), debian);

    let message =
        package(PROGRAM.as_ref(), &output).args(["--architecture", architecture]).output().unwrap().failure(2);
    assert_contains(&message, &format!("is not a program for {architecture}"));
}

#[test]
fn lintian_finds_nothing_in_the_package() {
    // The tested program is not static, and the package declares no dependencies.
    let dynamic = "undeclared-elf-prerequisites";
    let mut lintian = Command::new("lintian");
    lintian.args(["--allow-root", "--fail-on", "error,warning", "--suppress-tags", dynamic]);
    assert_eq!(succeed(lintian.arg(file_in(&PACKAGES, ".deb"))), "");
}

/// Root directory with its own package database.
struct ScratchRoot(TempDir);

impl ScratchRoot {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let database = directory.path().join("var/lib/dpkg");
        for name in ["info", "updates", "triggers"] {
            fs::create_dir_all(database.join(name)).unwrap();
        }
        for name in ["status", "available"] {
            fs::write(database.join(name), "").unwrap();
        }
        Self(directory)
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    /// Runs dpkg as root of a user namespace. Maintainer scripts use the tools of this machine on the scratch root.
    fn dpkg(&self, arguments: &[&str]) -> String {
        let mut dpkg = Command::new("unshare");
        dpkg.args(["--map-root-user", "dpkg", "--force-script-chrootless", "--root"]).arg(self.0.path());
        succeed(dpkg.args(arguments).env("PATH", PATH).env("LC_ALL", "C"))
    }

    /// Starts the service as the installed unit does, with `%S` in the scratch root.
    fn serve(&self) -> Server {
        let unit = fs::read_to_string(self.path("usr/lib/systemd/system/plantstore.service")).unwrap();
        let setting = |name: &str| {
            let values = unit.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('='));
            values.map(|value| value.replace("%S", self.path("var/lib").to_str().unwrap())).next().expect("the setting")
        };
        let command_line = setting("ExecStart");
        let words: Vec<&str> = command_line.split(' ').collect();
        let mut command = Command::new(self.path(words[0].trim_start_matches('/')));
        command.args(&words[1..]).env_clear().current_dir(self.path(STATE));
        let options = fs::read_to_string(self.path(setting("EnvironmentFile").trim_start_matches("-/"))).unwrap();
        let environment = setting("Environment");
        for (name, value) in options.lines().chain([&*environment]).filter_map(|line| line.split_once('=')) {
            if !name.starts_with('#') {
                command.env(name, value);
            }
        }
        Server::start(command)
    }
}

/// Builds a package of an earlier release: an older version, with a file that the new one does not have.
fn earlier_release(package: &Path, directory: &Path) -> PathBuf {
    let (tree, earlier) = (directory.join("tree"), directory.join("earlier.deb"));
    succeed(Command::new("dpkg-deb").arg("--raw-extract").arg(package).arg(&tree));
    let control = fs::read_to_string(tree.join("DEBIAN/control")).unwrap();
    let lines = control.lines().map(|line| if line.starts_with("Version: ") { "Version: 0.0.1" } else { line });
    fs::write(tree.join("DEBIAN/control"), lines.flat_map(|line| [line, "\n"]).collect::<String>()).unwrap();
    fs::write(tree.join("usr/share/doc/plantstore/dropped"), "").unwrap();
    succeed(Command::new("dpkg-deb").args(["--root-owner-group", "-Znone", "--build"]).arg(&tree).arg(&earlier));
    earlier
}

#[test]
fn package_is_installed_upgraded_removed_and_purged() {
    let (root, scratch) = (ScratchRoot::new(), tempfile::tempdir().unwrap());
    let package = file_in(&PACKAGES, ".deb");
    let earlier = earlier_release(&package, scratch.path());
    let enabled = root.path("etc/systemd/system/multi-user.target.wants/plantstore.service");

    root.dpkg(&["--install", earlier.to_str().unwrap()]);
    assert_complete(&root.path("usr"), "vendor-completions", &["changelog.gz", "copyright", "dropped"]);
    assert!(enabled.is_symlink(), "enabled");
    assert_eq!(fs::metadata(root.path(OPTIONS)).unwrap().permissions().mode() & 0o777, 0o600);
    // The server starts with the options of the package and a free port.
    let options = fs::read_to_string(root.path(OPTIONS)).unwrap() + "PLANTSTORE_LISTEN=127.0.0.1:0\n";
    fs::write(root.path(OPTIONS), &options).unwrap();
    fs::create_dir(root.path(STATE)).unwrap();
    let server = root.serve();
    let token = fs::read_to_string(root.path(STATE).join("plantstore.db.first-token")).unwrap();
    server.client(token.trim_end()).plant(1, "Rose");
    assert_eq!(server.stop().code(), Some(0));

    // An upgrade does not enable a unit that the administrator has disabled.
    fs::remove_file(&enabled).unwrap();
    root.dpkg(&["--install", package.to_str().unwrap()]);
    assert!(!enabled.is_symlink(), "enabled again");
    assert!(!root.path("usr/share/doc/plantstore/dropped").exists());
    assert_eq!(fs::read_to_string(root.path(OPTIONS)).unwrap(), options);
    let server = root.serve();
    assert_eq!(server.client(token.trim_end()).ids(), [1]);
    assert_eq!(server.stop().code(), Some(0));

    root.dpkg(&["--remove", "plantstore"]);
    assert!(!root.path("usr/bin/plantstore").exists());
    assert_eq!(fs::read_to_string(root.path(OPTIONS)).unwrap(), options);
    assert!(root.path(STATE).join("plantstore.db").exists());

    let printed = root.dpkg(&["--purge", "plantstore"]);
    assert_contains(&printed, "The database in /var/lib/plantstore is still there.");
    assert!(!root.path("etc/plantstore").exists());
    assert!(!root.path("var/lib/systemd/deb-systemd-helper-enabled/plantstore.service.dsh-also").exists());
    assert!(root.path(STATE).join("plantstore.db").exists());
}

/// Runs a maintainer script as dpkg does on a system with systemd, and returns its calls of Debian's tools. Stubs that
/// record their arguments replace the tools, because the tests have no systemd.
fn commands_of(script: &str, arguments: &[&str], invoke_status: &str) -> (Vec<String>, String) {
    let directory = tempfile::tempdir().unwrap();
    for tool in ["deb-systemd-helper", "deb-systemd-invoke", "systemctl"] {
        let path = directory.path().join(tool);
        let status = if tool == "deb-systemd-invoke" { invoke_status } else { "0" };
        fs::write(&path, format!("#!/bin/sh\necho \"${{0##*/}} $*\" >> \"$CALLS\"\nexit {status}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let calls = directory.path().join("calls");
    fs::write(&calls, "").unwrap();
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--mount", "sh", "-c"]);
    command.arg("mount -t tmpfs tmpfs /run && mkdir -p /run/systemd/system && exec \"$@\" 2>&1").arg("sh");
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/debian").join(script)).args(arguments);
    command.env("PATH", format!("{}:{PATH}", directory.path().display()));
    let printed = succeed(command.env("CALLS", &calls).env_remove("DPKG_ROOT"));
    (fs::read_to_string(&calls).unwrap().lines().map(str::to_owned).collect(), printed)
}

#[test]
fn maintainer_scripts_start_restart_and_stop_the_service() {
    let reload = "systemctl --system daemon-reload";
    let enable =
        ["deb-systemd-helper --quiet was-enabled plantstore.service", "deb-systemd-helper enable plantstore.service"];
    let [start, restart, stop] =
        ["start", "restart", "stop"].map(|action| format!("deb-systemd-invoke {action} plantstore.service"));
    for (script, arguments, expected) in [
        ("postinst", &["configure", ""][..], vec![enable[0], enable[1], reload, &start]),
        ("prerm", &["upgrade", "0.0.2"], vec![]),
        ("postrm", &["upgrade", "0.0.2"], vec![]),
        ("postinst", &["configure", "0.0.1"], vec![enable[0], enable[1], reload, &restart]),
        ("prerm", &["remove"], vec![&*stop]),
        ("postrm", &["remove"], vec![reload]),
        ("postrm", &["purge"], vec!["deb-systemd-helper purge plantstore.service"]),
    ] {
        assert_eq!(commands_of(script, arguments, "0").0, expected, "{script} {arguments:?}");
    }
    let (_, printed) = commands_of("postinst", &["configure", "0.0.1"], "1");
    assert_eq!(printed, "plantstore did not start; see: journalctl -u plantstore\n");
}
