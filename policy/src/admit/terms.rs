//! What a limit is to the store that counts it over several gateways.

use core::time::Duration;

use super::limit::{Kind, calendar};
use crate::mechanism::calendar::Period;
use crate::mechanism::gcra::Gcra;
use crate::mechanism::lease::{Class, Count, Terms};
use crate::unit::Rate;

/// Leases pay off from this rate, and from this many requests a node.
const LEASED_FROM: u128 = 20;
pub(super) const LEASED_TOKENS: u64 = 16;
/// The store counts in doubles.
const UNITS_MAX: u128 = (1 << 53) - 1;
/// A sliding window up to this size notes each request; a larger one notes those of a hundredth
/// together.
const LOG_MAX: u32 = 64;
const SLOTS: u64 = 100;

/// A limit in numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Numbers {
    pub(crate) kind: Kind,
    pub(crate) rate: Rate,
    pub(crate) capacity: u32,
    pub(crate) cost: u32,
    pub(crate) strict: bool,
    pub(crate) nodes: u32,
}

impl Numbers {
    /// None: the store can't count that far, or not in this way.
    pub(crate) fn terms(&self) -> Option<Terms> {
        let Self { kind, rate, capacity, cost, strict, nodes } = *self;
        let period = rate.period();
        let (count, units, refill) = match kind {
            Kind::Bucket => {
                let (units, refill) = bucket(rate, capacity)?;
                (Count::Bucket, units, refill)
            }
            Kind::Sliding => {
                let whole = micros(period)?;
                let slot = if capacity <= LOG_MAX { 1 } else { whole.div_ceil(SLOTS) };
                (Count::Window, slot, whole)
            }
            Kind::Fixed => (Count::Window, micros(period)?, 0),
            Kind::Quota => match calendar(period)? {
                Period::Hour | Period::Day => (Count::Window, micros(period)?, 0),
                Period::Month => (Count::Window, 0, 0),
            },
            Kind::Leaky => return None,
        };
        let tokens = u128::from(rate.tokens().get());
        let fast = tokens.checked_mul(1_000_000_000)? > LEASED_FROM * period.as_nanos();
        let class = if fast { class(capacity, cost, nodes) } else { Class::Direct };
        Some(Terms { count, class, strict, units, refill, capacity, cost })
    }

    /// A node's part of the rate when it is on its own. A bucket's has as much of the burst; a
    /// window's comes one by one, so that no window has more than its part.
    pub(crate) fn share(&self) -> Option<Gcra> {
        let nodes = self.nodes.max(1);
        let period = self.rate.period().checked_mul(nodes)?;
        let burst = match self.kind {
            Kind::Bucket => (self.capacity / nodes).max(1),
            Kind::Sliding | Kind::Fixed | Kind::Quota | Kind::Leaky => self.cost.max(1),
        };
        Gcra::new(Rate::new(self.rate.tokens(), period)?, burst)
    }
}

/// At most so many at once.
pub(crate) fn places(max: u32, strict: bool, nodes: u32) -> Terms {
    let class = class(max, 1, nodes);
    Terms { count: Count::Places, class, strict, units: 1, refill: 0, capacity: max, cost: 1 }
}

fn class(capacity: u32, cost: u32, nodes: u32) -> Class {
    let roomy = u64::from(capacity / cost.max(1)) >= LEASED_TOKENS * u64::from(nodes);
    if roomy { Class::Lease } else { Class::Direct }
}

/// Units to a token, and units a microsecond.
fn bucket(rate: Rate, capacity: u32) -> Option<(u64, u64)> {
    let (period, tokens) = (rate.period().as_nanos(), u128::from(rate.tokens().get()));
    // In a microsecond come tokens * 1000 / period tokens.
    let (units, refill) = (period, tokens.checked_mul(1_000)?);
    let divisor = gcd(units, refill);
    let (units, refill) = (units / divisor, refill / divisor);
    if units.checked_mul(u128::from(capacity))? > UNITS_MAX || refill > UNITS_MAX {
        return None;
    }
    Some((u64::try_from(units).ok()?, u64::try_from(refill).ok()?))
}

fn micros(period: Duration) -> Option<u64> {
    // A year has 2^45 of them.
    let us = u64::try_from(period.as_nanos().div_ceil(1_000)).ok()?;
    (u128::from(us) <= UNITS_MAX / 4).then_some(us)
}

fn gcd(a: u128, b: u128) -> u128 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(kind: Kind, rate: &str, capacity: u32, cost: u32, nodes: u32) -> Numbers {
        let rate = rate.parse().unwrap();
        Numbers { kind, rate, capacity, cost, strict: false, nodes }
    }

    #[test]
    fn fast_limits_with_room_are_leased_and_all_others_are_asked_one_by_one() {
        // (rate, capacity, cost, nodes, class, units, refill)
        let table = [
            ("100/s", 100, 1, 3, Class::Lease, 10_000, 1),
            ("100/s", 47, 1, 3, Class::Direct, 10_000, 1),
            ("100/s", 100, 5, 3, Class::Direct, 10_000, 1),
            ("20/s", 1000, 1, 1, Class::Direct, 50_000, 1),
            ("21/s", 1000, 1, 1, Class::Lease, 1_000_000, 21),
            ("1/min", 1, 1, 1, Class::Direct, 60_000_000, 1),
            ("5000000/s", 5_000_000, 1, 8, Class::Lease, 1, 5),
        ];
        for (rate, capacity, cost, nodes, class, units, refill) in table {
            let found = numbers(Kind::Bucket, rate, capacity, cost, nodes).terms();
            let (count, strict) = (Count::Bucket, false);
            let terms = Terms { count, class, strict, units, refill, capacity, cost };
            assert_eq!(found, Some(terms), "{rate}");
        }
        assert_eq!(numbers(Kind::Bucket, "7/365day", 1_000_000, 1, 1).terms(), None);
    }

    #[test]
    fn windows_note_each_request_or_those_of_a_part_together() {
        const DAY: u64 = 86_400_000_000;
        let table = [
            (Kind::Sliding, "10/15min", 10, "x", 1, 900_000_000),
            (Kind::Sliding, "64/s", 64, "w", 1, 1_000_000),
            (Kind::Sliding, "1000/s", 1000, "w", 10_000, 1_000_000),
            (Kind::Sliding, "1000/7s", 1000, "w", 70_000, 7_000_000),
            (Kind::Fixed, "100/s", 100, "w", 1_000_000, 0),
            (Kind::Quota, "5/day", 5, "x", DAY, 0),
            (Kind::Quota, "9000/month", 9000, "x", 0, 0),
        ];
        for (kind, rate, capacity, letter, units, refill) in table {
            let terms = numbers(kind, rate, capacity, 1, 3).terms().unwrap();
            assert_eq!(
                (terms.kind(), terms.units, terms.refill),
                (letter, units, refill),
                "{rate}"
            );
            assert!(terms.units * 100 >= refill || terms.units == 1, "all parts are a window");
        }
        assert_eq!(numbers(Kind::Leaky, "1/s", 1, 1, 1).terms(), None);
    }
}
