//! The figures of the last campaign in `docs/guarantees.md`, from the file that `scripts/faults --hours N` writes.

use std::fmt::Write as _;

use serde_json::Value;

use super::generated::check;
use super::source::read;

/// Returns the number with separators of thousands.
fn grouped(number: &Value) -> String {
    let digits = number.as_u64().expect("a number").to_string();
    let parts: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().map(|part| str::from_utf8(part).expect("digits")).collect();
    parts.join(",")
}

#[test]
fn figures_of_the_last_campaign_are_documented() {
    let campaign: Value = serde_json::from_str(&read("docs/guarantees.json")).expect("JSON");
    let mut text = format!("Last campaign: {}.\n\n", campaign["date"].as_str().expect("a date"));
    text.push_str(
        "| fault | rounds | operations | acknowledged | lost | wrong |\n| --- | ---: | ---: | ---: | ---: | ---: |\n",
    );
    for row in campaign["faults"].as_array().expect("an array") {
        let is_control = row["control"].as_bool().expect("a boolean");
        let found = ["lost", "wrong"].iter().any(|key| row[key] != 0);
        assert_eq!(found, is_control, "only controls, which are planted faults, lose writes: {row}");
        let control = if is_control { "control: " } else { "" };
        write!(text, "| {control}{} |", row["fault"].as_str().expect("a name")).expect("text");
        for key in ["rounds", "operations", "acknowledged", "lost", "wrong"] {
            write!(text, " {} |", grouped(&row[key])).expect("text");
        }
        text.push('\n');
    }
    check("docs/guarantees.md", "campaign", &text);
}

#[test]
fn numbers_are_grouped() {
    assert_eq!([0, 999, 1_000, 1_234_567].map(|number| grouped(&number.into())), ["0", "999", "1,000", "1,234,567"]);
}
