//! When a breaker opens, and how it comes back: what was meant, and its arithmetic.

use core::time::Duration;

use crate::mechanism::breaker::{Cause, Mutant};
use crate::mechanism::window::Counts;
use crate::time::nanos;
use crate::unit::Ratio;

/// When a breaker opens, and how it comes back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    /// Opens when this share of the calls is bad.
    pub(crate) errors: Option<Ratio>,
    /// Opens when this share of the calls takes longer than that.
    pub(crate) slow: Option<(Duration, Ratio)>,
    /// Opens after so many bad calls in a row, over all workers.
    pub(crate) consecutive: Option<u32>,
    /// The shares mean nothing below so many calls.
    pub(crate) requests_min: u32,
    /// A tenth of the time that is looked back.
    pub(crate) bucket: Duration,
    /// So many of the last calls are looked at, whenever they were; None: those of a time.
    pub(crate) calls: Option<u32>,
    /// Open for so long the first time, twice as long each time after,
    pub(crate) open: Duration,
    /// but at most so long.
    pub(crate) open_max: Duration,
    /// Probes of the whole node that are out or judged, in one opening. At most 63.
    pub(crate) probes: u8,
    /// Each step of the way back.
    pub(crate) ramp: Duration,
    /// What it does wrong, to see that somebody notices.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) mutant: Option<Mutant>,
}

impl Rule {
    /// How long an opening lasts, before jitter: they are counted from 1.
    pub(super) fn open_for(&self, opening: u8) -> Duration {
        let doublings = u32::from(opening.saturating_sub(1)).min(20);
        self.open.saturating_mul(1 << doublings).min(self.open_max)
    }
}

/// The end of the ramp.
pub(super) const DONE: u64 = u64::MAX;

/// Why it is to open; None when it is not.
pub(super) fn too_many(
    rule: &Rule,
    counts: Counts,
    streak: u64,
    requests_min: u32,
) -> Option<Cause> {
    const WHOLE: u64 = 1_000_000;
    let reached = |part: u32, share: Ratio| {
        part > 0 && u64::from(part) * WHOLE >= u64::from(counts.total) * u64::from(share.0)
    };
    let Counts { total, bad, slow } = counts;
    let enough = total >= requests_min;
    if rule.consecutive.is_some_and(|most| streak >= u64::from(most)) {
        return Some(Cause::Streak(u32::try_from(streak).unwrap_or(u32::MAX)));
    }
    if enough && rule.errors.is_some_and(|share| reached(bad, share)) {
        return Some(Cause::Errors { bad, total });
    }
    let slowed = enough && rule.slow.is_some_and(|(_, share)| reached(slow, share));
    slowed.then_some(Cause::Slow { slow, total })
}

/// How many of a hundred requests are let through that long after the probes went well.
pub(crate) fn share(age: Duration, rule: &Rule) -> u64 {
    let step = nanos(age) / nanos(rule.ramp).max(1);
    match step {
        0 => 10,
        1 => 25,
        2 => 50,
        3 => 100,
        _ if rule.errs(Mutant::NeverDone) => 100,
        _ => DONE,
    }
}
