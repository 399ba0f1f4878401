//! Thresholds that an operator wants for a while, in place of those that are written.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::time::Duration;

use crate::mechanism::breaker::Rule;
use crate::time::Instant;
use crate::unit::Ratio;

/// What is not said stays as it is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Thresholds {
    pub errors: Option<Ratio>,
    pub slow: Option<Duration>,
    pub slow_share: Option<Ratio>,
    pub consecutive: Option<u32>,
    pub min_requests: Option<u32>,
}

/// They, for all workers. Whoever reads while they are written may see some of the old: for as
/// long as a write takes, which is no time to judge by anyway.
#[derive(Debug, Default)]
pub(super) struct Tuned {
    /// Zero: there are none.
    until_ns: AtomicU64,
    /// Shares of errors and of slow calls 21 bits each, calls 20; one more than meant.
    shares: AtomicU64,
    /// Slow from so many microseconds on 40 bits, failures in a row 24; one more than meant.
    slow: AtomicU64,
}

const SHARE_BITS: u32 = 21;
const CALLS_BITS: u32 = 20;
const SLOW_BITS: u32 = 40;
const STREAK_BITS: u32 = 24;

impl Thresholds {
    pub(super) fn over(&self, rule: &Rule) -> Rule {
        let share = self.slow_share.or_else(|| rule.slow.map(|(_, share)| share)).unwrap_or(HALF);
        let slow = self.slow.or_else(|| rule.slow.map(|(slow, _)| slow));
        Rule {
            errors: self.errors.or(rule.errors),
            slow: slow.map(|slow| (slow, share)),
            consecutive: self.consecutive.or(rule.consecutive),
            requests_min: self.min_requests.unwrap_or(rule.requests_min).max(1),
            ..rule.clone()
        }
    }
}

const HALF: Ratio = Ratio(500_000);

impl Tuned {
    pub(super) fn set(&self, wanted: Option<(Thresholds, Instant)>) {
        self.until_ns.store(0, Release);
        let Some((it, until)) = wanted else { return };
        let micros = |d: Duration| u64::try_from(d.as_micros()).unwrap_or(u64::MAX);
        let shares = one_more(it.errors.map(|r| r.0.into()), SHARE_BITS)
            | one_more(it.slow_share.map(|r| r.0.into()), SHARE_BITS) << SHARE_BITS
            | one_more(it.min_requests.map(u64::from), CALLS_BITS) << (2 * SHARE_BITS);
        let slow = one_more(it.slow.map(micros), SLOW_BITS)
            | one_more(it.consecutive.map(u64::from), STREAK_BITS) << SLOW_BITS;
        self.shares.store(shares, Relaxed);
        self.slow.store(slow, Relaxed);
        self.until_ns.store(until.as_nanos(), Release);
    }

    /// Until when, too.
    pub(super) fn at(&self, now: Instant) -> Option<(Thresholds, Instant)> {
        let until = self.until_ns.load(Acquire);
        if now.as_nanos() >= until {
            return None;
        }
        let (shares, slow) = (self.shares.load(Relaxed), self.slow.load(Relaxed));
        let number = |n: Option<u64>| n.and_then(|n| u32::try_from(n).ok());
        let thresholds = Thresholds {
            errors: number(one_less(shares, SHARE_BITS)).map(Ratio),
            slow_share: number(one_less(shares >> SHARE_BITS, SHARE_BITS)).map(Ratio),
            min_requests: number(one_less(shares >> (2 * SHARE_BITS), CALLS_BITS)),
            slow: one_less(slow, SLOW_BITS).map(Duration::from_micros),
            consecutive: number(one_less(slow >> SLOW_BITS, STREAK_BITS)),
        };
        Some((thresholds, Instant::from_nanos(until)))
    }
}

fn one_more(n: Option<u64>, bits: u32) -> u64 {
    n.map_or(0, |n| n.saturating_add(1).min((1 << bits) - 1))
}

fn one_less(word: u64, bits: u32) -> Option<u64> {
    (word & ((1 << bits) - 1)).checked_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wanted_holds_until_then() {
        let tuned = Tuned::default();
        let wanted = Thresholds {
            errors: Some(Ratio(1_000_000)),
            slow: Some(Duration::from_millis(300)),
            slow_share: None,
            consecutive: Some(7),
            min_requests: Some(20),
        };
        let at = Instant::from_nanos;
        assert_eq!(tuned.at(at(0)), None);
        tuned.set(Some((wanted, at(1000))));
        assert_eq!(tuned.at(at(999)), Some((wanted, at(1000))));
        assert_eq!(tuned.at(at(1000)), None);
        let few = Thresholds { slow_share: Some(Ratio(0)), ..Thresholds::default() };
        tuned.set(Some((few, at(2000))));
        assert_eq!(tuned.at(at(1000)), Some((few, at(2000))));
        tuned.set(None);
        assert_eq!(tuned.at(at(1)), None);
    }
}
