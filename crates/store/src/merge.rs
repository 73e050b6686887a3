//! K-way merge of lists in the order of ids and, for equal ids, of the lists.
//!
//! A step reads a page of each list, and emits plants until one list needs its next page. The page sizes of the next
//! step adapt: larger for a list whose page was used up, small for a list that was hardly used, and larger for all lists if few
//! plants were emitted. So the number of plants read stays close to the number emitted, even for lists of very different density.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::ControlFlow;

use crate::range::PlantRange;
use plantstore_model::plant::PlantId;

/// Approximate number of plants that the first step reads of all lists together.
const FIRST_STEP: usize = 256;
/// Growth factor of the page of a list that was used up, and maximum size of a page.
const PAGE_GROWTH: usize = 4;
const PAGE_MAX: usize = 1_024;
/// Number of emitted plants below which all pages grow.
const STEP_MIN: usize = 64;

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
    use plantstore_model::user::UserId;

    /// Merges the lists step by step until nothing is left. Returns the emitted plants and the number of steps.
    fn read_all(lists: &[Vec<i64>], rows: usize) -> (Vec<(i64, usize)>, usize) {
        let mut ranges: Vec<PlantRange> =
            (0..).zip(lists).map(|(owner, _)| PlantRange::all_of(UserId::new(owner))).collect();
        let (mut found, mut steps, mut read) = (Vec::new(), 0, 0);
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
        let alike = |count: i64, lists: usize| vec![(0..count).collect::<Vec<_>>(); lists];
        let cases = [
            vec![vec![1, 5], vec![], vec![1, 2, 9]],
            vec![vec![]; 3],
            vec![vec![i64::MIN, 0, i64::MAX], vec![i64::MIN, i64::MAX]],
            alike(1_000, 3),
            alike(10, 101),
            vec![(0..512).collect(), vec![]],
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
        let mut lists = vec![vec![7]; 100];
        lists.push((0..20_000).collect());
        let (found, steps) = read_all(&lists, usize::MAX);
        assert_eq!(found, sorted(&lists));
        assert!(steps < 40, "{steps} steps");
        // The same if the short lists come after the long one.
        let mut lists: Vec<Vec<i64>> = (0..100).map(|_| (1_000_000..1_000_003).collect()).collect();
        lists.push((0..20_000).collect());
        let (found, steps) = read_all(&lists, usize::MAX);
        assert_eq!(found, sorted(&lists));
        assert!(steps < 60, "{steps} steps");
    }

    #[test]
    fn break_still_reports_if_there_are_more() {
        let page = |id: i64| FetchedRows::new(vec![PlantRow { id, name: String::new(), tag: None }], 1);
        let until = |last: i64| {
            let mut ranges = [PlantRange::all_of(UserId::new(1)), PlantRange::all_of(UserId::new(2))];
            merge(&mut ranges, &[page(1), page(2)], 9, |_, id, _, _| {
                if id.get() == last { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })
        };
        assert!(until(1));
        assert!(!until(2));
    }
}
