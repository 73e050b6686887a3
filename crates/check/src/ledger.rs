//! What this visit has planted: ids that nobody else uses, names that nobody else gives, and what is still to be deleted.

/// A plant that may be on the server because of us.
#[derive(Clone, Debug)]
struct Planted {
    id: i64,
    /// The server has said that it is there. Otherwise nobody knows.
    sure: bool,
}

/// The plants of one visit.
pub(super) struct Ledger {
    /// In every name that this visit gives.
    marker: String,
    first: i64,
    taken: i64,
    planted: Vec<Planted>,
}

impl Ledger {
    /// From the system's random source. The ids are so low that our plants come first in most lists, and so many to
    /// choose from that nobody else has them.
    pub(super) fn new() -> Option<Self> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).ok()?;
        let number = u128::from_le_bytes(bytes);
        let low = i64::try_from(number >> 66).ok()?;
        let marker = format!("plantstore check {:016x}", number & u128::from(u64::MAX));
        // Between -2^63 and -2^62, with some room at both ends.
        Some(Self { marker, first: i64::MIN + (1 << 32) + low - (low >> 16), taken: 0, planted: Vec::new() })
    }

    /// An id that nobody has used.
    pub(super) fn id(&mut self) -> i64 {
        self.taken += 1;
        self.first + self.taken
    }

    /// A name that only this visit gives.
    pub(super) fn name(&self, word: &str) -> String {
        format!("{} {word}", self.marker)
    }

    pub(super) fn marker(&self) -> &str {
        &self.marker
    }

    /// Somewhere among the ids of this visit, and so nobody else's.
    fn is_ours(&self, id: i64) -> bool {
        (self.first..=self.first + self.taken).contains(&id)
    }

    /// Before a create is sent: whatever becomes of it, the id is remembered.
    pub(super) fn about_to_plant(&mut self, id: i64) {
        self.planted.push(Planted { id, sure: false });
    }

    /// After its answer.
    pub(super) fn answered(&mut self, id: i64, status: u16) {
        match status {
            200..300 => {
                self.planted.iter_mut().filter(|planted| planted.id == id).for_each(|planted| planted.sure = true);
            }
            400..500 => self.forget_doubtful(id),
            // Nobody knows.
            _ => {}
        }
    }

    /// It was refused: it is there only if it was there before.
    fn forget_doubtful(&mut self, id: i64) {
        if let Some(at) = self.planted.iter().position(|planted| planted.id == id && !planted.sure) {
            self.planted.remove(at);
        }
    }

    /// It was deleted.
    pub(super) fn gone(&mut self, id: i64) {
        self.planted.retain(|planted| planted.id != id);
    }

    /// It is not there. A create that nobody has answered may still be on its way.
    pub(super) fn not_there(&mut self, id: i64) {
        self.planted.retain(|planted| planted.id != id || !planted.sure);
    }

    /// Whether nobody has said what became of a create of this id.
    pub(super) fn is_unanswered(&self, id: i64) -> bool {
        self.planted.iter().any(|planted| planted.id == id && !planted.sure)
    }

    /// The same of any.
    pub(super) fn awaits_answers(&self) -> bool {
        self.planted.iter().any(|planted| !planted.sure)
    }

    /// Whether all that may be left are creates that nobody has answered.
    pub(super) fn only_awaits_answers(&self) -> bool {
        self.planted.iter().all(|planted| !planted.sure)
    }

    /// What may be deleted: what the server said it has created for us, and what only we can have meant.
    pub(super) fn deletable(&self) -> Vec<i64> {
        let ours = |planted: &&Planted| planted.sure || self.is_ours(planted.id);
        let mut ids: Vec<i64> = self.planted.iter().filter(ours).map(|planted| planted.id).collect();
        ids.dedup();
        ids
    }

    /// What may be left on the server.
    pub(super) fn remaining(&self) -> Vec<i64> {
        self.planted.iter().map(|planted| planted.id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_ours_is_deleted() {
        let mut ledger = Ledger::new().expect("a random source");
        let [refused, unclear, created] = [(); 3].map(|()| ledger.id());
        assert!(refused < -(1 << 62) && created > i64::MIN);
        for (id, status) in [(refused, 400), (unclear, 500), (created, 200), (1, 409), (2, 500), (3, 200)] {
            ledger.about_to_plant(id);
            ledger.answered(id, status);
        }
        assert_eq!(ledger.deletable(), [unclear, created, 3], "1 is somebody else's, and 2 may be");
        assert_eq!(ledger.remaining(), [unclear, created, 2, 3]);
        ledger.about_to_plant(created);
        ledger.answered(created, 409);
        assert_eq!(ledger.deletable(), [unclear, created, 3], "refused, because it is there");
        ledger.not_there(created);
        ledger.not_there(unclear);
        assert_eq!(ledger.deletable(), [unclear, 3], "what was not answered may come yet");
        assert!(ledger.is_unanswered(unclear) && !ledger.is_unanswered(3) && !ledger.only_awaits_answers());
        ledger.gone(3);
        assert!(ledger.only_awaits_answers() && ledger.awaits_answers());
        for id in [unclear, 2] {
            ledger.gone(id);
        }
        assert!(ledger.remaining().is_empty() && !ledger.awaits_answers());
    }
}
