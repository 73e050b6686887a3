//! Packages of the workspace, as Cargo knows them.

use std::process::Command;

use serde_json::Value;

use super::source::{Files, files, root};

pub(super) struct Package {
    /// Without the prefix that all crates share.
    pub name: String,
    /// `src/lib.rs` or `src/main.rs`, relative to the root of the repository.
    pub root_file: String,
    /// Names of the packages of this workspace that the program needs of this one.
    pub dependencies: Vec<String>,
}

pub(super) fn crates() -> Vec<Package> {
    let arguments = ["metadata", "--no-deps", "--offline", "--format-version=1"];
    let output = Command::new(env!("CARGO")).args(arguments).current_dir(root()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let names: Vec<_> = packages.iter().map(|package| package["name"].as_str().unwrap()).collect();
    let short = |name: &str| name.strip_prefix("plantstore-").unwrap_or(name).to_owned();
    let parse = |package: &Value| {
        let root_kind = |target: &&Value| matches!(target["kind"][0].as_str(), Some("lib" | "bin"));
        let target = package["targets"].as_array().unwrap().iter().find(root_kind).expect("a library or a program");
        let path = std::path::Path::new(target["src_path"].as_str().unwrap());
        let dependencies = package["dependencies"].as_array().unwrap().iter();
        let needed = dependencies.filter(|dependency| dependency["kind"].is_null());
        let needed = needed.map(|dependency| dependency["name"].as_str().unwrap());
        Package {
            name: short(package["name"].as_str().unwrap()),
            root_file: path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned(),
            dependencies: needed.filter(|name| names.contains(name)).map(short).collect(),
        }
    };
    packages.iter().map(parse).collect()
}

/// Reads the source files of the program and its crates.
pub(super) fn source_files() -> Files {
    let mut found = files("src", "rs");
    found.extend(files("crates", "rs"));
    found
}
