//! Random sequences of operations by several users, compared with a simple model. The engines give the same bytes.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use serde_json::{Value, json};

use crate::support::{Client, Engine, Response, Service, engine_test};

const USERS: usize = 3;
const CASES: u32 = 48;

#[derive(Clone, Debug)]
enum ModelOperation {
    Create {
        user: usize,
        id: i64,
        name: String,
        tag: Option<String>,
        key: Option<u8>,
    },
    Replace {
        user: usize,
        id: i64,
        name: String,
        tag: Option<String>,
        key: Option<u8>,
    },
    Delete {
        user: usize,
        id: i64,
        key: Option<u8>,
    },
    Filter {
        user: usize,
        tag: String,
    },
    List {
        user: usize,
        limit: Option<i32>,
    },
    Pages {
        user: usize,
        limit: i32,
    },
    /// Repeats an earlier operation.
    Again(usize),
}

/// Few ids, so that operations conflict, and the extremes.
fn ids() -> impl Strategy<Value = i64> {
    prop_oneof![8 => -3_i64..8, 1 => Just(i64::MIN), 1 => Just(i64::MAX), 1 => any::<i64>()]
}

fn text(most: usize) -> impl Strategy<Value = String> {
    proptest::collection::vec(any::<char>().prop_filter("no control characters", |c| !c.is_control()), 0..most)
        .prop_map(|characters| characters.into_iter().collect())
}

/// Any tag, or one of few, so that a filter finds some.
fn tags() -> impl Strategy<Value = String> {
    prop_oneof![text(5), "[ab]"]
}

/// Few keys, so that they are reused, for the same request and for others.
fn keys() -> impl Strategy<Value = Option<u8>> {
    proptest::option::of(0..6_u8)
}

fn operations() -> impl Strategy<Value = Vec<ModelOperation>> {
    let operation = prop_oneof![
        5 => (0..USERS, ids(), text(20), proptest::option::of(tags()), keys())
            .prop_map(|(user, id, name, tag, key)| ModelOperation::Create { user, id, name: format!("x{name}"), tag, key }),
        3 => (0..USERS, ids(), text(20), proptest::option::of(tags()), keys())
            .prop_map(|(user, id, name, tag, key)| ModelOperation::Replace { user, id, name: format!("y{name}"), tag, key }),
        3 => (0..USERS, ids(), keys()).prop_map(|(user, id, key)| ModelOperation::Delete { user, id, key }),
        2 => (0..USERS, proptest::option::of(0..12_i32)).prop_map(|(user, limit)| ModelOperation::List { user, limit }),
        1 => (0..USERS, tags()).prop_map(|(user, tag)| ModelOperation::Filter { user, tag }),
        1 => (0..USERS, 1..6_i32).prop_map(|(user, limit)| ModelOperation::Pages { user, limit }),
        4 => any::<usize>().prop_map(ModelOperation::Again),
    ];
    proptest::collection::vec(operation, 1..60)
}

type Plants = BTreeMap<i64, Value>;

/// State of a user: plants, and responses stored by idempotency key.
#[derive(Clone, Default)]
struct Model {
    plants: Plants,
    stored: BTreeMap<u8, (Vec<u8>, Response)>,
}

/// Clients of one user, one of each engine.
struct User(Vec<Client>);

impl User {
    /// Sends a request to each engine. Returns the response, which must be the same except for time, request id and entity tag.
    fn ask(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&str>,
    ) -> Result<Response, TestCaseError> {
        let ask = |client: &Client| client.call(method, path, headers, body.map(str::as_bytes));
        let mut responses: Vec<Response> = self.0.iter().map(ask).collect();
        for response in &responses {
            prop_assert_eq!(response.wire(), responses[0].wire(), "{} {}", method, path);
        }
        Ok(responses.remove(0))
    }

    fn get(&self, path: &str) -> Result<Response, TestCaseError> {
        self.ask("GET", path, &[], None)
    }
}

/// Sends a write, and returns its response unless it is the replay that the model expects.
fn write(
    user: &User,
    model: &mut Model,
    key: Option<u8>,
    (method, path, body): (&str, &str, Option<&str>),
) -> Result<Option<Response>, TestCaseError> {
    let text = key.map(|key| format!("key {key}"));
    let headers = [("Content-Type", "application/json"), ("Idempotency-Key", text.as_deref().unwrap_or_default())];
    let headers = &headers[..if key.is_some() { 2 } else { 1 }];
    let bytes = user.0[0].bytes(method, path, headers, body.map(str::as_bytes));
    let response = user.ask(method, path, headers, body)?;
    let Some(key) = key else { return Ok(Some(response)) };
    if let Some((known, first)) = model.stored.get(&key) {
        if *known == bytes {
            prop_assert_eq!((response.status, &response.body), (first.status, &first.body));
            prop_assert_eq!(response.header("idempotency-replayed"), Some("true"));
        } else {
            prop_assert_eq!(response.error(), 42200);
        }
        return Ok(None);
    }
    prop_assert_eq!(response.header("idempotency-replayed"), None);
    model.stored.insert(key, (bytes, response.clone()));
    Ok(Some(response))
}

fn check(user: &User, model: &mut Model, operation: &ModelOperation) -> Result<(), TestCaseError> {
    let shown = |limit: usize, plants: &Plants| Value::Array(plants.values().take(limit).cloned().collect());
    match operation {
        ModelOperation::Create { id, name, tag, key, .. } | ModelOperation::Replace { id, name, tag, key, .. } => {
            let creates = matches!(operation, ModelOperation::Create { .. });
            let mut plant = json!({ "name": name });
            if let Some(tag) = tag {
                plant["tag"] = json!(tag);
            }
            let body = json!({ "id": id, "name": name, "tag": tag }).to_string();
            let path = format!("/plants/{id}");
            let (method, path) = if creates { ("POST", "/plants") } else { ("PUT", &*path) };
            let Some(response) = write(user, model, *key, (method, path, Some(&body)))? else { return Ok(()) };
            if model.plants.contains_key(id) == creates {
                prop_assert_eq!(response.error(), if creates { 40900 } else { 40400 });
            } else {
                prop_assert_eq!((response.status, response.json()), (200, plant.clone()));
                model.plants.insert(*id, plant);
            }
        }
        ModelOperation::Delete { id, key, .. } => {
            let path = format!("/plants/{id}");
            let Some(response) = write(user, model, *key, ("DELETE", &path, None))? else { return Ok(()) };
            let expected = if model.plants.remove(id).is_some() { 204 } else { 404 };
            prop_assert_eq!(response.status, expected);
        }
        ModelOperation::Filter { tag, .. } => {
            let query = tag.bytes().map(|byte| format!("%{byte:02x}")).collect::<Vec<_>>().concat();
            let expected = model.plants.iter().filter(|(_, plant)| plant["tag"] == **tag).map(|(id, _)| *id);
            let listed = user.get(&format!("/plants?include=id&tag={query}"))?.ids();
            prop_assert_eq!(listed, expected.collect::<Vec<_>>());
        }
        ModelOperation::List { limit: None, .. } => {
            prop_assert_eq!(user.get("/plants")?.json(), shown(usize::MAX, &model.plants));
        }
        ModelOperation::List { limit: Some(limit), .. } => {
            let response = user.get(&format!("/plants?limit={limit}"))?;
            let limit = usize::try_from(*limit).expect("not negative");
            prop_assert_eq!(response.json(), shown(limit, &model.plants));
            prop_assert_eq!(response.next().is_some(), limit > 0 && model.plants.len() > limit);
        }
        ModelOperation::Pages { limit, .. } => {
            let mut seen = Vec::new();
            let mut next = Some(format!("/plants?include=id&limit={limit}"));
            while let Some(page) = next {
                let response = user.get(&page)?;
                seen.extend(response.ids());
                next = response.next();
            }
            prop_assert_eq!(seen, model.plants.keys().copied().collect::<Vec<_>>());
        }
        ModelOperation::Again(_) => {}
    }
    Ok(())
}

// PostgreSQL is also compared with SQLite.
engine_test!(engines_agree_with_the_model_and_each_other, |engine: &Engine| {
    let engines = match engine {
        Engine::Sqlite => vec![Engine::Sqlite],
        Engine::Postgres => vec![Engine::Sqlite, Engine::Postgres],
    };
    let services: Vec<Service> = engines.into_iter().map(|engine| Service::new(engine, &[])).collect();
    let config = Config { cases: CASES, failure_persistence: None, ..Config::default() };
    let case = std::cell::Cell::new(0);
    let outcome = TestRunner::new(config).run(&operations(), |operations| {
        // Every case has new users, without plants.
        case.set(case.get() + 1);
        let users: Vec<User> = (0..USERS)
            .map(|user| {
                let name = format!("user-{}-{user}", case.get());
                User(services.iter().map(|service| service.server.client(&service.store.token(&name, &[]))).collect())
            })
            .collect();
        let mut models = vec![Model::default(); USERS];
        for (number, operation) in operations.iter().enumerate() {
            let operation = if let ModelOperation::Again(before) = operation {
                &operations[before % (number + 1)]
            } else {
                operation
            };
            let (ModelOperation::Create { user, .. }
            | ModelOperation::Replace { user, .. }
            | ModelOperation::Delete { user, .. }
            | ModelOperation::Filter { user, .. }
            | ModelOperation::List { user, .. }
            | ModelOperation::Pages { user, .. }) = operation
            else {
                continue;
            };
            check(&users[*user], &mut models[*user], operation)?;
        }
        for (user, model) in users.iter().zip(&models) {
            prop_assert_eq!(
                user.get("/plants?include=id,owner")?.ids(),
                model.plants.keys().copied().collect::<Vec<_>>()
            );
        }
        Ok(())
    });
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
});
