//! Hours, days and months of the calendar in UTC, from seconds since 1970.

use core::time::Duration;

use crate::time::Wall;

const HOUR: u64 = 3600;
const DAY: u64 = 24 * HOUR;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Period {
    Hour,
    Day,
    Month,
}

impl Period {
    /// Seconds until the next period begins; at least one.
    pub(crate) fn left(self, wall: Wall) -> u64 {
        // Nobody's clock is past the year 10,000,000; sums stay far from overflow.
        let wall = wall.0.min(1 << 48);
        match self {
            Self::Hour => HOUR - wall % HOUR,
            Self::Day => DAY - wall % DAY,
            Self::Month => {
                let days = wall / DAY;
                let (year, month, day) = civil(days);
                (days + 1 + length(year, month) - day) * DAY - wall
            }
        }
    }

    pub(crate) const fn longest(self) -> Duration {
        Duration::from_secs(match self {
            Self::Hour => HOUR,
            Self::Day => DAY,
            Self::Month => 31 * DAY,
        })
    }
}

/// Year, month (1 to 12) and day (1 to 31) of a day since 1970: the proleptic Gregorian calendar
/// in eras of 400 years that begin in March (Hinnant, "chrono-compatible low-level date
/// algorithms").
const fn civil(days: u64) -> (u64, u64, u64) {
    let z = days + 719_468;
    let (era, of_era) = (z / 146_097, z % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let january = if month <= 2 { 1 } else { 0 };
    (year + era * 400 + january, month, day)
}

const fn length(year: u64, month: u64) -> u64 {
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    match month {
        2 if leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_of_a_period_is_what_the_calendar_says() {
        // (seconds since 1970, left of the hour, of the day, of the month)
        let table = [
            (0, HOUR, DAY, 31 * DAY),
            (1, HOUR - 1, DAY - 1, 31 * DAY - 1),
            // 2023-11-14T22:13:20Z
            (1_700_000_000, 2800, 6400, 16 * DAY + 6400),
            // 2024-02-29T23:59:59Z and a second later
            (1_709_251_199, 1, 1, 1),
            (1_709_251_200, HOUR, DAY, 31 * DAY),
            // 2100-02-28T00:00:00Z: no leap year
            (4_107_456_000, HOUR, DAY, DAY),
            // 2000-02-28T00:00:00Z: one
            (951_696_000, HOUR, DAY, 2 * DAY),
            // 2025-12-31T12:00:00Z
            (1_767_182_400, HOUR, DAY / 2, DAY / 2),
        ];
        for (wall, hour, day, month) in table {
            let left = [Period::Hour, Period::Day, Period::Month].map(|p| p.left(Wall(wall)));
            assert_eq!(left, [hour, day, month], "{wall}");
        }
    }

    #[test]
    fn no_time_has_no_end() {
        for wall in [u64::MAX, 1 << 48, (1 << 48) - 1] {
            for period in [Period::Hour, Period::Day, Period::Month] {
                let left = period.left(Wall(wall));
                assert!((1..=period.longest().as_secs()).contains(&left), "{wall} {period:?}");
            }
        }
    }
}
