//! Error codes: the service, the reference page and the tests have the same.

use std::collections::BTreeSet;

use super::source::{Found, code_tokens, files, read, scan};

const TABLE: &str = "crates/server/src/api/error.rs";
const DOCUMENT: &str = "docs/reference/errors.md";

#[test]
fn every_error_code_is_documented_and_tested() {
    let table = code_tokens(TABLE, &read(TABLE));
    let codes: BTreeSet<_> = scan(table).iter().filter_map(number).collect();
    assert!(codes.len() > 20, "{TABLE} does not have the error codes: {codes:?}");

    let document = read(DOCUMENT);
    let documented: BTreeSet<u64> =
        document.split(|character: char| !character.is_alphanumeric()).filter_map(code).collect();
    assert_eq!(codes, documented, "{TABLE} and {DOCUMENT} have different codes");

    let tests = files("tests/it", "rs").into_iter().filter(|(file, _)| !file.starts_with("tests/it/tidy"));
    let expected: BTreeSet<_> = tests.flat_map(|(file, text)| expected_codes(&file, &text)).collect();
    let untested: Vec<_> = codes.difference(&expected).collect();
    assert!(untested.is_empty(), "no test expects {untested:?}");
}

fn code(word: &str) -> Option<u64> {
    word.parse().ok().filter(|number| (40_000..60_000).contains(number))
}

fn number(found: &Found) -> Option<u64> {
    match found {
        Found::Number(number) => code(&number.to_string()),
        _ => None,
    }
}

/// Returns the codes that are integers, or the member `error` of a response in a string literal.
fn expected_codes(file: &str, text: &str) -> BTreeSet<u64> {
    let mut codes = BTreeSet::new();
    for found in scan(code_tokens(file, text)) {
        if let Found::Text(text) = &found {
            let members = text.split("\"error\":").skip(1);
            codes.extend(members.filter_map(|member| code(member.trim_start().split([',', '}']).next()?)));
        }
        codes.extend(number(&found));
    }
    codes
}

#[test]
fn code_in_a_comment_is_not_expected() {
    let text = r#"
        //! 40000
        /// 40001
        fn test() {
            // 40002
            assert_eq!(response.error(), 40_003, "40004");
            assert_snapshot!(response, @r"{"error":40005,"message":"not 40006"}");
        }
    "#;
    assert_eq!(expected_codes("", &text.replace("@r\"", "@r##\"").replace("}\")", "}\"##)")), [40_003, 40_005].into());
}
