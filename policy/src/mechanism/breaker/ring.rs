//! The outcomes of the last so many calls of the whole node, where a breaker looks at calls and
//! not at time.
//!
//! A ring of cells: a call swaps its outcome into the next, and what comes out of it has left the
//! window, so the counts are put right by exactly that and never drift. Each cell says of which
//! era it is; the counts are of one era and only cells of that one are in them. An era is begun in
//! the counts before its first cell is written. So at any moment counts and cells differ by no
//! more than what calls in between have yet to book, and booking adds and takes away modulo 2^16.

use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};

use crate::mechanism::window::{Counts, Era};

/// The most calls that can be looked back on.
pub(crate) const CALLS_MAX: u32 = 1000;

#[derive(Debug)]
pub(super) struct Ring {
    /// Outcome 2 bits (none, good, slow, bad), era 10.
    cells: Box<[AtomicU16]>,
    len: AtomicU32,
    at: AtomicU32,
    /// Era 10 bits, then total, bad and slow, 16 each.
    counts: AtomicU64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Mark {
    Good = 1,
    Slow = 2,
    Bad = 3,
}

impl Default for Ring {
    fn default() -> Self {
        let (at, counts) = Default::default();
        let cells = (0..CALLS_MAX).map(|_| AtomicU16::new(0)).collect();
        Self { cells, len: AtomicU32::new(CALLS_MAX), at, counts }
    }
}

impl Ring {
    /// True: it was another length. Cells beyond it may never come round again, so whoever is told
    /// so begins a new era.
    pub(super) fn resize(&self, len: u32) -> bool {
        let len = len.clamp(1, CALLS_MAX);
        self.len.swap(len, SeqCst) != len
    }

    /// How many calls were counted up to this one; of one of an older era, which is not counted,
    /// anything.
    pub(super) fn push(&self, era: Era, mark: Mark) -> u32 {
        if !self.begun(era) {
            return 1;
        }
        let at = self.at.fetch_add(1, SeqCst);
        let place = (at % self.len.load(SeqCst).max(1)) as usize;
        let Some(cell) = self.cells.get(place) else { return at };
        let tag = |cell: u16| u64::from(cell >> 2);
        let new = (era_tag(era) << 2) | mark as u16;
        let old = cell.swap(new, SeqCst);
        let mut word = self.counts.load(SeqCst);
        loop {
            let mut next = word;
            if tag(new) == word & ERA {
                next = booked(next, new, true);
            }
            if tag(old) == word & ERA && old & 3 != 0 {
                next = booked(next, old, false);
            }
            match self.counts.compare_exchange(word, next, SeqCst, SeqCst) {
                Ok(_) => return at,
                Err(found) => word = found,
            }
        }
    }

    pub(super) fn sum(&self, era: Era) -> Counts {
        let word = self.counts.load(SeqCst);
        if word & ERA != era.bits() {
            return Counts::default();
        }
        // Below zero for a moment, as long as somebody has yet to book.
        let part = |shift: u32| match (word >> shift & 0xffff) as u16 {
            n if n > i16::MAX.unsigned_abs() => 0,
            n => u32::from(n),
        };
        Counts { total: part(10), bad: part(26), slow: part(42) }
    }

    /// Makes the counts those of this era, unless they are of a later one (false).
    fn begun(&self, era: Era) -> bool {
        let mut word = self.counts.load(Relaxed);
        loop {
            let stands = Era::of(word);
            if stands == era {
                return true;
            }
            if !era.after(stands) {
                return false;
            }
            match self.counts.compare_exchange(word, era.bits(), SeqCst, SeqCst) {
                Ok(_) => return true,
                Err(found) => word = found,
            }
        }
    }
}

const ERA: u64 = (1 << 10) - 1;

#[expect(clippy::cast_possible_truncation, reason = "ten bits")]
const fn era_tag(era: Era) -> u16 {
    era.bits() as u16
}

/// One call more or less, each field modulo 2^16.
fn booked(word: u64, cell: u16, more: bool) -> u64 {
    let change = |word: u64, shift: u32| {
        let field = (word >> shift & 0xffff) as u16;
        let field = if more { field.wrapping_add(1) } else { field.wrapping_sub(1) };
        word & !(0xffff << shift) | u64::from(field) << shift
    };
    let word = change(word, 10);
    match cell & 3 {
        2 => change(word, 42),
        3 => change(word, 26),
        _ => word,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mechanism::dice::Dice;

    fn counts(total: u32, bad: u32, slow: u32) -> Counts {
        Counts { total, bad, slow }
    }

    #[test]
    fn what_leaves_the_window_leaves_the_counts_and_they_never_drift() {
        let ring = Ring::default();
        assert!(ring.resize(10) && !ring.resize(10));
        let (mut dice, mut all) = (Dice::new(3), Vec::new());
        for step in 0..50_000_u64 {
            let era = Era::of(step / 700);
            let mark = match dice.below(3) {
                0 => Mark::Good,
                1 => Mark::Slow,
                _ => Mark::Bad,
            };
            if step % 700 == 0 {
                all.clear();
            }
            ring.push(era, mark);
            all.push(mark);
            let last = &all[all.len().saturating_sub(10)..];
            let number = |n: usize| u32::try_from(n).unwrap();
            let of = |mark| number(last.iter().filter(|m| **m == mark).count());
            let expected = counts(number(last.len()), of(Mark::Bad), of(Mark::Slow));
            assert_eq!(ring.sum(era), expected, "{step}");
        }
    }

    #[test]
    fn an_older_era_neither_counts_nor_is_counted() {
        let ring = Ring::default();
        ring.resize(4);
        (0..4).for_each(|_| _ = ring.push(Era::of(7), Mark::Bad));
        assert_eq!(ring.sum(Era::of(8)), Counts::default());
        ring.push(Era::of(8), Mark::Bad);
        ring.push(Era::of(7), Mark::Bad);
        assert_eq!(ring.sum(Era::of(8)), counts(1, 1, 0));
        (0..3).for_each(|_| _ = ring.push(Era::of(8), Mark::Good));
        assert_eq!(ring.sum(Era::of(8)).total, 4);
        ring.push(Era::of(8), Mark::Good);
        assert!(ring.sum(Era::of(8)).bad <= 1);
    }

    #[test]
    fn threads_that_push_at_once_lose_nothing() {
        let ring = Ring::default();
        ring.resize(100);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let ring = &ring;
                scope.spawn(move || {
                    for step in 0..20_000_u64 {
                        let mark = if (step + thread) % 2 == 0 { Mark::Bad } else { Mark::Good };
                        ring.push(Era::of(step / 5000), mark);
                    }
                });
            }
        });
        (0..100).for_each(|_| _ = ring.push(Era::of(3), Mark::Slow));
        assert_eq!(ring.sum(Era::of(3)), counts(100, 0, 100));
    }
}
