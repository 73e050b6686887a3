//! Packages of the workspace by `cargo metadata`, and their sources.

use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;

use serde_json::Value;

use super::modules::Crate;
use super::source::{Files, files, root};
use crate::support::CommandOutput;

const PREFIX: &str = "plantstore-";

pub(super) struct Package {
    /// Name without the prefix that all crates share.
    pub name: String,
    /// Packages of this workspace that this one needs outside of its tests.
    pub dependencies: Vec<String>,
    pub parsed: Crate,
}

/// Parses the packages once for all tests.
pub(super) fn crates() -> &'static [Package] {
    static CRATES: LazyLock<Vec<Package>> = LazyLock::new(parse_packages);
    &CRATES
}

fn parse_packages() -> Vec<Package> {
    let arguments = ["metadata", "--no-deps", "--offline", "--format-version=1"];
    let metadata = Command::new(env!("CARGO")).args(arguments).current_dir(root()).output().unwrap().json();
    let packages = metadata["packages"].as_array().unwrap();
    let names: Vec<_> = packages.iter().map(|package| package["name"].as_str().unwrap()).collect();
    let files = source_files();
    packages.iter().map(|package| parse_package(package, &names, &files)).collect()
}

fn parse_package(package: &Value, workspace: &[&str], files: &Files) -> Package {
    let short = |name: &str| name.strip_prefix(PREFIX).unwrap_or(name).to_owned();
    let is_root = |target: &&Value| matches!(target["kind"][0].as_str(), Some("lib" | "bin"));
    let targets = package["targets"].as_array().unwrap();
    let target = targets.iter().find(is_root).expect("a library or a program");
    let root_file = Path::new(target["src_path"].as_str().unwrap()).strip_prefix(root()).unwrap();
    let dependencies = package["dependencies"].as_array().unwrap().iter();
    let needed = dependencies.filter(|dependency| dependency["kind"].is_null());
    let needed = needed.map(|dependency| dependency["name"].as_str().unwrap());
    Package {
        name: short(package["name"].as_str().unwrap()),
        dependencies: needed.filter(|name| workspace.contains(name)).map(short).collect(),
        parsed: Crate::parse(root_file.to_str().unwrap(), files),
    }
}

/// Reads the source files of the program and its crates.
pub(super) fn source_files() -> Files {
    let mut found = files("src", "rs");
    found.extend(files("crates", "rs"));
    found
}
