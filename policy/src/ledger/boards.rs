//! The boards of all breakers of the node, under the keys of upstreams and endpoints.
//!
//! A key takes the first free place from where its hash points, and keeps it: places are never
//! given back, so two workers that bring the same key at once meet at the same place, without a
//! lock, and a reload or a worker's successor finds everything as it was. When all places are
//! taken, a new key gets none, and its breaker lets everything through.

use core::sync::atomic::Ordering::{Acquire, SeqCst};
use core::sync::atomic::{AtomicU32, AtomicU64};

use super::{BreakerKey, Ledger};
use crate::mechanism::breaker::{Board, Force, Thresholds, View};
use crate::mechanism::window::Window;
use crate::time::Instant;

/// Keys of a process, over all reloads.
pub(crate) const BOARDS_MAX: usize = 8192;

const NOBODY: u64 = 0;

#[derive(Debug)]
pub(crate) struct Boards(Box<[Slot]>);

/// Whole lines of the cache, shared with no other board.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Slot {
    key: AtomicU64,
    board: Board,
    /// Requests; retries and hedges as what is bad of them, hedges also as what is slow.
    budget: Window,
    /// Requests under way, where balancing has to know.
    load: AtomicU32,
}

/// A board that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BoardId(usize);

impl Boards {
    pub(crate) fn new(max: usize) -> Self {
        Self((0..max.max(1)).map(|_| Slot::default()).collect())
    }

    /// The key's board, made when there is none; None when there is no room. Not for the way of a
    /// request.
    pub(crate) fn place(&self, key: u64) -> Option<BoardId> {
        self.walk(key).find(|id| {
            let slot = &self.0[id.0].key;
            match slot.compare_exchange(NOBODY, named(key), SeqCst, SeqCst) {
                Ok(_) => true,
                Err(held) => held == named(key),
            }
        })
    }

    /// The key's board, if it has one.
    pub(crate) fn find(&self, key: u64) -> Option<BoardId> {
        let held = |id: &BoardId| self.0[id.0].key.load(Acquire);
        let found = self.walk(key).find(|id| [NOBODY, named(key)].contains(&held(id)))?;
        (held(&found) == named(key)).then_some(found)
    }

    pub(crate) fn at(&self, id: BoardId) -> &Board {
        &self.0[id.0].board
    }

    pub(crate) fn budget(&self, id: BoardId) -> &Window {
        &self.0[id.0].budget
    }

    pub(crate) fn load(&self, id: BoardId) -> &AtomicU32 {
        &self.0[id.0].load
    }

    fn walk(&self, key: u64) -> impl Iterator<Item = BoardId> {
        let len = self.0.len();
        let start = usize::try_from(key % len as u64).unwrap_or(0);
        (start..len).chain(0..start).map(BoardId)
    }
}

impl Ledger {
    /// How the breaker of this upstream or endpoint stands; None when it has none.
    pub fn breaker(&self, key: BreakerKey, now: Instant) -> Option<View> {
        let id = self.boards.find(key.0)?;
        Some(self.boards.at(id).view(now))
    }

    /// Takes a breaker out of its own judgement until then, or gives it back (None). False when
    /// there is no such breaker.
    pub fn force(&self, key: BreakerKey, now: Instant, force: Option<(Force, Instant)>) -> bool {
        let found = self.boards.find(key.0);
        if let Some(id) = found {
            self.boards.at(id).force(now, force);
        }
        found.is_some()
    }

    /// Other thresholds of a breaker until then, or those that are written (None). False when
    /// there is no such breaker.
    pub fn tune(&self, key: BreakerKey, wanted: Option<(Thresholds, Instant)>) -> bool {
        let found = self.boards.find(key.0);
        if let Some(id) = found {
            self.boards.at(id).tune(wanted);
        }
        found.is_some()
    }
}

fn named(key: u64) -> u64 {
    key.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_keeps_its_place_and_a_full_table_has_none_for_another() {
        let boards = Boards::new(3);
        let places: Vec<_> = [5, 8, 11].map(|key| boards.place(key)).into();
        assert!(places.iter().all(Option::is_some), "{places:?}");
        assert_eq!([5, 8, 11].map(|key| boards.place(key)).to_vec(), places);
        assert_eq!([5, 8, 11].map(|key| boards.find(key)).to_vec(), places);
        assert_eq!((boards.place(7), boards.find(7)), (None, None));
        assert_eq!(Boards::new(3).find(7), None);
    }
}
