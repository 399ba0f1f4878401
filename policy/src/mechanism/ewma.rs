//! A moving average of response times that believes bad news at once and good news slowly (the
//! "peak EWMA" of Finagle). What nothing is heard of fades to zero, so that it is tried again.

use core::cell::Cell;
use core::time::Duration;

use crate::time::{Instant, nanos};

/// One worker's idea of how long an endpoint takes.
#[derive(Debug, Default)]
pub(crate) struct PeakEwma {
    cost_ns: Cell<u64>,
    /// As of then.
    at: Cell<Instant>,
}

/// A failed call counts as one that took at least this long: a server that refuses at once is not
/// a quick one.
const FAILED_NS: u64 = 1_000_000_000;
/// More than that tells nothing more.
const COST_NS_MAX: u64 = 60_000_000_000;

impl PeakEwma {
    /// What a call is to be expected to take; zero when nothing is known, or no longer.
    pub(crate) fn cost_ns(&self, now: Instant, half_life_ns: u64) -> u64 {
        faded(self.cost_ns.get(), nanos(now.since(self.at.get())), half_life_ns)
    }

    pub(crate) fn took(&self, now: Instant, took: Duration, half_life_ns: u64) {
        let (took, cost) = (nanos(took).clamp(1, COST_NS_MAX), self.cost_ns.get());
        let age = nanos(now.since(self.at.get()));
        self.cost_ns.set(took + faded(cost.saturating_sub(took), age, half_life_ns));
        self.at.set(self.at.get().max(now));
    }

    /// Each failure doubles what it counts as: also where a good call takes longer than that.
    pub(crate) fn failed(&self, now: Instant, half_life_ns: u64) {
        let cost = self.cost_ns(now, half_life_ns).saturating_mul(2);
        self.cost_ns.set(cost.clamp(FAILED_NS, COST_NS_MAX));
        self.at.set(self.at.get().max(now));
    }
}

/// `value` · 2^(−age / half-life); within one in a thousand, and never growing with age.
fn faded(value: u64, age_ns: u64, half_life_ns: u64) -> u64 {
    let half_life_ns = half_life_ns.max(1);
    let halvings = age_ns / half_life_ns;
    let Some(value) = u32::try_from(halvings).ok().and_then(|n| value.checked_shr(n)) else {
        return 0;
    };
    // 2^−f for f from 0 to 1 is 1 − 43/64·f + 11/64·f², in units of 2^−16.
    let f = u128::from(age_ns % half_life_ns) * 65_536 / u128::from(half_life_ns);
    let factor = 65_536 - f * 43 / 64 + f * f * 11 / 64 / 65_536;
    u64::try_from(u128::from(value) * factor / 65_536).unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(SECOND + ms * 1_000_000)
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn what_is_old_fades_by_half_each_half_life_and_never_grows() {
        for (age, expected) in [
            (0, 1000),
            (500, 707),
            (1000, 500),
            (1500, 353),
            (2000, 250),
            (10_000, 0),
            (u64::MAX, 0),
        ] {
            assert!(faded(1000, age, 1000).abs_diff(expected) <= 1, "{age}");
        }
        let all: Vec<u64> = (0..5000).map(|age| faded(1 << 40, age, 1000)).collect();
        assert!(all.windows(2).all(|pair| pair[1] <= pair[0]));
    }

    #[test]
    fn bad_news_counts_at_once_and_good_news_slowly() {
        let pace = PeakEwma::default();
        pace.took(at(0), ms(10), SECOND);
        assert_eq!(pace.cost_ns(at(0), SECOND), 10_000_000);
        pace.took(at(1), ms(400), SECOND);
        assert_eq!(pace.cost_ns(at(1), SECOND), 400_000_000, "at once");
        pace.took(at(1001), ms(10), SECOND);
        assert_eq!(pace.cost_ns(at(1001), SECOND), 205_000_000, "half way after a half-life");
        assert!(pace.cost_ns(at(20_000), SECOND) < 1000, "and what is not heard of, forgotten");
    }

    #[test]
    fn a_server_that_fails_at_once_is_slow_and_the_slower_the_oftener_it_fails() {
        let pace = PeakEwma::default();
        pace.took(at(0), ms(1), SECOND);
        let costs: Vec<u64> = (0..8)
            .map(|_| {
                pace.failed(at(1), SECOND);
                pace.cost_ns(at(1), SECOND) / SECOND
            })
            .collect();
        assert_eq!(costs, [1, 2, 4, 8, 16, 32, 60, 60]);
    }

    #[test]
    fn a_clock_that_goes_back_fades_nothing() {
        let pace = PeakEwma::default();
        pace.took(at(500), ms(10), SECOND);
        assert_eq!(pace.cost_ns(at(0), SECOND), 10_000_000);
        pace.took(at(0), ms(5), SECOND);
        assert_eq!(pace.cost_ns(at(500), SECOND), 10_000_000);
    }
}
