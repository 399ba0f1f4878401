//! The only reader of clocks.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use sluice_policy::time::{Instant as Point, Now, Wall};

/// The process's clock. All workers share its epoch, because limits are counted across workers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    epoch: Instant,
}

impl Clock {
    /// Made once, at start.
    pub(crate) fn start() -> Self {
        Self { epoch: Instant::now() }
    }

    /// Both clocks. The wall clock is read too, so once per event.
    pub(crate) fn now(self) -> Now {
        Now { at: self.at(), wall: Wall(since_1970().as_secs()) }
    }

    /// The monotonic clock alone.
    pub(crate) fn at(self) -> Point {
        let ns = u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX);
        // Zero means "never" in places: no event happens before the first nanosecond.
        Point::from_nanos(ns.saturating_add(1))
    }
}

/// Time since 1970, for log lines and the Date field.
pub(crate) fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
