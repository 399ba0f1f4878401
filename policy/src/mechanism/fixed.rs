//! A count that begins anew at fixed points in time: every so often by the node's clock, or with
//! each hour, day or month of the calendar in UTC.
//!
//! The state is one word, and like a bucket's it is an instant after which it means nothing: the
//! end of the window, rounded up, with the count in the bits that rounding freed.

use core::time::Duration;

use super::calendar::Period;
use super::gcra::{Level, span, ticks, ticks_of};
use crate::time::Now;

const COUNT_BITS: u32 = 32;
/// Ends are kept in steps of so many ticks: 0.27 s.
const GRAIN: u64 = 1 << COUNT_BITS;
/// Wall clocks are read in whole seconds, so two workers may see an end a second apart.
const WALL_SLACK: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fixed {
    limit: u32,
    grid: Grid,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Grid {
    Every(u64),
    Calendar(Period),
}

/// The window in which a request falls, and what was counted in it.
struct Window {
    /// As it is kept: rounded up.
    end_up: u64,
    /// As it is told.
    end: u64,
    count: u32,
}

impl Fixed {
    /// The shortest window whose end is told apart from the next one's.
    pub(crate) const WINDOW_MIN: Duration = Duration::from_secs(1);

    /// None when the limit is nothing, or the window shorter than `WINDOW_MIN`.
    pub(crate) fn every(limit: u32, window: Duration) -> Option<Self> {
        let good = limit > 0 && window >= Self::WINDOW_MIN;
        good.then_some(Self { limit, grid: Grid::Every(ticks_of(window)) })
    }

    /// None when the limit is nothing.
    pub(crate) fn calendar(limit: u32, period: Period) -> Option<Self> {
        (limit > 0).then_some(Self { limit, grid: Grid::Calendar(period) })
    }

    pub(crate) const fn limit(self) -> u32 {
        self.limit
    }

    pub(crate) fn window(self) -> Duration {
        match self.grid {
            Grid::Every(window) => span(window),
            Grid::Calendar(period) => period.longest(),
        }
    }

    /// The state after counting `cost`, or how long until there is room. `now` is the node's time
    /// in ticks, `clock` this worker's.
    pub(crate) fn take(
        self,
        word: u64,
        now: u64,
        clock: Now,
        cost: u32,
    ) -> Result<(u64, Level), Duration> {
        let window = self.locate(word, now, clock);
        let reset = span(window.end.saturating_sub(now));
        match window.count.checked_add(cost).filter(|count| *count <= self.limit) {
            Some(count) => {
                let left = self.limit - count;
                Ok((window.end_up | u64::from(count), Level { left, reset }))
            }
            None => Err(reset),
        }
    }

    /// The state after counting `cost`, whether there is room or not.
    pub(crate) fn charge(self, word: u64, now: u64, clock: Now, cost: u32) -> u64 {
        let window = self.locate(word, now, clock);
        window.end_up | u64::from(window.count.saturating_add(cost))
    }

    pub(crate) fn level(self, word: u64, now: u64, clock: Now) -> Level {
        let window = self.locate(word, now, clock);
        let reset = span(window.end.saturating_sub(now));
        Level { left: self.limit.saturating_sub(window.count), reset }
    }

    /// `word` without what `taken` was counted with; None when its window is over.
    pub(crate) const fn untake(word: u64, taken: u64, cost: u32) -> Option<u64> {
        if word & !(GRAIN - 1) == taken & !(GRAIN - 1) && count_of(word) >= cost {
            Some(word - cost as u64)
        } else {
            None
        }
    }

    /// What was counted in a window that is not over stays counted when the window moves: after a
    /// reload that made it longer or shorter, or after somebody set the wall clock.
    fn locate(self, word: u64, now: u64, clock: Now) -> Window {
        let (end, slack, ahead) = match self.grid {
            // A worker whose clock is ahead may have begun the next window.
            Grid::Every(window) => ((now / window + 1) * window, 0, 0..window + GRAIN),
            Grid::Calendar(period) => {
                let left = ticks_of(Duration::from_secs(period.left(clock.wall)));
                let length = ticks_of(period.longest());
                (ticks(clock.at) + left, ticks_of(WALL_SLACK), length / 2..2 * length)
            }
        };
        let (end_up, stored) = (up(end), word & !(GRAIN - 1));
        let count = count_of(word);
        if stored.abs_diff(end_up) <= slack {
            Window { end_up: stored, end, count }
        } else if stored > end_up {
            if ahead.contains(&(stored - end_up)) {
                Window { end_up: stored, end: stored, count }
            } else {
                Window { end_up, end, count }
            }
        } else if stored > now + slack + GRAIN {
            Window { end_up, end, count }
        } else {
            Window { end_up, end, count: 0 }
        }
    }
}

const fn up(end: u64) -> u64 {
    (end + GRAIN - 1) & !(GRAIN - 1)
}

#[expect(clippy::cast_possible_truncation, reason = "the low half is the count")]
const fn count_of(word: u64) -> u32 {
    word as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::{Instant, Wall};

    fn clock(ms: u64, wall: u64) -> Now {
        Now { at: Instant::from_nanos(ms * 1_000_000), wall: Wall(wall) }
    }

    fn play(fixed: Fixed, word: &mut u64, ms: u64, wall: u64, cost: u32) -> bool {
        let clock = clock(ms, wall);
        match fixed.take(*word, ticks(clock.at), clock, cost) {
            Ok((next, _)) => {
                *word = next;
                true
            }
            Err(_) => false,
        }
    }

    #[test]
    fn two_hundred_pass_around_an_edge() {
        let fixed = Fixed::every(100, Duration::from_secs(1)).unwrap();
        let mut word = 0;
        let passed = |word: &mut u64, ms| (0..150).filter(|_| play(fixed, word, ms, 0, 1)).count();
        assert_eq!(passed(&mut word, 5900), 100);
        assert_eq!(passed(&mut word, 5999), 0);
        assert_eq!(passed(&mut word, 6100), 100);
        assert_eq!(passed(&mut word, 6999), 0);
        assert_eq!(passed(&mut word, 7000), 100);
    }

    #[test]
    fn a_refusal_tells_the_end_of_the_window() {
        let fixed = Fixed::every(1, Duration::from_secs(60)).unwrap();
        let (word, level) = fixed.take(0, ticks(clock(61_000, 0).at), clock(61_000, 0), 1).unwrap();
        assert_eq!(level, Level { left: 0, reset: Duration::from_secs(59) });
        let late = clock(100_000, 0);
        assert_eq!(fixed.take(word, ticks(late.at), late, 1), Err(Duration::from_secs(20)));
    }

    #[test]
    fn a_worker_that_is_behind_counts_into_the_window_that_has_begun() {
        let fixed = Fixed::every(2, Duration::from_secs(1)).unwrap();
        let mut word = 0;
        assert!(play(fixed, &mut word, 5000, 0, 1));
        assert!(play(fixed, &mut word, 4990, 0, 1), "counted with the one ahead");
        assert!(!play(fixed, &mut word, 5001, 0, 1));
    }

    #[test]
    fn what_is_counted_stays_counted_when_the_window_changes_its_length() {
        let window = |s| Fixed::every(10, Duration::from_secs(s)).unwrap();
        for (before, after) in [(60, 10), (10, 60), (60, 3600)] {
            let mut word = 0;
            assert!(play(window(before), &mut word, 600_500, 0, 10));
            assert!(!play(window(after), &mut word, 601_000, 0, 1), "{before} {after}");
        }
    }

    /// 2023-11-14T22:13:20Z, and the monotonic clock stands somewhere else.
    const WALL: u64 = 1_700_000_000;

    #[test]
    fn a_calendar_quota_begins_anew_with_its_period() {
        let hour = Fixed::calendar(2, Period::Hour).unwrap();
        let left = Period::Hour.left(Wall(WALL));
        let mut word = 0;
        let mut at =
            |second: u64| play(hour, &mut word, 5_000_000 + second * 1000, WALL + second, 1);
        assert!(at(0) && at(1) && !at(2) && !at(left - 1));
        assert!(at(left) && at(left) && !at(left) && !at(left + 3599));
        assert!(at(left + 3600));
    }

    #[test]
    fn a_quota_counts_until_its_last_instant_although_walls_are_read_in_seconds() {
        let hour = Fixed::calendar(2, Period::Hour).unwrap();
        let left = Period::Hour.left(Wall(WALL));
        let mut word = 0;
        assert!(play(hour, &mut word, 5_000_000, WALL, 2));
        // The same second as `left - 1`, later in it.
        for ms in [1, 500, 733, 900, 999] {
            let late = 5_000_000 + (left - 1) * 1000 + ms;
            assert!(!play(hour, &mut word, late, WALL + left - 1, 1), "{ms}");
        }
    }

    #[test]
    fn what_was_counted_in_a_window_that_is_over_is_not_given_back_to_the_next() {
        let fixed = Fixed::every(2, Duration::from_secs(60)).unwrap();
        let (mut first, mut next) = (0, 0);
        assert!(play(fixed, &mut first, 60_000, 0, 1));
        assert!(play(fixed, &mut next, 120_000, 0, 2));
        assert_eq!(Fixed::untake(next, first, 1), None);
        assert_eq!(Fixed::untake(next, next, 2), Some(next - 2));
    }

    #[test]
    fn setting_the_wall_clock_grants_nothing_anew() {
        for (step, what) in [(-7200_i64, "back"), (-600, "a little back"), (600, "a little on")] {
            let day = Fixed::calendar(2, Period::Day).unwrap();
            let mut word = 0;
            assert!(play(day, &mut word, 5_000_000, WALL, 2));
            let wall = WALL.checked_add_signed(step).unwrap();
            for minutes in 0..60 {
                let second = minutes * 60;
                let passed = play(day, &mut word, 5_001_000 + second * 1000, wall + second, 1);
                assert!(!passed, "{what}, after {minutes} min");
            }
        }
    }
}
