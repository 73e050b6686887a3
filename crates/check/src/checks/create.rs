//! Creating plants.

use crate::check::{Check, check};
use crate::error::{CheckError, CheckResult};
use crate::request::{Request, plant_json};
use crate::response::{ListedPlant, Response};
use crate::run::Run;

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
    let (id, name) = (run.tracker.new_id(), run.tracker.name("create"));
    let response = run.create(id, Request::create(plant_json(id, &name, Some("indoor")))).await?;
    response.expect_status(200)?;
    response.expect(response.is_json_type(), "the media type application/json")?;
    let plant = response.plant()?;
    let same = plant.name == name && plant.tag.as_deref() == Some("indoor");
    response.expect(same, "the name and the tag that were sent")?;
    run.remove(id).await
}

async fn response_without_id(run: &mut Run) -> CheckResult {
    let (id, name) = (run.tracker.new_id(), run.tracker.name("id"));
    let response = run.create(id, Request::create(plant_json(id, &name, None))).await?;
    response.expect(response.json()?.get("id").is_none(), "a plant without `id`")?;
    run.remove(id).await
}

async fn without_tag(run: &mut Run) -> CheckResult {
    let (id, name) = (run.tracker.new_id(), run.tracker.name("no tag"));
    let response = run.create(id, Request::create(plant_json(id, &name, None))).await?;
    response.expect_success()?;
    response.expect(response.json()?.get("tag").is_none(), "a plant without `tag`")?;
    run.remove(id).await
}

async fn listed(run: &mut Run) -> CheckResult {
    run.may_read()?;
    let fixtures = run.fixture_plants().await?;
    let listing = run.list("").await?;
    let names: Vec<&str> = fixtures.iter().map(|plant| plant.name.as_str()).collect();
    run.expect_listed(&listing, &names)?;
    for created in &fixtures {
        let same = |plant: &&ListedPlant| plant.name == created.name && plant.tag == created.tag;
        let times = listing.plants.iter().filter(same).count();
        listing.response.expect(times == 1, format_args!("`{}` once, with its tag", created.name))?;
    }
    Ok(())
}

/// Uses two ids that become one if a server stores them as a double.
async fn id_precision(run: &mut Run) -> CheckResult {
    run.may_read()?;
    let [(one, first), (other, second)] = ["one", "other"].map(|word| (run.tracker.new_id(), run.tracker.name(word)));
    run.create_plant(one, &first, None).await?;
    run.create_plant(other, &second, None).await?;
    run.remove(other).await?;
    let listing = run.list("").await?;
    run.expect_listed(&listing, &[&first])?;
    let there = listing.plants.iter().any(|plant| plant.name == second);
    listing.response.expect(!there, format_args!("`{second}` to be deleted, and not its neighbour"))?;
    run.remove(one).await
}

async fn duplicate(run: &mut Run) -> CheckResult {
    let (id, name) = (run.tracker.new_id(), run.tracker.name("first"));
    run.create_plant(id, &name, Some("first")).await?;
    let second = run.tracker.name("second");
    let response = run.create(id, Request::create(plant_json(id, &second, None))).await?;
    response.expect_error(409, 40900)?;
    if run.may_read().is_ok() {
        let listing = run.list("").await?;
        run.expect_listed(&listing, &[&name])?;
        let replaced = listing.plants.iter().any(|plant| plant.name == second);
        listing.response.expect(!replaced, "the first plant, untouched")?;
    }
    run.facts.duplicates_rejected = true;
    run.remove(id).await
}

async fn location(run: &mut Run) -> CheckResult {
    let (id, name) = (run.tracker.new_id(), run.tracker.name("location"));
    let response = run.create(id, Request::create(plant_json(id, &name, Some("")))).await?;
    response.expect_success()?;
    response.expect_header("location", &format!("/plants/{id}"))?;
    let exactly = serde_json::json!({ "name": name, "tag": "" });
    response.expect(response.json()? == exactly, "exactly `name` and `tag`, which is empty as it was sent")?;
    run.remove(id).await
}

/// Creates plants at the ends of the range, or next to them if those ids are taken.
async fn id_range(run: &mut Run) -> CheckResult {
    run.may_read()?;
    run.may_create()?;
    if !run.facts.duplicates_rejected {
        let reason = "a create may replace another plant here, so only unused ids are tried";
        return Err(CheckError::Untried(reason.to_owned()));
    }
    let up = (0..NEIGHBOURS).map(|step| i64::MIN + step).collect::<Vec<_>>();
    let down = (0..NEIGHBOURS).map(|step| i64::MAX - step).collect::<Vec<_>>();
    let mut created = Vec::new();
    for candidates in [up, down, vec![0]] {
        created.push(first_free(run, &candidates).await?);
    }
    run.facts.ends_are_free = created.starts_with(&[Some(i64::MIN), Some(i64::MAX)]);
    run.facts.ids_shown = run.reads_all && created.iter().any(Option::is_some);
    Ok(())
}

/// Creates and deletes a plant with the first of these ids that is free.
async fn first_free(run: &mut Run, candidates: &[i64]) -> CheckResult<Option<i64>> {
    for id in candidates {
        let name = run.tracker.name(&format!("number {id}"));
        let response = run.create(*id, Request::create(plant_json(*id, &name, None))).await?;
        if response.status == 409 {
            continue;
        }
        response.plant()?;
        let listing = run.list("include=id").await?;
        let found = listing.plants.iter().find(|plant| plant.name == name);
        match found {
            Some(plant) => {
                listing.response.expect(plant.id == Some(*id), format_args!("`{name}` with exactly the id {id}"))?;
            }
            None => run.expect_listed(&listing, &[&name]).or_else(|error| tolerate_unread(run, *id, error))?,
        }
        return run.remove(*id).await.map(|()| Some(*id));
    }
    // The user has plants with all of these ids, which shows that such ids work.
    Ok(None)
}

/// Accepts that a high id is missing if only the first plants are read.
fn tolerate_unread(run: &Run, id: i64, error: CheckError) -> CheckResult {
    if run.reads_all || id < 0 { Err(error) } else { Ok(()) }
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
        let (id, name) = (run.tracker.new_id(), format!("{}{name}", run.tracker.name("")));
        stored_exactly(run, id, &name, tag).await?;
    }
    Ok(())
}

async fn max_lengths(run: &mut Run) -> CheckResult {
    let id = run.tracker.new_id();
    let start = run.tracker.name("");
    let rest = 1_000 - start.chars().count();
    stored_exactly(run, id, &format!("{start}{}", "🪴".repeat(rest)), &"🌱".repeat(200)).await
}

/// Creates a plant that must be returned and listed exactly as it was sent.
async fn stored_exactly(run: &mut Run, id: i64, name: &str, tag: &str) -> CheckResult {
    let response = run.create(id, Request::create(plant_json(id, name, Some(tag)))).await?;
    let exact = |plant: &ListedPlant| plant.name == name && plant.tag.as_deref() == Some(tag);
    response.expect(exact(&response.plant()?), "exactly the text that was sent")?;
    if run.may_read().is_ok() {
        let listing = run.list("").await?;
        let there = listing.plants.iter().any(exact);
        let read_enough = run.reads_all || there;
        listing.response.expect(there || !read_enough, format_args!("exactly `{name}` in the list"))?;
    }
    run.remove(id).await
}

async fn tag_null(run: &mut Run) -> CheckResult {
    let (id, name) = (run.tracker.new_id(), run.tracker.name("null"));
    let json = serde_json::json!({ "id": id, "name": name, "tag": null });
    accepted_without_tag(run, id, json.to_string()).await
}

async fn unknown_fields(run: &mut Run) -> CheckResult {
    let (id, name) = (run.tracker.new_id(), run.tracker.name("unknown"));
    let json = serde_json::json!({ "colour": "green", "id": id, "name": name, "pots": [1, { "tag": 2 }] });
    accepted_without_tag(run, id, json.to_string()).await
}

async fn accepted_without_tag(run: &mut Run, id: i64, body: String) -> CheckResult {
    let response = run.create(id, Request::create(body)).await?;
    response.expect_success()?;
    let members = response.json()?.as_object().map_or(0, serde_json::Map::len);
    response.expect(members == 1, "a plant with a name only")?;
    run.remove(id).await
}

async fn charset(run: &mut Run) -> CheckResult {
    let (id, name) = (run.tracker.new_id(), run.tracker.name("charset"));
    let mut request = Request::create(plant_json(id, &name, None));
    request.headers = vec![("content-type", "Application/JSON; charset=utf-8".to_owned())];
    let response: Response = run.create(id, request).await?;
    response.expect_success()?;
    run.remove(id).await
}
