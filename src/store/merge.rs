//! One list out of several, in the order of ids and, for the same id, of the lists.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::ControlFlow;

use crate::plant::PlantId;

/// Plants that one look reads of all lists together, about, and of each at the least.
const LOOK: usize = 1_024;
const LOOK_EACH: usize = 8;

/// How many plants to read of each of so many lists in order to hand over `rows`: one more than asked for tells whether
/// there are more.
pub(super) fn rows_of_each(lists: usize, rows: usize) -> usize {
    rows.saturating_add(1).min((LOOK / lists.max(1)).max(LOOK_EACH))
}

/// A plant as it was read.
pub(super) struct Found {
    pub(super) id: i64,
    pub(super) name: String,
    pub(super) tag: Option<String>,
}

/// The first plants of one list.
#[derive(Default)]
pub(super) struct Stretch {
    pub(super) plants: Vec<Found>,
    /// Whether more may follow them.
    pub(super) more: bool,
}

/// Hands over plants until `rows` of them were, or `each` breaks, or nothing is known of what comes next. True when there
/// may be more.
pub(super) fn merge(
    stretches: &[Stretch],
    rows: usize,
    mut each: impl FnMut(usize, PlantId, &str, Option<&str>) -> ControlFlow<()>,
) -> bool {
    let plant = |list: usize, index: usize| stretches[list].plants.get(index).map(|plant| (plant.id, list, index));
    let mut heads: BinaryHeap<_> = (0..stretches.len()).filter_map(|list| plant(list, 0).map(Reverse)).collect();
    let mut handed_over = 0;
    while let Some(Reverse((id, list, index))) = heads.pop() {
        if handed_over == rows {
            return true;
        }
        let Found { name, tag, .. } = &stretches[list].plants[index];
        let stop = each(list, PlantId::new(id), name, tag.as_deref()).is_break();
        handed_over += 1;
        match plant(list, index + 1) {
            Some(next) => heads.push(Reverse(next)),
            // What comes next in this list was not read, and may come before the heads of the others.
            None if stretches[list].more => return true,
            None => {}
        }
        if stop {
            return !heads.is_empty();
        }
    }
    // Lists of which nothing was read hold nothing.
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stretch(ids: &[i64], more: bool) -> Stretch {
        let plants = ids.iter().map(|id| Found { id: *id, name: String::new(), tag: None }).collect();
        Stretch { plants, more }
    }

    fn merged(stretches: &[Stretch], rows: usize) -> (Vec<(i64, usize)>, bool) {
        let mut found = Vec::new();
        let more = merge(stretches, rows, |list, id, _, _| {
            found.push((id.get(), list));
            ControlFlow::Continue(())
        });
        (found, more)
    }

    #[test]
    fn plants_come_by_id_and_then_by_list() {
        let stretches = [stretch(&[1, 5], false), stretch(&[], false), stretch(&[1, 2, 9], false)];
        let all = vec![(1, 0), (1, 2), (2, 2), (5, 0), (9, 2)];
        assert_eq!(merged(&stretches, 9), (all.clone(), false));
        assert_eq!(merged(&stretches, 5), (all.clone(), false));
        assert_eq!(merged(&stretches, 4), (all[..4].to_vec(), true));
        assert_eq!(merged(&stretches, 0), (Vec::new(), true));
    }

    #[test]
    fn it_stops_where_nothing_is_known_of_what_follows() {
        let stretches = [stretch(&[1, 5], true), stretch(&[2, 6], false)];
        assert_eq!(merged(&stretches, 9), (vec![(1, 0), (2, 1), (5, 0)], true));
        let stretches = [stretch(&[1, 5], false), stretch(&[2, 6], true)];
        assert_eq!(merged(&stretches, 9), (vec![(1, 0), (2, 1), (5, 0), (6, 1)], true));
    }

    #[test]
    fn whoever_breaks_learns_whether_there_are_more() {
        let stretches = [stretch(&[1], false), stretch(&[2], false)];
        let until = |last: i64| {
            merge(
                &stretches,
                9,
                |_, id, _, _| {
                    if id.get() == last { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                },
            )
        };
        assert!(until(1));
        assert!(!until(2));
    }
}
