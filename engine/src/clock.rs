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

/// RFC 3339 in UTC with milliseconds: `2026-11-29T23:46:43.120Z`.
pub(crate) fn rfc3339(since_1970: Duration) -> String {
    let secs = since_1970.as_secs();
    let (days, second) = (secs / 86_400, secs % 86_400);
    let (year, month, day) = civil(days);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{:03}Z",
        second / 3600,
        second / 60 % 60,
        second % 60,
        since_1970.subsec_millis()
    )
}

/// Days since 1970 to year, month and day of the Gregorian calendar (Hinnant, "chrono-compatible
/// low-level date algorithms", civil_from_days).
const fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + if month <= 2 { 1 } else { 0 };
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calendar_dates() {
        let table = [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_709_251_200_000, "2024-03-01T00:00:00.000Z"),
            (4_102_444_799_000, "2099-12-31T23:59:59.000Z"),
        ];
        for (ms, expected) in table {
            assert_eq!(rfc3339(Duration::from_millis(ms)), expected);
        }
    }
}
