//! The ways to count, behind one face.

use core::time::Duration;

use super::fixed::Fixed;
use super::gcra::{Gcra, Level};
use super::sliding::Sliding;
use crate::time::Now;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meter {
    /// A token bucket.
    Bucket(Gcra),
    /// A leaky bucket: who comes too early waits for its turn.
    Queue(Gcra),
    /// Windows with edges: of the clock, or of the calendar.
    Fixed(Fixed),
    /// A window that ends now.
    Sliding(Sliding),
}

/// A meter whose state is one word.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Single {
    Gcra(Gcra),
    Fixed(Fixed),
}

/// What was taken, before it is written down.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spent {
    pub(crate) word: u64,
    pub(crate) level: Level,
}

impl Meter {
    /// The most that can be admitted at once.
    pub(crate) const fn quota(self) -> u32 {
        match self {
            Self::Bucket(gcra) | Self::Queue(gcra) => gcra.burst(),
            Self::Fixed(fixed) => fixed.limit(),
            Self::Sliding(sliding) => sliding.limit(),
        }
    }

    /// The time in which a limit that is used up is whole again.
    pub(crate) fn window(self) -> Duration {
        match self {
            Self::Bucket(gcra) | Self::Queue(gcra) => gcra.window(),
            Self::Fixed(fixed) => fixed.window(),
            Self::Sliding(sliding) => sliding.window(),
        }
    }
}

impl Single {
    pub(crate) fn take(
        self,
        word: u64,
        now: u64,
        clock: Now,
        cost: u32,
    ) -> Result<(u64, Level), Duration> {
        match self {
            Self::Gcra(gcra) => {
                gcra.take(word, now, cost).map(|next| (next, gcra.level(next, now)))
            }
            Self::Fixed(fixed) => fixed.take(word, now, clock, cost),
        }
    }

    /// The word after taking `cost` whatever there is.
    pub(crate) fn charge(self, word: u64, now: u64, clock: Now, cost: u32) -> u64 {
        match self {
            Self::Gcra(gcra) => gcra.charge(word, now, cost),
            Self::Fixed(fixed) => fixed.charge(word, now, clock, cost),
        }
    }

    pub(crate) fn level(self, word: u64, now: u64, clock: Now) -> Level {
        match self {
            Self::Gcra(gcra) => gcra.level(word, now),
            Self::Fixed(fixed) => fixed.level(word, now, clock),
        }
    }

    /// The word without what was taken; None when too much has happened since to tell.
    pub(crate) fn untake(self, word: u64, taken: u64, cost: u32) -> Option<u64> {
        match self {
            // Adding time that has partly passed would admit too much.
            Self::Gcra(gcra) => (word == taken).then(|| gcra.untake(taken, cost)),
            Self::Fixed(_) => Fixed::untake(word, taken, cost),
        }
    }
}
