//! Answers that are about no plant: addresses, methods, connections, probes.

use super::client::Ask;
use super::visit::{Visit, create_ask};
use super::{Check, Level, Outcome};

pub(super) const CHECKS: &[Check] = &[
    Check::new(Level::Full, "route-unknown", "an address that leads nowhere is 404 with 40401", |visit| {
        Box::pin(unknown_route(visit))
    }),
    Check::new(Level::Full, "method-unknown", "a method that is not allowed is 405 with 40500 and Allow", |visit| {
        Box::pin(unknown_method(visit))
    }),
    Check::new(Level::Full, "request-id", "a sane X-Request-Id comes back, another one does not", |visit| {
        Box::pin(request_id(visit))
    }),
    Check::new(Level::Full, "connection-kept", "a connection stays usable after errors", |visit| {
        Box::pin(connection_kept(visit))
    }),
    Check::new(Level::Full, "probes", "/livez and /readyz answer 200 without a token", |visit| Box::pin(probes(visit))),
    Check::new(
        Level::Full,
        "openapi",
        "/openapi.json describes version 1.0.0 of the interface, without a token",
        |visit| Box::pin(openapi(visit)),
    ),
    Check::new(Level::Full, "docs", "/docs is a page that shows it, without a token", |visit| Box::pin(docs(visit))),
];

async fn unknown_route(visit: &mut Visit) -> Outcome {
    for path in ["/plant", "/plants/1/2", "/Plants"] {
        visit.ask(Ask::new("GET", path)).await?.expect_error(404, 40401)?;
    }
    Ok(())
}

async fn unknown_method(visit: &mut Visit) -> Outcome {
    for (method, path, allowed) in
        [("PUT", "/plants", "GET"), ("PATCH", "/plants", "POST"), ("GET", "/plants/1", "DELETE")]
    {
        let answer = visit.ask(Ask::new(method, path)).await?;
        answer.expect_error(405, 40500)?;
        let lists = answer.header("allow").is_some_and(|allow| allow.split(',').any(|word| word.trim() == allowed));
        answer.expect(lists, format_args!("an `Allow` that lists {allowed}"))?;
    }
    Ok(())
}

async fn request_id(visit: &mut Visit) -> Outcome {
    let sane = visit.ask(Ask::new("GET", "/plants?limit=0").with("x-request-id", "check-7_A.b:c")).await?;
    sane.expect_header("x-request-id", "check-7_A.b:c")?;
    let long = "x".repeat(129);
    for insane in ["two words", long.as_str()] {
        let answer = visit.ask(Ask::new("GET", "/plants?limit=0").with("x-request-id", insane)).await?;
        let replaced = answer.header("x-request-id").is_some_and(|id| id != insane);
        answer.expect(replaced, "another X-Request-Id than one that is not sane")?;
    }
    Ok(())
}

async fn connection_kept(visit: &mut Visit) -> Outcome {
    let mut asks = vec![
        Ask::new("GET", "/plants?limit=ten"),
        Ask::new("DELETE", "/plants/none"),
        Ask::new("GET", "/no/such/address"),
        create_ask("{"),
    ];
    asks = asks.into_iter().map(|ask| visit.as_ourselves(ask)).collect();
    asks.push(Ask::new("GET", "/plants"));
    asks.push(Ask::new("GET", "/livez"));
    let answers = visit.ask_in_a_row(&asks).await?;
    answers.last().map_or(Ok(()), |last| last.expect_status(200))
}

async fn probes(visit: &mut Visit) -> Outcome {
    for path in ["/livez", "/readyz"] {
        let answer = visit.ask_as_is(&Ask::new("GET", path)).await?;
        answer.expect_status(200)?;
        answer.expect(answer.is_json_type(), "the media type application/json")?;
    }
    Ok(())
}

async fn openapi(visit: &mut Visit) -> Outcome {
    let answer = visit.ask_as_is(&Ask::new("GET", "/openapi.json")).await?;
    answer.expect_status(200)?;
    let json = answer.json()?;
    let operations = [("/plants", "get"), ("/plants", "post"), ("/plants/{id}", "delete")];
    let described = operations.iter().all(|(path, method)| json["paths"][path].get(method).is_some());
    answer.expect(described && json["info"]["version"] == "1.0.0", "the three operations, and the version 1.0.0")
}

async fn docs(visit: &mut Visit) -> Outcome {
    let answer = visit.ask_as_is(&Ask::new("GET", "/docs")).await?;
    answer.expect_status(200)?;
    let page = answer.header("content-type").is_some_and(|kind| kind.starts_with("text/html"));
    answer.expect(page, "a page of HTML")
}
