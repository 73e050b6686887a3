//! One list out of several, in the order of ids and, for the same id, of the lists.
//!
//! A look reads a stretch of each list, and hands plants over as long as it is known what comes next. How much the next look
//! reads of each follows from what this one needed: more of a list that held the others up, little of one that was not needed
//! yet, and more of all when little was handed over. So what is read is about what is handed over, however unlike the lists
//! are.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::ControlFlow;

use crate::range::Span;
use plantstore_model::plant::PlantId;

/// Plants that the first look reads of all lists together, about.
const FIRST_LOOK: usize = 256;
/// How much further the next look reads in a list that held the others up, and the furthest.
const STRIDE: usize = 4;
const LOOK_MAX: usize = 1_024;
/// Plants handed over that are too few for a look.
const TOO_FEW: usize = 64;

/// How many plants to read of each span in order to hand over `rows`; one more tells whether there are more.
pub(crate) fn looks(spans: &[Span], rows: usize) -> Vec<usize> {
    let live = spans.iter().filter(|span| !span.is_empty()).count();
    let first = FIRST_LOOK / live.max(1);
    let look = |span: &Span| if span.look == 0 { first } else { span.look };
    spans.iter().map(|span| look(span).min(rows.saturating_add(1)).max(1)).collect()
}

/// A plant as it was read.
pub(crate) struct Found {
    pub(crate) id: i64,
    pub(crate) name: String,
    pub(crate) tag: Option<String>,
}

/// The first plants of one list.
#[derive(Default)]
pub(crate) struct Stretch {
    pub(crate) plants: Vec<Found>,
    /// Whether others follow them.
    pub(crate) more: bool,
    wanted: usize,
}

impl Stretch {
    /// Of these plants, which are one more than wanted if there are more.
    pub(crate) fn new(mut plants: Vec<Found>, wanted: usize) -> Self {
        let more = plants.len() > wanted;
        plants.truncate(wanted);
        Self { plants, more, wanted }
    }

    /// What is left of the span after so many of the plants, of which the next look is to read at least so many.
    fn rest_of(&self, span: Span, taken: usize, least: usize) -> Span {
        let newest = taken.checked_sub(1).and_then(|index| self.plants.get(index));
        let rest = newest.map_or(span, |plant| span.past(PlantId::new(plant.id)));
        match (taken == self.plants.len(), self.more) {
            (true, true) => Span { look: (taken * STRIDE).clamp(least, LOOK_MAX), ..rest },
            (true, false) => rest.emptied(),
            (false, _) => Span { look: (taken + 1).clamp(least, LOOK_MAX), ..rest },
        }
    }
}

/// Hands over plants until `rows` of them were, or `each` breaks, or nothing is known of what comes next, and takes them out
/// of the spans. True when there are more.
pub(crate) fn merge(
    spans: &mut [Span],
    stretches: &[Stretch],
    rows: usize,
    mut each: impl FnMut(usize, PlantId, &str, Option<&str>) -> ControlFlow<()>,
) -> bool {
    let mut taken = vec![0; stretches.len()];
    let plant = |list: usize, index: usize| stretches[list].plants.get(index).map(|plant| (plant.id, list));
    let mut heads: BinaryHeap<_> = (0..stretches.len()).filter_map(|list| plant(list, 0).map(Reverse)).collect();
    let mut handed_over = 0;
    let more = loop {
        if handed_over == rows {
            break !heads.is_empty();
        }
        let Some(Reverse((id, list))) = heads.pop() else {
            // Lists of which nothing was read hold nothing.
            break false;
        };
        let Found { name, tag, .. } = &stretches[list].plants[taken[list]];
        let stop = each(list, PlantId::new(id), name, tag.as_deref()).is_break();
        handed_over += 1;
        taken[list] += 1;
        match plant(list, taken[list]) {
            Some(next) => heads.push(Reverse(next)),
            // What comes next in this list was not read, and may come before the heads of the others.
            None if stretches[list].more => break true,
            None => {}
        }
        if stop {
            break !heads.is_empty();
        }
    };
    let live = stretches.iter().filter(|stretch| !stretch.plants.is_empty()).count();
    let most = (LOOK_MAX / live.max(1)).max(1);
    for ((span, stretch), taken) in spans.iter_mut().zip(stretches).zip(taken) {
        let least = if handed_over < TOO_FEW { (2 * stretch.wanted).min(most) } else { 1 };
        *span = stretch.rest_of(*span, taken, least);
    }
    more
}

#[cfg(test)]
mod tests {
    use super::*;
    use plantstore_model::user::UserId;

    /// Lists, each read as far as the looks ask for, until nothing is left: what was handed over, and in how many looks.
    fn read_all(lists: &[Vec<i64>], rows: usize) -> (Vec<(i64, usize)>, usize) {
        let mut spans: Vec<Span> = (0..).zip(lists).map(|(owner, _)| Span::all_of(UserId::new(owner))).collect();
        let (mut found, mut looked, mut read) = (Vec::new(), 0, 0);
        loop {
            let stretches: Vec<Stretch> = (spans.iter().zip(lists).zip(looks(&spans, rows)))
                .map(|((span, list), look)| {
                    let ids = list.iter().filter(|id| (span.from..=span.through).contains(id)).take(look + 1);
                    Stretch::new(ids.map(|id| Found { id: *id, name: String::new(), tag: None }).collect(), look)
                })
                .collect();
            read += stretches.iter().map(|stretch| stretch.plants.len()).sum::<usize>();
            let before = found.len();
            let more = merge(&mut spans, &stretches, rows, |list, id, _, _| {
                found.push((id.get(), list));
                ControlFlow::Continue(())
            });
            looked += 1;
            let all = lists.iter().map(Vec::len).sum::<usize>();
            assert_eq!(more, found.len() < all, "after {} of {all}", found.len());
            if !more {
                assert!(read <= 8 * all + looked * 2 * FIRST_LOOK, "{read} were read for {all} in {looked} looks");
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
    fn whoever_breaks_learns_whether_there_are_more() {
        let stretch = |id: i64| Stretch::new(vec![Found { id, name: String::new(), tag: None }], 1);
        let until = |last: i64| {
            let mut spans = [Span::all_of(UserId::new(1)), Span::all_of(UserId::new(2))];
            merge(&mut spans, &[stretch(1), stretch(2)], 9, |_, id, _, _| {
                if id.get() == last { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })
        };
        assert!(until(1));
        assert!(!until(2));
    }
}
