//! Creating plants: what is accepted, and how it is answered and kept.

use super::answer::{Answer, Shown};
use super::visit::{Visit, body, create_ask};
use super::{Check, Level, Outcome};

/// Ids next to the ends of the range that are tried until one is free.
const NEIGHBOURS: i64 = 8;

pub(super) const CHECKS: &[Check] = &[
    Check::new(Level::Interface, "create-answers", "a create is answered 200 with its name and tag", |visit| {
        Box::pin(answers(visit))
    }),
    Check::new(Level::Interface, "create-shows-no-id", "the answer to a create has no id", |visit| {
        Box::pin(shows_no_id(visit))
    }),
    Check::new(Level::Interface, "create-without-tag", "a plant without a tag is answered without one", |visit| {
        Box::pin(without_tag(visit))
    }),
    Check::new(Level::Interface, "create-listed", "what was created is in the list", |visit| Box::pin(listed(visit))),
    Check::new(Level::Interface, "ids-apart", "ids beyond 2^53 that differ by one are two plants", |visit| {
        Box::pin(ids_apart(visit))
    }),
    Check::new(Level::Full, "create-duplicate", "an id that is taken is 409, and its plant stays as it is", |visit| {
        Box::pin(duplicate(visit))
    }),
    Check::new(Level::Full, "create-location", "a create is answered with name, tag and Location alone", |visit| {
        Box::pin(location(visit))
    }),
    Check::new(Level::Full, "create-any-id", "ids are exact up to both ends of int64", |visit| Box::pin(any_id(visit))),
    Check::new(Level::Full, "create-exact-text", "text is kept exactly as it was sent", |visit| {
        Box::pin(exact_text(visit))
    }),
    Check::new(Level::Full, "create-longest", "1,000 characters of name and 200 of tag are kept", |visit| {
        Box::pin(longest(visit))
    }),
    Check::new(Level::Full, "create-tag-null", "a tag that is null counts as absent", |visit| {
        Box::pin(tag_null(visit))
    }),
    Check::new(Level::Full, "create-unknown-fields", "unknown fields are ignored", |visit| {
        Box::pin(unknown_fields(visit))
    }),
    Check::new(Level::Full, "create-charset", "application/json may have a charset", |visit| Box::pin(charset(visit))),
];

async fn answers(visit: &mut Visit) -> Outcome {
    let (id, name) = (visit.ledger.id(), visit.ledger.name("create"));
    let answer = visit.create(id, create_ask(body(id, &name, Some("indoor")))).await?;
    answer.expect_status(200)?;
    answer.expect(answer.is_json_type(), "the media type application/json")?;
    let plant = answer.plant()?;
    let same = plant.name == name && plant.tag.as_deref() == Some("indoor");
    answer.expect(same, "the name and the tag that were sent")?;
    visit.uproot(id).await
}

async fn shows_no_id(visit: &mut Visit) -> Outcome {
    let (id, name) = (visit.ledger.id(), visit.ledger.name("id"));
    let answer = visit.create(id, create_ask(body(id, &name, None))).await?;
    answer.expect(answer.json()?.get("id").is_none(), "a plant without `id`")?;
    visit.uproot(id).await
}

async fn without_tag(visit: &mut Visit) -> Outcome {
    let (id, name) = (visit.ledger.id(), visit.ledger.name("no tag"));
    let answer = visit.create(id, create_ask(body(id, &name, None))).await?;
    answer.expect_success()?;
    answer.expect(answer.json()?.get("tag").is_none(), "a plant without `tag`")?;
    visit.uproot(id).await
}

async fn listed(visit: &mut Visit) -> Outcome {
    visit.may_read()?;
    let bed = visit.bed().await?;
    let listing = visit.list("").await?;
    let names: Vec<&str> = bed.iter().map(|plant| plant.name.as_str()).collect();
    visit.expect_listed(&listing, &names)?;
    for planted in &bed {
        let same = |plant: &&Shown| plant.name == planted.name && plant.tag == planted.tag;
        let times = listing.plants.iter().filter(same).count();
        listing.answer.expect(times == 1, format_args!("`{}` once, with its tag", planted.name))?;
    }
    Ok(())
}

/// A number that passes through a double loses its last bits: then these two are one.
async fn ids_apart(visit: &mut Visit) -> Outcome {
    visit.may_read()?;
    let [(one, first), (other, second)] = ["one", "other"].map(|word| (visit.ledger.id(), visit.ledger.name(word)));
    visit.plant(one, &first, None).await?;
    visit.plant(other, &second, None).await?;
    visit.uproot(other).await?;
    let listing = visit.list("").await?;
    visit.expect_listed(&listing, &[&first])?;
    let there = listing.plants.iter().any(|plant| plant.name == second);
    listing.answer.expect(!there, format_args!("`{second}` to be deleted, and not its neighbour"))?;
    visit.uproot(one).await
}

async fn duplicate(visit: &mut Visit) -> Outcome {
    let (id, name) = (visit.ledger.id(), visit.ledger.name("first"));
    visit.plant(id, &name, Some("first")).await?;
    let second = visit.ledger.name("second");
    let answer = visit.create(id, create_ask(body(id, &second, None))).await?;
    answer.expect_error(409, 40900)?;
    if visit.may_read().is_ok() {
        let listing = visit.list("").await?;
        visit.expect_listed(&listing, &[&name])?;
        let replaced = listing.plants.iter().any(|plant| plant.name == second);
        listing.answer.expect(!replaced, "the first plant, untouched")?;
    }
    visit.known.duplicates_refused = true;
    visit.uproot(id).await
}

async fn location(visit: &mut Visit) -> Outcome {
    let (id, name) = (visit.ledger.id(), visit.ledger.name("location"));
    let answer = visit.create(id, create_ask(body(id, &name, Some("")))).await?;
    answer.expect_success()?;
    answer.expect_header("location", &format!("/plants/{id}"))?;
    let exactly = serde_json::json!({ "name": name, "tag": "" });
    answer.expect(answer.json()? == exactly, "exactly `name` and `tag`, which is empty as it was sent")?;
    visit.uproot(id).await
}

/// The ends of the range, or else what is next to them and free.
async fn any_id(visit: &mut Visit) -> Outcome {
    visit.may_read()?;
    visit.may_plant()?;
    if !visit.known.duplicates_refused {
        let why = "a create may take the place of another plant here, so only ids that nobody has are tried";
        return Err(super::Trouble::Untried(why.to_owned()));
    }
    let up = (0..NEIGHBOURS).map(|step| i64::MIN + step).collect::<Vec<_>>();
    let down = (0..NEIGHBOURS).map(|step| i64::MAX - step).collect::<Vec<_>>();
    let mut planted = Vec::new();
    for candidates in [up, down, vec![0]] {
        planted.push(any_of(visit, &candidates).await?);
    }
    visit.known.ends_are_free = planted.starts_with(&[Some(i64::MIN), Some(i64::MAX)]);
    visit.known.ids_shown = visit.reads_all && planted.iter().any(Option::is_some);
    Ok(())
}

/// Plants and uproots the first of these ids that is free.
async fn any_of(visit: &mut Visit, candidates: &[i64]) -> Outcome<Option<i64>> {
    for id in candidates {
        let name = visit.ledger.name(&format!("number {id}"));
        let answer = visit.create(*id, create_ask(body(*id, &name, None))).await?;
        if answer.status == 409 {
            continue;
        }
        answer.plant()?;
        let listing = visit.list("include=id").await?;
        let found = listing.plants.iter().find(|plant| plant.name == name);
        match found {
            Some(plant) => {
                listing.answer.expect(plant.id == Some(*id), format_args!("`{name}` with exactly the id {id}"))?;
            }
            None => visit.expect_listed(&listing, &[&name]).or_else(|trouble| tolerate_far(visit, *id, trouble))?,
        }
        return visit.uproot(*id).await.map(|()| Some(*id));
    }
    // All of them are this user's own plants, which shows that such ids work.
    Ok(None)
}

/// Where not all plants are read, those with high ids are not expected among the first.
fn tolerate_far(visit: &Visit, id: i64, trouble: super::Trouble) -> Outcome {
    if visit.reads_all || id < 0 { Err(trouble) } else { Ok(()) }
}

async fn exact_text(visit: &mut Visit) -> Outcome {
    let texts = [
        ("  spaces around  ", " "),
        ("🪴🌵 emoji, also with joiners: 👩🏽‍🌾", "🏷️"),
        ("צבר, right to left: \u{202e}صبار\u{202c}", "ימין"),
        ("decomposed e\u{301} and composed \u{e9}", "\u{1e9b}\u{323}"),
        ("quotes \" ' ` and \\ / <b>&amp;</b> %00 ${x}", "'; --"),
        ("zero width \u{200b}\u{feff} and the last \u{10ffff}", "\u{2028}"),
    ];
    for (name, tag) in texts {
        let (id, name) = (visit.ledger.id(), format!("{}{name}", visit.ledger.name("")));
        kept(visit, id, &name, tag).await?;
    }
    Ok(())
}

async fn longest(visit: &mut Visit) -> Outcome {
    let id = visit.ledger.id();
    let start = visit.ledger.name("");
    let rest = 1_000 - start.chars().count();
    kept(visit, id, &format!("{start}{}", "🪴".repeat(rest)), &"🌱".repeat(200)).await
}

/// Creates a plant that must be answered and listed exactly as it was sent.
async fn kept(visit: &mut Visit, id: i64, name: &str, tag: &str) -> Outcome {
    let answer = visit.create(id, create_ask(body(id, name, Some(tag)))).await?;
    let exact = |plant: &Shown| plant.name == name && plant.tag.as_deref() == Some(tag);
    answer.expect(exact(&answer.plant()?), "the very characters that were sent")?;
    if visit.may_read().is_ok() {
        let listing = visit.list("").await?;
        let there = listing.plants.iter().any(exact);
        let read_enough = visit.reads_all || there;
        listing.answer.expect(there || !read_enough, format_args!("exactly `{name}` in the list"))?;
    }
    visit.uproot(id).await
}

async fn tag_null(visit: &mut Visit) -> Outcome {
    let (id, name) = (visit.ledger.id(), visit.ledger.name("null"));
    let json = serde_json::json!({ "id": id, "name": name, "tag": null });
    accepted_without_tag(visit, id, json.to_string()).await
}

async fn unknown_fields(visit: &mut Visit) -> Outcome {
    let (id, name) = (visit.ledger.id(), visit.ledger.name("unknown"));
    let json = serde_json::json!({ "colour": "green", "id": id, "name": name, "pots": [1, { "tag": 2 }] });
    accepted_without_tag(visit, id, json.to_string()).await
}

async fn accepted_without_tag(visit: &mut Visit, id: i64, body: String) -> Outcome {
    let answer = visit.create(id, create_ask(body)).await?;
    answer.expect_success()?;
    let members = answer.json()?.as_object().map_or(0, serde_json::Map::len);
    answer.expect(members == 1, "a plant of a name alone")?;
    visit.uproot(id).await
}

async fn charset(visit: &mut Visit) -> Outcome {
    let (id, name) = (visit.ledger.id(), visit.ledger.name("charset"));
    let mut ask = create_ask(body(id, &name, None));
    ask.headers = vec![("content-type", "Application/JSON; charset=utf-8".to_owned())];
    let answer: Answer = visit.create(id, ask).await?;
    answer.expect_success()?;
    visit.uproot(id).await
}
