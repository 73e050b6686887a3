//! Merges several lists into one, in the order of ids and, for the same id, of the lists.
//!
//! A step reads a page of each list, and hands plants over as long as it is known what comes next. The size of the next page of
//! each follows from what this one needed: more of a list that held the others up, little of one that was not needed yet, and
//! more of all when little was handed over. So what is read is about what is handed over, however unlike the lists are.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::ControlFlow;

use crate::range::PlantRange;
use plantstore_model::plant::PlantId;

/// Plants that the first step reads of all lists together, about.
const FIRST_PAGE: usize = 256;
/// Growth of the next page of a list that held the others up, and the limit of a page.
const STRIDE: usize = 4;
const PAGE_MAX: usize = 1_024;
/// Plants handed over that are too few for a step.
const TOO_FEW: usize = 64;

/// Returns the number of plants to read of each range in order to hand over `rows`; one more shows whether there are more.
pub(crate) fn page_sizes(ranges: &[PlantRange], rows: usize) -> Vec<usize> {
    let live = ranges.iter().filter(|range| !range.is_empty()).count();
    let first = FIRST_PAGE / live.max(1);
    let page_size = |range: &PlantRange| if range.page_size == 0 { first } else { range.page_size };
    ranges.iter().map(|range| page_size(range).min(rows.saturating_add(1)).max(1)).collect()
}

pub(crate) struct PlantRow {
    pub(crate) id: i64,
    pub(crate) name: String,
    pub(crate) tag: Option<String>,
}

/// The page of one list.
#[derive(Default)]
pub(crate) struct Run {
    pub(crate) plants: Vec<PlantRow>,
    /// True when others follow.
    pub(crate) more: bool,
    wanted: usize,
}

impl Run {
    /// Takes the plants, which are one more than wanted if there are more.
    pub(crate) fn new(mut plants: Vec<PlantRow>, wanted: usize) -> Self {
        let more = plants.len() > wanted;
        plants.truncate(wanted);
        Self { plants, more, wanted }
    }

    /// Returns what is left of the range after `taken` plants; its next page has at least `least`.
    fn rest_of(&self, range: PlantRange, taken: usize, least: usize) -> PlantRange {
        let newest = taken.checked_sub(1).and_then(|index| self.plants.get(index));
        let rest = newest.map_or(range, |plant| range.past(PlantId::new(plant.id)));
        match (taken == self.plants.len(), self.more) {
            (true, true) => PlantRange { page_size: (taken * STRIDE).clamp(least, PAGE_MAX), ..rest },
            (true, false) => rest.emptied(),
            (false, _) => PlantRange { page_size: (taken + 1).clamp(least, PAGE_MAX), ..rest },
        }
    }
}

/// Hands over plants until `rows` of them were, or `each` breaks, or nothing is known of what comes next, and takes them out
/// of the ranges. True when there are more.
pub(crate) fn merge(
    ranges: &mut [PlantRange],
    runs: &[Run],
    rows: usize,
    mut each: impl FnMut(usize, PlantId, &str, Option<&str>) -> ControlFlow<()>,
) -> bool {
    let mut taken = vec![0; runs.len()];
    let plant = |list: usize, index: usize| runs[list].plants.get(index).map(|plant| (plant.id, list));
    let mut heads: BinaryHeap<_> = (0..runs.len()).filter_map(|list| plant(list, 0).map(Reverse)).collect();
    let mut handed_over = 0;
    let more = loop {
        if handed_over == rows {
            break !heads.is_empty();
        }
        let Some(Reverse((id, list))) = heads.pop() else {
            // Lists of which nothing was read hold nothing.
            break false;
        };
        let PlantRow { name, tag, .. } = &runs[list].plants[taken[list]];
        let stop = each(list, PlantId::new(id), name, tag.as_deref()).is_break();
        handed_over += 1;
        taken[list] += 1;
        match plant(list, taken[list]) {
            Some(next) => heads.push(Reverse(next)),
            // What comes next in this list was not read, and may come before the heads of the others.
            None if runs[list].more => break true,
            None => {}
        }
        if stop {
            break !heads.is_empty();
        }
    };
    let live = runs.iter().filter(|run| !run.plants.is_empty()).count();
    let most = (PAGE_MAX / live.max(1)).max(1);
    for ((range, run), taken) in ranges.iter_mut().zip(runs).zip(taken) {
        let least = if handed_over < TOO_FEW { (2 * run.wanted).min(most) } else { 1 };
        *range = run.rest_of(*range, taken, least);
    }
    more
}

#[cfg(test)]
mod tests {
    use super::*;
    use plantstore_model::user::UserId;

    /// Lists, each read as far as the looks ask for, until nothing is left: what was handed over, and in how many looks.
    fn read_all(lists: &[Vec<i64>], rows: usize) -> (Vec<(i64, usize)>, usize) {
        let mut ranges: Vec<PlantRange> =
            (0..).zip(lists).map(|(owner, _)| PlantRange::all_of(UserId::new(owner))).collect();
        let (mut found, mut looked, mut read) = (Vec::new(), 0, 0);
        loop {
            let runs: Vec<Run> = (ranges.iter().zip(lists).zip(page_sizes(&ranges, rows)))
                .map(|((range, list), page_size)| {
                    let ids = list.iter().filter(|id| (range.from..=range.through).contains(id)).take(page_size + 1);
                    Run::new(ids.map(|id| PlantRow { id: *id, name: String::new(), tag: None }).collect(), page_size)
                })
                .collect();
            read += runs.iter().map(|run| run.plants.len()).sum::<usize>();
            let before = found.len();
            let more = merge(&mut ranges, &runs, rows, |list, id, _, _| {
                found.push((id.get(), list));
                ControlFlow::Continue(())
            });
            looked += 1;
            let all = lists.iter().map(Vec::len).sum::<usize>();
            assert_eq!(more, found.len() < all, "after {} of {all}", found.len());
            if !more {
                assert!(read <= 8 * all + looked * 2 * FIRST_PAGE, "{read} were read for {all} in {looked} looks");
                return (found, looked);
            }
            assert!(found.len() > before, "every look hands something over");
        }
    }

    fn sorted(lists: &[Vec<i64>]) -> Vec<(i64, usize)> {
        let of = |(place, list): (usize, &Vec<i64>)| list.iter().map(move |id| (*id, place)).collect::<Vec<_>>();
        let mut all: Vec<_> = lists.iter().enumerate().flat_map(of).collect();
        all.sort_unstable();
        all
    }

    #[test]
    fn plants_come_by_id_and_then_by_list_each_once() {
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
    fn one_long_list_among_many_short_ones_is_read_in_long_steps() {
        let mut lists = vec![vec![7]; 100];
        lists.push((0..20_000).collect());
        let (found, looked) = read_all(&lists, usize::MAX);
        assert_eq!(found, sorted(&lists));
        assert!(looked < 40, "{looked} looks");
        // The same when the short ones come after it.
        let mut lists: Vec<Vec<i64>> = (0..100).map(|_| (1_000_000..1_000_003).collect()).collect();
        lists.push((0..20_000).collect());
        let (found, looked) = read_all(&lists, usize::MAX);
        assert_eq!(found, sorted(&lists));
        assert!(looked < 60, "{looked} looks");
    }

    #[test]
    fn a_break_still_returns_whether_there_are_more() {
        let run = |id: i64| Run::new(vec![PlantRow { id, name: String::new(), tag: None }], 1);
        let until = |last: i64| {
            let mut ranges = [PlantRange::all_of(UserId::new(1)), PlantRange::all_of(UserId::new(2))];
            merge(&mut ranges, &[run(1), run(2)], 9, |_, id, _, _| {
                if id.get() == last { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })
        };
        assert!(until(1));
        assert!(!until(2));
    }
}
