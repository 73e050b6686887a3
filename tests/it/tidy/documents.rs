//! Documents: links between them, their index, and the length of the README.

use std::collections::{BTreeMap, BTreeSet};

use super::source::{Files, files, read, root};

const INDEXES: [&str; 2] = ["docs/README.md", "docs/design/README.md"];
/// Largest number of words in the README.
const README_WORDS: usize = 950;

#[test]
fn links_between_documents_resolve() {
    let documents = files("", "md");
    assert!(
        documents.contains_key("README.md") && documents.contains_key("docs/reference/errors.md"),
        "{:?}",
        documents.keys()
    );
    let broken = broken_links(&documents, |path| root().join(path).exists());
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn index_links_to_every_page() {
    let links_of =
        |index: &str| links(&prose(&read(index))).iter().map(|link| resolve(index, link)).collect::<Vec<_>>();
    let linked: BTreeSet<_> = INDEXES.into_iter().flat_map(links_of).collect();
    let pages = files("docs", "md").into_keys().filter(|page| !INDEXES.contains(&page.as_str()));
    let missing: Vec<_> = pages.filter(|page| !linked.contains(page)).collect();
    assert!(missing.is_empty(), "no index links to {missing:?}");
}

#[test]
fn readme_is_short() {
    let words = read("README.md").split_whitespace().count();
    assert!(words <= README_WORDS, "the README has {words} words");
}

/// A response has no line break at its end, so an example without one would leave the prompt behind the response.
#[test]
fn output_of_curl_in_examples_ends_with_a_line_break() {
    let ends_line = |command: &str| {
        let no_output = ["-X DELETE", "-X PUT", " -o ", " | ", " -N "].iter().any(|words| command.contains(words));
        no_output || command.contains("\\n'")
    };
    let mut found = 0;
    for (document, text) in files("", "md") {
        let blocks = text.split("```").skip(1).step_by(2).map(|block| block.replace("\\\n", " "));
        let lines: Vec<String> =
            blocks.flat_map(|block| block.lines().map(str::to_owned).collect::<Vec<_>>()).collect();
        for command in lines.iter().filter(|line| line.trim_start_matches(['$', ' ']).starts_with("curl ")) {
            found += 1;
            assert!(ends_line(command), "{document}: {command}");
        }
    }
    assert!(found > 20, "{found}");
}

fn broken_links(documents: &Files, exists: impl Fn(&str) -> bool) -> Vec<String> {
    let anchors: BTreeMap<_, _> = documents.iter().map(|(path, text)| (path.as_str(), anchors(text))).collect();
    let mut broken = Vec::new();
    for (document, text) in documents {
        for link in links(&prose(text)) {
            if link.split_once(':').is_some_and(|(scheme, _)| scheme.chars().all(char::is_alphabetic)) {
                continue;
            }
            let (path, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let path = if path.is_empty() { document.clone() } else { resolve(document, path) };
            let has_anchor = || anchors.get(&*path).is_none_or(|anchors| anchors.contains(anchor));
            if !exists(&path) || !(anchor.is_empty() || has_anchor()) {
                broken.push(format!("{document} links to {link}"));
            }
        }
    }
    broken
}

/// Resolves a path that is relative to a document.
fn resolve(document: &str, path: &str) -> String {
    let mut parts: Vec<_> = document.split('/').collect();
    parts.pop();
    for part in path.split('/').filter(|part| !matches!(*part, "" | ".")) {
        if part == ".." { _ = parts.pop() } else { parts.push(part) }
    }
    parts.join("/")
}

/// Removes code blocks and generated text.
fn prose(text: &str) -> String {
    let mut in_code = false;
    let mut in_generated = false;
    let lines = text.lines().filter(|line| {
        if line.starts_with("<!-- ") {
            in_generated = line.starts_with("<!-- generated");
        }
        if in_generated {
            return line.starts_with('#');
        }
        let is_fence = line.trim_start().starts_with("```");
        in_code ^= is_fence;
        !in_code && !is_fence
    });
    lines.flat_map(|line| [line, "\n"]).collect()
}

/// Returns the targets of links, images and HTML attributes.
fn links(text: &str) -> Vec<String> {
    let code_spans_removed: String = text.split('`').step_by(2).collect::<Vec<_>>().join("``");
    let text = &code_spans_removed;
    let inline = text.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next());
    let references =
        text.lines().filter_map(|line| line.strip_prefix('[')?.split_once("]: ")).map(|(_, target)| target);
    let attributes = ["src=\"", "srcset=\"", "href=\""].into_iter().flat_map(|name| text.split(name).skip(1));
    let attributes = attributes.filter_map(|rest| rest.split('"').next());
    inline.chain(references).chain(attributes).map(|target| target.trim_matches(['<', '>']).to_owned()).collect()
}

/// Returns the anchors of headings, by the rules of common Markdown renderers, and those of HTML.
fn anchors(text: &str) -> BTreeSet<String> {
    let prose = prose(text);
    let mut anchors = BTreeSet::new();
    for line in prose.lines() {
        let title = line.trim_start_matches('#');
        if title.len() == line.len() || !title.starts_with(' ') {
            continue;
        }
        let kept = title.trim().chars().filter(|character| character.is_alphanumeric() || " -_".contains(*character));
        let anchor = kept.collect::<String>().to_lowercase().replace(' ', "-");
        let mut numbered = (1..).map(|number| format!("{anchor}-{number}"));
        let taken = anchors.contains(&anchor);
        anchors.insert(if taken { numbered.find(|other| !anchors.contains(other)).unwrap() } else { anchor });
    }
    let html = ["id=\"", "name=\""].into_iter().flat_map(|name| prose.split(name).skip(1));
    anchors.extend(html.filter_map(|rest| rest.split('"').next()).map(str::to_owned));
    anchors
}

#[test]
fn generated_text_and_code_are_not_prose() {
    assert_eq!(
        prose("a\n<!-- generated: x -->\nb\n## C\n<!-- end of generated text -->\nd\n"),
        "a\n## C\n<!-- end of generated text -->\nd\n"
    );
}

#[test]
fn broken_links_are_found() {
    let text = "# The `first` one, twice\n## The first one, twice\n[a](#the-first-one-twice-1) [b](docs/b.md#there)\n\
        ```\n# Not a heading\n[c](nowhere.md)\n```\n[d](#not-a-heading) [e](docs/b.md#here) <img src=\"none.svg\">\n\
        [f](https://example.org/#x) [g]\n\n[g]: missing.md\n`[h](code.md)`";
    let other = "## There\n[up](../a.md) [further](../../a.md#x)";
    let documents = [("a.md".to_owned(), text.to_owned()), ("docs/b.md".to_owned(), other.to_owned())].into();
    let found = broken_links(&documents, |path| matches!(path, "a.md" | "docs/b.md"));
    let expected = ["a.md links to #not-a-heading", "a.md links to docs/b.md#here", "a.md links to missing.md"];
    assert_eq!(found[..3], expected);
    assert_eq!(found[3..], ["a.md links to none.svg", "docs/b.md links to ../../a.md#x"]);
}
