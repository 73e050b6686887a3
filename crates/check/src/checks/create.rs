//! Creating plants.

use crate::check::Check;
use crate::error::{CheckError, Outcome};
use crate::options::Level;
use crate::request::{Request, plant_json};
use crate::response::{ListedPlant, Response};
use crate::run::Run;

/// Ids next to the ends of the range that are tried until one is free.
const NEIGHBOURS: i64 = 8;

pub(super) const CHECKS: &[Check] = &[
    Check::new(Level::Interface, "create-answers", "a create is answered 200 with its name and tag", |run| {
        Box::pin(responds(run))
    }),
    Check::new(Level::Interface, "create-shows-no-id", "the answer to a create has no id", |run| {
        Box::pin(shows_no_id(run))
    }),
    Check::new(Level::Interface, "create-without-tag", "a plant without a tag is answered without one", |run| {
        Box::pin(without_tag(run))
    }),
    Check::new(Level::Interface, "create-listed", "what was created is in the list", |run| Box::pin(listed(run))),
    Check::new(Level::Interface, "ids-apart", "ids beyond 2^53 that differ by one are two plants", |run| {
        Box::pin(ids_apart(run))
    }),
    Check::new(Level::Full, "create-duplicate", "an id that is taken is 409, and its plant stays as it is", |run| {
        Box::pin(duplicate(run))
    }),
    Check::new(Level::Full, "create-location", "a create is answered with name, tag and Location alone", |run| {
        Box::pin(location(run))
    }),
    Check::new(Level::Full, "create-any-id", "ids are exact up to both ends of int64", |run| Box::pin(any_id(run))),
    Check::new(Level::Full, "create-exact-text", "text is kept exactly as it was sent", |run| {
        Box::pin(exact_text(run))
    }),
    Check::new(Level::Full, "create-longest", "1,000 characters of name and 200 of tag are kept", |run| {
        Box::pin(longest(run))
    }),
    Check::new(Level::Full, "create-tag-null", "a tag that is null counts as absent", |run| Box::pin(tag_null(run))),
    Check::new(Level::Full, "create-unknown-fields", "unknown fields are ignored", |run| Box::pin(unknown_fields(run))),
    Check::new(Level::Full, "create-charset", "application/json may have a charset", |run| Box::pin(charset(run))),
];

async fn responds(run: &mut Run) -> Outcome {
    let (id, name) = (run.tracker.new_id(), run.tracker.name("create"));
    let response = run.create(id, Request::create(plant_json(id, &name, Some("indoor")))).await?;
    response.expect_status(200)?;
    response.expect(response.is_json_type(), "the media type application/json")?;
    let plant = response.plant()?;
    let same = plant.name == name && plant.tag.as_deref() == Some("indoor");
    response.expect(same, "the name and the tag that were sent")?;
    run.remove(id).await
}

async fn shows_no_id(run: &mut Run) -> Outcome {
    let (id, name) = (run.tracker.new_id(), run.tracker.name("id"));
    let response = run.create(id, Request::create(plant_json(id, &name, None))).await?;
    response.expect(response.json()?.get("id").is_none(), "a plant without `id`")?;
    run.remove(id).await
}

async fn without_tag(run: &mut Run) -> Outcome {
    let (id, name) = (run.tracker.new_id(), run.tracker.name("no tag"));
    let response = run.create(id, Request::create(plant_json(id, &name, None))).await?;
    response.expect_success()?;
    response.expect(response.json()?.get("tag").is_none(), "a plant without `tag`")?;
    run.remove(id).await
}

async fn listed(run: &mut Run) -> Outcome {
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
async fn ids_apart(run: &mut Run) -> Outcome {
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

async fn duplicate(run: &mut Run) -> Outcome {
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

async fn location(run: &mut Run) -> Outcome {
    let (id, name) = (run.tracker.new_id(), run.tracker.name("location"));
    let response = run.create(id, Request::create(plant_json(id, &name, Some("")))).await?;
    response.expect_success()?;
    response.expect_header("location", &format!("/plants/{id}"))?;
    let exactly = serde_json::json!({ "name": name, "tag": "" });
    response.expect(response.json()? == exactly, "exactly `name` and `tag`, which is empty as it was sent")?;
    run.remove(id).await
}

/// Creates plants at the ends of the range, or next to them if those ids are taken.
async fn any_id(run: &mut Run) -> Outcome {
    run.may_read()?;
    run.may_create()?;
    if !run.facts.duplicates_rejected {
        let reason = "a create may take the place of another plant here, so only ids that nobody has are tried";
        return Err(CheckError::Untried(reason.to_owned()));
    }
    let up = (0..NEIGHBOURS).map(|step| i64::MIN + step).collect::<Vec<_>>();
    let down = (0..NEIGHBOURS).map(|step| i64::MAX - step).collect::<Vec<_>>();
    let mut created = Vec::new();
    for candidates in [up, down, vec![0]] {
        created.push(any_of(run, &candidates).await?);
    }
    run.facts.ends_are_free = created.starts_with(&[Some(i64::MIN), Some(i64::MAX)]);
    run.facts.ids_shown = run.reads_all && created.iter().any(Option::is_some);
    Ok(())
}

/// Creates and deletes a plant with the first of these ids that is free.
async fn any_of(run: &mut Run, candidates: &[i64]) -> Outcome<Option<i64>> {
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
            None => run.expect_listed(&listing, &[&name]).or_else(|error| tolerate_far(run, *id, error))?,
        }
        return run.remove(*id).await.map(|()| Some(*id));
    }
    // All of them are this user's own plants, which shows that such ids work.
    Ok(None)
}

/// Accepts that a high id is missing if only the first plants are read.
fn tolerate_far(run: &Run, id: i64, error: CheckError) -> Outcome {
    if run.reads_all || id < 0 { Err(error) } else { Ok(()) }
}

async fn exact_text(run: &mut Run) -> Outcome {
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
        kept(run, id, &name, tag).await?;
    }
    Ok(())
}

async fn longest(run: &mut Run) -> Outcome {
    let id = run.tracker.new_id();
    let start = run.tracker.name("");
    let rest = 1_000 - start.chars().count();
    kept(run, id, &format!("{start}{}", "🪴".repeat(rest)), &"🌱".repeat(200)).await
}

/// Creates a plant that must be returned and listed exactly as it was sent.
async fn kept(run: &mut Run, id: i64, name: &str, tag: &str) -> Outcome {
    let response = run.create(id, Request::create(plant_json(id, name, Some(tag)))).await?;
    let exact = |plant: &ListedPlant| plant.name == name && plant.tag.as_deref() == Some(tag);
    response.expect(exact(&response.plant()?), "the very characters that were sent")?;
    if run.may_read().is_ok() {
        let listing = run.list("").await?;
        let there = listing.plants.iter().any(exact);
        let read_enough = run.reads_all || there;
        listing.response.expect(there || !read_enough, format_args!("exactly `{name}` in the list"))?;
    }
    run.remove(id).await
}

async fn tag_null(run: &mut Run) -> Outcome {
    let (id, name) = (run.tracker.new_id(), run.tracker.name("null"));
    let json = serde_json::json!({ "id": id, "name": name, "tag": null });
    accepted_without_tag(run, id, json.to_string()).await
}

async fn unknown_fields(run: &mut Run) -> Outcome {
    let (id, name) = (run.tracker.new_id(), run.tracker.name("unknown"));
    let json = serde_json::json!({ "colour": "green", "id": id, "name": name, "pots": [1, { "tag": 2 }] });
    accepted_without_tag(run, id, json.to_string()).await
}

async fn accepted_without_tag(run: &mut Run, id: i64, body: String) -> Outcome {
    let response = run.create(id, Request::create(body)).await?;
    response.expect_success()?;
    let members = response.json()?.as_object().map_or(0, serde_json::Map::len);
    response.expect(members == 1, "a plant of a name alone")?;
    run.remove(id).await
}

async fn charset(run: &mut Run) -> Outcome {
    let (id, name) = (run.tracker.new_id(), run.tracker.name("charset"));
    let mut request = Request::create(plant_json(id, &name, None));
    request.headers = vec![("content-type", "Application/JSON; charset=utf-8".to_owned())];
    let response: Response = run.create(id, request).await?;
    response.expect_success()?;
    run.remove(id).await
}
