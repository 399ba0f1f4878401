//! Which keys may have taken from a count that they share with others, and until when it matters.
//!
//! Whoever gets a place of its own later begins with what the shared count owes. Without marks that
//! would be so for every new key: a few thousand keys without a place would have all that come
//! after them refused, although there is room. Some keys have one mark between them, which again
//! errs towards refusing.

use core::sync::atomic::Ordering::{Relaxed, SeqCst};

use super::words::AtomicU64;

#[derive(Debug)]
pub(super) struct Marks(Box<[AtomicU64]>);

impl Marks {
    /// A quarter of a byte for each place of the table.
    pub(super) fn new(places: usize) -> Self {
        Self((0..(places / 32).max(256)).map(|_| AtomicU64::new(0)).collect())
    }

    /// What this key has taken from a shared count matters until then.
    pub(super) fn raise(&self, key: u64, until: u64) {
        let later = |word| (word < until).then_some(until);
        let _ = self.word(key).fetch_update(SeqCst, Relaxed, later);
    }

    /// Until when something may matter that this key has taken from a shared count.
    pub(super) fn until(&self, key: u64) -> u64 {
        self.word(key).load(SeqCst)
    }

    #[expect(clippy::cast_possible_truncation, reason = "reduced to the number of marks")]
    fn word(&self, key: u64) -> &AtomicU64 {
        // Bits from the middle: those at the ends say which places and which shared count.
        &self.0[(key.rotate_left(29) % self.0.len() as u64) as usize]
    }
}
