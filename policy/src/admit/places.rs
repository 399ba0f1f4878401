//! Places that several gateways count together: how many requests are in progress at once, over
//! all of them.

use super::bound::CutOff;
use super::concurrency::{ConcurrencySpec, refused};
use super::shared::{Lost, look_again, overdue};
use super::terms::places;
use super::{Ask, Context, Verdict};
use crate::flight::{Flight, Parked, Step};
use crate::keeper::shard_of;
use crate::ledger::CountKey;
use crate::ledger::intake::Wish;
use crate::ledger::leases::{Occupied, Stand};
use crate::mechanism::lease::Terms;

#[derive(Debug)]
pub(super) struct Places {
    pub(super) terms: Terms,
    lost: Lost,
    /// Of this node, when it is on its own.
    share: u64,
    nodes: u32,
}

impl Places {
    pub(super) fn compile(spec: &ConcurrencySpec, context: &mut Context<'_>) -> Option<Self> {
        if spec.store.is_none() {
            if spec.lost.is_some() {
                let hint = Some("write store = \"redis\", or take it out".to_owned());
                context.problem(".lost", "this has no store to lose".to_owned(), hint);
            }
            return None;
        }
        let Some(nodes) = context.limits.nodes else {
            let hint = Some("write a table [store.redis] with its url".to_owned());
            context.problem(".store", "there is no store".to_owned(), hint);
            return None;
        };
        let share = u64::from((spec.max / nodes.max(1)).max(1));
        let terms = places(spec.max, false, nodes);
        Some(Self { terms, lost: spec.lost.unwrap_or_default(), share, nodes })
    }

    /// What is beside its bound on gateways that can't reach the store.
    pub(super) fn cut_off(&self) -> CutOff {
        let nodes = u64::from(self.nodes);
        let alone = match self.lost {
            Lost::Closed => Some(0),
            Lost::Local => Some(nodes * self.share),
            Lost::Open => None,
        };
        // The last one to be cut off has no more than all of them may have.
        let before = nodes.saturating_sub(1) * u64::from(self.terms.capacity);
        CutOff { nodes: self.nodes, before, alone }
    }

    pub(super) fn check(
        &self,
        ask: &Ask<'_>,
        key: CountKey,
        name: impl Fn() -> [u64; 2],
        flight: &mut Flight,
    ) -> Verdict {
        let (leases, at) = (&ask.ledger.leases, ask.now.at);
        let first = flight.parked.is_none();
        if first {
            leases.arrive(at, key.hash, 1);
        }
        if let Some(occupied) = leases.occupy(at, key.hash) {
            return passed(flight, Some(occupied));
        }
        let lost = leases.lost_since(|| shard_of(name())).is_some();
        let stand = leases.stand(at, key.hash, 1, true);
        if !lost && matches!(stand, Stand::Denied(_)) {
            return denied(flight);
        }
        let mut parked = flight.parked.unwrap_or(Parked { since: at, wished: 0 });
        let unknown = stand == Stand::Unknown && self.lost == Lost::Local;
        if (!lost || unknown) && !overdue(flight, at) {
            if parked.wished == 0 {
                let wish =
                    Wish { hash: key.hash, name: name(), rule: key.rule, cost: 1, spent: false };
                parked.wished = u8::from(leases.wish(&wish));
            }
            if first {
                leases.parked(key.rule);
            }
            flight.parked = Some(parked);
            return Verdict::Park(look_again(&parked, at));
        }
        let alone = match self.lost {
            Lost::Open => Some(None),
            Lost::Closed => None,
            Lost::Local => leases.occupy_alone(key.hash, self.share).map(Some),
        };
        leases.degraded(key.rule, alone.is_some());
        match alone {
            Some(occupied) => passed(flight, occupied),
            None => denied(flight),
        }
    }
}

fn passed(flight: &mut Flight, occupied: Option<Occupied>) -> Verdict {
    flight.trail.push(Step { filter: "concurrency", rule: None, passed: true, left: None });
    flight.occupied = occupied;
    flight.parked = None;
    Verdict::Pass
}

fn denied(flight: &mut Flight) -> Verdict {
    flight.trail.push(Step { filter: "concurrency", rule: None, passed: false, left: Some(0) });
    refused()
}
