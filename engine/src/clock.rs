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
    #[expect(clippy::disallowed_methods, reason = "the only reader of clocks")]
    pub(crate) fn start() -> Self {
        Self { epoch: Instant::now() }
    }

    /// The monotonic clock.
    pub(crate) fn at(self) -> Point {
        let ns = u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX);
        // Zero means "never" in places: no event happens before the first nanosecond.
        Point::from_nanos(ns.saturating_add(1))
    }
}

/// The wall clock as a distance from the monotonic one, so that an event reads one clock.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WallOffset {
    /// Nanoseconds since 1970 at the monotonic epoch.
    epoch_ns: u64,
}

impl WallOffset {
    /// Read both clocks. Again from time to time: the wall clock is set and slewed.
    pub(crate) fn read(clock: Clock) -> Self {
        let wall = u64::try_from(since_1970().as_nanos()).unwrap_or(u64::MAX);
        Self { epoch_ns: wall.saturating_sub(clock.at().as_nanos()) }
    }

    pub(crate) const fn now(self, at: Point) -> Now {
        Now { at, wall: Wall(self.since_1970(at).as_secs()) }
    }

    pub(crate) const fn since_1970(self, at: Point) -> Duration {
        Duration::from_nanos(self.epoch_ns.saturating_add(at.as_nanos()))
    }
}

/// Time since 1970, by the wall clock.
#[expect(clippy::disallowed_methods, reason = "the only reader of clocks")]
pub(crate) fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Processor time that all threads of this process have used.
pub(crate) fn cpu_time() -> Duration {
    let spent = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::try_from(spent).unwrap_or_default()
}

/// CLOCK_MONOTONIC in microseconds, as systemd wants it with `RELOADING=1`.
pub(crate) fn monotonic_us() -> i128 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    i128::from(now.tv_sec) * 1_000_000 + i128::from(now.tv_nsec) / 1_000
}

/// A time since 1970 as RFC 3339 in UTC with milliseconds: `2026-02-28T12:00:00.000Z`.
pub(crate) fn rfc3339(since_1970: Duration) -> String {
    let seconds = since_1970.as_secs();
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let ms = since_1970.subsec_millis();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

/// Year, month and day of a day since 1970. Counts in eras of 400 years that begin on 1 March, so
/// that the leap day is the last of its year (Hinnant, "chrono-compatible low-level date
/// algorithms", civil_from_days).
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_right_around_leap_days() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399, "2000-02-28T23:59:59.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (951_868_800, "2000-03-01T00:00:00.000Z"),
            (1_709_251_199, "2024-02-29T23:59:59.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(rfc3339(Duration::from_secs(seconds)), expected);
        }
        assert_eq!(rfc3339(Duration::from_millis(1_234)), "1970-01-01T00:00:01.234Z");
    }
}
