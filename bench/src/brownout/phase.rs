//! The schedule: what is asked for and what the origin can do, from when to when.

use std::num::NonZeroU32;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::load::Step;

/// What stays the same for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Half of what the origin can do is asked for.
    Quiet,
    /// Twice of it.
    Over,
    /// As before, and half of the servers are gone: four times of what is left.
    Half,
    /// The servers are back.
    Back,
}

impl Phase {
    pub const ALL: [Self; 4] = [Self::Quiet, Self::Over, Self::Half, Self::Back];

    pub fn name(self) -> &'static str {
        match self {
            Self::Quiet => "quiet",
            Self::Over => "over",
            Self::Half => "half",
            Self::Back => "back",
        }
    }

    pub fn describe(self) -> &'static str {
        match self {
            Self::Quiet => "half of capacity asked for",
            Self::Over => "twice of capacity",
            Self::Half => "half of the servers gone",
            Self::Back => "servers back",
        }
    }

    /// What is asked for, in percent of what all servers can do.
    fn asked_percent(self) -> u32 {
        match self {
            Self::Quiet => 50,
            Self::Over | Self::Half | Self::Back => 200,
        }
    }

    /// The servers that are there, of so many.
    pub fn servers(self, all: u32) -> u32 {
        match self {
            Self::Quiet | Self::Over | Self::Back => all,
            Self::Half => all / 2,
        }
    }
}

/// How long it all lasts.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// As quiet, and not reported.
    pub warm_up: Duration,
    /// By [`Phase::ALL`].
    pub phases: [Duration; 4],
}

impl Times {
    /// Each phase with its beginning and end, counted from the first.
    pub fn spans(&self) -> impl Iterator<Item = (Phase, Duration, Duration)> {
        let mut at = Duration::ZERO;
        Phase::ALL.into_iter().zip(self.phases).map(move |(phase, lasts)| {
            let from = at;
            at += lasts;
            (phase, from, at)
        })
    }

    pub fn whole(&self) -> Duration {
        self.phases.iter().sum()
    }

    /// The rates of the load, when all servers can do so many requests a second.
    pub(super) fn steps(&self, capacity: f64) -> Vec<Step> {
        let step = |(phase, from, to): (Phase, Duration, Duration)| {
            let early = if from.is_zero() { self.warm_up } else { Duration::ZERO };
            Step { rate: rate(capacity, phase.asked_percent()), lasts: to - from + early }
        };
        self.spans().map(step).collect()
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rate is far below a million"
)]
fn rate(capacity: f64, percent: u32) -> NonZeroU32 {
    let rate = (capacity * f64::from(percent) / 100.0).round() as u32;
    NonZeroU32::new(rate).unwrap_or(NonZeroU32::MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_load_follows_the_phases_and_the_warm_up_is_quiet() {
        let seconds = Duration::from_secs;
        let times = Times { warm_up: seconds(2), phases: [8, 12, 16, 10].map(seconds) };
        let steps: Vec<_> =
            times.steps(800.0).iter().map(|step| (step.rate.get(), step.lasts)).collect();
        assert_eq!(
            steps,
            [(400, 10), (1_600, 12), (1_600, 16), (1_600, 10)].map(|(n, s)| (n, seconds(s)))
        );
        let half = times.spans().nth(2).unwrap();
        assert_eq!(half, (Phase::Half, seconds(20), seconds(36)));
        assert_eq!((half.0.servers(32), times.whole()), (16, seconds(46)));
    }
}
