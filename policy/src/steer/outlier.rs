//! Servers that fail far oftener than their peers, though not often enough to be taken out for
//! that alone: success-rate outliers, by the rule of Envoy.
//!
//! Among servers with at least 100 calls in the window, if there are at least 5, one whose share
//! of good calls is below the mean less 1.9 standard deviations is taken out. With fewer than 5, no
//! single one can be that far from a mean that it is part of. And it must be at least 5 % below the
//! mean, which is not Envoy's: servers that are all alike differ by chance, and one is always the
//! worst.

use crate::mechanism::breaker::{Cause, Judge};
use crate::mechanism::window::Counts;
use crate::steer::Steer;
use crate::steer::search::Search;
use crate::time::nanos;

const SERVERS_MIN: usize = 5;
const CALLS_MIN: u32 = 100;
/// Five percent.
const GAP_MIN_PPM: u64 = 50_000;
/// Standard deviations, in tenths.
const DEVIATIONS: u64 = 19;
const WHOLE_PPM: u64 = 1_000_000;

impl Steer {
    /// Once a tenth of the window.
    pub(super) fn judge_outliers(&mut self, it: &Search<'_>) {
        let Some(eject) = it.eject().filter(|eject| eject.outliers) else { return };
        let Some(turn) = it.plan.turns.get(it.id.index()) else { return };
        let rule = &eject.breaker.rule;
        let bucket = it.now.as_nanos() / nanos(rule.bucket).max(1);
        if turn.judged.replace(bucket) == bucket {
            return;
        }
        let tally = |e: u16| {
            let counts = it.guard(e)?.board().tally(rule, it.now)?;
            (counts.total >= CALLS_MIN).then_some((e, counts))
        };
        let tallies = || it.endpoints().filter_map(|(e, _)| tally(e));
        let Some((mean, threshold)) = bounds(|| tallies().map(|(_, c)| good_ppm(c))) else {
            return;
        };
        for (e, counts) in tallies() {
            if good_ppm(counts) >= threshold {
                continue;
            }
            let Some(guard) = it.guard(e) else { continue };
            let ppm = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
            let cause = Cause::Outlier { good_ppm: ppm(good_ppm(counts)), usual_ppm: ppm(mean) };
            let mut judge = Judge { rule, now: it.now, dice: &mut self.dice };
            guard.board().eject(&mut judge, cause, &|| it.may_eject(e));
        }
    }
}

/// The mean, and what lies below which is an outlier; None when there are too few.
fn bounds<I: Iterator<Item = u64>>(rates: impl Fn() -> I) -> Option<(u64, u64)> {
    let count = rates().count();
    if count < SERVERS_MIN {
        return None;
    }
    let count = count as u64;
    let mean = rates().sum::<u64>() / count;
    let spread = rates().map(|rate| rate.abs_diff(mean).pow(2)).sum::<u64>() / count;
    let gap = (spread.isqrt() * DEVIATIONS / 10).max(GAP_MIN_PPM);
    Some((mean, mean.saturating_sub(gap)))
}

fn good_ppm(counts: Counts) -> u64 {
    let good = counts.total.saturating_sub(counts.bad);
    u64::from(good) * WHOLE_PPM / u64::from(counts.total.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outlier_is_below_the_mean_less_1_9_standard_deviations() {
        for (rates, expected) in [
            (vec![1_000_000; 4], None),
            (vec![1_000_000; 5], Some((1_000_000, 950_000))),
            // Mean 96 %, deviation 8 %.
            (vec![1_000_000, 1_000_000, 1_000_000, 1_000_000, 800_000], Some((960_000, 808_000))),
            (vec![900_000, 1_000_000, 900_000, 1_000_000, 950_000], Some((950_000, 865_031))),
        ] {
            assert_eq!(bounds(|| rates.iter().copied()), expected, "{rates:?}");
        }
    }
}
