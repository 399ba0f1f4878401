//! Which of the endpoints that are open: the ways to balance.

use core::cell::Cell;

use crate::plan::Endpoint;
use crate::steer::hash::{Affinity, first_choice};
use crate::steer::{Search, Steer};

/// How an upstream's requests are spread.
#[derive(Debug)]
pub(crate) enum Rule {
    RoundRobin,
    P2c,
    Weighted,
    PeakEwma { half_life_ns: u64 },
    Hash(Affinity),
}

/// An endpoint that has taken requests and answered none yet is as good as one that takes this
/// long: it gets one request to be known by, not a flood.
const UNKNOWN_NS: u64 = 1_000_000_000;

impl Steer {
    /// One that is open, on the side of the gateway's zone that the request is to go to; when none
    /// is, any.
    pub(super) fn pick(&mut self, it: &Search<'_>, open: &dyn Fn(u16) -> bool) -> Option<u16> {
        if let Some(near) = it.near {
            let there = |e: u16| it.is_near(e) == near && open(e);
            if let Some(found) = self.pick_any(it, &there) {
                return Some(found);
            }
        }
        self.pick_any(it, open)
    }

    fn pick_any(&mut self, it: &Search<'_>, open: &dyn Fn(u16) -> bool) -> Option<u16> {
        match &it.upstream.spread.balance {
            Rule::RoundRobin => next(it.cursor()?, &it.upstream.spread.turn, open),
            Rule::P2c => self.lighter(it, open, &|e, _| u64::from(it.taken(e)) + 1),
            Rule::Weighted => self.by_weight(it, open),
            Rule::PeakEwma { half_life_ns } => {
                let load = |e: u16, _: &Endpoint| match (it.cost_ns(e, *half_life_ns), it.taken(e))
                {
                    (0, taken) => UNKNOWN_NS.saturating_mul(u64::from(taken)),
                    (cost, taken) => cost.saturating_mul(u64::from(taken) + 1),
                };
                self.lighter(it, open, &load)
            }
            Rule::Hash(affinity) => match it.affinity {
                Some(key) => first_choice(it, affinity, key, open),
                None => self.lighter(it, open, &|e, _| u64::from(it.load_of(e)) + 1),
            },
        }
    }

    /// The less loaded, by weight, of two different endpoints picked at random.
    fn lighter(
        &mut self,
        it: &Search<'_>,
        open: &dyn Fn(u16) -> bool,
        load: &dyn Fn(u16, &Endpoint) -> u64,
    ) -> Option<u16> {
        let endpoints = || it.endpoints().filter(|(e, _)| open(*e));
        let count = endpoints().count() as u64;
        let first = self.dice.below(count);
        let second = self.dice.below(count.saturating_sub(1));
        let second = second + u64::from(second >= first);
        let nth = |n: u64| endpoints().nth(usize::try_from(n).ok()?);
        let (one, other) = (nth(first)?, nth(second));
        let Some(other) = other else { return Some(one.0) };
        // load / weight, without dividing
        let heavy =
            |it: (u16, &Endpoint), weight: u32| load(it.0, it.1).saturating_mul(u64::from(weight));
        let (a, b) = (heavy(one, other.1.weight), heavy(other, one.1.weight));
        Some(if b < a { other.0 } else { one.0 })
    }

    /// At random, by weight.
    fn by_weight(&mut self, it: &Search<'_>, open: &dyn Fn(u16) -> bool) -> Option<u16> {
        let sums = &it.upstream.spread.sums;
        let throw = self.dice.below(sums.last().copied().unwrap_or(0));
        let place = u16::try_from(sums.partition_point(|sum| *sum <= throw)).ok()?;
        if usize::from(place) < sums.len() && open(place) {
            return Some(place);
        }
        // Among those that are open: a neighbour of one that is not must not get both shares.
        let open = || it.endpoints().filter(|(e, _)| open(*e));
        let mut left = self.dice.below(open().map(|(_, it)| u64::from(it.weight)).sum());
        open().find_map(|(e, endpoint)| match left.checked_sub(u64::from(endpoint.weight)) {
            Some(rest) => {
                left = rest;
                None
            }
            None => Some(e),
        })
    }
}

/// The next in turn that is open; the turn goes on from there.
fn next(turn: &Cell<usize>, order: &[u16], open: &dyn Fn(u16) -> bool) -> Option<u16> {
    let start = turn.get();
    let steps = (0..order.len()).map(|step| (start.wrapping_add(step)) % order.len());
    let (at, endpoint) = steps.map(|at| (at, order[at])).find(|(_, endpoint)| open(*endpoint))?;
    turn.set(at + 1);
    Some(endpoint)
}
