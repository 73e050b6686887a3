//! Lists of plants: versions, ranges, and a k-way merge of lists in the order of ids and, for equal ids, of the lists.
//!
//! A step reads a page of each list, and emits plants until one list needs its next page. The page sizes of the next
//! step adapt: larger for a list whose page was used up, small for a list that was hardly used, and larger for all lists if few
//! plants were emitted. So the number of plants read stays close to the number emitted, even for lists of very different density.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::ControlFlow;

use plantstore_model::plant::PlantId;
use plantstore_model::user::UserId;

/// Approximate number of plants that the first step reads of all lists together.
const FIRST_STEP: usize = 256;
/// Growth factor of the page of a list that was used up, and maximum size of a page.
const PAGE_GROWTH: usize = 4;
const PAGE_MAX: usize = 1_024;
/// Number of emitted plants below which all pages grow.
const STEP_MIN: usize = 64;

/// The version of a user. It increases at least with each change of the user's plants. It is never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Version(i64);

impl Version {
    pub const fn new(value: i64) -> Self {
        Self(value)
    }

    pub const fn get(self) -> i64 {
        self.0
    }
}

/// Result of one step of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListStep {
    /// True when the ranges hold more.
    pub more: bool,
    /// The version of each owner, from the same snapshot as the plants; `None` for a deleted owner.
    pub versions: Vec<Option<Version>>,
}

/// A range of one owner's plants in the order of their ids.
#[derive(Clone, Copy, Debug)]
pub struct PlantRange {
    pub(crate) owner: UserId,
    pub(crate) from: i64,
    pub(crate) through: i64,
    pub(crate) as_of: i64,
    /// Plants that the next merge step reads of this range; 0 before the first step.
    pub(crate) fetch_size: usize,
}

impl PlantRange {
    pub fn all_of(owner: UserId) -> Self {
        Self { owner, from: i64::MIN, through: i64::MAX, as_of: i64::MAX, fetch_size: 0 }
    }

    /// Returns the range without the plants before `id`.
    #[must_use]
    pub fn starting_at(self, id: PlantId) -> Self {
        Self { from: self.from.max(id.get()), ..self }
    }

    /// Returns the range without the plants up to `id`.
    #[must_use]
    pub fn past(self, id: PlantId) -> Self {
        match id.get().checked_add(1) {
            Some(from) => Self { from: self.from.max(from), ..self },
            None => self.emptied(),
        }
    }

    /// Returns the range without the plants after `id`.
    #[must_use]
    pub fn through(self, id: PlantId) -> Self {
        Self { through: self.through.min(id.get()), ..self }
    }

    /// Returns the range without the plants from `id` on.
    #[must_use]
    pub fn before(self, id: PlantId) -> Self {
        match id.get().checked_sub(1) {
            Some(through) => Self { through: self.through.min(through), ..self },
            None => self.emptied(),
        }
    }

    /// Returns the range without the plants created after `version`; an empty range without a version.
    #[must_use]
    pub fn as_of(self, version: Option<Version>) -> Self {
        version.map_or_else(|| self.emptied(), |version| Self { as_of: version.get(), ..self })
    }

    /// Returns the range without any plants.
    #[must_use]
    pub(crate) fn emptied(self) -> Self {
        Self { from: i64::MAX, through: i64::MIN, ..self }
    }

    /// Returns true if the range is known to be empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.from > self.through
    }

    /// Returns true if the range may end before the owner's last plant.
    pub(crate) fn is_bounded(&self) -> bool {
        self.through < i64::MAX || self.as_of < i64::MAX
    }
}

/// Ends all ranges after the plant `id` of the range with the index `last`.
pub fn end_ranges_after(ranges: &mut [PlantRange], (id, last): (PlantId, usize)) {
    for (index, range) in ranges.iter_mut().enumerate() {
        // A plant with the same id in a later range comes after it.
        *range = if index <= last { range.through(id) } else { range.before(id) };
    }
}

/// Returns the page size of each range. One plant more is read, to find out if there are more.
pub(crate) fn fetch_sizes(ranges: &[PlantRange], rows: usize) -> Vec<usize> {
    let live = ranges.iter().filter(|range| !range.is_empty()).count();
    let first = FIRST_STEP / live.max(1);
    let fetch_size = |range: &PlantRange| if range.fetch_size == 0 { first } else { range.fetch_size };
    ranges.iter().map(|range| fetch_size(range).min(rows.saturating_add(1)).max(1)).collect()
}

pub(crate) struct PlantRow {
    pub(crate) id: i64,
    pub(crate) name: String,
    pub(crate) tag: Option<String>,
}

/// A page of one list.
#[derive(Default)]
pub(crate) struct FetchedRows {
    pub(crate) plants: Vec<PlantRow>,
    /// True if more plants follow.
    pub(crate) more: bool,
    wanted: usize,
}

impl FetchedRows {
    /// Takes the plants read: one more than wanted if there are more.
    pub(crate) fn new(mut plants: Vec<PlantRow>, wanted: usize) -> Self {
        let more = plants.len() > wanted;
        plants.truncate(wanted);
        Self { plants, more, wanted }
    }

    /// Returns the rest of the range after `taken` plants. Its next page has at least `least` plants.
    fn rest_of(&self, range: PlantRange, taken: usize, least: usize) -> PlantRange {
        let newest = taken.checked_sub(1).and_then(|index| self.plants.get(index));
        let rest = newest.map_or(range, |plant| range.past(PlantId::new(plant.id)));
        match (taken == self.plants.len(), self.more) {
            (true, true) => PlantRange { fetch_size: (taken * PAGE_GROWTH).clamp(least, PAGE_MAX), ..rest },
            (true, false) => rest.emptied(),
            (false, _) => PlantRange { fetch_size: (taken + 1).clamp(least, PAGE_MAX), ..rest },
        }
    }
}

/// Passes plants to `each` until `rows` were passed, `each` breaks, or the next plant is not known, and shrinks the ranges.
/// Returns true if there are more plants.
pub(crate) fn merge(
    ranges: &mut [PlantRange],
    pages: &[FetchedRows],
    rows: usize,
    mut each: impl FnMut(usize, PlantId, &str, Option<&str>) -> ControlFlow<()>,
) -> bool {
    let mut taken = vec![0; pages.len()];
    let plant = |list: usize, index: usize| pages[list].plants.get(index).map(|plant| (plant.id, list));
    let mut heads: BinaryHeap<_> = (0..pages.len()).filter_map(|list| plant(list, 0).map(Reverse)).collect();
    let mut emitted = 0;
    let more = loop {
        if emitted == rows {
            break !heads.is_empty();
        }
        let Some(Reverse((id, list))) = heads.pop() else {
            // A list with an empty page is at its end.
            break false;
        };
        let PlantRow { name, tag, .. } = &pages[list].plants[taken[list]];
        let stop = each(list, PlantId::new(id), name, tag.as_deref()).is_break();
        emitted += 1;
        taken[list] += 1;
        match plant(list, taken[list]) {
            Some(next) => heads.push(Reverse(next)),
            // The next plant of this list was not read, and may come before the heads of the others.
            None if pages[list].more => break true,
            None => {}
        }
        if stop {
            break !heads.is_empty();
        }
    };
    let live = pages.iter().filter(|page| !page.plants.is_empty()).count();
    let most = (PAGE_MAX / live.max(1)).max(1);
    for ((range, page), taken) in ranges.iter_mut().zip(pages).zip(taken) {
        let least = if emitted < STEP_MIN { (2 * page.wanted).min(most) } else { 1 };
        *range = page.rest_of(*range, taken, least);
    }
    more
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Merges the lists step by step until nothing is left. Returns the emitted plants and the number of steps.
    fn read_all(lists: &[Vec<i64>], rows: usize) -> (Vec<(i64, usize)>, usize) {
        let mut ranges: Vec<PlantRange> =
            (0..).zip(lists).map(|(owner, _)| PlantRange::all_of(UserId::new(owner))).collect();
        let mut found = Vec::new();
        let mut steps = 0;
        let mut read = 0;
        loop {
            let pages: Vec<FetchedRows> = (ranges.iter().zip(lists).zip(fetch_sizes(&ranges, rows)))
                .map(|((range, list), fetch_size)| {
                    let ids = list.iter().filter(|id| (range.from..=range.through).contains(id)).take(fetch_size + 1);
                    FetchedRows::new(
                        ids.map(|id| PlantRow { id: *id, name: String::new(), tag: None }).collect(),
                        fetch_size,
                    )
                })
                .collect();
            read += pages.iter().map(|page| page.plants.len()).sum::<usize>();
            let before = found.len();
            let more = merge(&mut ranges, &pages, rows, |list, id, _, _| {
                found.push((id.get(), list));
                ControlFlow::Continue(())
            });
            steps += 1;
            let all = lists.iter().map(Vec::len).sum::<usize>();
            assert_eq!(more, found.len() < all, "after {} of {all}", found.len());
            if !more {
                assert!(read <= 8 * all + steps * 2 * FIRST_STEP, "{read} were read for {all} in {steps} steps");
                return (found, steps);
            }
            assert!(found.len() > before, "every step emits something");
        }
    }

    fn sorted(lists: &[Vec<i64>]) -> Vec<(i64, usize)> {
        let of = |(place, list): (usize, &Vec<i64>)| list.iter().map(move |id| (*id, place)).collect::<Vec<_>>();
        let mut all: Vec<_> = lists.iter().enumerate().flat_map(of).collect();
        all.sort_unstable();
        all
    }

    #[test]
    fn plants_are_merged_by_id_and_then_by_list() {
        let cases = [
            vec![vec![i64::MIN, 0, i64::MAX], vec![], vec![i64::MIN, i64::MAX]],
            vec![(0..1_000).collect(); 3],
            vec![(0..10).collect(); 101],
            vec![(0..127).collect(), (0..129).collect()],
        ];
        for lists in cases {
            for rows in [1, 2, 7, 128, 129, 512, usize::MAX] {
                assert_eq!(read_all(&lists, rows).0, sorted(&lists), "{rows} at a time");
            }
        }
    }

    #[test]
    fn long_list_among_many_short_ones_is_read_in_few_steps() {
        // The short lists come before the end of the long one, or after it.
        for short in [7..8, 1_000_000..1_000_003] {
            let mut lists: Vec<Vec<i64>> = vec![short.collect(); 100];
            lists.push((0..20_000).collect());
            let (found, steps) = read_all(&lists, usize::MAX);
            assert_eq!(found, sorted(&lists));
            assert!(steps < 60, "{steps} steps");
        }
    }
}
