//! Random sequences of operations by several users, compared with a model that is too simple to be wrong.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use serde_json::{Value, json};

use crate::support::{Client, on_every_engine};

const USERS: usize = 3;
const CASES: u32 = 48;

#[derive(Clone, Debug)]
enum Operation {
    Create { user: usize, id: i64, name: String, tag: Option<String> },
    Delete { user: usize, id: i64 },
    List { user: usize, limit: Option<i32> },
    Pages { user: usize, limit: i32 },
}

/// Few ids, so that they meet; the extremes among them.
fn ids() -> impl Strategy<Value = i64> {
    prop_oneof![8 => -3_i64..8, 1 => Just(i64::MIN), 1 => Just(i64::MAX), 1 => any::<i64>()]
}

fn text(most: usize) -> impl Strategy<Value = String> {
    proptest::collection::vec(any::<char>().prop_filter("no control characters", |c| !c.is_control()), 0..most)
        .prop_map(|characters| characters.into_iter().collect())
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let operation = prop_oneof![
        5 => (0..USERS, ids(), text(20), proptest::option::of(text(5)))
            .prop_map(|(user, id, name, tag)| Operation::Create { user, id, name: format!("x{name}"), tag }),
        3 => (0..USERS, ids()).prop_map(|(user, id)| Operation::Delete { user, id }),
        2 => (0..USERS, proptest::option::of(0..12_i32)).prop_map(|(user, limit)| Operation::List { user, limit }),
        1 => (0..USERS, 1..6_i32).prop_map(|(user, limit)| Operation::Pages { user, limit }),
    ];
    proptest::collection::vec(operation, 1..60)
}

type Plants = BTreeMap<i64, Value>;

fn check(client: &Client, plants: &mut Plants, operation: &Operation) -> Result<(), TestCaseError> {
    let shown = |limit: usize, plants: &Plants| Value::Array(plants.values().take(limit).cloned().collect());
    match operation {
        Operation::Create { id, name, tag, .. } => {
            let mut plant = json!({ "name": name });
            if let Some(tag) = tag {
                plant["tag"] = json!(tag);
            }
            let answer = client.post(json!({ "id": id, "name": name, "tag": tag }).to_string());
            if plants.contains_key(id) {
                prop_assert_eq!(answer.error(), 40900);
            } else {
                prop_assert_eq!((answer.status, answer.json()), (200, plant.clone()));
                plants.insert(*id, plant);
            }
        }
        Operation::Delete { id, .. } => {
            let expected = if plants.remove(id).is_some() { 204 } else { 404 };
            prop_assert_eq!(client.delete(id).status, expected);
        }
        Operation::List { limit: None, .. } => {
            prop_assert_eq!(client.get("/plants").json(), shown(usize::MAX, plants));
        }
        Operation::List { limit: Some(limit), .. } => {
            let answer = client.get(&format!("/plants?limit={limit}"));
            let limit = usize::try_from(*limit).expect("not negative");
            prop_assert_eq!(answer.json(), shown(limit, plants));
            prop_assert_eq!(answer.next().is_some(), limit > 0 && plants.len() > limit);
        }
        Operation::Pages { limit, .. } => {
            let mut seen = Vec::new();
            let mut next = Some(format!("/plants?include=id&limit={limit}"));
            while let Some(page) = next {
                let answer = client.get(&page);
                seen.extend(answer.ids());
                next = answer.next();
            }
            prop_assert_eq!(seen, plants.keys().copied().collect::<Vec<_>>());
        }
    }
    Ok(())
}

on_every_engine! {
    fn the_service_does_what_the_model_does(site) {
        let server = site.serve(&[]);
        let config = Config { cases: CASES, failure_persistence: None, ..Config::default() };
        let case = std::cell::Cell::new(0);
        let outcome = TestRunner::new(config).run(&operations(), |operations| {
            // Every case has users of its own, who start with nothing.
            case.set(case.get() + 1);
            let clients: Vec<Client> =
                (0..USERS).map(|user| server.client(&site.token(&format!("user-{}-{user}", case.get()), &[]))).collect();
            let mut plants = vec![Plants::new(); USERS];
            for operation in &operations {
                let (Operation::Create { user, .. }
                | Operation::Delete { user, .. }
                | Operation::List { user, .. }
                | Operation::Pages { user, .. }) = operation;
                check(&clients[*user], &mut plants[*user], operation)?;
            }
            for (client, plants) in clients.iter().zip(&plants) {
                prop_assert_eq!(client.ids(), plants.keys().copied().collect::<Vec<_>>());
            }
            Ok(())
        });
        outcome.unwrap_or_else(|failure| panic!("{failure}"));
    }
}
