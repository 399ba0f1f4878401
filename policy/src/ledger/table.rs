//! A fixed table of atomic words under 64-bit keys: no locks, no growth, no allocation.
//!
//! A line of the cache holds four slots of two words, key and value. A key may live in the four
//! slots of either of two lines, both picked by its (secretly keyed) hash.
//!
//! How two words stay consistent without a lock:
//! - Every change of a value is one compare-and-swap on the value's word.
//! - A slot changes its key only while its value is `BUSY`, and only who swapped `BUSY` in may
//!   change it. So a swap that succeeds on a value read before the key proves the key, too, as
//!   long as a slot never shows the same value under two keys: `Words` sees to that.
//! - Two workers that bring the same new key at once could claim two slots. Each therefore writes
//!   the key first and looks for the other after; at least one sees the other (both are
//!   sequentially consistent). The one in the earlier slot stays, the other backs out.
//!
//! Waiting is bounded: a worker that another one keeps from its answer for too long (it was
//! suspended amid a claim) gets `Refused::Contended`, and its request is refused. Never admitted.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use super::tally::{Figures, Tally};
use super::words::{AtomicU64, spin_loop};

/// Of a line. As an index, and as part of a place.
const SLOTS: usize = 4;
const STEP: u32 = 4;
const PLACES: usize = 2 * SLOTS;

/// The key of a slot that nobody has.
const NOBODY: u64 = 0;
/// The value of a slot that is changing hands.
const BUSY: u64 = u64::MAX;
/// Looks before giving up: about 0.1 ms, far longer than two stores take. In tests whoever stands
/// in the way does not go on meanwhile.
const LOOKS_MAX: u32 = if cfg!(test) { 4 } else { 4096 };

/// What the values of a table mean. No method may return `u64::MAX`.
pub(crate) trait Words {
    /// Whether forgetting a key with this value loses nothing.
    fn idle(&self, value: u64) -> bool;
    /// What a key starts with, at a place that last held `value`.
    fn fresh(&self, place: Place, value: u64) -> u64;
    /// What an emptied slot shows: not `value`, nor anything shown before under the last key.
    fn cleared(&self, value: u64) -> u64;
}

/// Where a key was found: valid as long as its value is not idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place(u32);

impl Place {
    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// Every slot this key may have is held by a key that must not be forgotten.
    Full,
    /// Another worker stood in the way too long.
    Contended,
}

#[derive(Debug)]
pub(crate) struct Table {
    lines: Box<[Line]>,
    tally: Tally,
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct Line([Slot; SLOTS]);

#[derive(Debug, Default)]
struct Slot {
    key: AtomicU64,
    value: AtomicU64,
}

enum Found {
    At(Place, u64),
    Changing,
    Missing,
}

enum Claim {
    Won { place: Place, last: u64 },
    Lost,
    Full,
}

impl Table {
    pub(crate) fn new(keys_max: usize) -> Self {
        let lines = keys_max.div_ceil(SLOTS).clamp(2, u32::MAX as usize / SLOTS);
        Self { lines: (0..lines).map(|_| Line::default()).collect(), tally: Tally::default() }
    }

    pub(crate) fn capacity(&self) -> usize {
        self.lines.len() * SLOTS
    }

    pub(crate) fn figures(&self) -> Figures {
        self.tally.figures(self.capacity())
    }

    /// The key is judged by what it shares with others.
    pub(super) fn shares(&self, key: u64) {
        self.tally.full(key);
    }

    /// The key is refused, and if it is not here, by what it shares.
    pub(super) fn refused(&self, key: u64) {
        if !self.holds(key) {
            self.shares(key);
        }
    }

    /// The key's value, if it is here and not just changing hands.
    pub(crate) fn value(&self, key: u64) -> Option<u64> {
        self.look(key).map(|(_, value)| value)
    }

    /// The key's place and value, if it is here and not just changing hands.
    pub(crate) fn look(&self, key: u64) -> Option<(Place, u64)> {
        match self.find(key, self.homes(key)) {
            Found::At(place, value) => Some((place, value)),
            Found::Changing | Found::Missing => None,
        }
    }

    /// Whether the key is here, or just coming or going.
    pub(crate) fn holds(&self, key: u64) -> bool {
        !matches!(self.find(key, self.homes(key)), Found::Missing)
    }

    /// Whether a key that is not here would find a place now.
    pub(crate) fn has_room(&self, key: u64, words: &impl Words) -> bool {
        places(self.homes(key)).into_iter().any(|place| self.free(place, words))
    }

    /// Replaces the key's value by what `change` makes of it, or leaves it when that is None.
    /// `change` may be called several times; the last one counts.
    pub(crate) fn update<R>(
        &self,
        key: u64,
        words: &impl Words,
        mut change: impl FnMut(u64) -> (Option<u64>, R),
    ) -> Result<(Place, R), Refused> {
        debug_assert_ne!(key, NOBODY);
        let homes = self.homes(key);
        for _ in 0..LOOKS_MAX {
            match self.find(key, homes) {
                Found::At(place, value) => {
                    let (next, result) = change(value);
                    if next.is_none_or(|next| self.swap(place, value, next)) {
                        return Ok((place, result));
                    }
                }
                Found::Changing => spin_loop(),
                Found::Missing => match self.claim(key, &places(homes), words) {
                    Claim::Won { place, last } => {
                        let (next, result) = change(words.fresh(place, last));
                        match next {
                            Some(next) => self.slot(place).value.store(next, Release),
                            None => self.vacate(key, place, words.cleared(last)),
                        }
                        return Ok((place, result));
                    }
                    Claim::Lost => spin_loop(),
                    Claim::Full => {
                        self.tally.full(key);
                        return Err(Refused::Full);
                    }
                },
            }
        }
        Err(Refused::Contended)
    }

    /// One compare-and-swap on a place that `update` returned; whether it succeeded.
    pub(crate) fn swap(&self, place: Place, value: u64, next: u64) -> bool {
        debug_assert_ne!(next, BUSY);
        self.slot(place).value.compare_exchange(value, next, SeqCst, Relaxed).is_ok()
    }

    pub(crate) fn at(&self, place: Place) -> u64 {
        self.slot(place).value.load(Acquire)
    }

    /// Every value of a key that is here. For reports and tests.
    pub(crate) fn values(&self) -> impl Iterator<Item = u64> {
        let slots = self.lines.iter().flat_map(|line| &line.0);
        slots
            .filter(|slot| slot.key.load(Relaxed) != NOBODY)
            .map(|slot| slot.value.load(Relaxed))
            .filter(|value| *value != BUSY)
    }

    fn find(&self, key: u64, homes: [u32; 2]) -> Found {
        let [Some(first), Some(second)] = homes.map(|home| self.lines.get(home as usize)) else {
            return Found::Missing;
        };
        // By turns, so that both lines are on their way from memory at once.
        for ((a, b), step) in first.0.iter().zip(&second.0).zip(0..) {
            for (slot, home) in [a, b].into_iter().zip(homes) {
                if slot.key.load(SeqCst) != key {
                    continue;
                }
                // The value is read before the key, so that swapping this very value proves the
                // key.
                let value = slot.value.load(SeqCst);
                if slot.key.load(SeqCst) != key {
                    continue;
                }
                let there = Found::At(Place(home * STEP + step), value);
                return if value == BUSY { Found::Changing } else { there };
            }
        }
        Found::Missing
    }

    /// Takes a free or idle slot for the key and leaves it `BUSY`.
    fn claim(&self, key: u64, places: &[Place; PLACES], words: &impl Words) -> Claim {
        let mut changing = false;
        // The emptier line first: then nearly every key finds a place while three in four are
        // taken. Which of two rivals stays does not depend on it.
        let room = |line: &[Place]| line.iter().filter(|place| self.free(**place, words)).count();
        let (first, second) = places.split_at(SLOTS);
        let from = if room(second) > room(first) { SLOTS } else { 0 };
        for rank in (from..PLACES).chain(0..from) {
            let place = places[rank];
            let slot = self.slot(place);
            let last = slot.value.load(SeqCst);
            if last == BUSY {
                changing = true;
                continue;
            }
            let held = slot.key.load(SeqCst) != NOBODY;
            if held && !words.idle(last) {
                continue;
            }
            if slot.value.compare_exchange(last, BUSY, SeqCst, Relaxed).is_err() {
                return Claim::Lost;
            }
            slot.key.store(key, SeqCst);
            self.tally.claimed(key, held);
            if self.rivalled(key, places, rank) {
                self.vacate(key, place, words.cleared(last));
                return Claim::Lost;
            }
            return Claim::Won { place, last };
        }
        if changing { Claim::Lost } else { Claim::Full }
    }

    fn free(&self, place: Place, words: &impl Words) -> bool {
        let slot = self.slot(place);
        let value = slot.value.load(Relaxed);
        value != BUSY && (slot.key.load(Relaxed) == NOBODY || words.idle(value))
    }

    /// Whether another slot has, or is about to have, the key that was just written at `rank`.
    fn rivalled(&self, key: u64, places: &[Place; PLACES], rank: usize) -> bool {
        places.iter().enumerate().filter(|(other, _)| *other != rank).any(|(other, &place)| {
            let slot = self.slot(place);
            for _ in 0..LOOKS_MAX {
                if slot.key.load(SeqCst) != key {
                    return false;
                }
                // A later slot that is still busy either sees us and backs out, or did not see
                // us and will show a value: wait for which.
                if slot.value.load(SeqCst) != BUSY || other < rank {
                    return slot.key.load(SeqCst) == key;
                }
                spin_loop();
            }
            true
        })
    }

    fn vacate(&self, key: u64, place: Place, shown: u64) {
        debug_assert_ne!(shown, BUSY);
        self.tally.vacated(key);
        let slot = self.slot(place);
        slot.key.store(NOBODY, SeqCst);
        slot.value.store(shown, SeqCst);
    }

    /// The two lines in which a key may live.
    #[expect(clippy::cast_possible_truncation, reason = "`new` keeps every place below 2^32")]
    fn homes(&self, key: u64) -> [u32; 2] {
        let lines = self.lines.len() as u64;
        let first = ((key >> 32) * lines) >> 32;
        let other = ((key & u64::from(u32::MAX)) * lines) >> 32;
        let second = if other == first { (first + 1) % lines } else { other };
        [first as u32, second as u32]
    }

    fn slot(&self, place: Place) -> &Slot {
        let index = place.0 as usize;
        &self.lines[index / SLOTS].0[index % SLOTS]
    }
}

/// In the order that decides between rivals: the same for every worker.
fn places([first, second]: [u32; 2]) -> [Place; PLACES] {
    let [a, b] = [first * STEP, second * STEP];
    [a, a + 1, a + 2, a + 3, b, b + 1, b + 2, b + 3].map(Place)
}
