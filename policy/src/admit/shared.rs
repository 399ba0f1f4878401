//! Limits that several gateways count together, as a worker sees them: spend what the node holds,
//! refuse what the store has refused, otherwise wait a moment for the store to be asked.

use core::time::Duration;

use serde::Deserialize;

use super::Ask;
use super::limit::{CostSpec, Kind, LimitSpec};
use super::rate_limit::Counted;
use crate::flight::{Flight, Parked};
use crate::keeper::shard_of;
use crate::ledger::Ledger;
use crate::ledger::intake::Wish;
use crate::ledger::leases::{Loan, Stand};
use crate::mechanism::gcra::{Gcra, Level};
use crate::mechanism::lease::{Class, Terms};
use crate::plan::Problem;
use crate::time::Instant;
use crate::unit::Rate;

/// The longest that a request waits for the store.
const PARK_MAX: Duration = Duration::from_millis(20);
/// How often it looks.
const LOOK: Duration = Duration::from_millis(1);
/// What a refused request is told when nobody knows better: the store is away.
const AWAY: Duration = Duration::from_secs(1);
/// Leases pay off from this rate, and from this many requests a node.
const LEASED_FROM: u128 = 20;
const LEASED_TOKENS: u64 = 16;
/// The store counts in doubles.
const UNITS_MAX: u128 = (1 << 53) - 1;

/// A store of counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum StoreName {
    Redis,
}

/// What to do while the store can't be asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Lost {
    /// Let everything through.
    Open,
    /// Refuse everything.
    Closed,
    /// Count this gateway's share.
    #[default]
    Local,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) terms: Terms,
    lost: Lost,
    /// What this node may admit on its own.
    share: Gcra,
}

/// A pass, and what it cost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spent {
    pub(super) level: Level,
    loan: Option<Loan>,
}

/// Not to be admitted, or not yet.
#[derive(Clone, Copy, Debug)]
pub(super) enum Unready {
    Park(Instant),
    Refused { limit: u16, wait: Duration },
}

impl Shared {
    pub(super) fn compile(
        spec: &LimitSpec,
        nodes: Option<u32>,
        path: &str,
        problems: &mut Vec<Problem>,
    ) -> Option<Self> {
        let mut problem = |below: &str, message: &str, hint: &str| {
            let (message, hint) = (message.to_owned(), Some(hint.to_owned()));
            problems.push(Problem { path: format!("{path}{below}"), message, hint });
        };
        if spec.store.is_none() {
            if spec.lost.is_some() {
                let hint = "write store = \"redis\", or take it out";
                problem(".lost", "this limit has no store to lose", hint);
            }
            return None;
        }
        let Some(nodes) = nodes else {
            problem(".store", "there is no store", "write a table [store.redis] with its url");
            return None;
        };
        let hint = "take it out, or take out the store: each gateway then counts on its own";
        if spec.kind != Kind::Bucket {
            problem(".kind", "a store counts only limits of kind `bucket`", hint);
            return None;
        }
        if spec.shadow {
            problem(".shadow", "a limit with a store can't be in shadow", hint);
        }
        if matches!(spec.cost, Some(CostSpec::Header(_))) {
            problem(".cost", "a limit with a store can't take its cost from a field", hint);
        }
        let tokens = u32::try_from(spec.rate.tokens().get()).unwrap_or(u32::MAX);
        let capacity = spec.burst.unwrap_or(tokens).max(1);
        let cost = match spec.cost {
            None => 1,
            Some(CostSpec::Fixed(cost)) => cost.max(1),
            Some(CostSpec::Header(_) | CostSpec::Response(_)) => return None,
        };
        let terms = Self::terms(spec.rate, capacity, cost, nodes);
        let share = share(spec.rate, capacity, nodes);
        if terms.is_none() || share.is_none() {
            let hint = "make the burst smaller or the period shorter";
            problem(".rate", "the store can't count that far", hint);
        }
        Some(Self { terms: terms?, lost: spec.lost.unwrap_or_default(), share: share? })
    }

    fn terms(rate: Rate, capacity: u32, cost: u32, nodes: u32) -> Option<Terms> {
        let (period, tokens) = (rate.period().as_nanos(), u128::from(rate.tokens().get()));
        // In a microsecond come tokens * 1000 / period tokens.
        let (units, refill) = (period, tokens.checked_mul(1_000)?);
        let divisor = gcd(units, refill);
        let (units, refill) = (units / divisor, refill / divisor);
        let full = units.checked_mul(u128::from(capacity))?;
        if full > UNITS_MAX || refill > UNITS_MAX {
            return None;
        }
        let fast = tokens.checked_mul(1_000_000_000)? > LEASED_FROM.checked_mul(period)?;
        let roomy = u64::from(capacity / cost) >= LEASED_TOKENS * u64::from(nodes);
        let class = if fast && roomy { Class::Lease } else { Class::Direct };
        let (units, refill) = (u64::try_from(units).ok()?, u64::try_from(refill).ok()?);
        Some(Terms { class, units, refill, capacity, cost })
    }

    /// From what the node holds, or by the rule for a lost store.
    pub(super) fn take(
        &self,
        ask: &Ask<'_>,
        counted: &Counted<'_>,
        flight: &Flight,
    ) -> Result<Spent, Duration> {
        let (leases, at) = (&ask.ledger.leases, ask.now.at);
        let (hash, cost) = (counted.key.hash, counted.cost);
        if let Some(loan) = leases.take(at, hash, cost) {
            let left = u32::try_from(loan.left).unwrap_or(u32::MAX).min(self.terms.capacity);
            let reset = if left < self.terms.capacity { self.token() } else { Duration::ZERO };
            return Ok(Spent { level: Level { left, reset }, loan: Some(loan) });
        }
        let since = match leases.lost_since(|| shard(counted, ask)) {
            Some(since) => since,
            None if overdue(flight, at) => at,
            // Another request was faster.
            None => return Err(LOOK),
        };
        let outcome = match self.lost {
            Lost::Open => Ok(0),
            Lost::Closed => Err(AWAY),
            Lost::Local => leases.take_alone(at, since, hash, self.share, cost),
        };
        leases.degraded(outcome.is_ok());
        let left = u32::try_from(outcome?).unwrap_or(u32::MAX);
        Ok(Spent { level: Level { left, reset: self.token() }, loan: None })
    }

    /// The time in which a token comes.
    fn token(&self) -> Duration {
        Duration::from_micros(self.terms.units.div_ceil(self.terms.refill))
    }
}

impl Spent {
    pub(super) fn give_back(self, ledger: &Ledger) {
        if let Some(loan) = self.loan {
            ledger.leases.give_back(loan);
        }
    }
}

/// None: every limit that a store counts can be decided now.
pub(super) fn ready(
    ask: &Ask<'_>,
    space: &[Option<Counted<'_>>],
    flight: &mut Flight,
) -> Option<Unready> {
    let (leases, at) = (&ask.ledger.leases, ask.now.at);
    let mut parked = flight.parked.unwrap_or(Parked { since: at, wished: 0 });
    let (first, mut wait) = (flight.parked.is_none(), false);
    for (i, counted) in space.iter().flatten().enumerate() {
        let Some(shared) = &counted.meaning.shared else { continue };
        let (hash, cost, bit) = (counted.key.hash, counted.cost, 1_u8 << i);
        let lost = leases.lost_since(|| shard(counted, ask)).is_some();
        if first {
            leases.arrive(at, hash, cost);
        }
        // Tokens of a direct rule came for somebody who waits.
        let direct = shared.terms.class == Class::Direct;
        let theirs = direct && parked.wished & bit == 0 && !lost;
        match leases.stand(at, hash, cost, !theirs) {
            Stand::Held => {}
            Stand::Denied(_) | Stand::Dry if lost => {}
            // Only a share of its own needs a place.
            Stand::Unknown if lost && shared.lost != Lost::Local => {}
            Stand::Denied(wait) => return Some(Unready::Refused { limit: counted.limit, wait }),
            Stand::Dry | Stand::Unknown => {
                if parked.wished & bit == 0 {
                    let name = counted.meaning.key.name(counted.meaning.rule, ask);
                    let wish = Wish { hash, name, rule: counted.meaning.rule, cost };
                    parked.wished |= if leases.wish(&wish) { bit } else { 0 };
                }
                wait |= !overdue(flight, at);
            }
        }
    }
    if !wait {
        return None;
    }
    if first {
        leases.parked();
    }
    flight.parked = Some(parked);
    Some(Unready::Park(at + LOOK))
}

/// Where the store keeps it.
fn shard(counted: &Counted<'_>, ask: &Ask<'_>) -> u64 {
    shard_of(counted.meaning.key.name(counted.meaning.rule, ask))
}

fn overdue(flight: &Flight, at: Instant) -> bool {
    flight.parked.is_some_and(|parked| at.since(parked.since) >= PARK_MAX)
}

/// This node's part of the rate, and as much of the burst.
fn share(rate: Rate, capacity: u32, nodes: u32) -> Option<Gcra> {
    let period = rate.period().checked_mul(nodes.max(1))?;
    Gcra::new(Rate::new(rate.tokens(), period)?, (capacity / nodes.max(1)).max(1))
}

fn gcd(a: u128, b: u128) -> u128 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let found = Shared::terms(rate.parse().unwrap(), capacity, cost, nodes);
            assert_eq!(found, Some(Terms { class, units, refill, capacity, cost }), "{rate}");
        }
        assert_eq!(Shared::terms("7/365day".parse().unwrap(), 1_000_000, 1, 1), None);
    }
}
