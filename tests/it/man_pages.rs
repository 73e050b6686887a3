//! Shell completions and manual pages: generated from the options, so they are complete.

use std::process::{Command, Stdio};

use rstest::rstest;

use crate::support::tools::{external, succeed};
use crate::support::{CommandOutput, assert_contains};

fn plantstore(arguments: &[&str]) -> String {
    succeed(Command::new(env!("CARGO_BIN_EXE_plantstore")).args(arguments))
}

/// Lists the subcommands that the help of a command names.
fn commands(above: &[&str]) -> Vec<String> {
    let help = plantstore(&[above, &["--help"]].concat());
    let Some((_, list)) = help.split_once("Commands:\n") else { return Vec::new() };
    let names = list
        .lines()
        .take_while(|line| !line.is_empty())
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    names.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help").map(str::to_owned).collect()
}

/// Lists the long options that the help of a command names.
fn options(command: &[&str]) -> Vec<String> {
    let help = plantstore(&[command, &["--help"]].concat());
    let lines = help.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
    let words = lines.flat_map(|line| line.split([' ', ',']).filter(|word| word.starts_with("--")).take(1));
    words.map(str::to_owned).collect()
}

/// Returns bash's completions of the last of these words.
fn completed(words: &[&str]) -> Vec<String> {
    let script = format!(
        "source /dev/stdin; COMP_WORDS=({}); COMP_CWORD={}; _plantstore plantstore '{}' '{}'; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        words.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" "),
        words.len() - 1,
        words[words.len() - 1],
        words[words.len() - 2],
    );
    let mut bash = Command::new("bash");
    bash.args(["--norc", "-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = bash.spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), plantstore(&["completions", "bash"]).as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.stderr.is_empty(), "{}", output.stderr_text());
    output.stdout_text().lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_commands_and_options() {
    let mut all = completed(&["plantstore", ""]);
    all.retain(|word| !word.starts_with('-') && word != "help");
    assert_eq!(all, commands(&[]));
    assert_eq!(completed(&["plantstore", "tok"]), ["token"]);
    assert_eq!(completed(&["plantstore", "token", "cr"]), ["create"]);
    assert_eq!(completed(&["plantstore", "serve", "--max-h"]), ["--max-header-bytes", "--max-headers"]);
    assert_eq!(completed(&["plantstore", "check", "--level", ""]), ["interface", "full"]);
    for option in options(&["serve"]) {
        assert!(completed(&["plantstore", "serve", &option]).contains(&option), "{option}");
    }
}

/// Returns fish's completions of this line, without their descriptions.
fn offered_by_fish(line: &str) -> Vec<String> {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("plantstore.fish");
    std::fs::write(&file, plantstore(&["completions", "fish"])).unwrap();
    let mut fish = external("fish");
    fish.args(["--no-config", "--command", "source $argv[1]; complete --do-complete=$argv[2]"]).arg(&file).arg(line);
    let output = fish.env("HOME", home.path()).output().expect("fish");
    assert!(output.stderr.is_empty(), "{}", output.stderr_text());
    let offered = output.stdout_text();
    offered.lines().filter_map(|line| line.split('\t').next()).map(str::to_owned).collect()
}

/// Completes the line in `TYPED`, writes the offered words to a file and exits.
const ZSHRC: &str = r#"
fpath=($ZDOTDIR $fpath)
autoload -Uz compinit && compinit -u -d $ZDOTDIR/dump
compadd() {
    # With one of these options, compadd only tests which words match.
    if (( ! $argv[(I)-[ADO]] )); then
        local -a words
        builtin compadd -O words "$@"
        print -rl -- $words >> $ZDOTDIR/offered
    fi
    builtin compadd "$@"
}
zle -C offer complete-word _main_complete
zle-line-init() { BUFFER=$TYPED CURSOR=$#BUFFER; zle offer; exit }
zle -N zle-line-init
"#;

/// Returns zsh's completions of this line. It completes only on a terminal, so it gets one.
fn offered_by_zsh(line: &str) -> Vec<String> {
    let home = tempfile::tempdir().unwrap();
    let file = |name: &str| home.path().join(name);
    std::fs::write(file("_plantstore"), plantstore(&["completions", "zsh"])).unwrap();
    std::fs::write(file(".zshrc"), ZSHRC).unwrap();
    let mut script = external("script");
    script.args(["-qec", "zsh -d -i", "/dev/null"]).stdin(Stdio::null());
    script.env("HOME", home.path()).env("ZDOTDIR", home.path()).env("TYPED", line).env("TERM", "dumb");
    let output = script.output().expect("script, of bsdutils");
    let offered = std::fs::read_to_string(file("offered"));
    let offered = offered.unwrap_or_else(|_| panic!("zsh: {}", output.stdout_text()));
    offered.lines().filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

#[rstest]
#[case::requires_fish()]
fn fish_completes_commands_and_options() {
    completes_commands_and_options(offered_by_fish);
}

#[rstest]
#[case::requires_zsh()]
fn zsh_completes_commands_and_options() {
    completes_commands_and_options(offered_by_zsh);
}

/// Each shell has its own order, so words are sorted before they are compared.
fn completes_commands_and_options(offered: impl Fn(&str) -> Vec<String>) {
    let sorted = |mut words: Vec<String>| {
        words.retain(|word| word != "help");
        words.sort();
        words
    };
    assert_eq!(sorted(offered("plantstore ")), sorted(commands(&[])));
    assert_eq!(offered("plantstore to"), ["token"]);
    assert_eq!(offered("plantstore token cr"), ["create"]);
    assert_eq!(sorted(offered("plantstore serve --max-h")), ["--max-header-bytes", "--max-headers"]);
    assert_eq!(sorted(offered("plantstore check --level ")), ["full", "interface"]);
    let all = offered("plantstore serve --");
    for option in options(&["serve"]) {
        assert!(all.contains(&option), "{option}: {all:?}");
    }
}

/// In clap, a heading applies to all options until the next heading.
#[test]
fn options_are_listed_under_the_right_heading() {
    let help = plantstore(&["serve", "--help"]);
    let under = |heading: &str| {
        let block = help.split(&format!("\n{heading}:\n")).nth(1).and_then(|rest| rest.split("\n\n").next());
        let lines = block.expect(heading).lines().map(str::trim_start).filter(|line| line.starts_with('-'));
        lines
            .map(|line| line.split_whitespace().find(|word| word.starts_with("--")).unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(under("TLS"), ["--tls-cert", "--tls-key", "--no-hsts"]);
    let general = ["--listen", "--store", "--no-first-token", "--no-migrate", "--worker-address", "--no-console"];
    assert_eq!(under("Options")[..general.len()], general);
}

#[rstest]
#[case::requires_zsh()]
fn every_shell_knows_every_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = plantstore(&["completions", shell]);
        for command in commands(&[]) {
            assert!(script.contains(&command), "{shell}: {command}");
        }
    }
}

/// Calls `check` with every command and subcommand.
fn for_every_command(path: &[&str], check: &mut impl FnMut(&[&str])) {
    check(path);
    for command in commands(path) {
        for_every_command(&[path, &[&command]].concat(), check);
    }
}

#[rstest]
#[case::requires_groff()]
fn help_of_every_command_ends_with_examples() {
    let mut seen = 0;
    for_every_command(&[], &mut |path| {
        for help in ["--help", "-h"] {
            let help = plantstore(&[path, &[help]].concat());
            let (_, examples) = help.rsplit_once("\n\nExamples:\n").unwrap_or_else(|| panic!("{path:?}: {help}"));
            let shown = format!("plantstore {}", path.join(" "));
            assert!(examples.lines().count() > 0, "{path:?}");
            for line in examples.lines() {
                assert!(line.starts_with("  ") && line.contains(shown.trim_end()), "{path:?}: {line}");
                assert!(line.chars().count() <= 100, "{line}");
            }
        }
        let manual = plantstore(&[&["man"], path].concat());
        assert!(rendered(&manual).contains("EXAMPLES\n"), "{path:?}: {manual}");
        seen += 1;
    });
    assert!(seen > 20, "{seen}");
}

/// The parser accepts the options and arguments of each example, and rejects only an unknown option added at the end.
#[test]
fn examples_are_commands_that_the_parser_accepts() {
    let mut tried = 0;
    for_every_command(&[], &mut |path| {
        let help = plantstore(&[path, &["--help"]].concat());
        let examples = help.rsplit_once("\n\nExamples:\n").map(|(_, examples)| examples.to_owned());
        for line in examples.expect("examples").lines() {
            let command = line.split("plantstore ").nth(1).unwrap_or_default();
            let words = command.split_whitespace().take_while(|word| !["|", ">"].contains(word));
            let words: Vec<&str> = words.chain(["--no-such-option"]).collect();
            let stderr = Command::new(env!("CARGO_BIN_EXE_plantstore")).args(&words).output().unwrap().failure(2);
            assert!(stderr.contains("unexpected argument '--no-such-option'"), "{line}: {stderr}");
            tried += 1;
        }
    });
    assert!(tried > 30, "{tried}");
}

/// Renders a page as text without bold letters. Any message of groff is an error.
fn rendered(page: &str) -> String {
    let mut groff = external("groff");
    groff.args(["-man", "-ww", "-Tascii", "-P-c", "-P-b", "-P-u", "-P-o", "-rLL=1000n"]);
    let mut child = groff
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("groff, of groff-base");
    let mut input = child.stdin.take().unwrap();
    let page = page.to_owned();
    let writer = std::thread::spawn(move || std::io::Write::write_all(&mut input, page.as_bytes()));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert!(output.stderr.is_empty(), "{}", output.stderr_text());
    output.stdout_text()
}

fn check_page(path: &[&str], pages: &mut Vec<String>) {
    let page = plantstore(&[&["man"], path].concat());
    let text = rendered(&page);
    let shown = format!("plantstore {}", path.join(" "));
    assert!(text.contains(shown.trim_end()), "{shown}: {text}");
    for option in options(path) {
        assert!(text.contains(&option), "{shown} {option}: {text}");
    }
    let below = commands(path);
    for command in &below {
        assert!(text.contains(command), "{shown}: {command}");
        check_page(&[path, &[command]].concat(), pages);
    }
    pages.push(format!("{}.1", shown.trim_end().replace(' ', "-")));
}

#[rstest]
#[case::requires_groff()]
fn every_command_and_option_is_in_the_manual() {
    let mut pages = Vec::new();
    check_page(&[], &mut pages);
    assert!(pages.len() > 12, "{pages:?}");

    let directory = tempfile::tempdir().unwrap();
    let manual = directory.path().join("share/man/man1");
    plantstore(&["man", "--output", manual.to_str().unwrap()]);
    let mut written: Vec<String> =
        std::fs::read_dir(&manual).unwrap().map(|page| page.unwrap().file_name().into_string().unwrap()).collect();
    written.sort();
    pages.sort();
    assert_eq!(written, pages);
    assert_eq!(
        std::fs::read_to_string(manual.join("plantstore-token-create.1")).unwrap(),
        plantstore(&["man", "token", "create"])
    );
}

#[test]
fn unknown_page_or_directory_is_an_error() {
    for (arguments, code, words) in [
        (&["man", "token", "make"][..], 2, "`token` has no command `make`; there are: create, list, revoke"),
        (&["man", "--output", "/dev/null/man"], 1, "cannot write the manual into /dev/null/man"),
        (&["completions", "tcsh"], 2, "possible values: bash, elvish, fish, powershell, zsh"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_plantstore")).args(arguments).output().unwrap();
        assert_contains(output.failure(code), words);
    }
}
