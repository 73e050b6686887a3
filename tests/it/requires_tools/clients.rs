//! Clients that third-party programs generate from the document of a running server, used with that server: the sections of
//! `docs/how-to/generate-a-client.md`.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use rstest::rstest;

use crate::support::tools::{in_tests, python_tool, succeed, target};
use crate::support::{Engine, Server, Service, Store, engine_test};

const PAGE: &str = "docs/how-to/generate-a-client.md";

/// Returns the language and the content of each code block in a text.
fn code_blocks(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.split("```").skip(1).step_by(2).map(|block| block.split_once('\n').unwrap())
}

/// Writes the files of a section of the page into the directory of the store, and runs its commands there. The packages
/// are those of the tests, and the page installs the same versions.
fn follow_section(heading: &str, store: &Store, server: &Server) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let directory = store.directory();
    let page = fs::read_to_string(root.join(PAGE)).unwrap().replace("127.0.0.1:8080", &server.address().to_string());
    let section = page.split("\n## ").find(|section| section.lines().next() == Some(heading)).expect("the section");
    // All sections use the same settings of the compiler.
    let settings = code_blocks(&page).filter(|(language, _)| *language == "jsonc");
    for (language, text) in code_blocks(section).chain(settings).filter(|(language, _)| *language != "sh") {
        let (name, _) = text.split_once('\n').unwrap();
        let name = name.strip_prefix(if language == "python" { "# " } else { "// " }).expect("the name of the file");
        fs::write(directory.join(name), text).unwrap();
    }
    // Node.js looks up modules from the directory of the program.
    symlink(in_tests("node/node_modules"), directory.join("node_modules")).unwrap();
    fs::write(directory.join("package.json"), r#"{"type": "module"}"#).unwrap();

    let (_, commands) = code_blocks(section).find(|(language, _)| *language == "sh").expect("commands");
    let (installed, run): (Vec<&str>, Vec<&str>) = commands.lines().partition(|line| line.contains(" install "));
    let pinned = [in_tests("node/package.json"), in_tests("python/requirements.txt")].map(fs::read_to_string);
    let pinned = pinned.map(Result::unwrap).concat();
    for package in installed.iter().flat_map(|line| line.split(' ')).filter(|word| word.contains(['@', '='])) {
        let (name, version) = package.rsplit_once(['@', '=']).unwrap();
        let is_pinned = pinned.contains(package) || pinned.contains(&format!("\"{name}\": \"{version}\""));
        assert!(is_pinned, "{package} is not the version of the tests");
    }
    let path = format!("PATH={}:$PATH", target().join("venv/bin").display());
    let mut shell = Command::new("bash");
    shell.args(["-ec", &[&[&*path], &*run].concat().join("\n")]).current_dir(directory);
    // `npx` must find the program among the packages of the tests.
    shell.env("npm_config_offline", "true").env("TOKEN", store.token("gardener", &[]));
    let printed = succeed(&mut shell);
    assert_eq!(printed.lines().last(), Some("Rose"), "{printed}");
}

/// Runs a longer program, as an application would use the client.
fn run(program: &mut Command, store: &Store, server: &Server) {
    let url = format!("http://{}", server.address());
    succeed(program.current_dir(store.directory()).env("BASE_URL", url).env("TOKEN", store.token("ada", &[])));
}

engine_test!(generated_python_client_creates_pages_replaces_and_deletes, |Service { store, server }: &Service| {
    follow_section("Python: openapi-python-client", store, server);
    let program = in_tests("python/client.py");
    run(python_tool("python").arg(program).env("PYTHONPATH", store.directory()), store, server);
    let models = fs::read_dir(store.directory().join("plantstore_client/models")).unwrap();
    let errors: Vec<String> = models
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.contains("error") || name.contains("response_4") || name.contains("response_5"))
        .collect();
    assert_eq!(errors, ["error.py"], "one model for all errors");
});

engine_test!(generated_typescript_client_creates_pages_replaces_and_deletes, |Service { store, server }: &Service| {
    fs::copy(in_tests("node/client.ts"), store.directory().join("client.ts")).unwrap();
    follow_section("TypeScript: openapi-typescript and openapi-fetch", store, server);
    run(Command::new("node").arg("client.js"), store, server);
});

#[rstest]
#[case::hey_api("TypeScript: hey-api")]
#[case::orval("TypeScript: orval")]
fn generated_functions_create_and_list(
    #[case] heading: &str,
    #[values(Engine::Sqlite, Engine::Postgres)] engine: Engine,
) {
    let store = &Store::new(engine);
    let server = store.serve(&[]);
    follow_section(heading, store, &server);
}
