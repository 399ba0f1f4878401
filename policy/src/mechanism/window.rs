//! Outcomes of the last while, in ten buckets: how many calls, how many of them bad or slow.
//!
//! The node's window is ten words. A word holds one bucket's counts *and* says whose they are: the
//! era of the breaker and the number of the bucket. So one compare-and-swap adds to a bucket or
//! begins it anew, nothing is lost when two workers do it at once, and what belongs to an older
//! era can neither be counted nor need be cleared.
//!
//! Good outcomes are most of the traffic. A worker keeps them in plain cells ([`Local`]) and hands
//! them over in batches: with the next bad outcome, with the housekeeping tick, or when there are
//! many.

use core::cell::Cell;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};

use crate::time::Instant;

/// Buckets of a window. Ten: the oldest tenth falls out at once.
pub(crate) const BUCKETS: u32 = 10;

/// Good outcomes a worker keeps before it hands them over.
const BATCH: u32 = 32;

/// The era of a breaker, modulo its ten bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Era(u16);

impl Era {
    pub(crate) const FIRST: Self = Self(0);
    const BITS: u32 = 10;
    const MASK: u16 = (1 << Self::BITS) - 1;

    #[expect(clippy::cast_possible_truncation, reason = "masked to ten bits")]
    pub(crate) const fn of(bits: u64) -> Self {
        Self(bits as u16 & Self::MASK)
    }

    pub(crate) const fn bits(self) -> u64 {
        self.0 as u64
    }

    pub(crate) const fn next(self) -> Self {
        Self((self.0 + 1) & Self::MASK)
    }

    /// Whether this one came after `other`, as long as they are less than 512 eras apart.
    pub(crate) const fn after(self, other: Self) -> bool {
        let ahead = self.0.wrapping_sub(other.0) & Self::MASK;
        ahead != 0 && ahead < 1 << (Self::BITS - 1)
    }
}

/// What happened in some buckets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) total: u32,
    pub(crate) bad: u32,
    pub(crate) slow: u32,
}

/// The node's window.
#[derive(Debug, Default)]
pub(crate) struct Window([AtomicU64; 10]);

impl Window {
    /// Counts these in a bucket. What is older than what stands there is dropped.
    pub(crate) fn add(&self, era: Era, bucket: u64, counts: Counts) {
        let Some(slot) =
            usize::try_from(bucket % u64::from(BUCKETS)).ok().and_then(|at| self.0.get(at))
        else {
            return;
        };
        let mut word = slot.load(Relaxed);
        loop {
            let stands = Bucket::unpack(word);
            let base = match stands.place(era, bucket) {
                Place::Same => stands.counts,
                Place::Older => Counts::default(),
                Place::Newer => return,
            };
            let counts = Counts {
                total: base.total.saturating_add(counts.total),
                bad: base.bad.saturating_add(counts.bad),
                slow: base.slow.saturating_add(counts.slow),
            };
            let next = Bucket { era, number: bucket & NUMBER_MASK, counts: fitted(counts) }.pack();
            match slot.compare_exchange_weak(word, next, SeqCst, Relaxed) {
                Ok(_) => return,
                Err(now) => word = now,
            }
        }
    }

    /// The sum over the ten buckets that end with this one.
    pub(crate) fn sum(&self, era: Era, bucket: u64) -> Counts {
        let mut sum = Counts::default();
        for slot in &self.0 {
            let it = Bucket::unpack(slot.load(SeqCst));
            // A worker whose clock is a little ahead may have begun the next one.
            let age = bucket.wrapping_add(1).wrapping_sub(it.number) & NUMBER_MASK;
            if it.era == era && age <= u64::from(BUCKETS) {
                sum.total += it.counts.total;
                sum.bad += it.counts.bad;
                sum.slow += it.counts.slow;
            }
        }
        sum
    }
}

/// One worker's good outcomes that the node's window does not have yet.
#[derive(Debug)]
pub(crate) struct Local {
    era: Cell<Era>,
    bucket: Cell<u64>,
    /// When that bucket ends, in nanoseconds: until then no division is needed.
    ends_ns: Cell<u64>,
    good: Cell<u32>,
}

impl Default for Local {
    fn default() -> Self {
        let (era, bucket, ends_ns, good) = Default::default();
        Self { era: Cell::new(Era(era)), bucket, ends_ns, good }
    }
}

impl Local {
    /// Counts one good outcome. True: the window was told, so it is time to look at it.
    pub(crate) fn good(&self, window: &Window, era: Era, now: Instant, bucket_ns: u64) -> bool {
        let moved = now.as_nanos() >= self.ends_ns.get() || self.era.get() != era;
        if moved {
            self.hand_over(window);
            let bucket = now.as_nanos() / bucket_ns.max(1);
            self.era.set(era);
            self.bucket.set(bucket);
            self.ends_ns.set(bucket.saturating_add(1).saturating_mul(bucket_ns));
        }
        self.good.set(self.good.get() + 1);
        self.good.get() >= BATCH && self.hand_over(window)
    }

    /// True: there was something to hand over.
    pub(crate) fn hand_over(&self, window: &Window) -> bool {
        let good = self.good.replace(0);
        if good > 0 {
            let counts = Counts { total: good, ..Counts::default() };
            window.add(self.era.get(), self.bucket.get(), counts);
        }
        good > 0
    }
}

/// One word of a window: era 10 bits, number 16, total 14, bad 12, slow 12.
///
/// A number comes again after 65,536 buckets. A bucket that nobody touched for exactly so long (18
/// hours, where a bucket is a second) would be counted once more; what it held then was an era
/// that is still good.
struct Bucket {
    era: Era,
    number: u64,
    counts: Counts,
}

enum Place {
    Same,
    Older,
    Newer,
}

impl Bucket {
    /// Where what stands here is, seen from an outcome of that era and bucket.
    fn place(&self, era: Era, bucket: u64) -> Place {
        if self.era != era {
            return if era.after(self.era) { Place::Older } else { Place::Newer };
        }
        let ahead = bucket.wrapping_sub(self.number) & NUMBER_MASK;
        match ahead {
            0 => Place::Same,
            ahead if ahead < NUMBER_MASK / 2 => Place::Older,
            _ => Place::Newer,
        }
    }

    fn pack(&self) -> u64 {
        let Counts { total, bad, slow } = self.counts;
        let counts = u64::from(total) | (u64::from(bad) << 14) | (u64::from(slow) << 26);
        counts | (self.number << 38) | (self.era.bits() << 54)
    }

    #[expect(clippy::cast_possible_truncation, reason = "masked to the bits of each")]
    fn unpack(word: u64) -> Self {
        let part = |shift: u32, bits: u32| (word >> shift) & ((1 << bits) - 1);
        let counts = Counts {
            total: part(0, 14) as u32,
            bad: part(14, 12) as u32,
            slow: part(26, 12) as u32,
        };
        Self { era: Era::of(part(54, 10)), number: part(38, 16), counts }
    }
}

const NUMBER_MASK: u64 = (1 << 16) - 1;
const TOTAL_MAX: u32 = (1 << 14) - 1;
const PART_MAX: u32 = (1 << 12) - 1;

/// Counts that no longer fit are halved together: a rate is what they are for, and it stays.
fn fitted(mut counts: Counts) -> Counts {
    while counts.total > TOTAL_MAX || counts.bad > PART_MAX || counts.slow > PART_MAX {
        counts.total /= 2;
        counts.bad /= 2;
        counts.slow /= 2;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn era(n: u64) -> Era {
        Era::of(n)
    }

    fn bad(n: u32) -> Counts {
        Counts { total: n, bad: n, slow: 0 }
    }

    #[test]
    fn a_bucket_falls_out_when_it_is_ten_old_and_the_skipped_ones_with_it() {
        let window = Window::default();
        window.add(era(0), 100, bad(3));
        window.add(era(0), 104, bad(4));
        for (bucket, expected) in
            [(100, 3), (103, 7), (104, 7), (109, 7), (110, 4), (113, 4), (114, 0), (5000, 0)]
        {
            assert_eq!(window.sum(era(0), bucket).bad, expected, "{bucket}");
        }
        window.add(era(0), 110, bad(1));
        assert_eq!(window.sum(era(0), 110).bad, 5, "the slot was begun anew");
        window.add(era(0), 100, bad(9));
        assert_eq!(window.sum(era(0), 110).bad, 5, "too late to count");
    }

    #[test]
    fn an_older_era_is_neither_counted_nor_can_it_count() {
        let window = Window::default();
        window.add(era(1023), 7, bad(5));
        assert_eq!(window.sum(era(0), 7).total, 0);
        window.add(era(0), 7, bad(2));
        window.add(era(1023), 7, bad(5));
        assert_eq!(window.sum(era(0), 7).total, 2);
    }

    #[test]
    fn counts_that_do_not_fit_keep_their_rate() {
        let window = Window::default();
        for _ in 0..10_000 {
            window.add(era(0), 7, Counts { total: 10, bad: 5, slow: 1 });
        }
        let sum = window.sum(era(0), 7);
        assert!(sum.total > 5000 && sum.bad.abs_diff(sum.total / 2) < sum.total / 50, "{sum:?}");
        assert!(sum.slow.abs_diff(sum.total / 10) < sum.total / 50, "{sum:?}");
    }

    #[test]
    fn good_outcomes_are_handed_over_in_batches_and_all_of_them() {
        let (window, local) = (Window::default(), Local::default());
        for n in 0..100_u64 {
            local.good(&window, era(0), Instant::from_nanos(n * SECOND / 10), SECOND);
        }
        assert_eq!(window.sum(era(0), 9).total, 90, "the last bucket is still the worker's");
        local.hand_over(&window);
        assert_eq!(window.sum(era(0), 9).total, 100);
        assert!(!local.hand_over(&window));
    }
}
