//! Tests of the linearizability checker, and of the service under load with it.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::support::Outcome::{Denied, Done, Rejected, Unknown};
use crate::support::rewriting_proxy::{ProxiedRequest, Reply, RewritingProxy, Upstream};
use crate::support::{
    Action, Fault, History, Operation, Outcome, Random, Response, Store, Summary, Workload, engine_test, sqlite_test,
    wait_for, wait_for_writes,
};

const ID: i64 = 7;

fn operation(from: u64, to: u64, action: Action) -> Operation {
    Operation { user: 0, called: Duration::from_millis(from), returned: Duration::from_millis(to), action }
}

fn create(from: u64, to: u64, name: &str, outcome: Outcome) -> Operation {
    operation(from, to, Action::Create(ID, name.to_owned(), outcome))
}

fn replace(from: u64, to: u64, name: &str, outcome: Outcome) -> Operation {
    operation(from, to, Action::Replace(ID, name.to_owned(), outcome))
}

fn delete(from: u64, to: u64, outcome: Outcome) -> Operation {
    operation(from, to, Action::Delete(ID, outcome))
}

fn list(from: u64, to: u64, name: Option<&str>) -> Operation {
    operation(from, to, Action::List(Some(name.map(|name| (ID, name.to_owned())).into_iter().collect())))
}

fn history(operations: &[Operation]) -> History {
    let history = History::new();
    operations.iter().cloned().for_each(|operation| history.record(operation));
    history
}

#[track_caller]
fn accepts(operations: &[Operation]) {
    history(operations).check().expect("a sequential order explains this");
}

/// Checks that the history is rejected because of its last operation.
#[track_caller]
fn catches(operations: &[Operation]) -> String {
    let violation = history(operations).check().expect_err("no order explains this");
    assert_eq!((violation.user, violation.id), (0, ID));
    let reported = violation.to_string();
    let offending = reported.lines().filter(|line| line.starts_with('>')).collect::<Vec<_>>();
    let last = operations.last().expect("some operations");
    assert!(offending.len() == 1 && offending[0].contains(&format!("{:?} to", last.called)), "{reported}");
    reported
}

#[test]
fn sequential_history_is_accepted() {
    accepts(&[
        list(0, 1, None),
        delete(2, 3, Denied),
        create(4, 5, "a", Done),
        create(6, 7, "b", Denied),
        list(8, 9, Some("a")),
        delete(10, 11, Done),
        list(12, 13, None),
        create(14, 15, "c", Done),
        create(16, 17, "d", Rejected),
        delete(18, 19, Rejected),
        operation(20, 21, Action::List(None)),
        list(22, 23, Some("c")),
    ]);
}

#[test]
fn overlapping_operations_may_take_effect_in_any_order() {
    for shown in [None, Some("a")] {
        accepts(&[create(0, 10, "a", Done), list(5, 6, shown), list(11, 12, Some("a"))]);
        accepts(&[create(0, 1, "a", Done), delete(2, 10, Done), list(3, 9, shown), list(11, 12, None)]);
    }
    // Only one order is possible: create b, delete, create a.
    accepts(&[
        create(0, 10, "a", Done),
        create(0, 10, "b", Done),
        delete(0, 10, Done),
        list(1, 9, Some("b")),
        list(1, 9, None),
        list(11, 12, Some("a")),
    ]);
    // A return and a call at the same moment overlap.
    accepts(&[create(0, 5, "a", Done), list(5, 6, None)]);
}

#[test]
fn unknown_write_takes_effect_once_after_its_call_or_never() {
    // An unknown create: a list shows it late or never, or only a conflict or a delete reveals it.
    accepts(&[create(0, 1, "a", Unknown), list(2, 3, None), list(4, 5, Some("a")), create(6, 7, "b", Denied)]);
    accepts(&[create(0, 1, "a", Unknown), list(2, 3, None), create(4, 5, "b", Done), list(6, 7, Some("b"))]);
    accepts(&[create(0, 1, "a", Unknown), create(2, 3, "b", Denied), delete(4, 5, Done), create(6, 7, "c", Done)]);
    accepts(&[create(0, 1, "a", Unknown), delete(2, 3, Denied), delete(4, 5, Done), list(6, 7, None)]);
    // An unknown delete may remove a plant that was created long after its call.
    accepts(&[delete(0, 1, Unknown), create(2, 3, "a", Done), list(4, 5, Some("a")), list(6, 7, None)]);
    accepts(&[create(0, 1, "a", Done), delete(2, 3, Unknown), list(4, 5, Some("a")), create(6, 7, "b", Done)]);
    accepts(&[create(0, 1, "a", Done), delete(2, 3, Unknown), delete(4, 5, Denied)]);
    // An unknown create and an unknown delete.
    accepts(&[
        create(0, 1, "a", Unknown),
        delete(2, 3, Unknown),
        create(4, 5, "b", Denied),
        delete(6, 7, Denied),
        create(8, 9, "c", Done),
    ]);
}

#[test]
fn an_unknown_write_happens_once_at_the_most_and_not_before_its_call() {
    let reported = catches(&[
        create(0, 1, "a", Unknown),
        list(2, 3, Some("a")),
        delete(4, 5, Done),
        list(6, 7, None),
        list(8, 9, Some("a")),
    ]);
    assert!(reported.contains("create \"a\": unknown") && reported.contains("plant 7 of user 0"), "{reported}");
    catches(&[create(0, 1, "a", Unknown), delete(2, 3, Done), list(4, 5, None), delete(6, 7, Done)]);
    catches(&[
        create(0, 1, "a", Done),
        delete(2, 3, Unknown),
        delete(4, 5, Denied),
        create(6, 7, "b", Done),
        list(8, 9, None),
    ]);
    catches(&[create(0, 1, "a", Unknown), create(2, 3, "b", Done), list(4, 5, Some("b")), list(6, 7, Some("a"))]);
    catches(&[create(4, 5, "a", Unknown), list(0, 1, Some("a"))]);
    catches(&[create(4, 5, "a", Unknown), create(0, 1, "b", Denied)]);
    catches(&[create(0, 1, "a", Done), delete(4, 5, Unknown), list(2, 3, None)]);
}

#[test]
fn unknown_write_takes_no_effect_after_a_settled_moment() {
    let settled = |at: u64, operations: &[Operation]| {
        let history = history(operations);
        history.settle(Duration::from_millis(at));
        history.check()
    };
    // The unknown delete may explain a loss before the settled moment, but not after it.
    let lost = [delete(0, 1, Unknown), create(2, 3, "a", Done), list(6, 7, Some("a")), list(8, 9, None)];
    settled(10, &lost).expect("the delete took effect between the lists");
    settled(5, &lost).expect_err("the plant was lost after the settled moment");
    settled(4, &[delete(0, 1, Unknown), create(2, 3, "a", Done), list(5, 6, None)])
        .expect("the delete took effect between the create and the settled moment");
    let shown = [create(0, 1, "a", Unknown), list(2, 3, None), list(6, 7, Some("a"))];
    settled(5, &shown).expect("the create took effect between the lists");
    settled(1, &shown).expect_err("the plant appeared after the settled moment");
    settled(1, &[create(0, 1, "a", Unknown), create(2, 3, "b", Denied), list(4, 5, Some("a"))])
        .expect("the create took effect before the settled moment");
    // Other operations may be in flight at that moment. Unknown writes that are called later are not settled.
    settled(5, &[create(0, 9, "a", Done), delete(1, 2, Unknown), list(10, 11, None)])
        .expect("the create and the delete took effect before the settled moment");
    settled(5, &[create(0, 1, "a", Done), delete(5, 6, Unknown), list(7, 8, Some("a")), list(9, 10, None)])
        .expect_err("a delete called at the settled moment is settled");
    settled(5, &[create(0, 1, "a", Done), delete(6, 7, Unknown), list(8, 9, Some("a")), list(10, 11, None)])
        .expect("a delete called later is not settled");
}

#[test]
fn last_write_is_certain_unless_another_may_follow() {
    let reported = |operations: &[Operation], settled: &[u64]| {
        let history = history(operations);
        for at in settled {
            history.settle(Duration::from_millis(*at));
        }
        let certain = history.certain();
        assert!(certain.keys().all(|register| *register == (0, ID)));
        certain.into_values().next().map(|(called, name)| (called.as_millis(), name))
    };
    let a = Some("a".to_owned());
    assert_eq!(reported(&[create(0, 1, "a", Done)], &[]), Some((0, a.clone())));
    assert_eq!(reported(&[delete(2, 3, Done), create(0, 1, "x", Done)], &[]), Some((2, None)));
    let rejected_later = [create(0, 1, "a", Done), delete(2, 3, Denied), delete(4, 5, Rejected)];
    assert_eq!(reported(&rejected_later, &[]), Some((0, a.clone())));
    assert_eq!(reported(&[create(0, 1, "x", Denied), list(2, 3, Some("x"))], &[]), None);
    // The two writes overlap, so their order is unknown.
    assert_eq!(reported(&[create(0, 3, "a", Done), delete(2, 5, Done)], &[]), None);
    // An unknown write may take effect later, unless it was settled before the last write was called.
    let unknown = [delete(0, 1, Unknown), create(4, 5, "a", Done)];
    assert_eq!(reported(&unknown, &[]), None);
    assert_eq!(reported(&unknown, &[6]), None);
    assert_eq!(reported(&unknown, &[3, 6]), Some((4, a)));
}

#[test]
fn replacement_is_a_write_of_a_plant_that_exists() {
    accepts(&[
        replace(0, 1, "a", Denied),
        create(2, 3, "b", Done),
        replace(4, 5, "c", Done),
        replace(6, 7, "d", Rejected),
        list(8, 9, Some("c")),
        delete(10, 11, Done),
        replace(12, 13, "e", Denied),
    ]);
    // Overlapping ones take effect in any order, unknown ones once or never.
    for shown in ["b", "c"] {
        accepts(&[
            create(0, 1, "a", Done),
            replace(2, 9, "b", Done),
            replace(2, 9, "c", Done),
            list(10, 11, Some(shown)),
        ]);
        accepts(&[create(0, 1, "b", Done), replace(2, 3, "c", Unknown), list(4, 5, Some(shown)), delete(6, 7, Done)]);
    }
    accepts(&[replace(0, 1, "b", Unknown), create(2, 3, "a", Done), list(4, 5, Some("a")), list(6, 7, Some("b"))]);
    catches(&[create(0, 1, "a", Done), replace(2, 3, "b", Done), list(4, 5, Some("a"))]);
    catches(&[create(0, 1, "a", Done), replace(2, 3, "b", Denied)]);
    catches(&[replace(0, 1, "a", Done)]);
    catches(&[create(0, 1, "a", Done), delete(2, 3, Done), replace(4, 5, "b", Done)]);
    catches(&[create(0, 1, "a", Done), replace(2, 3, "b", Rejected), list(4, 5, Some("b"))]);
    let twice = [replace(2, 3, "b", Unknown), replace(4, 5, "c", Done), list(6, 7, Some("c")), list(8, 9, Some("b"))];
    accepts(&[&[create(0, 1, "a", Done)][..], &twice].concat());
    catches(&[&[create(0, 1, "a", Done)][..], &twice, &[list(10, 11, Some("c"))]].concat());
}

#[test]
fn lost_write_is_found() {
    let reported = catches(&[create(0, 1, "a", Done), list(2, 3, Some("a")), list(4, 5, None)]);
    insta::assert_snapshot!(reported, @r#"
    no order explains what happened to plant 7 of user 0:
                 0ns to            1ms  create "a": created
                 2ms to            3ms  list with "a"
    >            4ms to            5ms  list without it
    "#);
    catches(&[create(0, 1, "a", Done), delete(2, 3, Done), list(4, 5, None), list(6, 7, Some("a"))]);
    catches(&[create(0, 1, "a", Done), create(2, 3, "b", Done)]);
}

#[test]
fn stale_list_is_found() {
    catches(&[create(0, 1, "a", Done), delete(2, 3, Done), list(4, 5, Some("a"))]);
    catches(&[create(0, 1, "a", Done), list(2, 3, None)]);
    // Both lists overlap the create, but not each other: the second must not be older than the first.
    catches(&[create(0, 10, "a", Done), list(1, 2, Some("a")), list(3, 4, None)]);
}

#[test]
fn false_conflict_and_false_not_found_are_found() {
    catches(&[create(0, 1, "a", Denied)]);
    catches(&[create(0, 1, "a", Done), delete(2, 3, Done), create(4, 5, "b", Denied)]);
    catches(&[create(0, 1, "a", Done), delete(2, 3, Denied)]);
    catches(&[delete(0, 1, Done)]);
}

#[test]
fn two_successes_where_one_is_possible_are_found() {
    catches(&[create(0, 10, "a", Done), create(0, 11, "b", Done)]);
    catches(&[create(0, 1, "a", Done), delete(2, 10, Done), delete(2, 11, Done)]);
}

#[test]
fn visible_rejected_write_is_found() {
    catches(&[create(0, 1, "a", Rejected), list(2, 3, Some("a"))]);
    catches(&[create(0, 1, "a", Rejected), delete(2, 3, Done)]);
    catches(&[create(0, 1, "a", Done), create(2, 3, "b", Denied), delete(4, 5, Rejected), list(6, 7, None)]);
    catches(&[create(0, 1, "a", Done), create(2, 3, "b", Denied), delete(4, 5, Done), list(6, 7, Some("b"))]);
}

#[test]
fn plants_and_users_are_independent() {
    let at = |user, id, from| Operation {
        user,
        action: Action::Create(id, format!("{user} {id}"), Done),
        ..operation(from, from + 1, Action::List(None))
    };
    let seen = |user, from, plants: &[(i64, &str)]| Operation {
        user,
        ..operation(
            from,
            from + 1,
            Action::List(Some(plants.iter().map(|(id, name)| (*id, (*name).to_owned())).collect())),
        )
    };
    let known = [at(0, ID, 0), at(0, 8, 2), at(1, ID, 4)];
    let with = |last: Operation| [&known[..], &[last]].concat();
    accepts(&with(seen(0, 6, &[(ID, "0 7"), (8, "0 8")])));
    accepts(&with(seen(1, 6, &[(ID, "1 7")])));
    accepts(&with(seen(2, 6, &[])));
    // A missing plant, the name of another user's plant, the name of another id, and a plant that was never created.
    catches(&with(seen(0, 6, &[(8, "0 8")])));
    catches(&with(seen(0, 6, &[(ID, "1 7"), (8, "0 8")])));
    catches(&with(seen(0, 6, &[(ID, "0 8"), (8, "0 8")])));
    let violation = history(&with(seen(1, 6, &[(ID, "1 7"), (9, "x")]))).check().expect_err("it was never created");
    assert_eq!((violation.user, violation.id), (1, 9));
}

/// Tries all orders, with every subset of the unknown writes.
fn has_an_order(held: Option<&str>, left: &[&Operation], settled: &[Duration]) -> bool {
    let unknown = |operation: &Operation| operation.action.outcome() == Some(Unknown);
    if left.iter().all(|operation| unknown(operation)) {
        return true;
    }
    (0..left.len()).any(|at| {
        let next = left[at];
        let mut rest = [&left[..at], &left[at + 1..]].concat();
        let over = |other: &Operation| settled.iter().any(|moment| (other.called..next.called).contains(moment));
        rest.retain(|other| !unknown(other) || !over(other));
        let first = rest.iter().all(|other| unknown(other) || other.returned >= next.called);
        let after = match &next.action {
            Action::Create(_, name, Done | Unknown) if held.is_none() => Some(name.as_str()),
            Action::Replace(_, name, Done | Unknown) if held.is_some() => Some(name.as_str()),
            Action::Delete(_, Done | Unknown) if held.is_some() => None,
            Action::Create(_, _, Denied) if held.is_some() => held,
            Action::Replace(_, _, Denied) | Action::Delete(_, Denied) if held.is_none() => held,
            Action::List(Some(plants)) if plants.get(&ID).map(String::as_str) == held => held,
            Action::Read(_, name) if name.as_deref() == held => held,
            _ => return false,
        };
        first && has_an_order(after, &rest, settled)
    })
}

#[test]
fn checker_agrees_with_exhaustive_search() {
    const LONGEST: u64 = 8;
    let outcomes = prop_oneof![4 => Just(Done), 2 => Just(Denied), 2 => Just(Unknown), 1 => Just(Rejected)];
    let one = (0..7_u8, outcomes, 0..LONGEST, 0..16_u64, 0..6_u64);
    let several = proptest::collection::vec(one, 1..usize::try_from(LONGEST).unwrap());
    let settled = proptest::collection::vec((0..22_u64).prop_map(Duration::from_millis), 0..3);
    let verdicts = [AtomicU64::new(0), AtomicU64::new(0)];
    let config = Config { cases: 20_000, failure_persistence: None, ..Config::default() };
    let result = TestRunner::new(config).run(&(several, settled), |(several, settled)| {
        let operations: Vec<Operation> = several
            .iter()
            .zip(0..)
            .map(|((kind, outcome, shown, from, length), number)| match kind {
                0 | 1 => create(*from, from + length, &format!("{number}"), *outcome),
                2 => delete(*from, from + length, *outcome),
                5 => replace(*from, from + length, &format!("{number}"), *outcome),
                3 => list(*from, from + length, None),
                6 => operation(
                    *from,
                    from + length,
                    Action::Read(ID, shown.checked_sub(1).map(|shown| shown.to_string())),
                ),
                _ => list(*from, from + length, Some(&format!("{shown}"))),
            })
            .collect();
        let happened: Vec<_> = operations.iter().filter(|one| one.action.outcome() != Some(Rejected)).collect();
        let expected = has_an_order(None, &happened, &settled);
        verdicts[usize::from(expected)].fetch_add(1, Ordering::Relaxed);
        let history = history(&operations);
        for moment in settled {
            history.settle(moment);
        }
        prop_assert_eq!(history.check().is_ok(), expected);
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
    let [rejected, accepted] = verdicts.map(AtomicU64::into_inner);
    assert!(rejected > 2_000 && accepted > 2_000, "{rejected} rejected, {accepted} accepted: too few of one kind");
}

/// A store behind a mutex, with clients whose requests and responses may be lost or delayed.
#[derive(Default)]
struct Simulated {
    plants: Mutex<MutexStore>,
}

#[derive(Default)]
struct MutexStore {
    present: BTreeMap<(usize, i64), String>,
    /// Writes of unknown outcome that the store has not received yet.
    late: Vec<(usize, i64, Option<String>)>,
    /// Planted fault: lists show this instead.
    cached: Option<BTreeMap<(usize, i64), String>>,
    /// Planted fault: after the next delete, the create of the plant is executed a second time.
    repeats_create: bool,
}

impl MutexStore {
    /// Creates a plant if there is a name, deletes it otherwise.
    fn write(&mut self, user: usize, id: i64, name: Option<String>) -> Outcome {
        match (name, self.present.contains_key(&(user, id))) {
            (Some(name), false) => self.present.insert((user, id), name),
            (None, true) if std::mem::take(&mut self.repeats_create) => None,
            (None, true) => self.present.remove(&(user, id)),
            _ => return Denied,
        };
        Done
    }
}

impl Simulated {
    fn operate(&self, history: &History, random: &mut Random, unknown: bool) {
        let (user, id) = (random.below(3), i64::try_from(random.below(8)).unwrap());
        let name = (random.below(2) == 0).then(|| history.name(user, id));
        let called = history.now();
        std::thread::yield_now();
        let mut plants = self.plants.lock().unwrap();
        if random.below(4) == 0 {
            let mine =
                plants.cached.as_ref().unwrap_or(&plants.present).iter().filter(|((owner, _), _)| *owner == user);
            let listed = mine.map(|((_, id), name)| (*id, name.clone())).collect();
            drop(plants);
            history.record(Operation { user, called, returned: history.now(), action: Action::List(Some(listed)) });
            return;
        }
        let outcome = match random.below(40) {
            0 => Rejected,
            1 if unknown => {
                let _ = plants.write(user, id, name.clone());
                Unknown
            }
            2 if unknown => {
                plants.late.push((user, id, name.clone()));
                Unknown
            }
            3 if unknown => Unknown,
            _ => plants.write(user, id, name.clone()),
        };
        if random.below(20) == 0
            && let Some((user, id, name)) = plants.late.pop()
        {
            let _ = plants.write(user, id, name);
        }
        drop(plants);
        std::thread::yield_now();
        let action = name.map_or(Action::Delete(id, outcome), |name| Action::Create(id, name, outcome));
        history.record(Operation { user, called, returned: history.now(), action });
    }
}

const THREADS: u64 = 16;

/// Runs this many operations on each thread. After half of them, `fault` changes the store.
fn simulate(operations: usize, unknown: bool, fault: impl FnOnce(&mut MutexStore)) -> Result<Summary, String> {
    let (store, history) = (Simulated::default(), History::new());
    let run = |seed: u64| {
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (store, history) = (&store, &history);
                let mut random = Random::new(seed + thread);
                scope.spawn(move || (0..operations / 2).for_each(|_| store.operate(history, &mut random, unknown)));
            }
        });
    };
    run(0);
    fault(&mut store.plants.lock().unwrap());
    run(THREADS);
    history.check().map_err(|violation| violation.to_string())
}

#[test]
fn long_history_of_a_correct_store_is_accepted() {
    let summary = simulate(3_126, true, |_| {}).expect("the history of a correct store is accepted");
    assert_eq!(summary.operations, 50_016);
    assert!(summary.acknowledged > 10_000 && summary.unknown > 500 && summary.rejected > 500, "{summary:?}");
}

const FAULTS: [&str; 3] = ["a lost write", "a stale cache of lists", "a write that is executed twice"];
/// The clients of a service, apart from its nodes and users.
const LOAD: Workload = Workload {
    nodes: Vec::new(),
    tokens: Vec::new(),
    writers: 6,
    listers: 2,
    watchers: 0,
    ids: 4,
    pause: Duration::ZERO,
    uses_all_operations: true,
};

#[test]
fn one_fault_in_a_long_history_is_found() {
    for name in FAULTS {
        let found = simulate(1_000, false, |plants| match name {
            "a lost write" => drop(plants.present.pop_first().expect("some plant")),
            "a stale cache of lists" => plants.cached = Some(plants.present.clone()),
            _ => plants.repeats_create = true,
        });
        assert!(found.expect_err(name).contains("no order explains"), "{name}");
    }
    let changed = simulate(1_000, true, |plants| {
        plants.present.values_mut().for_each(|name| name.push_str(" of another user"));
    });
    assert!(changed.expect_err("plants have changed").contains("of another user"));
}

/// Returns the action of a proxy in front of a node that makes its responses wrong.
fn planted(fault: &str) -> impl Fn(&ProxiedRequest, Upstream) -> Reply + Send + Sync + 'static {
    let fault = fault.to_owned();
    // By user and path.
    let lists: Mutex<BTreeMap<String, Response>> = Mutex::default();
    let creates: Mutex<BTreeMap<String, ProxiedRequest>> = Mutex::default();
    move |request, node| {
        let response = node.send(&request.without("if-none-match"));
        let of_user = |path: &str| format!("{} {path}", request.header("authorization").expect("a token"));
        let is_list = request.is("GET", "/plants?") && response.status == 200;
        match (&*fault, response.header("location")) {
            ("a stale cache of lists", _) if is_list => {
                let mut lists = lists.lock().unwrap();
                return Reply::Response(lists.entry(of_user(&request.path)).or_insert(response).clone());
            }
            ("a lost write", Some(path)) => {
                let (method, path) = ("DELETE".to_owned(), path.to_owned());
                node.send(&ProxiedRequest { method, path, headers: request.headers.clone(), body: Vec::new() });
            }
            ("a write that is executed twice", Some(path)) => {
                creates.lock().unwrap().insert(of_user(path), request.clone());
            }
            ("a write that is executed twice", None) if response.status == 204 => {
                let create = creates.lock().unwrap().remove(&of_user(&request.path));
                create.map(|create| node.send(&create));
            }
            _ => {}
        }
        Reply::Response(response)
    }
}

engine_test!(fault_planted_in_a_running_service_is_found, |store: &Store| {
    let server = store.serve(&["--log-level", "warn"]);
    for (number, name) in FAULTS.into_iter().enumerate() {
        let control = Fault::on(store.engine, &format!("service with {name}"), 1).into_control();
        let tokens = ["ada", "ben"].map(|user| store.token(&format!("{user}-{number}"), &[])).to_vec();
        let proxy = RewritingProxy::start(server.address(), planted(name));
        let nodes = vec![server.address(), proxy.address()];
        let workload = Workload { nodes, tokens, ..LOAD };
        let history = History::new();
        wait_for("a violation", || {
            control.begin_round();
            workload.run(&history, || wait_for_writes(&history, 100));
            history.check().err()
        });
        control.count_history(&history.summary());
        control.found_wrong();
    }
});

sqlite_test!(service_is_linearizable_under_load, |store: &Store| {
    let tokens = ["ada", "ben"].map(|user| store.token(user, &[])).to_vec();
    let (one, other) = (store.serve(&["--log-level", "warn"]), store.serve(&["--log-level", "warn"]));
    let nodes = vec![one.address(), other.address()];
    let workload = Workload { nodes, tokens, ..LOAD };
    let history = History::new();
    let ((), report) = workload.run(&history, || {
        wait_for_writes(&history, 300);
        // The outcome of requests in flight on this node is unknown.
        one.kill();
        wait_for_writes(&history, 300);
    });
    let summary = history.check().unwrap();
    assert_eq!(summary.acknowledged, report.acknowledged);
    assert!(summary.unknown > 0 && summary.operations > summary.acknowledged, "{summary:?}");
    assert!(report.longest_gap > Duration::ZERO && report.slowest > Duration::ZERO, "{report:?}");
});
