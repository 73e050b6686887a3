//! Lists: what is in them, in which order, and how they are read again.

use super::answer::{Answer, Shown, is_plant};
use super::client::Ask;
use super::visit::Visit;
use super::{Check, Level, Outcome, Trouble};

/// How often a list that others change meanwhile is read again.
const ATTEMPTS: usize = 5;

pub(super) const CHECKS: &[Check] = &[
    Check::new(
        Level::Interface,
        "list-answers",
        "a list is answered 200 with an array of plants without id",
        |visit| Box::pin(answers(visit)),
    ),
    Check::new(Level::Interface, "list-limit", "a list holds at most `limit` plants", |visit| Box::pin(limit(visit))),
    Check::new(Level::Full, "list-limit-exact", "`limit` plants where there are more, and none for 0", |visit| {
        Box::pin(limit_exact(visit))
    }),
    Check::new(
        Level::Full,
        "list-limit-bad",
        "a limit that is no int32 from 0 up, or comes twice, is 40004",
        |visit| Box::pin(limit_bad(visit)),
    ),
    Check::new(Level::Full, "list-ids", "include=id adds the exact id of each plant", |visit| Box::pin(ids(visit))),
    Check::new(Level::Full, "list-order", "a list ascends by id", |visit| Box::pin(order(visit))),
    Check::new(Level::Full, "list-include-bad", "an `include` of something else is 40007", |visit| {
        Box::pin(include_bad(visit))
    }),
    Check::new(Level::Full, "list-unknown-parameters", "unknown parameters are ignored", |visit| {
        Box::pin(unknown_parameters(visit))
    }),
    Check::new(Level::Full, "list-caching", "lists are private, no-cache, and vary with Authorization", |visit| {
        Box::pin(caching(visit))
    }),
    Check::new(Level::Full, "list-etag", "a weak ETag, and 304 as long as nothing has changed", |visit| {
        Box::pin(etag(visit))
    }),
    Check::new(Level::Full, "list-etag-moves", "the ETag moves with every create and delete", |visit| {
        Box::pin(etag_moves(visit))
    }),
    Check::new(Level::Full, "list-head", "HEAD answers the same header fields without a body", |visit| {
        Box::pin(head(visit))
    }),
];

async fn answers(visit: &mut Visit) -> Outcome {
    if visit.may_plant().is_ok() {
        visit.bed().await?;
    }
    let listing = visit.list("").await?;
    let answer = &listing.answer;
    answer.expect_status(200)?;
    answer.expect(answer.is_json_type(), "the media type application/json")?;
    let shaped = answer.json()?.as_array().is_some_and(|plants| plants.iter().all(is_plant));
    answer.expect(shaped, "plants: `name` is text, `tag` is text or absent")?;
    let shows_ids = listing.plants.iter().any(|plant| plant.id.is_some());
    answer.expect(!shows_ids, "plants without `id`")
}

async fn limit(visit: &mut Visit) -> Outcome {
    for limit in [1, 2] {
        let listing = visit.list_at(&format!("/plants?limit={limit}")).await?;
        listing.answer.expect(listing.plants.len() <= limit, format_args!("{limit} plants at the most"))?;
    }
    Ok(())
}

async fn limit_exact(visit: &mut Visit) -> Outcome {
    visit.may_read()?;
    let bed = visit.bed().await?;
    for limit in [0, 1, bed.len()] {
        let listing = visit.list_at(&format!("/plants?limit={limit}")).await?;
        listing.answer.expect(listing.plants.len() == limit, format_args!("{limit} plants, because there are more"))?;
    }
    if visit.reads_all {
        let listing = visit.list_at("/plants?limit=2147483647").await?;
        listing.answer.expect(listing.plants.len() >= bed.len(), "all plants")?;
    }
    Ok(())
}

async fn limit_bad(visit: &mut Visit) -> Outcome {
    for query in [
        "limit=-1",
        "limit=",
        "limit=ten",
        "limit=1.5",
        "limit=1e3",
        "limit=2147483648",
        "limit=99999999999999999999",
        "limit=%201",
        "limit=1&limit=1",
    ] {
        visit.get(&format!("/plants?{query}")).await?.expect_error(400, 40004)?;
    }
    Ok(())
}

async fn ids(visit: &mut Visit) -> Outcome {
    visit.may_read()?;
    let bed = visit.bed().await?;
    let listing = visit.list("include=id").await?;
    let names: Vec<&str> = bed.iter().map(|plant| plant.name.as_str()).collect();
    visit.expect_listed(&listing, &names)?;
    for planted in bed {
        let expected = Shown { id: Some(planted.id), name: planted.name, tag: planted.tag };
        let there = listing.plants.contains(&expected);
        listing.answer.expect(there, format_args!("`{}` with the id {}", expected.name, planted.id))?;
    }
    let all_have_one = listing.plants.iter().all(|plant| plant.id.is_some());
    listing.answer.expect(all_have_one, "an id with each plant")
}

async fn order(visit: &mut Visit) -> Outcome {
    if visit.may_plant().is_ok() {
        visit.bed().await?;
    }
    let listing = visit.list("include=id").await?;
    let ascending = listing.plants.is_sorted_by_key(|plant| plant.id);
    listing.answer.expect(ascending, "ascending ids")
}

async fn include_bad(visit: &mut Visit) -> Outcome {
    for query in ["include=", "include=name", "include=id&include=id"] {
        visit.get(&format!("/plants?{query}")).await?.expect_error(400, 40007)?;
    }
    Ok(())
}

async fn unknown_parameters(visit: &mut Visit) -> Outcome {
    let listing = visit.list_at("/plants?colour=green&limit=1&sort=desc&colour=red").await?;
    listing.answer.expect(listing.plants.len() <= 1, "one plant at the most")
}

async fn caching(visit: &mut Visit) -> Outcome {
    let answer = visit.get("/plants?limit=1").await?;
    answer.expect_header("cache-control", "private, no-cache")?;
    let varies = answer.headers.iter().filter(|(name, _)| name == "vary").flat_map(|(_, value)| value.split(','));
    let varies = varies.map(str::trim).any(|field| field.eq_ignore_ascii_case("authorization"));
    answer.expect(varies, "`Vary: Authorization`")
}

fn tag_of(answer: &Answer) -> Outcome<String> {
    answer.expect_success()?;
    let tag = answer.header("etag").filter(|tag| tag.starts_with("W/\"") && tag.ends_with('"'));
    tag.map(str::to_owned).ok_or_else(|| answer.broken("a weak ETag"))
}

async fn unless(visit: &mut Visit, tag: &str) -> Outcome<Answer> {
    visit.may_read()?;
    visit.ask(Ask::new("GET", "/plants?limit=1").with("if-none-match", tag)).await
}

async fn etag(visit: &mut Visit) -> Outcome {
    for _ in 0..ATTEMPTS {
        let tag = tag_of(&visit.get("/plants?limit=1").await?)?;
        let answer = unless(visit, &tag).await?;
        if answer.status == 304 {
            return answer.expect(answer.body.is_empty() && answer.header("etag") == Some(&tag), "304 with its ETag");
        }
        // Somebody else may have changed something in between: then the tag is another one.
        answer.expect(tag_of(&answer)? != tag, "304, because nothing has changed")?;
    }
    Err(always_changing())
}

async fn etag_moves(visit: &mut Visit) -> Outcome {
    visit.may_plant()?;
    let before = tag_of(&visit.get("/plants?limit=1").await?)?;
    let (id, name) = (visit.ledger.id(), visit.ledger.name("tag"));
    visit.plant(id, &name, None).await?;
    let answer = unless(visit, &before).await?;
    answer.expect_success()?;
    let between = tag_of(&answer)?;
    answer.expect(between != before, "another ETag after a create")?;
    visit.uproot(id).await?;
    let answer = unless(visit, &between).await?;
    answer.expect_success()?;
    let after = tag_of(&answer)?;
    answer.expect(after != between && after != before, "another ETag after a delete")
}

async fn head(visit: &mut Visit) -> Outcome {
    for _ in 0..ATTEMPTS {
        let full = visit.get("/plants?limit=1").await?;
        let bare = visit.ask(Ask::new("HEAD", "/plants?limit=1")).await?;
        if bare.status == 200 && bare.header("etag").is_some() && bare.header("etag") != full.header("etag") {
            continue;
        }
        bare.expect(bare.status == full.status && bare.body.is_empty(), format_args!("{} and no body", full.status))?;
        for name in ["content-type", "etag", "cache-control", "vary", "link"] {
            let same = bare.header(name) == full.header(name);
            bare.expect(same, format_args!("the same `{name}` as for GET"))?;
        }
        return Ok(());
    }
    Err(always_changing())
}

fn always_changing() -> Trouble {
    Trouble::NotApplicable("the plants change all the time: use a user of its own for checks".to_owned())
}
