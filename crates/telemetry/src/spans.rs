//! Records the spans of a request in a task-local list. Without a recorder, a span costs one look-up.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Notes of one request at the most: a request that does more is known well enough by then.
const NOTES_MAX: usize = 32;

tokio::task_local! {
    /// Where what is done for the request at work is noted.
    static NOTES: Notes;
}

/// One thing that was done for a request.
#[derive(Clone, Copy, Debug)]
pub struct Note {
    /// What.
    pub name: &'static str,
    /// Since when.
    pub begun: Instant,
    /// Until when.
    pub ended: Instant,
}

/// All that was noted of one request.
#[derive(Clone, Debug, Default)]
pub struct Notes(Arc<Mutex<Vec<Note>>>);

impl Notes {
    /// Does some work, of which notes are taken.
    pub async fn during<T>(&self, work: impl Future<Output = T>) -> T {
        NOTES.scope(self.clone(), work).await
    }

    /// What was noted so far.
    pub fn take(&self) -> Vec<Note> {
        std::mem::take(&mut self.notes())
    }

    fn notes(&self) -> MutexGuard<'_, Vec<Note>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Something begins that may be worth a note.
#[must_use]
pub fn begin() -> Begun {
    Begun(is_noted().then(Instant::now))
}

/// Returns true if the spans of the current request are recorded.
pub fn is_noted() -> bool {
    NOTES.try_with(|_| ()).is_ok()
}

/// Notes something that is over.
pub fn note(name: &'static str, begun: Instant, ended: Instant) {
    // Fails when the request is not recorded.
    let _ = NOTES.try_with(|notes| {
        let mut notes = notes.notes();
        if notes.len() < NOTES_MAX {
            notes.push(Note { name, begun, ended });
        }
    });
}

/// Something that has begun.
#[derive(Clone, Copy, Debug)]
pub struct Begun(Option<Instant>);

impl Begun {
    /// Returns the start, if the request is recorded.
    pub fn at(self) -> Option<Instant> {
        self.0
    }

    /// It is over.
    pub fn end(self, name: &'static str) {
        if let Some(begun) = self.0 {
            note(name, begun, Instant::now());
        }
    }
}
