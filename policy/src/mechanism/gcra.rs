//! A token bucket kept as one number: the instant at which it will be full again (GCRA).
//!
//! Time is counted in ticks of 1/16 ns. Finer ticks lose less to rounding (here at most 1/16 ns a
//! token: 0.06 % at ten million tokens a second), coarser ones last longer (here 18 years of
//! uptime before the clock stands still, and it stands still rather than wrap).

use core::time::Duration;

use crate::time::{Instant, nanos};
use crate::unit::Rate;

const TICKS_PER_NS: u64 = 16;

/// No instant and no bucket is larger, so sums of a few of them cannot overflow.
const TICKS_MAX: u64 = 1 << 62;

/// Meaningless as a state: no sum of an instant and a bucket reaches it.
pub(crate) const NEVER: u64 = u64::MAX;

pub(crate) fn ticks(at: Instant) -> u64 {
    at.as_nanos().min(TICKS_MAX / TICKS_PER_NS) * TICKS_PER_NS
}

pub(crate) fn ticks_of(span: Duration) -> u64 {
    nanos(span).min(TICKS_MAX / TICKS_PER_NS) * TICKS_PER_NS
}

/// Rounded up: at that time it is true, one nanosecond earlier it is not.
pub(super) fn span(ticks: u64) -> Duration {
    Duration::from_nanos(ticks.div_ceil(TICKS_PER_NS))
}

/// A rate and a burst, kept so that the hot path divides only to report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gcra {
    token: u64,
    room: u64,
    burst: u32,
    /// How far below empty it can be.
    debt: u64,
}

/// How a bucket stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Level {
    pub(crate) left: u32,
    /// Until there is one token more; zero when full.
    pub(crate) reset: Duration,
}

impl Gcra {
    /// None when the burst takes longer to refill than nine years, or is nothing.
    pub(crate) fn new(rate: Rate, burst: u32) -> Option<Self> {
        let period = rate.period().as_nanos().checked_mul(u128::from(TICKS_PER_NS))?;
        // Rounded up, so that rounding never admits more than was written.
        let token = u64::try_from(period.div_ceil(u128::from(rate.tokens().get()))).ok()?;
        let room = token.checked_mul(u64::from(burst)).filter(|r| (1..=TICKS_MAX).contains(r))?;
        Some(Self { token, room, burst, debt: 0 })
    }

    /// The same, but it can owe as much again as it holds.
    pub(crate) const fn owing(self) -> Self {
        Self { debt: self.room, ..self }
    }

    /// A queue that one leaves per token, and that nobody joins for longer than `wait_max`. None
    /// when that takes longer than nine years.
    pub(crate) fn queue(rate: Rate, wait_max: Duration) -> Option<Self> {
        let Self { token, .. } = Self::new(rate, 1)?;
        let room = token.checked_add(ticks_of(wait_max)).filter(|room| *room <= TICKS_MAX)?;
        let burst = u32::try_from(room / token).unwrap_or(u32::MAX);
        Some(Self { token, room, burst, debt: 0 })
    }

    /// How long the one waits whose taking left this state.
    pub(crate) fn turn(self, full_at: u64, now: u64, cost: u32) -> Duration {
        span(self.untake(full_at, cost).saturating_sub(now))
    }

    pub(crate) const fn burst(self) -> u32 {
        self.burst
    }

    /// The time in which an empty bucket is full again.
    pub(crate) fn window(self) -> Duration {
        span(self.room)
    }

    /// The state after taking `cost` tokens, or how long until they are there. Refusal changes
    /// nothing.
    pub(crate) fn take(self, full_at: u64, now: u64, cost: u32) -> Result<u64, Duration> {
        let then = full_at.max(now).saturating_add(self.price(cost));
        let debt = then - now;
        if debt > self.room { Err(span(debt - self.room)) } else { Ok(then) }
    }

    /// What `take` returned, taken back.
    pub(crate) const fn untake(self, full_at: u64, cost: u32) -> u64 {
        full_at.saturating_sub(self.price(cost))
    }

    pub(crate) fn level(self, full_at: u64, now: u64) -> Level {
        let debt = full_at.saturating_sub(now).min(self.room);
        let missing = debt.div_ceil(self.token);
        let left = u64::from(self.burst).saturating_sub(missing);
        let reset = debt - missing.saturating_sub(1) * self.token;
        Level { left: u32::try_from(left).unwrap_or(self.burst), reset: span(reset) }
    }

    /// The state after taking `cost` tokens, whether they are there or not.
    pub(crate) fn charge(self, full_at: u64, now: u64, cost: u32) -> u64 {
        full_at.max(now).saturating_add(self.price(cost)).min(self.lowest(now)).max(full_at)
    }

    /// The state of an empty bucket.
    pub(crate) const fn empty(self, now: u64) -> u64 {
        now + self.room
    }

    /// The state of a bucket that is as empty as can be.
    pub(crate) const fn lowest(self, now: u64) -> u64 {
        now + self.room + self.debt
    }

    const fn price(self, cost: u32) -> u64 {
        self.token.saturating_mul(cost as u64)
    }
}

#[cfg(test)]
mod tests {
    use core::num::NonZeroU64;

    use proptest::prelude::*;

    use super::*;

    const MS: u64 = 1_000_000;

    fn gcra(tokens: u64, period: Duration, burst: u32) -> Gcra {
        Gcra::new(Rate::new(NonZeroU64::new(tokens).unwrap(), period).unwrap(), burst).unwrap()
    }

    fn at(ns: u64) -> u64 {
        ticks(Instant::from_nanos(ns))
    }

    #[test]
    fn spends_the_burst_then_the_rate() {
        let (gcra, mut state) = (gcra(10, Duration::from_secs(1), 2), 0);
        // (at ms, granted)
        let table =
            [(1000, true), (1000, true), (1000, false), (1099, false), (1100, true), (1100, false)];
        for (ms, granted) in table {
            let got = gcra.take(state, at(ms * MS), 1);
            assert_eq!(got.is_ok(), granted, "at {ms} ms: {got:?}");
            state = got.unwrap_or(state);
        }
    }

    #[test]
    fn levels_tell_what_is_left_and_when_there_is_more() {
        let (gcra, mut state) = (gcra(2, Duration::from_secs(1), 3), 0);
        // (at ms, cost, left, reset ms)
        let table = [(1000, 1, 2, 500), (1000, 2, 0, 500), (1600, 1, 0, 400), (9000, 3, 0, 500)];
        for (ms, cost, left, reset) in table {
            state = gcra.take(state, at(ms * MS), cost).unwrap();
            let expected = Level { left, reset: Duration::from_millis(reset) };
            assert_eq!(gcra.level(state, at(ms * MS)), expected, "at {ms} ms");
        }
        assert_eq!(gcra.level(0, at(1)), Level { left: 3, reset: Duration::ZERO });
    }

    #[test]
    fn one_a_minute_is_there_after_exactly_a_minute() {
        let gcra = gcra(1, Duration::from_secs(60), 1);
        let state = gcra.take(0, at(7), 1).unwrap();
        assert_eq!(gcra.take(state, at(7), 1), Err(Duration::from_secs(60)));
        assert!(gcra.take(state, at(60_000_000_006), 1).is_err());
        assert!(gcra.take(state, at(60_000_000_007), 1).is_ok());
    }

    #[test]
    fn a_rate_that_does_not_divide_is_rounded_towards_less() {
        // 1000 tokens at 7 a nanosecond take 142.9 ns; a tick is 1/16 ns.
        assert!(gcra(7, Duration::from_nanos(1), 1000).window() >= Duration::from_nanos(143));
    }

    #[test]
    fn what_cannot_be_counted_is_no_bucket() {
        let rate = |n, secs| Rate::new(NonZeroU64::new(n).unwrap(), Duration::from_secs(secs));
        assert_eq!(Gcra::new(rate(1, 1).unwrap(), 0), None);
        assert_eq!(Gcra::new(rate(1, u64::MAX).unwrap(), 1), None);
        assert_eq!(Gcra::new(rate(1, 86_400).unwrap(), u32::MAX), None);
        assert!(Gcra::new(rate(u64::MAX, 1).unwrap(), 1).is_some());
    }

    #[test]
    fn what_is_charged_goes_into_debt_no_deeper_than_the_bucket_and_forgives_nothing() {
        let owing = gcra(1, Duration::from_secs(1), 10).owing();
        let secs = |s: u64| at(s * 1_000_000_000);
        let charged = [7, 7, 7, 7].into_iter().fold(0, |word, n| owing.charge(word, secs(100), n));
        assert_eq!(charged, secs(120), "ten that were there, and ten below empty");
        // What a slower rate left is owed for longer than this bucket can: it stays.
        assert_eq!(owing.charge(secs(500), secs(100), 1), secs(500));
    }

    /// The bucket as textbooks have it: a level that is filled at each look, in units of which a
    /// tick brings one.
    struct Bucket {
        level: u128,
        at: u64,
    }

    impl Bucket {
        fn take(&mut self, gcra: Gcra, now: u64, cost: u32) -> bool {
            let filled = self.level + u128::from(now.saturating_sub(self.at));
            (self.level, self.at) = (filled.min(gcra.room.into()), now);
            let left = self.level.checked_sub(u128::from(gcra.token) * u128::from(cost));
            self.level = left.unwrap_or(self.level);
            left.is_some()
        }
    }

    proptest! {
        /// It is the bucket, decision by decision; and how often somebody looks or is refused
        /// between two requests fills nothing and loses nothing.
        #[test]
        fn it_is_a_bucket_of_tokens_however_the_time_is_split(
            token_ns in 1_u64..5_000_000,
            burst in 1_u32..50,
            asks in prop::collection::vec((0_u64..50_000_000, 1_u32..4, 0_u64..4), 1..200),
        ) {
            let gcra = gcra(1, Duration::from_nanos(token_ns), burst);
            let mut bucket = Bucket { level: gcra.room.into(), at: 0 };
            let (mut now, mut state) = (1, 0);
            for (gap, cost, looks) in asks {
                for look in 1..=looks {
                    // Refused, whatever there is.
                    let then = at(now + gap * look / (looks + 1));
                    prop_assert!(gcra.take(state, then, burst + 1).is_err());
                    prop_assert!(!bucket.take(gcra, then, burst + 1));
                }
                now += gap;
                let got = gcra.take(state, at(now), cost);
                prop_assert_eq!(got.is_ok(), bucket.take(gcra, at(now), cost), "at {}", now);
                state = got.unwrap_or(state);
                let left = u32::try_from(bucket.level / u128::from(gcra.token)).unwrap();
                prop_assert_eq!(gcra.level(state, at(now)).left, left);
            }
        }

        /// Never above burst + rate x time, in any window, whatever the gaps and costs; and the
        /// stated wait is tight to the nanosecond.
        #[test]
        fn never_above_the_bound_and_waits_are_tight(
            tokens in 1_u64..2000,
            period in 1_u64..10_000_000_000,
            burst in 1_u32..50,
            asks in prop::collection::vec((0_u64..5_000_000, 1_u32..4), 1..200),
        ) {
            let gcra = gcra(tokens, Duration::from_nanos(period), burst);
            let (mut now, mut state, mut admitted) = (1, 0, Vec::new());
            for (gap, cost) in asks {
                now += gap;
                match gcra.take(state, at(now), cost) {
                    Ok(next) => {
                        state = next;
                        admitted.push((now, u128::from(cost)));
                    }
                    Err(_) if cost > burst => {}
                    Err(wait) => {
                        let then = now + nanos(wait);
                        prop_assert!(gcra.take(state, at(then), cost).is_ok());
                        prop_assert!(gcra.take(state, at(then - 1), cost).is_err());
                    }
                }
            }
            for (i, &(from, _)) in admitted.iter().enumerate() {
                let mut sum = 0;
                for &(until, cost) in &admitted[i..] {
                    sum += cost;
                    let (gap, tokens) = (u128::from(until - from), u128::from(tokens));
                    prop_assert!(sum <= u128::from(burst) + gap * tokens / u128::from(period));
                }
            }
        }
    }
}
