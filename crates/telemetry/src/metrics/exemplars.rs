//! Exemplars: for each bucket of a histogram, the trace of the last recorded request in it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Ids of the span of a request that is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exemplar {
    pub trace_id: [u8; 16],
    pub span_id: [u8; 8],
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Observation {
    pub(super) exemplar: Exemplar,
    pub(super) value: u64,
    /// Time of the observation, since 1970.
    pub(super) time: Duration,
}

/// The last observation of each bucket that has an exemplar; empty until the first.
#[derive(Debug, Default)]
pub(super) struct Exemplars(Mutex<Vec<Option<Observation>>>);

impl Exemplars {
    /// Records an exemplar. Never waits: it is dropped while another thread has the lock.
    pub(super) fn record(&self, bucket: usize, value: u64, exemplar: Exemplar) {
        let Ok(mut buckets) = self.0.try_lock() else { return };
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        set(&mut buckets, bucket, Observation { exemplar, value, time });
    }

    /// Takes over the observations of another histogram with the same buckets that are newer.
    pub(super) fn absorb(&self, other: &Self) {
        let (mut buckets, others) = (self.buckets(), other.buckets());
        for (bucket, theirs) in others.iter().enumerate().filter_map(|(bucket, theirs)| Some((bucket, (*theirs)?))) {
            let ours = buckets.get(bucket).copied().flatten();
            if ours.is_none_or(|ours| ours.time < theirs.time) {
                set(&mut buckets, bucket, theirs);
            }
        }
    }

    pub(super) fn get(&self, bucket: usize) -> Option<Observation> {
        self.buckets().get(bucket).copied().flatten()
    }

    fn buckets(&self) -> MutexGuard<'_, Vec<Option<Observation>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn set(buckets: &mut Vec<Option<Observation>>, bucket: usize, observation: Observation) {
    if buckets.len() <= bucket {
        buckets.resize(bucket + 1, None);
    }
    buckets[bucket] = Some(observation);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_exemplar_of_each_bucket_is_kept() {
        let exemplar = |id| Exemplar { trace_id: [id; 16], span_id: [id; 8] };
        let (one, other, sum) = (Exemplars::default(), Exemplars::default(), Exemplars::default());
        let at = |seconds, id| Observation { exemplar: exemplar(id), value: 0, time: Duration::from_secs(seconds) };
        set(&mut one.buckets(), 2, at(10, 1));
        set(&mut other.buckets(), 2, at(20, 2));
        set(&mut other.buckets(), 0, at(5, 3));
        for recorded in [&other, &one] {
            sum.absorb(recorded);
        }
        let ids = [0, 1, 2, 3].map(|bucket| sum.get(bucket).map(|found| found.exemplar.span_id[0]));
        assert_eq!(ids, [Some(3), None, Some(2), None]);
        one.record(2, 7, exemplar(4));
        assert_eq!(one.get(2).map(|found| (found.exemplar, found.value)), Some((exemplar(4), 7)));
    }
}
