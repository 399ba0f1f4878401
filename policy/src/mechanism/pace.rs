//! How long something usually takes: a percentile over the latest, in fixed memory.
//!
//! Buckets eight to the octave, so the answer is at most an eighth too high and never too low.
//! Every so often all are halved: what is old weighs less and less.

use core::cell::Cell;
use core::time::Duration;

use crate::time::Instant;

/// One worker's times of one kind of call.
#[derive(Debug)]
pub(crate) struct Pace {
    counts: [Cell<u16>; BUCKETS],
    total: Cell<u32>,
    /// Calls until the percentile is worked out anew.
    due: Cell<u32>,
    p95: Cell<Option<Duration>>,
    halved: Cell<Instant>,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            counts: [const { Cell::new(0) }; BUCKETS],
            total: Cell::new(0),
            due: Cell::new(EVERY),
            p95: Cell::new(None),
            halved: Cell::default(),
        }
    }
}

impl Pace {
    pub(crate) fn record(&self, now: Instant, took: Duration) {
        if self.total.get() == 0 {
            self.halved.set(now);
        }
        if let Some(count) = self.counts.get(bucket(took)) {
            count.set(count.get().saturating_add(1));
            self.total.set(self.total.get() + 1);
        }
        self.due.set(self.due.get() - 1);
        if self.due.get() == 0 {
            self.due.set(EVERY);
            if self.total.get() >= ENOUGH || now.since(self.halved.get()) > AGES {
                self.halve(now);
            }
            self.p95.set(self.look());
        }
    }

    /// What nineteen of twenty calls do not take longer than; None before enough were seen.
    pub(crate) fn p95(&self) -> Option<Duration> {
        self.p95.get()
    }

    fn halve(&self, now: Instant) {
        self.halved.set(now);
        let halved = self.counts.iter().map(|count| {
            count.set(count.get() / 2);
            u32::from(count.get())
        });
        self.total.set(halved.sum());
    }

    fn look(&self) -> Option<Duration> {
        let total = self.total.get();
        if total < FEW {
            return None;
        }
        let mut beyond = 0;
        for (at, count) in self.counts.iter().enumerate().rev() {
            beyond += u32::from(count.get());
            if beyond * 20 > total {
                return Some(top(at));
            }
        }
        None
    }
}

fn bucket(took: Duration) -> usize {
    let us = took.as_micros().min(u128::from(LONGEST_US));
    let us = u64::try_from(us).unwrap_or(LONGEST_US);
    let octave = u64::BITS - (us >> (FINE_BITS + 1)).leading_zeros();
    let index = (u64::from(octave) << FINE_BITS) + (us >> octave);
    usize::try_from(index).unwrap_or(BUCKETS - 1).min(BUCKETS - 1)
}

/// The first time that is beyond the bucket.
fn top(bucket: usize) -> Duration {
    let index = bucket as u64 + 1;
    let octave = (index >> FINE_BITS).saturating_sub(1);
    Duration::from_micros((index - (octave << FINE_BITS)) << octave)
}

const FINE_BITS: u32 = 3;
/// A minute and more; longer ones share the last bucket.
const LONGEST_US: u64 = (1 << 26) - 1;
const BUCKETS: usize = ((26 - FINE_BITS as usize) + 1) << FINE_BITS;
/// Fewer say nothing about one in twenty.
const FEW: u32 = 100;
/// When there are so many, the older half is forgotten.
const ENOUGH: u32 = 1024;
/// Or after this long.
const AGES: Duration = Duration::from_secs(30);
/// The percentile is worked out once in so many calls.
const EVERY: u32 = 32;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mechanism::dice::Dice;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn it_is_an_eighth_too_high_at_most_and_never_too_low() {
        let mut dice = Dice::new(1);
        for scale in [10, 1_000, 300_000, 9_000_000] {
            let pace = Pace::default();
            let mut times: Vec<u64> = (0..960).map(|_| 1 + dice.below(scale)).collect();
            for us in &times {
                pace.record(at(1), Duration::from_micros(*us));
            }
            times.sort_unstable();
            let exact = times[960 * 95 / 100];
            let found = u64::try_from(pace.p95().unwrap().as_micros()).unwrap();
            assert!(found > exact && found <= exact + exact / 8 + 2, "{exact}: {found}");
        }
    }

    #[test]
    fn few_say_nothing_and_the_latest_count() {
        let pace = Pace::default();
        for _ in 0..96 {
            pace.record(at(1), Duration::from_millis(10));
        }
        assert_eq!(pace.p95(), None);
        for _ in 0..1000 {
            pace.record(at(2), Duration::from_millis(10));
        }
        assert!(pace.p95().unwrap() < Duration::from_millis(12));
        for _ in 0..200 {
            pace.record(at(3), Duration::from_millis(80));
        }
        assert!(pace.p95().unwrap() > Duration::from_millis(80), "it follows");
        // Nor does what was before weigh more for having been much.
        for _ in 0..100_000 {
            pace.record(at(4), Duration::from_millis(10));
        }
        for _ in 0..200 {
            pace.record(at(5), Duration::from_millis(80));
        }
        assert!(pace.p95().unwrap() > Duration::from_millis(80), "it follows");
        for later in [60_000, 120_000] {
            for _ in 0..32 {
                pace.record(at(later), Duration::from_millis(1));
            }
        }
        assert!(pace.total.get() < 400, "what is old is forgotten: {}", pace.total.get());
    }

    #[test]
    fn every_time_has_a_bucket_that_holds_it() {
        for us in (0..200_000).chain([1 << 25, (1 << 26) - 1]) {
            let took = Duration::from_micros(us);
            assert!(top(bucket(took)) > took, "{us}");
            assert!(bucket(took) == 0 || top(bucket(took) - 1) <= took, "{us}");
        }
        assert_eq!(bucket(Duration::MAX), BUCKETS - 1);
    }
}
