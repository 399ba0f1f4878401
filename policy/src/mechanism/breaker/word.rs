//! The state of a breaker in one word, so that every change of it is one compare-and-swap.

use core::time::Duration;

use crate::mechanism::breaker::{Rule, State};
use crate::mechanism::window::Era;
use crate::time::Instant;

/// One word: state 2 bits, openings 4, probes issued 6, good 6, era 10, mark 36. The mark is the
/// end of an open or probing time, and the beginning of a closed or recovering one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Word {
    pub(super) state: State,
    pub(super) attempt: u8,
    pub(super) issued: u8,
    pub(super) good: u8,
    pub(super) era: Era,
    pub(super) mark: u64,
}

/// A mark counts units of 2^20 ns, about a millisecond, and comes again after two years.
const MARK_SHIFT: u32 = 20;
const MARK_MASK: u64 = (1 << 36) - 1;
pub(super) const ATTEMPT_MAX: u8 = 15;
/// Probing lasts this long at most; a request's own time is shorter.
pub(super) const PROBING: Duration = Duration::from_secs(30);

impl Word {
    pub(super) fn enter(self, state: State, now: Instant, lasts: Duration) -> Self {
        let mark = mark(now + lasts);
        Self { state, issued: 0, good: 0, era: self.era.next(), mark, attempt: self.attempt }
    }

    /// Until the mark; None when it has passed.
    pub(super) fn left(self, now: Instant, rule: &Rule) -> Option<Duration> {
        self.left_at_most(now, rule.open_max.max(PROBING))
    }

    /// A mark that is further away than any can be has long passed.
    pub(super) fn left_at_most(self, now: Instant, most: Duration) -> Option<Duration> {
        let left = self.mark.wrapping_sub(now.as_nanos() >> MARK_SHIFT) & MARK_MASK;
        let left = Duration::from_nanos(left << MARK_SHIFT);
        (!left.is_zero() && left <= most + SLACK).then_some(left)
    }

    /// Since the mark.
    pub(super) fn age(self, now: Instant) -> Duration {
        let age = (now.as_nanos() >> MARK_SHIFT).wrapping_sub(self.mark) & MARK_MASK;
        // A worker whose clock is behind sees it begin in the future.
        if age > MARK_MASK / 2 { Duration::ZERO } else { Duration::from_nanos(age << MARK_SHIFT) }
    }

    pub(super) fn pack(self) -> u64 {
        let Self { state, attempt, issued, good, era, mark } = self;
        let counts = u64::from(attempt) << 2 | u64::from(issued) << 6 | u64::from(good) << 12;
        state as u64 | counts | era.bits() << 18 | mark << 28
    }

    #[expect(clippy::cast_possible_truncation, reason = "masked to the bits of each")]
    pub(super) fn unpack(word: u64) -> Self {
        let part = |shift: u32, bits: u32| ((word >> shift) & ((1 << bits) - 1)) as u8;
        let state = match word & 3 {
            0 => State::Closed,
            1 => State::Open,
            2 => State::Probing,
            _ => State::Recovering,
        };
        Self {
            state,
            attempt: part(2, 4),
            issued: part(6, 6),
            good: part(12, 6),
            era: Era::of(word >> 18),
            mark: word >> 28,
        }
    }
}

/// Rounded up, so that what it ends never ends early.
pub(super) fn mark(at: Instant) -> u64 {
    (at.as_nanos().div_ceil(1 << MARK_SHIFT)) & MARK_MASK
}

/// Clocks of workers, and the rounding of marks.
const SLACK: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    const WORD: Word = Word {
        state: State::Probing,
        attempt: 15,
        issued: 63,
        good: 62,
        era: Era::FIRST,
        mark: MARK_MASK,
    };

    #[test]
    fn a_word_comes_out_as_it_went_in() {
        for state in State::ALL {
            let word = Word { state, era: Era::of(1023), ..WORD };
            assert_eq!(Word::unpack(word.pack()), word);
        }
        assert_eq!(Word::unpack(0).state, State::Closed);
    }

    #[test]
    fn a_mark_ends_when_it_says_and_one_that_is_far_away_has_passed() {
        let minute = Duration::from_secs(60);
        for start in [0, 1, 123_456_789_123, (1 << 56) - 1, u64::MAX / 2] {
            let now = Instant::from_nanos(start);
            let word = WORD.enter(State::Open, now, minute);
            let just_before = Instant::from_nanos(start + 59_999_000_000);
            assert!(word.left_at_most(now, minute).is_some_and(|left| left >= minute));
            assert!(word.left_at_most(just_before, minute).is_some(), "{start}");
            let after = now + minute + Duration::from_millis(2);
            assert_eq!(word.left_at_most(after, minute), None, "{start}");
            let much_later = now + Duration::from_secs(400 * 24 * 3600);
            assert_eq!(word.left_at_most(much_later, minute), None, "{start}");
        }
    }
}
