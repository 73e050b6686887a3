//! Creating plants.

use serde_json::{Map, Value, json};

use crate::cleanup_tracker::TestPlant;
use crate::client::Request;
use crate::run::{Check, Run, check};
use crate::verdict::{CheckResult, Verdict};

/// Ids next to the ends of the range that are tried until one is free.
const NEIGHBOURS: i64 = 8;

pub(super) const CHECKS: &[Check] = &[
    check!(Interface, "create-response", "a create returns 200 with its name and tag", responds),
    check!(Interface, "create-response-without-id", "the response to a create has no id", response_without_id),
    check!(Interface, "create-without-tag", "a plant without a tag is returned without one", without_tag),
    check!(Interface, "create-listed", "a created plant is in the list", listed),
    check!(Interface, "create-id-precision", "ids beyond 2^53 that differ by one are different plants", id_precision),
    check!(Full, "create-duplicate", "a duplicate id is 409, and its plant does not change", duplicate),
    check!(Full, "create-location", "a create returns exactly name and tag, and Location", location),
    check!(Full, "create-id-range", "ids are exact up to both ends of int64", id_range),
    check!(Full, "create-exact-text", "text is stored exactly as it was sent", exact_text),
    check!(Full, "create-max-lengths", "a name of 1,000 characters and a tag of 200 are stored", max_lengths),
    check!(Full, "create-tag-null", "a null tag counts as absent", tag_null),
    check!(Full, "create-unknown-fields", "unknown fields are ignored", unknown_fields),
    check!(Full, "create-charset", "application/json may have a charset", charset),
];

async fn responds(run: &mut Run) -> CheckResult {
    let plant = run.new_plant("create").with_tag("indoor");
    let response = run.create(&plant).await?;
    response.expect_status(200)?;
    response.expect(response.is_json_type(), "the media type application/json")?;
    response.expect(plant.is_shown_as(&response.plant()?), "the name and the tag that were sent")?;
    run.remove(plant.id).await
}

async fn response_without_id(run: &mut Run) -> CheckResult {
    let plant = run.new_plant("id");
    let response = run.create(&plant).await?;
    response.expect(response.json()?.get("id").is_none(), "a plant without `id`")?;
    run.remove(plant.id).await
}

async fn without_tag(run: &mut Run) -> CheckResult {
    let plant = run.new_plant("no tag");
    let response = run.create(&plant).await?;
    response.expect_success()?;
    response.expect(response.json()?.get("tag").is_none(), "a plant without `tag`")?;
    run.remove(plant.id).await
}

async fn listed(run: &mut Run) -> CheckResult {
    run.may_read()?;
    let fixtures = run.fixture_plants().await?;
    let listing = run.list("").await?;
    run.expect_listed(&listing, &fixtures)?;
    for created in &fixtures {
        let times = listing.plants.iter().filter(|plant| created.is_shown_as(plant)).count();
        listing.response.expect(times == 1, format_args!("`{}` once, with its tag", created.name))?;
    }
    Ok(())
}

/// Uses two ids that become one if a server stores them as a double.
async fn id_precision(run: &mut Run) -> CheckResult {
    run.may_read()?;
    let one = run.existing_plant("one").await?;
    let other = run.existing_plant("other").await?;
    run.remove(other.id).await?;
    let listing = run.list("").await?;
    run.expect_listed(&listing, [&one])?;
    let is_deleted = !listing.contains(&other.name);
    listing.response.expect(is_deleted, format_args!("`{}` to be deleted, and not its neighbour", other.name))?;
    run.remove(one.id).await
}

async fn duplicate(run: &mut Run) -> CheckResult {
    let first = run.new_plant("first").with_tag("first");
    run.create(&first).await?.expect_success()?;
    let second = TestPlant { id: first.id, ..run.new_plant("second") };
    run.create(&second).await?.expect_error(40900)?;
    if run.may_read().is_ok() {
        let listing = run.list("").await?;
        run.expect_listed(&listing, [&first])?;
        listing.response.expect(!listing.contains(&second.name), "the first plant, untouched")?;
    }
    run.facts.duplicates_rejected = true;
    run.remove(first.id).await
}

async fn location(run: &mut Run) -> CheckResult {
    let plant = run.new_plant("location").with_tag("");
    let response = run.create(&plant).await?;
    response.expect_success()?;
    response.expect_header("location", &format!("/plants/{}", plant.id))?;
    let exactly = json!({ "name": plant.name, "tag": "" });
    response.expect(response.json()? == exactly, "exactly `name` and `tag`, which is empty as it was sent")?;
    run.remove(plant.id).await
}

/// Creates plants at the ends of the range, or next to them if those ids are taken.
async fn id_range(run: &mut Run) -> CheckResult {
    run.may_read()?;
    run.may_create()?;
    if !run.facts.duplicates_rejected {
        return Err(Verdict::Untried(
            "a create may replace another plant here, so only unused ids are tried".to_owned(),
        ));
    }
    let lowest = first_free(run, (0..NEIGHBOURS).map(|step| i64::MIN + step)).await?;
    let highest = first_free(run, (0..NEIGHBOURS).map(|step| i64::MAX - step)).await?;
    let zero = first_free(run, [0]).await?;
    run.facts.ends_are_free = lowest == Some(i64::MIN) && highest == Some(i64::MAX);
    run.facts.ids_shown = run.reads_all && (lowest.is_some() || highest.is_some() || zero.is_some());
    Ok(())
}

/// Creates and deletes a plant with the first free of these ids; `None` if the user has plants with all of them.
async fn first_free(run: &mut Run, ids: impl IntoIterator<Item = i64>) -> CheckResult<Option<i64>> {
    for id in ids {
        let plant = TestPlant { id, name: run.tracker.name(&format!("number {id}")), tag: None };
        let response = run.create(&plant).await?;
        if response.status == 409 {
            continue;
        }
        response.plant()?;
        let listing = run.list("include=id").await?;
        match listing.plants.iter().find(|listed| listed.name == plant.name) {
            Some(listed) => {
                let expected = format_args!("`{}` with exactly the id {id}", plant.name);
                listing.response.expect(listed.id == Some(id), expected)?;
            }
            // Only the first plants are read, and this one is not among them.
            None if !run.reads_all && id >= 0 => {}
            None => run.expect_listed(&listing, [&plant])?,
        }
        run.remove(id).await?;
        return Ok(Some(id));
    }
    Ok(None)
}

async fn exact_text(run: &mut Run) -> CheckResult {
    let texts = [
        ("  spaces around  ", " "),
        ("🪴🌵 emoji, also with joiners: 👩🏽‍🌾", "🏷️"),
        ("צבר, right to left: \u{202e}صبار\u{202c}", "ימין"),
        ("decomposed e\u{301} and composed \u{e9}", "\u{1e9b}\u{323}"),
        ("quotes \" ' ` and \\ / <b>&amp;</b> %00 ${x}", "'; --"),
        ("zero width \u{200b}\u{feff} and the last \u{10ffff}", "\u{2028}"),
    ];
    for (name, tag) in texts {
        let plant = run.new_plant(name).with_tag(tag);
        stored_exactly(run, &plant).await?;
    }
    Ok(())
}

async fn max_lengths(run: &mut Run) -> CheckResult {
    let mut plant = run.new_plant("").with_tag(&"🌱".repeat(200));
    let missing = 1_000 - plant.name.chars().count();
    plant.name.push_str(&"🪴".repeat(missing));
    stored_exactly(run, &plant).await
}

async fn stored_exactly(run: &mut Run, plant: &TestPlant) -> CheckResult {
    let response = run.create(plant).await?;
    response.expect(plant.is_shown_as(&response.plant()?), "exactly the text that was sent")?;
    if run.may_read().is_ok() {
        let listing = run.list("").await?;
        let is_listed = listing.plants.iter().any(|listed| plant.is_shown_as(listed));
        listing.response.expect(is_listed || !run.reads_all, format_args!("exactly `{}` in the list", plant.name))?;
    }
    run.remove(plant.id).await
}

async fn tag_null(run: &mut Run) -> CheckResult {
    let plant = run.new_plant("null");
    accepted_without_tag(run, plant.id, &json!({ "id": plant.id, "name": plant.name, "tag": null })).await
}

async fn unknown_fields(run: &mut Run) -> CheckResult {
    let plant = run.new_plant("unknown");
    let body = json!({ "colour": "green", "id": plant.id, "name": plant.name, "pots": [1, { "tag": 2 }] });
    accepted_without_tag(run, plant.id, &body).await
}

async fn accepted_without_tag(run: &mut Run, id: i64, body: &Value) -> CheckResult {
    let response = run.create_with(id, Request::create(body.to_string())).await?;
    response.expect_success()?;
    let members = response.json()?.as_object().map_or(0, Map::len);
    response.expect(members == 1, "a plant with a name only")?;
    run.remove(id).await
}

async fn charset(run: &mut Run) -> CheckResult {
    let plant = run.new_plant("charset");
    let mut request = Request::create(plant.json());
    request.headers = vec![("content-type", "Application/JSON; charset=utf-8".to_owned())];
    run.create_with(plant.id, request).await?.expect_success()?;
    run.remove(plant.id).await
}
