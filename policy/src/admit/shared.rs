//! Limits that several gateways count together, as a worker sees them: spend what the node holds,
//! refuse what the store has refused, otherwise wait a moment for the store to be asked.

use core::time::Duration;

use serde::Deserialize;

use super::Ask;
use super::bound::{Loss, Stored};
use super::limit::{CostSpec, Kind, LimitSpec};
use super::rate_limit::Counted;
use super::terms::Numbers;
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
pub(super) const PARK_MAX: Duration = Duration::from_millis(20);
/// How often it looks by itself. Whoever brings an answer should wake it before.
const LOOK: Duration = Duration::from_millis(5);
/// What a refused request is told when nobody knows better: the store is away.
const AWAY: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

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
    numbers: Numbers,
}

/// A pass, and what it cost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spent {
    pub(super) level: Level,
    of: Of,
}

/// What it was taken from.
#[derive(Clone, Copy, Debug)]
enum Of {
    Held(Loan),
    /// On credit: the key, and how much.
    Credit(u64, u32),
    /// What this node may do on its own.
    Alone,
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
            if spec.strict {
                let hint = "write store = \"redis\", or take it out";
                problem(".strict", "this limit has no store that could lose anything", hint);
            }
            return None;
        }
        let Some(nodes) = nodes else {
            problem(".store", "there is no store", "write a table [store.redis] with its url");
            return None;
        };
        let hint = "take it out, or take out the store: each gateway then counts on its own";
        if spec.kind == Kind::Leaky {
            problem(".kind", "a store can't have requests wait for their turn", hint);
            return None;
        }
        let numbers = numbers(spec, nodes);
        let (terms, share) = (numbers.terms(), numbers.share());
        if terms.is_none() || share.is_none() {
            let hint = "make the burst smaller or the period shorter";
            problem(".rate", "the store can't count that far", hint);
        }
        Some(Self { terms: terms?, lost: spec.lost.unwrap_or_default(), share: share?, numbers })
    }

    /// What the store has to do with its bound. `proxied`: nobody sees when it restarts.
    pub(super) fn bound(&self, proxied: bool) -> Stored {
        let unseen = (proxied && self.terms.strict).then_some(self.terms.capacity);
        Stored { loss: self.loss(), unseen }
    }

    /// What it admits beyond its bound while the store is away: every gateway its share.
    fn loss(&self) -> Loss {
        let rate = self.numbers.rate;
        let minute = u128::from(rate.tokens().get()) * MINUTE.as_nanos();
        let minute = u64::try_from(minute.div_ceil(rate.period().as_nanos().max(1)));
        match self.lost {
            Lost::Closed => Loss::Nothing,
            Lost::Open => Loss::Unbounded,
            Lost::Local => Loss::PerMinute(minute.unwrap_or(u64::MAX)),
        }
    }

    /// How it counts a key that has numbers of its own.
    pub(super) fn with(&self, rate: Rate, burst: Option<u32>) -> Option<Terms> {
        let tokens = u32::try_from(rate.tokens().get()).ok()?;
        let capacity = match self.numbers.kind {
            Kind::Bucket => burst.unwrap_or(tokens),
            Kind::Sliding | Kind::Fixed | Kind::Quota | Kind::Leaky => tokens,
        };
        let fits = capacity >= self.numbers.cost;
        let numbers = Numbers { rate, capacity, ..self.numbers };
        numbers.terms().filter(|_| fits)
    }

    /// From what the node holds, or by the rule for a lost store.
    pub(super) fn take(
        &self,
        ask: &Ask<'_>,
        counted: &Counted<'_>,
        flight: &mut Flight,
    ) -> Result<Spent, Duration> {
        let (leases, at) = (&ask.ledger.leases, ask.now.at);
        let (hash, cost) = (counted.key.hash, counted.cost);
        if let Some(loan) = leases.take(at, hash, cost) {
            let left = u32::try_from(loan.left).unwrap_or(u32::MAX).min(self.terms.capacity);
            let reset = if left < self.terms.capacity { self.token() } else { Duration::ZERO };
            return Ok(Spent { level: Level { left, reset }, of: Of::Held(loan) });
        }
        let since = match leases.lost_since(|| shard(counted, ask)) {
            Some(since) => since,
            None if counted.meaning.shadow => return self.take_on_credit(ask, counted, flight),
            None if overdue(flight, at) => at,
            // Another request was faster.
            None => return Err(Duration::from_millis(1)),
        };
        let outcome = match self.lost {
            Lost::Open => Ok(0),
            Lost::Closed => Err(AWAY),
            Lost::Local => leases.take_alone(at, since, hash, self.share, cost),
        };
        leases.degraded(counted.meaning.rule, outcome.is_ok());
        let left = u32::try_from(outcome?).unwrap_or(u32::MAX);
        Ok(Spent { level: Level { left, reset: self.token() }, of: Of::Alone })
    }

    /// A shadow has nobody wait: what the node does not hold, and the store has not refused, is
    /// spent now and told later.
    fn take_on_credit(
        &self,
        ask: &Ask<'_>,
        counted: &Counted<'_>,
        flight: &mut Flight,
    ) -> Result<Spent, Duration> {
        let leases = &ask.ledger.leases;
        let (hash, cost) = (counted.key.hash, counted.cost);
        match leases.stand(ask.now.at, hash, cost, true) {
            Stand::Denied(wait) => return Err(wait),
            Stand::Held | Stand::Dry => leases.charge(hash, cost),
            Stand::Unknown => {
                let name = counted.meaning.key.name(counted.meaning.rule, ask);
                let wish = Wish { hash, name, rule: counted.meaning.rule, cost, spent: true };
                flight.kicks |= leases.wish(&wish);
            }
        }
        let level = Level { left: 0, reset: self.token() };
        Ok(Spent { level, of: Of::Credit(hash, cost) })
    }

    /// The time in which a token comes.
    fn token(&self) -> Duration {
        Duration::from_micros(self.terms.token_us())
    }
}

impl Spent {
    pub(super) fn give_back(self, ledger: &Ledger) {
        match self.of {
            Of::Held(loan) => ledger.leases.give_back(loan),
            Of::Credit(hash, cost) => ledger.leases.discharge(hash, cost),
            Of::Alone => {}
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
    let (first, mut wait) = (flight.parked.is_none(), None);
    for (i, counted) in space.iter().flatten().enumerate() {
        let Some(shared) = &counted.meaning.shared else { continue };
        let (hash, cost, bit) = (counted.key.hash, counted.cost, 1_u8 << i);
        let lost = leases.lost_since(|| shard(counted, ask)).is_some();
        if first {
            leases.arrive(at, hash, cost);
        }
        if counted.meaning.shadow {
            continue;
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
                    let wish = Wish { hash, name, rule: counted.meaning.rule, cost, spent: false };
                    parked.wished |= if leases.wish(&wish) { bit } else { 0 };
                }
                if !overdue(flight, at) {
                    wait = Some(counted.meaning.rule);
                }
            }
        }
    }
    let rule = wait?;
    if first {
        leases.parked(rule);
    }
    flight.parked = Some(parked);
    Some(Unready::Park(look_again(&parked, at)))
}

/// When a request that waits looks at the latest.
pub(super) fn look_again(parked: &Parked, at: Instant) -> Instant {
    (at + LOOK).min(parked.since + PARK_MAX)
}

/// Where the store keeps it.
fn shard(counted: &Counted<'_>, ask: &Ask<'_>) -> u64 {
    shard_of(counted.meaning.key.name(counted.meaning.rule, ask))
}

pub(super) fn overdue(flight: &Flight, at: Instant) -> bool {
    flight.parked.is_some_and(|parked| at.since(parked.since) >= PARK_MAX)
}

fn numbers(spec: &LimitSpec, nodes: u32) -> Numbers {
    let tokens = u32::try_from(spec.rate.tokens().get()).unwrap_or(u32::MAX);
    let capacity = spec.burst.unwrap_or(tokens).max(1);
    let cost = match spec.cost {
        Some(CostSpec::Fixed(cost)) => cost.max(1),
        None | Some(CostSpec::Header(_) | CostSpec::Response(_)) => 1,
    };
    let LimitSpec { kind, rate, strict, .. } = *spec;
    Numbers { kind, rate, capacity, cost, strict, nodes }
}
