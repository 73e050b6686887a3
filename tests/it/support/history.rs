//! Linearizability checker: records the operations of clients and finds those that no sequential store explains.
//!
//! Every plant of every user is a register of its own: absent, or present with one value. A list is a read of each of
//! the user's registers. Registers do not touch each other, so a history is linearizable if it is for each of them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Outcome of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It was done, and once.
    Done,
    /// It found the register in the other state: a conflict for a create, not found for a delete.
    Denied,
    /// Unknown: done once at any time after its call, or never.
    Unknown,
    /// The service reported that nothing was done.
    Rejected,
}

#[derive(Clone, Debug)]
pub(crate) enum Action {
    /// Of a plant with a name from [`History::name`].
    Create(i64, String, Outcome),
    Delete(i64, Outcome),
    /// All plants of the user by id, or nothing if the list failed.
    List(Option<BTreeMap<i64, String>>),
}

impl Action {
    /// Returns the outcome of a write.
    pub(crate) fn outcome(&self) -> Option<Outcome> {
        match self {
            Self::Create(_, _, outcome) | Self::Delete(_, outcome) => Some(*outcome),
            Self::List(_) => None,
        }
    }
}

/// Times are those of [`History::now`]. When a write of unknown outcome returned does not matter.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    pub(crate) user: usize,
    pub(crate) called: Duration,
    pub(crate) returned: Duration,
    pub(crate) action: Action,
}

/// Operations of several threads, from a moment without any plants.
pub(crate) struct History {
    start: Instant,
    names: AtomicUsize,
    acknowledged: AtomicUsize,
    operations: Mutex<Vec<Operation>>,
    /// Moments without a write of unknown outcome in flight.
    settled: Mutex<Vec<Duration>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Summary {
    pub(crate) operations: usize,
    /// Creates and deletes that were done.
    pub(crate) acknowledged: usize,
    pub(crate) unknown: usize,
    pub(crate) rejected: usize,
    pub(crate) failed_lists: usize,
}

impl History {
    pub(crate) fn new() -> Self {
        let (names, acknowledged) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { start: Instant::now(), names, acknowledged, operations: Mutex::default(), settled: Mutex::default() }
    }

    pub(crate) fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Returns a unique name: a list that shows it names the create.
    pub(crate) fn name(&self, user: usize, id: i64) -> String {
        format!("user {user} id {id} number {}", self.names.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) fn record(&self, operation: Operation) {
        if operation.action.outcome() == Some(Outcome::Done) {
            self.acknowledged.fetch_add(1, Ordering::Relaxed);
        }
        self.operations.lock().expect("the operations").push(operation);
    }

    /// Notes that a write of unknown outcome that was called before this moment and has not happened never will.
    /// The caller has verified it. Without it, each such delete could explain the loss of one plant at any later time.
    pub(crate) fn settle(&self, moment: Duration) {
        self.settled.lock().expect("the moments").push(moment);
    }

    /// Returns the number of writes that were acknowledged so far.
    pub(crate) fn acknowledged(&self) -> usize {
        self.acknowledged.load(Ordering::Relaxed)
    }

    /// Counts the operations so far.
    pub(crate) fn summary(&self) -> Summary {
        let operations = self.operations.lock().expect("the operations");
        let mut summary = Summary { operations: operations.len(), ..Summary::default() };
        for operation in operations.iter() {
            match operation.action.outcome() {
                Some(Outcome::Done) => summary.acknowledged += 1,
                Some(Outcome::Unknown) => summary.unknown += 1,
                Some(Outcome::Rejected) => summary.rejected += 1,
                Some(Outcome::Denied) | None => {}
            }
            summary.failed_lists += usize::from(matches!(operation.action, Action::List(None)));
        }
        summary
    }

    /// State of each plant by the last acknowledged write: the time of its call, and the name unless it was a delete.
    /// Plants that another write may have changed after it are left out.
    pub(crate) fn certain(&self) -> BTreeMap<(usize, i64), (Duration, Option<String>)> {
        let operations = self.operations.lock().expect("the operations");
        let settled = self.settled.lock().expect("the moments");
        // When a write has happened at the latest, if it has.
        let over = |operation: &Operation| match operation.action.outcome() {
            Some(Outcome::Done) => Some(operation.returned),
            Some(Outcome::Unknown) => {
                let moments = settled.iter().copied().filter(|moment| *moment >= operation.called);
                Some(moments.min().unwrap_or(Duration::MAX))
            }
            Some(Outcome::Denied | Outcome::Rejected) | None => None,
        };
        let mut last: BTreeMap<(usize, i64), (Duration, Option<String>)> = BTreeMap::new();
        let mut ends: BTreeMap<(usize, i64), Vec<Duration>> = BTreeMap::new();
        for operation in operations.iter() {
            let (id, name, outcome) = match &operation.action {
                Action::Create(id, name, outcome) => (*id, Some(name), *outcome),
                Action::Delete(id, outcome) => (*id, None, *outcome),
                Action::List(_) => continue,
            };
            let register = (operation.user, id);
            if outcome == Outcome::Done {
                let last = last.entry(register).or_default();
                *last = (operation.called, name.cloned()).max(std::mem::take(last));
            }
            ends.entry(register).or_default().extend(over(operation));
        }
        // The end of the last write itself is the only one after its call.
        last.retain(|register, (called, _)| ends[register].iter().filter(|end| *end >= called).count() == 1);
        last
    }

    pub(crate) fn check(&self) -> Result<Summary, Violation> {
        match self.violations().into_iter().next() {
            Some(violation) => Err(violation),
            None => Ok(self.summary()),
        }
    }

    /// The plants with which something is wrong.
    pub(crate) fn violations(&self) -> Vec<Violation> {
        let operations = self.operations.lock().expect("the operations");
        let mut ids: BTreeMap<usize, BTreeSet<i64>> = BTreeMap::new();
        for operation in operations.iter() {
            let ids = ids.entry(operation.user).or_default();
            match &operation.action {
                Action::Create(id, ..) | Action::Delete(id, _) => {
                    ids.insert(*id);
                }
                Action::List(plants) => ids.extend(plants.iter().flat_map(BTreeMap::keys)),
            }
        }
        let mut registers: BTreeMap<(usize, i64), Vec<&Operation>> = BTreeMap::new();
        for operation in operations.iter() {
            match &operation.action {
                Action::Create(id, ..) | Action::Delete(id, _) => {
                    registers.entry((operation.user, *id)).or_default().push(operation);
                }
                Action::List(None) => {}
                Action::List(Some(_)) => {
                    for id in &ids[&operation.user] {
                        registers.entry((operation.user, *id)).or_default().push(operation);
                    }
                }
            }
        }
        let settled = self.settled.lock().expect("the moments");
        let wrong = |((user, id), operations): ((usize, i64), Vec<&Operation>)| {
            let offending = check_register(id, &operations, &settled).err()?;
            Some(Violation::new(user, id, offending, &operations))
        };
        registers.into_iter().filter_map(wrong).collect()
    }
}

/// Content of a register: the number of a value that some list shows, or [`UNSEEN`]. Values that no list ever shows are
/// all alike: nothing that was observed depends on which of them it is.
type Content = Option<usize>;
const UNSEEN: usize = 0;

/// Effect on the register of an operation that is known to have happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Put(usize),
    Take,
    FindAny,
    Find(Content),
}

impl Step {
    /// The register afterwards, if the step is possible.
    fn on(self, held: Content) -> Option<Content> {
        match self {
            Self::Put(value) => held.is_none().then_some(Some(value)),
            Self::Take => held.is_some().then_some(None),
            Self::FindAny => held.is_some().then_some(held),
            Self::Find(expected) => (held == expected).then_some(held),
        }
    }

    fn changes(self) -> bool {
        matches!(self, Self::Put(_) | Self::Take)
    }
}

/// Possible state of a register at some moment.
#[derive(Clone, Copy, Debug)]
struct Possibility {
    held: Content,
    /// The operations under way that have already happened, a bit for each place.
    happened: u128,
    /// Number of writes of unknown outcome that have happened.
    creates: usize,
    deletes: usize,
}

impl Possibility {
    /// Returns true if everything that may follow `other` may follow this, too: the register is the same, the same changes are
    /// still to come, and there is no finding still to come and no unknown write used up that is not there too.
    fn covers(&self, other: &Self, changing: u128) -> bool {
        self.held == other.held
            && (self.happened ^ other.happened) & changing == 0
            && other.happened & !self.happened == 0
            && self.creates <= other.creates
            && self.deletes <= other.deletes
    }
}

/// Adds a possibility unless a better one is there; takes out those that it is better than.
fn add(possibilities: &mut Vec<Possibility>, new: Possibility, changing: u128) -> bool {
    if possibilities.iter().any(|known| known.covers(&new, changing)) {
        return false;
    }
    possibilities.retain(|known| !new.covers(known, changing));
    possibilities.push(new);
    true
}

/// The operations under way at some moment.
#[derive(Default)]
struct UnderWay {
    places: Vec<Option<Step>>,
    /// The places of those that change the register.
    changing: u128,
    /// Number of writes of unknown outcome that have been called.
    creates: usize,
    deletes: usize,
}

impl UnderWay {
    fn enter(&mut self, step: Step) -> usize {
        let place = self.places.iter().position(Option::is_none).unwrap_or(self.places.len());
        assert!(place < 128, "more operations at once on one plant than the checker has bits for");
        self.places.resize(self.places.len().max(place + 1), None);
        self.places[place] = Some(step);
        if step.changes() {
            self.changing |= 1 << place;
        }
        place
    }

    fn leave(&mut self, place: usize) {
        self.places[place] = None;
        self.changing &= !(1 << place);
    }

    /// Lets all reads happen that the register allows. Early is best: a read does not restrict other operations.
    fn find(&self, mut possibility: Possibility) -> Possibility {
        for (place, step) in self.places.iter().enumerate() {
            if step.is_some_and(|step| !step.changes() && step.on(possibility.held).is_some()) {
                possibility.happened |= 1 << place;
            }
        }
        possibility
    }

    /// Lists the possibilities after one more change of the register.
    fn changes(&self, from: Possibility) -> Vec<Possibility> {
        let mut next = Vec::new();
        for (place, step) in self.places.iter().enumerate() {
            let Some(step) = step.filter(|step| step.changes() && from.happened & (1 << place) == 0) else { continue };
            if let Some(held) = step.on(from.held) {
                next.push(Possibility { held, happened: from.happened | (1 << place), ..from });
            }
        }
        if from.held.is_none() && from.creates < self.creates {
            next.push(Possibility { held: Some(UNSEEN), creates: from.creates + 1, ..from });
        }
        if from.held.is_some() && from.deletes < self.deletes {
            next.push(Possibility { held: None, deletes: from.deletes + 1, ..from });
        }
        next.into_iter().map(|possibility| self.find(possibility)).collect()
    }

    /// Lists all reachable possibilities, with any of the changes applied now or left for later.
    fn settle(&self, possibilities: Vec<Possibility>) -> Vec<Possibility> {
        let mut known = possibilities.clone();
        let mut open = possibilities;
        while let Some(possibility) = open.pop() {
            let next = self.changes(possibility).into_iter();
            open.extend(next.filter(|next| add(&mut known, *next, self.changing)));
        }
        known
    }

    /// Lists all possibilities in which the operation at this place has happened. Operations that are not needed for
    /// that are left for later.
    fn happen(&self, place: usize, possibilities: Vec<Possibility>) -> Vec<Possibility> {
        let mut happened = Vec::new();
        let mut known = possibilities.clone();
        let mut open = possibilities;
        while let Some(possibility) = open.pop() {
            if possibility.happened & (1 << place) != 0 {
                add(&mut happened, possibility, self.changing);
                continue;
            }
            for next in self.changes(possibility) {
                if add(&mut known, next, self.changing) {
                    open.push(next);
                }
            }
        }
        happened
    }
}

/// Events of a timeline, in the order that applies at the same moment: an operation that is called when another
/// returns may have happened before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Call(usize),
    CallUnknown { create: bool },
    Settle,
    Return(usize),
}

/// Operations on one register.
struct Timeline<'a> {
    /// The operations that are known to have happened.
    steps: Vec<(Step, &'a Operation)>,
    /// In the order of time; the numbers are those of the steps.
    events: Vec<(Duration, Event)>,
}

fn timeline<'a>(id: i64, operations: &[&'a Operation], settled: &[Duration]) -> Timeline<'a> {
    let mut first_shown: HashMap<&str, (usize, Duration)> = HashMap::new();
    for operation in operations {
        if let Action::List(Some(plants)) = &operation.action
            && let Some(name) = plants.get(&id)
        {
            let number = first_shown.len() + 1;
            let (_, first) = first_shown.entry(name).or_insert((number, operation.returned));
            *first = operation.returned.min(*first);
        }
    }
    let mut steps = Vec::new();
    let mut events: Vec<_> = settled.iter().map(|moment| (*moment, Event::Settle)).collect();
    // A create that a list shows returns with it, and after it: if it cannot be, the list is to blame.
    let (unknown, known): (Vec<&Operation>, Vec<&Operation>) =
        operations.iter().partition(|operation| operation.action.outcome() == Some(Outcome::Unknown));
    for operation in known.into_iter().chain(unknown) {
        let shown = |name: &str| first_shown.get(name).map_or(UNSEEN, |(number, _)| *number);
        let mut returned = operation.returned;
        let step = match &operation.action {
            Action::Create(_, _, Outcome::Rejected) | Action::Delete(_, Outcome::Rejected) | Action::List(None) => {
                continue;
            }
            Action::Create(_, name, Outcome::Unknown) if shown(name) != UNSEEN => {
                let settled = settled.iter().copied().filter(|moment| *moment >= operation.called).min();
                let first_shown = first_shown[name.as_str()].1;
                // Not before its call, or the list is at fault and found to be.
                returned = settled.map_or(first_shown, |settled| settled.min(first_shown)).max(operation.called);
                Step::Put(shown(name))
            }
            Action::Create(_, _, Outcome::Unknown) | Action::Delete(_, Outcome::Unknown) => {
                let create = matches!(operation.action, Action::Create(..));
                events.push((operation.called, Event::CallUnknown { create }));
                continue;
            }
            Action::Create(_, name, Outcome::Done) => Step::Put(shown(name)),
            Action::Create(_, _, Outcome::Denied) => Step::FindAny,
            Action::Delete(_, Outcome::Done) => Step::Take,
            Action::Delete(_, Outcome::Denied) => Step::Find(None),
            Action::List(Some(plants)) => Step::Find(plants.get(&id).map(|name| shown(name))),
        };
        events.push((operation.called, Event::Call(steps.len())));
        events.push((returned, Event::Return(steps.len())));
        steps.push((step, operation));
    }
    events.sort();
    Timeline { steps, events }
}

/// Walks through the calls and returns in the order of time and tracks all possibilities. An operation happens between
/// the two, and need not happen before some return requires it. When no possibility is left, the operation that returned
/// there is the error: no order explains it.
///
/// Writes of unknown outcome never return, so they would pile up. They do not, for these reasons:
/// - A create whose value some list shows has happened, and before the first return of such a list: it is like any
///   other create that returned then.
/// - A create whose value no list shows need not have happened. If it did, it was to explain a conflict, a delete or a
///   plant that another unknown write took away, and which of several such creates it was makes no difference. So they
///   are counted: how many were called, and how many a possibility has used.
/// - Unknown deletes are all alike, and counted in the same way.
/// - To have used fewer of them is never worse, so of two possibilities that differ only in that, one is enough.
/// - When things settle, those called before are over: all that they may have done by then is taken into account.
///
/// A rejected write is left out: a list that shows its value finds no create that explains it.
fn check_register<'a>(id: i64, operations: &[&'a Operation], settled: &[Duration]) -> Result<(), &'a Operation> {
    let Timeline { steps, events } = timeline(id, operations, settled);
    let mut under_way = UnderWay::default();
    let mut places = vec![usize::MAX; steps.len()];
    let mut possibilities = vec![Possibility { held: None, happened: 0, creates: 0, deletes: 0 }];
    for (_, event) in events {
        match event {
            Event::CallUnknown { create: true } => under_way.creates += 1,
            Event::CallUnknown { create: false } => under_way.deletes += 1,
            Event::Call(number) => {
                places[number] = under_way.enter(steps[number].0);
                possibilities = possibilities.into_iter().map(|possibility| under_way.find(possibility)).collect();
            }
            Event::Settle => {
                let ways = under_way.settle(possibilities);
                (under_way.creates, under_way.deletes) = (0, 0);
                possibilities = Vec::new();
                for way in ways {
                    add(&mut possibilities, Possibility { creates: 0, deletes: 0, ..way }, under_way.changing);
                }
            }
            Event::Return(number) => {
                let place = places[number];
                possibilities = under_way.happen(place, possibilities);
                under_way.leave(place);
                for possibility in &mut possibilities {
                    possibility.happened &= !(1 << place);
                }
                if possibilities.is_empty() {
                    return Err(steps[number].1);
                }
            }
        }
    }
    Ok(())
}

/// Operation that no order of the operations explains.
pub(crate) struct Violation {
    pub(crate) user: usize,
    pub(crate) id: i64,
    /// The operations on this plant that lead there, in the order of their calls, and which of them cannot be.
    lines: Vec<(bool, String)>,
}

/// Number of operations that are shown before the offending one.
const SHOWN: usize = 20;

impl Violation {
    fn new(user: usize, id: i64, offending: &Operation, operations: &[&Operation]) -> Self {
        let shown = |operation: &Operation| match &operation.action {
            Action::List(Some(plants)) => plants.get(&id).cloned(),
            _ => None,
        };
        let name = shown(offending);
        let creates = |operation: &Operation| match (&operation.action, &name) {
            (Action::Create(_, created, _), Some(name)) => created == name,
            _ => false,
        };
        let mut reported: Vec<&Operation> = operations.to_vec();
        reported.retain(|operation| operation.called <= offending.returned);
        reported.sort_by_key(|operation| operation.called);
        let last = reported.len().saturating_sub(SHOWN);
        let reported = reported.iter().enumerate().filter(|(at, operation)| *at >= last || creates(operation));
        let lines = reported.map(|(_, operation)| (std::ptr::eq(*operation, offending), line(id, operation))).collect();
        Self { user, id, lines }
    }
}

fn line(id: i64, operation: &Operation) -> String {
    let (what, outcome) = match &operation.action {
        Action::Create(_, name, outcome) => (format!("create {name:?}"), Some((outcome, "created", "conflict"))),
        Action::Delete(_, outcome) => ("delete".to_owned(), Some((outcome, "deleted", "not found"))),
        Action::List(plants) => {
            let shown = plants.as_ref().and_then(|plants| plants.get(&id));
            (shown.map_or("list without it".to_owned(), |name| format!("list with {name:?}")), None)
        }
    };
    let end = match outcome {
        None => String::new(),
        Some((Outcome::Done, done, _)) => format!(": {done}"),
        Some((Outcome::Denied, _, denied)) => format!(": {denied}"),
        Some((Outcome::Unknown, ..)) => ": unknown".to_owned(),
        Some((Outcome::Rejected, ..)) => ": rejected, nothing done".to_owned(),
    };
    format!("{:>14?} to {:>14?}  {what}{end}", operation.called, operation.returned)
}

impl fmt::Display for Violation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "no order explains what happened to plant {} of user {}:", self.id, self.user)?;
        for (offending, line) in &self.lines {
            write!(formatter, "\n{} {line}", if *offending { ">" } else { " " })?;
        }
        Ok(())
    }
}

/// The same, because this is what a failed test prints.
impl fmt::Debug for Violation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}
