//! Clients that third-party programs generate from the document of a running server, used with that server.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use rstest::rstest;

use crate::support::tools::{in_tests, node_tool, python_tool, succeed};
use crate::support::{Engine, Site};

#[rstest]
fn generated_python_client_creates_conflicts_pages_and_deletes(
    #[values(Engine::Sqlite, Engine::Postgres)] engine: Engine,
) {
    let site = &Site::new(engine);
    let server = site.serve(&[]);
    let url = format!("http://{}", server.address());
    let directory = site.directory();
    let configuration = directory.join("generator.json");
    // Disables the formatters that the generator runs afterwards.
    fs::write(&configuration, r#"{"post_hooks": []}"#).unwrap();
    succeed(
        python_tool("openapi-python-client")
            .args(["generate", "--url", &format!("{url}/openapi.json"), "--meta", "none", "--fail-on-warning"])
            .arg("--config")
            .arg(&configuration)
            .arg("--output-path")
            .arg(directory.join("plantstore_client")),
    );
    succeed(
        python_tool("python")
            .arg(in_tests("python/client.py"))
            .env("PYTHONPATH", directory)
            .env("BASE_URL", url)
            .env("TOKEN", site.token("ada", &[])),
    );
    let models = fs::read_dir(directory.join("plantstore_client/models")).unwrap();
    let errors: Vec<String> = models
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.contains("error") || name.contains("response_4") || name.contains("response_5"))
        .collect();
    assert_eq!(errors, ["error.py"], "one model for all errors");
}

#[rstest]
fn generated_typescript_client_creates_conflicts_pages_and_deletes(
    #[values(Engine::Sqlite, Engine::Postgres)] engine: Engine,
) {
    let site = &Site::new(engine);
    let server = site.serve(&[]);
    let url = format!("http://{}", server.address());
    let directory = site.directory();
    // Node looks up modules from the directory of the program.
    symlink(in_tests("node/node_modules"), directory.join("node_modules")).unwrap();
    fs::write(directory.join("package.json"), r#"{"type": "module"}"#).unwrap();
    fs::copy(in_tests("node/client.ts"), directory.join("client.ts")).unwrap();
    let schema = directory.join("schema.ts");
    succeed(node_tool("openapi-typescript").arg(format!("{url}/openapi.json")).arg("--output").arg(&schema));
    succeed(
        node_tool("tsc")
            .args(["--strict", "--skipLibCheck", "--target", "es2022", "--module", "nodenext", "--types", "node"])
            .arg("client.ts")
            .current_dir(directory),
    );
    succeed(
        Command::new("node").arg(directory.join("client.js")).env("BASE_URL", url).env("TOKEN", site.token("ada", &[])),
    );
}
