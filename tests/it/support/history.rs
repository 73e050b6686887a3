//! Linearizability checker: records the operations of clients and finds those that no sequential order explains.
//!
//! Every plant of every user is one register: absent, or present with one value. A list reads every register of the
//! user. Registers are independent, so a history is linearizable if the history of each register is.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::wait_until;

/// Outcome of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Executed exactly once.
    Done,
    /// Rejected because of the state of the register: a conflict for a create, not found for a replacement or a delete.
    Denied,
    /// Executed once at any time after the call, or never.
    Unknown,
    /// Not executed, by the response of the service.
    Rejected,
}

#[derive(Clone, Debug)]
pub(crate) enum Action {
    /// The name of the plant is from [`History::name`].
    Create(i64, String, Outcome),
    Replace(i64, String, Outcome),
    Delete(i64, Outcome),
    /// All plants of the user by id; `None` if the request failed.
    List(Option<BTreeMap<i64, String>>),
    /// The name of one plant, if there is such a plant.
    Read(i64, Option<String>),
}

impl Action {
    /// Returns the outcome of a write.
    pub(crate) fn outcome(&self) -> Option<Outcome> {
        match self {
            Self::Create(_, _, outcome) | Self::Replace(_, _, outcome) | Self::Delete(_, outcome) => Some(*outcome),
            Self::List(_) | Self::Read(..) => None,
        }
    }

    /// Returns the name with which a list or a read shows this plant.
    fn shown(&self, id: i64) -> Option<&String> {
        match self {
            Self::List(plants) => plants.as_ref()?.get(&id),
            Self::Read(read, name) if *read == id => name.as_ref(),
            _ => None,
        }
    }

    /// Returns the plant of every operation except lists.
    fn id(&self) -> Option<i64> {
        match self {
            Self::Create(id, ..) | Self::Replace(id, ..) | Self::Delete(id, _) | Self::Read(id, _) => Some(*id),
            Self::List(_) => None,
        }
    }
}

/// An operation with its times of [`History::now`]. The time at which a write of unknown outcome returned is ignored.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    pub(crate) user: usize,
    pub(crate) called: Duration,
    pub(crate) returned: Duration,
    pub(crate) action: Action,
}

/// Operations of several threads, starting with an empty store.
pub(crate) struct History {
    start: Instant,
    names: AtomicUsize,
    acknowledged: AtomicUsize,
    /// Seed of the next run of clients.
    seed: AtomicU64,
    operations: Mutex<Vec<Operation>>,
    /// Times at which no write of unknown outcome was in flight.
    settled: Mutex<Vec<Duration>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Summary {
    pub(crate) operations: usize,
    /// Creates and deletes that succeeded.
    pub(crate) acknowledged: usize,
    pub(crate) unknown: usize,
    pub(crate) rejected: usize,
    pub(crate) failed_lists: usize,
}

impl History {
    pub(crate) fn with_seed(seed: u64) -> Self {
        Self {
            start: Instant::now(),
            names: AtomicUsize::new(0),
            acknowledged: AtomicUsize::new(0),
            seed: AtomicU64::new(seed << 32),
            operations: Mutex::default(),
            settled: Mutex::default(),
        }
    }

    /// Returns the first of many seeds for the clients of a run.
    pub(crate) fn seed(&self) -> u64 {
        self.seed.fetch_add(1 << 16, Ordering::Relaxed)
    }

    pub(crate) fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Returns a unique name, so that a list shows which create it has read.
    pub(crate) fn name(&self, user: usize, id: i64) -> String {
        format!("user {user} id {id} number {}", self.names.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) fn record(&self, operation: Operation) {
        if operation.action.outcome() == Some(Outcome::Done) {
            self.acknowledged.fetch_add(1, Ordering::Relaxed);
        }
        self.operations.lock().expect("the operations").push(operation);
    }

    /// Records that writes of unknown outcome that were called before `moment` take no effect after it. The caller must
    /// have verified that. Without it, each unknown delete could explain the loss of one plant at any later time.
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

    /// Returns the state of each plant after its last acknowledged write: the time of the call, and the name unless it
    /// was a delete. Omits plants that another write may have changed later.
    pub(crate) fn certain(&self) -> BTreeMap<(usize, i64), (Duration, Option<String>)> {
        let operations = self.operations.lock().expect("the operations");
        let settled = self.settled.lock().expect("the moments");
        // The latest time at which a write can have taken effect; `None` if it had no effect.
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
                Action::Create(id, name, outcome) | Action::Replace(id, name, outcome) => (*id, Some(name), *outcome),
                Action::Delete(id, outcome) => (*id, None, *outcome),
                Action::List(_) | Action::Read(..) => continue,
            };
            let register = (operation.user, id);
            if outcome == Outcome::Done {
                let last = last.entry(register).or_default();
                *last = (operation.called, name.cloned()).max(std::mem::take(last));
            }
            ends.entry(register).or_default().extend(over(operation));
        }
        // After the call of the last write, only that write itself may have ended.
        last.retain(|register, (called, _)| ends[register].iter().filter(|end| *end >= called).count() == 1);
        last
    }

    pub(crate) fn check(&self) -> Result<Summary, Violation> {
        match self.violations().into_iter().next() {
            Some(violation) => Err(violation),
            None => Ok(self.summary()),
        }
    }

    /// Returns one violation for each plant whose history is not linearizable.
    pub(crate) fn violations(&self) -> Vec<Violation> {
        let operations = self.operations.lock().expect("the operations");
        let mut ids: BTreeMap<usize, BTreeSet<i64>> = BTreeMap::new();
        for operation in operations.iter() {
            let ids = ids.entry(operation.user).or_default();
            ids.extend(operation.action.id());
            if let Action::List(Some(plants)) = &operation.action {
                ids.extend(plants.keys());
            }
        }
        let mut registers: BTreeMap<(usize, i64), Vec<&Operation>> = BTreeMap::new();
        for operation in operations.iter() {
            let mut add = |id| registers.entry((operation.user, id)).or_default().push(operation);
            match (&operation.action, operation.action.id()) {
                (_, Some(id)) => add(id),
                (Action::List(None), None) => {}
                (_, None) => ids[&operation.user].iter().for_each(|id| add(*id)),
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

/// Waits until more writes are acknowledged.
#[track_caller]
pub(crate) fn wait_for_writes(history: &History, more: usize) {
    let enough = history.acknowledged() + more;
    wait_until("more writes", || history.acknowledged() >= enough);
}

/// Content of a register: the number of a value that some list shows, or [`UNSEEN`]. All values that no list shows are
/// represented by `UNSEEN`, because no observation distinguishes them.
type Content = Option<usize>;
const UNSEEN: usize = 0;

/// Effect of an executed operation on the register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Put(usize),
    Replace(usize),
    Take,
    ReadPresent,
    Read(Content),
}

impl Step {
    /// Returns the register after the step, or `None` if the step is impossible.
    fn apply(self, held: Content) -> Option<Content> {
        match self {
            Self::Put(value) => held.is_none().then_some(Some(value)),
            Self::Replace(value) => held.is_some().then_some(Some(value)),
            Self::Take => held.is_some().then_some(None),
            Self::ReadPresent => held.is_some().then_some(held),
            Self::Read(expected) => (held == expected).then_some(held),
        }
    }

    fn changes(self) -> bool {
        matches!(self, Self::Put(_) | Self::Replace(_) | Self::Take)
    }
}

/// Possible state of a register at some moment.
#[derive(Clone, Copy, Debug)]
struct Possibility {
    held: Content,
    /// The in-flight operations that have taken effect, one bit for each slot.
    happened: u128,
    /// Numbers of creates and deletes of unknown outcome that have taken effect.
    creates: usize,
    deletes: usize,
}

impl Possibility {
    /// Returns true if every continuation of `other` is also possible from `self`: the register and the outstanding
    /// changes are the same, `self` has no outstanding read that `other` has applied, and it has used no more unknown
    /// writes.
    fn covers(&self, other: &Self, changing: u128) -> bool {
        self.held == other.held
            && (self.happened ^ other.happened) & changing == 0
            && other.happened & !self.happened == 0
            && self.creates <= other.creates
            && self.deletes <= other.deletes
    }
}

/// Adds a possibility unless a known one covers it, and removes those that it covers.
fn add(possibilities: &mut Vec<Possibility>, new: Possibility, changing: u128) -> bool {
    if possibilities.iter().any(|known| known.covers(&new, changing)) {
        return false;
    }
    possibilities.retain(|known| !new.covers(known, changing));
    possibilities.push(new);
    true
}

/// The operations in flight at some moment.
#[derive(Default)]
struct InFlight {
    slots: Vec<Option<Step>>,
    /// Bits of the slots whose operations change the register.
    changing: u128,
    /// Numbers of creates and deletes of unknown outcome that have been called.
    creates: usize,
    deletes: usize,
}

impl InFlight {
    fn enter(&mut self, step: Step) -> usize {
        let slot = self.slots.iter().position(Option::is_none).unwrap_or(self.slots.len());
        assert!(slot < 128, "more than 128 concurrent operations on one plant");
        self.slots.resize(self.slots.len().max(slot + 1), None);
        self.slots[slot] = Some(step);
        if step.changes() {
            self.changing |= 1 << slot;
        }
        slot
    }

    fn leave(&mut self, slot: usize) {
        self.slots[slot] = None;
        self.changing &= !(1 << slot);
    }

    /// Applies all reads that match the register. Applying them early is safe, because a read does not restrict other
    /// operations.
    fn apply_reads(&self, mut possibility: Possibility) -> Possibility {
        for (slot, step) in self.slots.iter().enumerate() {
            if step.is_some_and(|step| !step.changes() && step.apply(possibility.held).is_some()) {
                possibility.happened |= 1 << slot;
            }
        }
        possibility
    }

    /// Lists the possibilities after one more change of the register.
    fn changes(&self, from: Possibility) -> Vec<Possibility> {
        let mut next = Vec::new();
        for (slot, step) in self.slots.iter().enumerate() {
            let Some(step) = step.filter(|step| step.changes() && from.happened & (1 << slot) == 0) else { continue };
            if let Some(held) = step.apply(from.held) {
                next.push(Possibility { held, happened: from.happened | (1 << slot), ..from });
            }
        }
        if from.held.is_none() && from.creates < self.creates {
            next.push(Possibility { held: Some(UNSEEN), creates: from.creates + 1, ..from });
        }
        if from.held.is_some() && from.deletes < self.deletes {
            next.push(Possibility { held: None, deletes: from.deletes + 1, ..from });
        }
        next.into_iter().map(|possibility| self.apply_reads(possibility)).collect()
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

    /// Lists all possibilities in which the operation in this slot has taken effect. Only operations that it needs are
    /// applied before it.
    fn happen(&self, slot: usize, possibilities: Vec<Possibility>) -> Vec<Possibility> {
        let mut happened = Vec::new();
        let mut known = possibilities.clone();
        let mut open = possibilities;
        while let Some(possibility) = open.pop() {
            if possibility.happened & (1 << slot) != 0 {
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

/// Events of a timeline, in their order at equal times: calls come before returns, because an operation that is called
/// when another returns may have taken effect before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Call(usize),
    CallUnknown { create: bool },
    Settle,
    Return(usize),
}

/// Operations on one register.
struct Timeline<'a> {
    /// The executed operations.
    steps: Vec<(Step, &'a Operation)>,
    /// In the order of time. The numbers are indexes into `steps`.
    events: Vec<(Duration, Event)>,
}

fn timeline<'a>(id: i64, operations: &[&'a Operation], settled: &[Duration]) -> Timeline<'a> {
    let mut first_shown: HashMap<&str, (usize, Duration)> = HashMap::new();
    for operation in operations {
        if let Some(name) = operation.action.shown(id) {
            let number = first_shown.len() + 1;
            let (_, first) = first_shown.entry(name).or_insert((number, operation.returned));
            *first = operation.returned.min(*first);
        }
    }
    let mut steps = Vec::new();
    let mut events: Vec<_> = settled.iter().map(|moment| (*moment, Event::Settle)).collect();
    // An unknown write whose name a list shows returns when the list does. Its return is checked after that of the list, so
    // that an impossible history is reported at the list.
    let (unknown, known): (Vec<&Operation>, Vec<&Operation>) =
        operations.iter().partition(|operation| operation.action.outcome() == Some(Outcome::Unknown));
    for operation in known.into_iter().chain(unknown) {
        let shown = |name: &str| first_shown.get(name).map_or(UNSEEN, |(number, _)| *number);
        let mut returned = operation.returned;
        let step = match &operation.action {
            Action::Create(_, name, Outcome::Unknown) | Action::Replace(_, name, Outcome::Unknown)
                if shown(name) != UNSEEN =>
            {
                let settled = settled.iter().copied().filter(|moment| *moment >= operation.called).min();
                let first_shown = first_shown[name.as_str()].1;
                // The return is not before the call: if the list returned earlier, the checker reports the list.
                returned = settled.map_or(first_shown, |settled| settled.min(first_shown)).max(operation.called);
                let creates = matches!(operation.action, Action::Create(..));
                if creates { Step::Put(shown(name)) } else { Step::Replace(shown(name)) }
            }
            Action::Create(_, _, Outcome::Rejected)
            | Action::Replace(_, _, Outcome::Rejected | Outcome::Unknown)
            | Action::Delete(_, Outcome::Rejected)
            | Action::List(None) => continue,
            Action::Create(_, _, Outcome::Unknown) | Action::Delete(_, Outcome::Unknown) => {
                let create = matches!(operation.action, Action::Create(..));
                events.push((operation.called, Event::CallUnknown { create }));
                continue;
            }
            Action::Create(_, name, Outcome::Done) => Step::Put(shown(name)),
            Action::Create(_, _, Outcome::Denied) => Step::ReadPresent,
            Action::Replace(_, name, Outcome::Done) => Step::Replace(shown(name)),
            Action::Delete(_, Outcome::Done) => Step::Take,
            Action::Replace(_, _, Outcome::Denied) | Action::Delete(_, Outcome::Denied) => Step::Read(None),
            action @ (Action::List(Some(_)) | Action::Read(..)) => Step::Read(action.shown(id).map(|name| shown(name))),
        };
        events.push((operation.called, Event::Call(steps.len())));
        events.push((returned, Event::Return(steps.len())));
        steps.push((step, operation));
    }
    events.sort();
    Timeline { steps, events }
}

/// Visits the calls and returns in the order of time and tracks all possible states. An operation takes effect between
/// its call and its return, and is applied only when a return requires it. If no possible state is left after a return,
/// that operation is reported: no order of the operations explains it.
///
/// Writes of unknown outcome never return, so the possible states could grow without bound. These rules limit them:
/// - A create or replacement whose value some list shows took effect before the first return of such a list. It is
///   handled like one that returned then.
/// - A create whose value no list shows may not have taken effect. If it did, it explains a conflict, a delete or a
///   plant that another unknown write removed. Such creates are interchangeable, so only their numbers are stored: how
///   many were called, and how many a possibility has used.
/// - A replacement whose value no list shows is omitted: without it, everything that follows is possible, too.
/// - Unknown deletes are interchangeable and counted in the same way.
/// - A possibility that has used fewer of them allows everything that one with more allows, so only the first is kept.
/// - At a settled moment, all effects of the unknown writes called before are applied, and their numbers reset to 0.
///
/// Rejected writes are omitted: if a list shows their value, no create explains it.
fn check_register<'a>(id: i64, operations: &[&'a Operation], settled: &[Duration]) -> Result<(), &'a Operation> {
    let Timeline { steps, events } = timeline(id, operations, settled);
    let mut in_flight = InFlight::default();
    let mut slots = vec![usize::MAX; steps.len()];
    let mut possibilities = vec![Possibility { held: None, happened: 0, creates: 0, deletes: 0 }];
    for (_, event) in events {
        match event {
            Event::CallUnknown { create: true } => in_flight.creates += 1,
            Event::CallUnknown { create: false } => in_flight.deletes += 1,
            Event::Call(number) => {
                slots[number] = in_flight.enter(steps[number].0);
                possibilities =
                    possibilities.into_iter().map(|possibility| in_flight.apply_reads(possibility)).collect();
            }
            Event::Settle => {
                let settled = in_flight.settle(possibilities);
                (in_flight.creates, in_flight.deletes) = (0, 0);
                possibilities = Vec::new();
                for possibility in settled {
                    let possibility = Possibility { creates: 0, deletes: 0, ..possibility };
                    add(&mut possibilities, possibility, in_flight.changing);
                }
            }
            Event::Return(number) => {
                let slot = slots[number];
                possibilities = in_flight.happen(slot, possibilities);
                in_flight.leave(slot);
                for possibility in &mut possibilities {
                    possibility.happened &= !(1 << slot);
                }
                if possibilities.is_empty() {
                    return Err(steps[number].1);
                }
            }
        }
    }
    Ok(())
}

/// Operation that no sequential order explains.
pub(crate) struct Violation {
    pub(crate) user: usize,
    pub(crate) id: i64,
    /// The operations on this plant up to the impossible one, in the order of their calls. True marks the impossible
    /// one.
    lines: Vec<(bool, String)>,
}

/// Number of operations that are shown, up to the offending one.
const SHOWN: usize = 20;

impl Violation {
    fn new(user: usize, id: i64, offending: &Operation, operations: &[&Operation]) -> Self {
        let name = offending.action.shown(id);
        let creates = |operation: &Operation| match (&operation.action, name) {
            (Action::Create(_, created, _) | Action::Replace(_, created, _), Some(name)) => created == name,
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
        Action::Replace(_, name, outcome) => (format!("replace by {name:?}"), Some((outcome, "replaced", "not found"))),
        Action::Delete(_, outcome) => ("delete".to_owned(), Some((outcome, "deleted", "not found"))),
        action @ (Action::List(_) | Action::Read(..)) => {
            let read = if matches!(action, Action::List(_)) { "list" } else { "read" };
            (action.shown(id).map_or(format!("{read} without it"), |name| format!("{read} with {name:?}")), None)
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

/// Same as `Display`: a failed test prints the `Debug` output.
impl fmt::Debug for Violation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}
