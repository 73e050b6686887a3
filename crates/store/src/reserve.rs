//! Fair sharing of a scarce resource between users.
//!
//! While there is enough of the resource, nothing is counted. When it is short, a request needs a place of the reserve. A user
//! may take one while they hold fewer places than are free: one user gets half of the reserve, n users get 1/(n + 1) of it
//! each, and a user who holds none finds a free place. Switches share the memory of their ports in this way ("dynamic
//! thresholds").

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use plantstore_model::user::UserId;

/// Part of a limited number that is reserved.
const RESERVED_PART: usize = 4;

pub struct Reserve {
    places: usize,
    hold: Duration,
    usage: Mutex<Usage>,
}

#[derive(Default)]
struct Usage {
    total: usize,
    by_user: HashMap<UserId, usize>,
    /// Places that were returned early, and when they become free.
    returned: VecDeque<(Instant, UserId)>,
}

impl Reserve {
    /// Reserves this many places. Each is taken for at least `hold`, which limits the rate of requests that end at once.
    pub fn new(places: usize, hold: Duration) -> Arc<Self> {
        Arc::new(Self { places, hold, usage: Mutex::default() })
    }

    /// Reserves a part of `all` places.
    pub fn part_of(all: usize) -> Arc<Self> {
        Self::new(all / RESERVED_PART, Duration::ZERO)
    }

    pub fn places(&self) -> usize {
        self.places
    }

    /// Returns the number of places that are taken.
    pub fn taken(&self) -> usize {
        self.usage().total
    }

    /// Returns true if the user would get a place.
    pub fn is_open_to(&self, user: UserId) -> bool {
        let usage = self.usage();
        usage.held_by(user) < self.places - usage.total
    }

    /// Takes a place, unless the user holds as many as are free.
    pub fn take(self: &Arc<Self>, user: UserId) -> Option<ReservedPlace> {
        let since = Instant::now();
        let mut usage = self.usage();
        usage.free_returned(since);
        let held = usage.held_by(user);
        if held >= self.places - usage.total {
            return None;
        }
        usage.by_user.insert(user, held + 1);
        usage.total += 1;
        Some(ReservedPlace { reserve: Arc::clone(self), user, since })
    }

    fn usage(&self) -> MutexGuard<'_, Usage> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Usage {
    fn held_by(&self, user: UserId) -> usize {
        self.by_user.get(&user).copied().unwrap_or_default()
    }

    fn free_returned(&mut self, now: Instant) {
        while let Some((_, user)) = self.returned.front().copied().filter(|(free_at, _)| *free_at <= now) {
            self.returned.pop_front();
            self.free(user);
        }
    }

    fn free(&mut self, user: UserId) {
        self.total -= 1;
        match self.held_by(user) {
            0 | 1 => self.by_user.remove(&user),
            held => self.by_user.insert(user, held - 1),
        };
    }
}

/// A place of a [`Reserve`], returned when dropped.
pub struct ReservedPlace {
    reserve: Arc<Reserve>,
    user: UserId,
    since: Instant,
}

impl Drop for ReservedPlace {
    fn drop(&mut self) {
        let free_at = self.since + self.reserve.hold;
        let mut usage = self.reserve.usage();
        if Instant::now() < free_at {
            usage.returned.push_back((free_at, self.user));
        } else {
            usage.free(self.user);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GREEDY: UserId = UserId::new(1);

    #[test]
    fn returned_place_stays_taken_for_the_time_to_hold() {
        let reserve = Reserve::new(2, Duration::from_secs(3_600));
        drop(reserve.take(GREEDY).expect("a place"));
        assert!(reserve.take(GREEDY).is_none());
        let free_at = reserve.usage().returned.front().expect("the place").0;
        reserve.usage().free_returned(free_at);
        assert!(reserve.take(GREEDY).is_some());
    }
}
