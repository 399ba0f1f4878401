//! When requests are due in an open loop.

use std::num::NonZeroU32;

use super::Step;
use crate::clock::SECOND_NS;
use crate::unit::nanoseconds;

/// How the gaps between requests are spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Arrivals {
    /// Evenly.
    Constant,
    /// Independently of each other, as users come; the seed decides.
    Poisson,
}

/// Due times, one after another.
#[derive(Debug)]
pub(super) struct Schedule {
    /// Of the present step.
    start_ns: u64,
    rate: NonZeroU32,
    ends_ns: u64,
    later: std::vec::IntoIter<Step>,
    arrivals: Arrivals,
    /// In the present step.
    taken: u64,
    next_ns: u64,
    dice: u64,
}

impl Schedule {
    /// Without a step, one request a second.
    pub(super) fn new(start_ns: u64, steps: Vec<Step>, arrivals: Arrivals, seed: u64) -> Self {
        let mut schedule = Self {
            start_ns,
            rate: NonZeroU32::MIN,
            ends_ns: start_ns,
            later: steps.into_iter(),
            arrivals,
            taken: 0,
            next_ns: start_ns,
            dice: seed,
        };
        schedule.step();
        schedule
    }

    /// When the next request is due.
    pub(super) fn peek(&self) -> u64 {
        self.next_ns
    }

    /// Moves on to the request after it.
    pub(super) fn advance(&mut self) {
        self.taken += 1;
        self.next_ns = match self.arrivals {
            // From the start, not from the last: rounding must not add up to another rate.
            Arrivals::Constant => {
                let passed =
                    u128::from(self.taken) * u128::from(SECOND_NS) / u128::from(self.rate.get());
                self.start_ns.saturating_add(u64::try_from(passed).unwrap_or(u64::MAX))
            }
            Arrivals::Poisson => self.next_ns.saturating_add(self.exponential_ns()),
        };
        self.step();
    }

    /// Goes on to the step in which the next request is due. What does not remember (Poisson), or
    /// counts from a step's start, may begin anew there.
    fn step(&mut self) {
        while self.next_ns >= self.ends_ns {
            let Some(step) = self.later.next() else { return };
            (self.rate, self.start_ns, self.taken) = (step.rate, self.ends_ns, 0);
            self.ends_ns = self.ends_ns.saturating_add(nanoseconds(step.lasts));
            self.next_ns = match self.arrivals {
                Arrivals::Constant => self.start_ns,
                Arrivals::Poisson => self.start_ns.saturating_add(self.exponential_ns()),
            };
        }
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "53 random bits make a double in (0, 1]; its logarithm is at most 0"
    )]
    fn exponential_ns(&mut self) -> u64 {
        let uniform = ((roll(&mut self.dice) >> 11) + 1) as f64 / (1u64 << 53) as f64;
        (-uniform.ln() * SECOND_NS as f64 / f64::from(self.rate.get())) as u64
    }
}

/// splitmix64: small, even, and the same everywhere.
pub(super) fn roll(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn step(rate: u32, lasts: Duration) -> Step {
        Step { rate: NonZeroU32::new(rate).unwrap(), lasts }
    }

    #[test]
    fn a_step_ends_on_time_and_the_last_goes_on() {
        let second = Duration::from_secs(1);
        for arrivals in [Arrivals::Constant, Arrivals::Poisson] {
            let steps = vec![step(1_000, second), step(4_000, second), step(500, second)];
            let mut schedule = Schedule::new(0, steps, arrivals, 3);
            let mut seen = [0_u32; 4];
            while let Some(count) = seen.get_mut((schedule.peek() / SECOND_NS) as usize) {
                *count += 1;
                schedule.advance();
            }
            for (found, expected) in seen.into_iter().zip([1_000_u32, 4_000, 500, 500]) {
                let off = if arrivals == Arrivals::Constant { 0 } else { expected / 5 };
                assert!(found.abs_diff(expected) <= off, "{arrivals:?}: {seen:?}");
            }
        }
    }

    fn dues(rate: u32, arrivals: Arrivals, seed: u64, count: usize) -> Vec<u64> {
        let mut schedule = Schedule::new(1_000, vec![step(rate, Duration::MAX)], arrivals, seed);
        let mut next = || {
            let due = schedule.peek();
            schedule.advance();
            due
        };
        (0..count).map(|_| next()).collect()
    }

    #[test]
    fn a_constant_rate_does_not_drift() {
        for (rate, index, expected) in
            [(1, 3, 3_000_001_000), (3, 3, 1_000_001_000), (7, 7_000_000, 1_000_000_000_001_000u64)]
        {
            assert_eq!(
                dues(rate, Arrivals::Constant, 0, index + 1)[index],
                expected,
                "rate {rate}"
            );
        }
    }

    #[test]
    fn poisson_keeps_the_rate_and_repeats_by_seed() {
        let found = dues(1_000, Arrivals::Poisson, 7, 20_001);
        let seconds = (found[20_000] - found[0]) as f64 / 1e9;
        assert!((19.0..21.0).contains(&seconds), "20,000 at 1,000/s took {seconds} s");
        assert!(found.is_sorted());
        assert_eq!(found, dues(1_000, Arrivals::Poisson, 7, 20_001));
        assert_ne!(found, dues(1_000, Arrivals::Poisson, 8, 20_001));
    }
}
