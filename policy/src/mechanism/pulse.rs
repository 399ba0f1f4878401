//! How often something comes, over all workers: the count of this window and of the one before it,
//! in one word that is changed by compare-and-swap.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

/// The most that a window counts; more counts as this.
pub(crate) const BEATS_MAX: u64 = (1 << COUNT_BITS) - 1;

const COUNT_BITS: u32 = 22;
const WINDOW_MASK: u64 = (1 << (64 - 2 * COUNT_BITS)) - 1;

#[derive(Debug, Default)]
pub(crate) struct Pulse(AtomicU64);

/// What a word says. Windows are numbered from the clock's beginning, and the number comes round
/// after a million of them: whatever has not come for so long may be taken for fresh.
#[derive(Clone, Copy, Debug)]
struct Beats {
    window: u64,
    before: u64,
    now: u64,
}

impl Pulse {
    pub(crate) fn beat(&self, now_ns: u64, period_ns: u64) {
        let window = now_ns / period_ns.max(1);
        let more = |word| {
            let beats = Beats::of(word).at(window);
            Some(Beats { now: (beats.now + 1).min(BEATS_MAX), ..beats }.word())
        };
        // It always changes something.
        let _ = self.0.fetch_update(Relaxed, Relaxed, more);
    }

    /// How often in the period that ends now, taking the window before as even.
    pub(crate) fn rate(&self, now_ns: u64, period_ns: u64) -> u64 {
        let period = period_ns.max(1);
        let beats = Beats::of(self.0.load(Relaxed)).at(now_ns / period);
        let rest = u128::from(period - now_ns % period);
        let before = u128::from(beats.before) * rest / u128::from(period);
        beats.now + u64::try_from(before).unwrap_or(BEATS_MAX)
    }
}

impl Beats {
    const fn of(word: u64) -> Self {
        Self {
            window: word >> (2 * COUNT_BITS),
            before: (word >> COUNT_BITS) & BEATS_MAX,
            now: word & BEATS_MAX,
        }
    }

    const fn word(self) -> u64 {
        (self.window << (2 * COUNT_BITS)) | (self.before << COUNT_BITS) | self.now
    }

    /// The same, looked at from that window. A clock that is a little behind looks from the later.
    const fn at(self, window: u64) -> Self {
        let window = window & WINDOW_MASK;
        match window.wrapping_sub(self.window) & WINDOW_MASK {
            0 | WINDOW_MASK => self,
            1 => Self { window, before: self.now, now: 0 },
            _ => Self { window, before: 0, now: 0 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn what_came_in_the_last_period_is_counted_and_what_came_earlier_is_not() {
        let pulse = Pulse::default();
        for n in 0..100 {
            pulse.beat(10 * SECOND + n * SECOND / 100, SECOND);
        }
        // (tenths of a second later than the first, how many of the last second)
        for (tenths, expected) in [(9, 100), (10, 100), (15, 50), (19, 10), (20, 0), (400, 0)] {
            let at = 10 * SECOND + tenths * SECOND / 10;
            assert_eq!(pulse.rate(at, SECOND), expected, "{tenths}");
        }
        pulse.beat(11 * SECOND, SECOND);
        pulse.beat(11 * SECOND - 1, SECOND);
        assert_eq!(pulse.rate(11 * SECOND, SECOND), 102, "a clock a little behind loses nothing");
    }

    #[test]
    fn a_count_that_is_full_stays_full() {
        let pulse = Pulse(AtomicU64::new(Beats { window: 5, before: 0, now: BEATS_MAX }.word()));
        pulse.beat(5 * SECOND, SECOND);
        assert_eq!(pulse.rate(5 * SECOND, SECOND), BEATS_MAX);
    }
}
