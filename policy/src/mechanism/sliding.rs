//! At most so many in any window of time, wherever it begins: strict, without a clock's edge.
//!
//! The limit is dealt out to *cells*, at most 64 of them. A cell lends its share and has it back
//! all at once, a window after it lent its last. So whatever the timing, a cell lends at most its
//! share in any window, and all cells together at most the limit. No cell depends on another:
//! each is one word under compare-and-swap, and workers need no order among them.
//!
//! With a limit of up to 64 a cell holds one, and this is the exact log of the last admissions.
//! Above, the cell being lent from is at most one share late, so at least 62/64 of the limit can
//! be used, and under steady load 64/65 of it is.
//!
//! Cells are used in turn, like a ring, so the one that comes next is the one that has rested
//! longest. [`Ring`](super::ring::Ring) remembers where that is; it saves looking at all cells and
//! is never believed where that could admit too much.
//!
//! A reload may lower the limit, and with it the number of cells. What the cells beyond have lent
//! then counts against the cells they are folded onto until it has come back.

use core::time::Duration;

use super::gcra::{Level, span, ticks_of};

/// A cell's word: when it last lent, rounded up to 2^13 ticks (half a microsecond), with how many
/// it has lent in the bits that rounding freed.
const COUNT_BITS: u32 = 13;
const GRAIN: u64 = 1 << COUNT_BITS;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sliding {
    limit: u32,
    window: u64,
    cells: u8,
    /// Each cell has so many, and the first few one more.
    share: u32,
    more: u32,
}

/// Which cell lends how many, and the word that says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Loan {
    pub(crate) cell: usize,
    pub(crate) word: u64,
    pub(crate) next: u64,
    pub(crate) count: u32,
}

impl Sliding {
    pub(crate) const CELLS_MAX: usize = 64;
    /// So that a cell's count fits its bits.
    pub(crate) const LIMIT_MAX: u32 = 64 * ((1 << COUNT_BITS) - 1);
    /// Rounding is at most a thousandth of it.
    pub(crate) const WINDOW_MIN: Duration = Duration::from_millis(1);

    /// None when the limit or the window is out of bounds.
    pub(crate) fn new(limit: u32, window: Duration) -> Option<Self> {
        let good = (1..=Self::LIMIT_MAX).contains(&limit) && window >= Self::WINDOW_MIN;
        let cells = limit.min(64);
        let (share, more) = (limit.checked_div(cells)?, limit.checked_rem(cells)?);
        let cells = u8::try_from(cells).ok()?;
        good.then(|| Self { limit, window: ticks_of(window), cells, share, more })
    }

    pub(crate) const fn limit(self) -> u32 {
        self.limit
    }

    pub(crate) fn window(self) -> Duration {
        span(self.window)
    }

    pub(crate) const fn window_ticks(self) -> u64 {
        self.window
    }

    /// How many cells have one more than the others.
    pub(super) const fn more(self) -> u32 {
        self.more
    }

    /// How many cells there are.
    pub(crate) const fn cells(self) -> usize {
        self.cells as usize
    }

    /// From which cell to take next, and how many of `wanted` it lends; None when all cells
    /// together lend less than that, or the limit is used up: after a reload to a lower one, cells
    /// may have lent more than their share. A cell that has begun to
    /// lend goes on, the latest first, so that at most one is ever late; then the one that has
    /// rested longest. `words` are those of all cells that there may ever have been.
    pub(crate) fn lend(self, words: &[u64], now: u64, wanted: u32) -> Option<Loan> {
        let (mut begun, mut rested) = (None::<(u64, Loan)>, None::<(u64, Loan)>);
        let used: u32 = words.iter().map(|word| self.lent(*word, now)).sum();
        let mut room = 0;
        for (cell, &word) in words.iter().take(self.cells()).enumerate() {
            let folded = self.folded(words, cell, now);
            let Some(loan) = self.loan(cell, word, folded, now, wanted) else { continue };
            room += self.share(cell).saturating_sub(self.lent(word, now) + folded);
            let last = last(word);
            if self.lent(word, now) > 0 {
                if begun.is_none_or(|(latest, _)| last > latest) {
                    begun = Some((last, loan));
                }
            } else if rested.is_none_or(|(earliest, _)| last < earliest) {
                rested = Some((last, loan));
            }
        }
        begun
            .or(rested)
            .filter(|_| room >= wanted && used.saturating_add(wanted) <= self.limit)
            .map(|(_, loan)| loan)
    }

    /// What this cell lends, apart from what is `folded` onto it.
    pub(super) fn loan(
        self,
        cell: usize,
        word: u64,
        folded: u32,
        now: u64,
        wanted: u32,
    ) -> Option<Loan> {
        let lent = self.lent(word, now);
        let count = wanted.min(self.share(cell).saturating_sub(lent + folded));
        let next = last(word).max(up(now)) | u64::from(lent + count);
        (count > 0).then_some(Loan { cell, word, next, count })
    }

    pub(crate) fn level(self, words: &[u64], now: u64) -> Level {
        let used: u32 = words.iter().map(|word| self.lent(*word, now)).sum();
        let lent = words.iter().filter(|word| self.lent(**word, now) > 0);
        let back = lent.map(|word| self.back(*word)).min().unwrap_or(now);
        Level { left: self.limit.saturating_sub(used), reset: span(back.saturating_sub(now)) }
    }

    /// How long until `wanted` can be had, if nothing else is taken meanwhile.
    pub(crate) fn wait(self, words: &[u64], now: u64, wanted: u32) -> Duration {
        let mut returns = [(u64::MAX, 0); Self::CELLS_MAX];
        for (slot, &word) in returns.iter_mut().zip(words) {
            if self.lent(word, now) > 0 {
                *slot = (self.back(word), self.lent(word, now));
            }
        }
        returns.sort_unstable();
        let mut used: u32 = returns.iter().map(|(_, count)| *count).sum();
        for (at, count) in returns {
            used -= count;
            if count > 0 && used.saturating_add(wanted) <= self.limit {
                return span(at.saturating_sub(now));
            }
        }
        Duration::ZERO
    }

    /// `word` with `count` fewer lent; None when the cell has had its share back since.
    pub(crate) fn untake(self, word: u64, taken: u64, count: u32) -> Option<u64> {
        let same = last(word) < last(taken) + self.window && count_of(word) >= count;
        same.then(|| word - u64::from(count))
    }

    /// When a cell that has lent has its share back.
    pub(super) const fn back(self, word: u64) -> u64 {
        last(word) + self.window
    }

    pub(super) fn lent(self, word: u64, now: u64) -> u32 {
        if self.back(word) <= now { 0 } else { count_of(word) }
    }

    pub(super) fn share(self, cell: usize) -> u32 {
        self.share + u32::from(u32::try_from(cell).is_ok_and(|cell| cell < self.more))
    }

    /// What the cells beyond that are folded onto this one have lent.
    fn folded(self, words: &[u64], cell: usize, now: u64) -> u32 {
        let beyond = words.iter().skip(cell + self.cells()).step_by(self.cells());
        beyond.map(|word| self.lent(*word, now)).sum()
    }
}

pub(super) const fn last(word: u64) -> u64 {
    word & !(GRAIN - 1)
}

const fn count_of(word: u64) -> u32 {
    (word & (GRAIN - 1)) as u32
}

const fn up(now: u64) -> u64 {
    (now + GRAIN - 1) & !(GRAIN - 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::mechanism::gcra::ticks;
    use crate::time::{Instant, nanos};

    const US: u64 = 1000;

    fn at(us: u64) -> u64 {
        ticks(Instant::from_nanos(us * US))
    }

    /// One worker alone.
    fn take(sliding: Sliding, words: &mut [u64], now: u64, cost: u32) -> Result<(), Duration> {
        let before: Vec<u64> = words.to_vec();
        let mut missing = cost;
        while missing > 0 {
            let Some(loan) = sliding.lend(words, now, missing) else {
                words.copy_from_slice(&before);
                return Err(sliding.wait(words, now, cost));
            };
            words[loan.cell] = loan.next;
            missing -= loan.count;
        }
        Ok(())
    }

    #[test]
    fn a_hundred_pass_around_any_edge() {
        let sliding = Sliding::new(100, Duration::from_secs(1)).unwrap();
        let mut words = [0; 64];
        let mut passed =
            |us| (0..150).filter(|_| take(sliding, &mut words, at(us), 1).is_ok()).count();
        assert_eq!(passed(5_900_000), 100);
        assert_eq!(passed(6_100_000), 0);
        assert_eq!(passed(6_899_999), 0);
        assert_eq!(passed(6_900_001), 100);
    }

    #[test]
    fn a_share_is_back_a_window_later_and_not_a_tick_before() {
        let sliding = Sliding::new(1, Duration::from_secs(1)).unwrap();
        let window = sliding.window_ticks();
        // Where rounding does nothing, nearly nothing, and most.
        for off in [0, 1, GRAIN / 2, GRAIN - 1] {
            let (mut words, now) = ([0; 64], 7 * window / GRAIN * GRAIN + off);
            assert!(take(sliding, &mut words, now, 1).is_ok());
            let early = now + window - 1;
            assert!(take(sliding, &mut words.clone(), early, 1).is_err(), "{off}");
            let late = now + window + (GRAIN - off) % GRAIN;
            assert!(take(sliding, &mut words, late, 1).is_ok(), "{off}");
        }
    }

    #[test]
    fn a_worker_whose_clock_is_behind_brings_nothing_back_early() {
        // The first cell has two; the second is taken by a clock that is 50 ms behind.
        let sliding = Sliding::new(65, Duration::from_secs(1)).unwrap();
        let mut words = [0; 64];
        assert!(take(sliding, &mut words, at(7_050_000), 1).is_ok());
        assert!(take(sliding, &mut words, at(7_000_000), 1).is_ok());
        assert_eq!(sliding.lent(words[0], at(8_049_999)), 2);
        assert_eq!(sliding.lent(words[0], at(8_050_001)), 0);
    }

    #[test]
    fn shares_add_up_to_the_limit() {
        for limit in [1, 2, 63, 64, 65, 100, 127, 128, 1000, Sliding::LIMIT_MAX] {
            let sliding = Sliding::new(limit, Duration::from_secs(1)).unwrap();
            let sum: u32 = (0..sliding.cells()).map(|cell| sliding.share(cell)).sum();
            assert_eq!(sum, limit);
            assert!(u64::from(sliding.share(0)) < GRAIN);
        }
    }

    proptest! {
        /// Up to 64 it is the log: what a list of all admissions decides. Tight to a microsecond.
        #[test]
        fn small_limits_are_the_exact_log(
            limit in 1_u32..=64,
            window_us in 1000_u64..1_000_000,
            asks in prop::collection::vec((0_u64..60_000, 1_u32..4), 1..300),
        ) {
            let sliding = Sliding::new(limit, Duration::from_micros(window_us)).unwrap();
            let (mut words, mut log, mut now) = ([0_u64; 64], Vec::<u64>::new(), 2_000_000);
            for (gap, cost) in asks {
                // On the grain, so that rounding plays no part: 64 us are 125 grains.
                now += gap / 64 * 64;
                let window = window_us / 64 * 64;
                let sliding = Sliding { window: at(window), ..sliding };
                let used = log.iter().filter(|t| **t + window > now).count();
                let fits = used + cost as usize <= limit as usize;
                let got = take(sliding, &mut words, at(now), cost);
                prop_assert_eq!(got.is_ok(), fits, "at {}", now);
                match got {
                    Ok(()) => log.extend((0..cost).map(|_| now)),
                    Err(_) if cost > limit => {}
                    Err(wait) => {
                        let then = at(now) + ticks_of(wait);
                        prop_assert!(take(sliding, &mut words.clone(), then, cost).is_ok());
                        let before = then - 16 * US;
                        prop_assert!(take(sliding, &mut words.clone(), before, cost).is_err());
                        let _ = nanos(wait);
                    }
                }
            }
        }

        /// Never above the limit in any window, and never refused while a list of all admissions
        /// has room for two shares more.
        #[test]
        fn large_limits_stay_below_and_close(
            limit in 65_u32..500,
            asks in prop::collection::vec((0_u64..30_000, 1_u32..20), 1..400),
        ) {
            const WINDOW: u64 = 1_000_000;
            let sliding = Sliding::new(limit, Duration::from_micros(WINDOW)).unwrap();
            let (mut words, mut log, mut now) = ([0_u64; 64], Vec::<(u64, u32)>::new(), 2_000_000);
            let share = limit.div_ceil(64);
            for (gap, cost) in asks {
                now += gap;
                let used = |now: u64| -> u32 {
                    log.iter().filter(|(t, _)| *t + WINDOW > now).map(|(_, n)| n).sum()
                };
                if take(sliding, &mut words, at(now), cost).is_ok() {
                    prop_assert!(used(now) + cost <= limit);
                    log.push((now, cost));
                } else {
                    let late = now.saturating_sub(1);
                    prop_assert!(used(late) + cost + 2 * share > limit, "{} of {limit}", used(late));
                }
            }
        }
    }
}
