//! Where the cells of a sliding window stand, so that nobody has to look at all of them.
//!
//! Cells are used in turn: those that have lent are a run from `tail`, which comes back first, to
//! `head`, the latest. A request then touches the head, or the one after it, and the tail.
//!
//! It is a hint. What a cell may lend is decided by the cell's own word, so a ring that is behind
//! costs a second look, or refuses by the microseconds in which two workers overtook each other,
//! and never admits.

use core::time::Duration;

use super::gcra::{Level, span};
use super::sliding::{Loan, Sliding, last};

/// Cells after the head that another worker may have taken meanwhile.
const AHEAD: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ring {
    /// Under which it was seen.
    limit: u32,
    head: u8,
    tail: u8,
}

/// What a ring says of a moment.
#[derive(Clone, Copy, Debug)]
struct Stand {
    head: usize,
    word: u64,
    tail: usize,
    used: u32,
    /// When the tail comes back.
    back: u64,
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Lend { loan: Loan, ring: Ring, level: Level },
    Full(Duration),
}

impl Ring {
    /// Bits of the packed form.
    pub(crate) const BITS: u32 = 32;
    /// Set when a ring is known; the lower ones are a number of changes when none is.
    pub(crate) const KNOWN: u64 = 1 << 31;

    pub(crate) fn pack(self) -> u64 {
        let Self { limit, head, tail } = self;
        const { assert!(Sliding::LIMIT_MAX < 1 << 19, "fits its bits") };
        Self::KNOWN | (u64::from(limit) << 12) | (u64::from(head) << 6) | u64::from(tail)
    }

    pub(crate) fn unpack(word: u64) -> Option<Self> {
        let part = |shift: u32| ((word >> shift) & 63) as u8;
        let limit = ((word >> 12) & ((1 << 19) - 1)) as u32;
        (word & Self::KNOWN != 0).then(|| Self { limit, head: part(6), tail: part(0) })
    }

    /// What is seen by looking at all cells; None when they do not form a run, or when a higher
    /// limit has lent more of them, or more from each, and that has not come back yet.
    pub(crate) fn seen(sliding: Sliding, words: &[u64], now: u64, latest: usize) -> Option<Self> {
        let cells = sliding.cells();
        let (own, beyond) = words.split_at_checked(cells)?;
        let over = |(cell, word): (usize, &u64)| sliding.lent(*word, now) > sliding.share(cell);
        let folded = beyond.iter().any(|word| sliding.lent(*word, now) > 0);
        if folded || own.iter().enumerate().any(over) {
            return None;
        }
        let lent = |cell: usize| own.get(cell).map_or(0, |word| sliding.lent(*word, now));
        let before = |cell: usize| (cell + cells - 1) % cells;
        let head = if lent(latest) > 0 || (0..cells).all(|cell| lent(cell) == 0) {
            latest
        } else {
            before((0..cells).find(|cell| lent(*cell) == 0 && lent(before(*cell)) > 0)?)
        };
        // Back from the head: full cells, none later than the one after it.
        let (mut tail, mut run) = (head, 1);
        while run < cells {
            let next = before(tail);
            let older = last(*own.get(next)?) <= last(*own.get(tail)?);
            if lent(next) != sliding.share(next) || !older {
                break;
            }
            (tail, run) = (next, run + 1);
        }
        let all = (0..cells).filter(|cell| lent(*cell) > 0).count();
        let whole = all == run || (all == 0 && run == 1);
        whole.then(|| Self::at(sliding, head, tail)).flatten()
    }

    /// That of a key that has lent nothing yet.
    pub(crate) const fn new(sliding: Sliding) -> Self {
        Self { limit: sliding.limit(), head: 0, tail: 0 }
    }

    pub(crate) fn head(self) -> usize {
        self.head.into()
    }

    fn at(sliding: Sliding, head: usize, tail: usize) -> Option<Self> {
        let part = |n: usize| u8::try_from(n).ok();
        Some(Self { limit: sliding.limit(), head: part(head)?, tail: part(tail)? })
    }

    /// Where to take, or that there is nothing to take. None: look at all cells. `read` is the
    /// word of a cell, 0 where there is none.
    pub(crate) fn step(
        self,
        sliding: Sliding,
        read: impl Fn(usize) -> u64,
        now: u64,
        wanted: u32,
    ) -> Option<Step> {
        let stand = self.stand(sliding, &read, now)?;
        let cells = sliding.cells();
        let left = sliding.limit().saturating_sub(stand.used);
        let mut cell = stand.head;
        let mut loan = sliding.loan(cell, stand.word, 0, now, wanted);
        for _ in 0..AHEAD {
            if loan.is_some() {
                break;
            }
            cell = (cell + 1) % cells;
            if cell == stand.tail {
                // Whoever wants more than one is told by the slow way when that is there.
                let wait = span(stand.back.saturating_sub(now));
                return (wanted == 1 && left == 0).then_some(Step::Full(wait));
            }
            loan = sliding.loan(cell, read(cell), 0, now, wanted);
        }
        let loan = loan?;
        let left = left.checked_sub(loan.count).filter(|_| wanted <= left)?;
        let (tail, back) = match stand.used {
            0 => (cell, sliding.back(loan.next)),
            _ => {
                (stand.tail, if cell == stand.tail { sliding.back(loan.next) } else { stand.back })
            }
        };
        let level = Level { left, reset: span(back.saturating_sub(now)) };
        Some(Step::Lend { loan, ring: Self::at(sliding, cell, tail)?, level })
    }

    /// How many are left, and when there are more.
    pub(crate) fn level(
        self,
        sliding: Sliding,
        read: impl Fn(usize) -> u64,
        now: u64,
    ) -> Option<Level> {
        let stand = self.stand(sliding, &read, now)?;
        let left = sliding.limit().saturating_sub(stand.used);
        Some(Level { left, reset: span(stand.back.saturating_sub(now)) })
    }

    fn stand(self, sliding: Sliding, read: impl Fn(usize) -> u64, now: u64) -> Option<Stand> {
        let cells = sliding.cells();
        let (head, mut tail) = (usize::from(self.head), usize::from(self.tail));
        if self.limit != sliding.limit() || head.max(tail) >= cells {
            return None;
        }
        let word = read(head);
        if sliding.back(word) <= now {
            // The latest is back, so all are. From the first again: a key of little use then needs
            // few blocks.
            return Some(Stand { head: 0, word: read(0), tail: 0, used: 0, back: now });
        }
        let (mut used, mut back) = (sliding.lent(word, now), sliding.back(word));
        while tail != head {
            let oldest = read(tail);
            if sliding.lent(oldest, now) > 0 {
                back = sliding.back(oldest);
                break;
            }
            tail = (tail + 1) % cells;
        }
        let run = (head + cells - tail) % cells;
        // Whole cells, of which the first of all have one more.
        let wrapped = (tail + run).saturating_sub(cells);
        let more = |from: usize, to: usize| {
            let first = usize::try_from(sliding.more()).unwrap_or(0);
            to.min(first).saturating_sub(from.min(first))
        };
        let more = more(tail, (tail + run).min(cells)) + more(0, wrapped);
        used += u32::try_from(run).ok()? * sliding.share(cells) + u32::try_from(more).ok()?;
        let back = if used == 0 { now } else { back };
        Some(Stand { head, word, tail, used, back })
    }
}
