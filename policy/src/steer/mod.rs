//! Where a request goes: which endpoint of its upstream.

pub(crate) mod order;

use core::cell::Cell;
use core::time::Duration;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use crate::draft::Balance;
use crate::flight::Tries;
use crate::mechanism::dice::Dice;
use crate::plan::{Endpoint, EndpointKey, Plan, Upstream, UpstreamId, UpstreamKey};
use crate::time::{Instant, nanos};

/// One worker's hold on the shared plan, with this worker's own memory of the plan's endpoints
/// looked up ahead. Flights clone the worker's `Rc<Pinned>`, so pinning a plan touches no cache
/// line of another core.
#[derive(Debug)]
pub(crate) struct Pinned {
    plan: Arc<Plan>,
    /// Of every endpoint, in the order of upstreams.
    seats: Box<[Rc<Seats>]>,
    /// Of every upstream.
    turns: Box<[Rc<Turn>]>,
}

impl core::ops::Deref for Pinned {
    type Target = Plan;

    fn deref(&self) -> &Plan {
        &self.plan
    }
}

/// One endpoint, as this worker knows it.
#[derive(Debug, Default)]
pub(crate) struct Seats {
    /// Requests of this worker under way.
    taken: Cell<u32>,
    /// Its health says: send it nothing.
    out: Cell<bool>,
    /// It came back then, and is getting its share by and by.
    back: Cell<Option<Instant>>,
}

/// One upstream, as this worker knows it.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    /// How far round robin has come.
    at: Cell<usize>,
    /// So few servers are in that nobody's health counts.
    panic: Cell<bool>,
}

/// One endpoint of one upstream, by their places in a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spot {
    pub(crate) upstream: UpstreamId,
    pub(crate) endpoint: u16,
}

/// A worker's memory of endpoints. Filed under keys, so a reload keeps it.
#[derive(Debug)]
pub(crate) struct Steer {
    seats: BTreeMap<EndpointKey, Rc<Seats>>,
    turns: BTreeMap<UpstreamKey, Rc<Turn>>,
    dice: Dice,
}

impl Steer {
    pub(crate) fn new(seed: u64) -> Self {
        Self { seats: BTreeMap::new(), turns: BTreeMap::new(), dice: Dice::new(seed) }
    }

    pub(crate) fn pin(&mut self, plan: Arc<Plan>) -> Rc<Pinned> {
        let endpoints = plan.upstreams().iter().flat_map(|u| &u.endpoints);
        let seats = endpoints.map(|e| Rc::clone(self.seats.entry(e.key).or_default())).collect();
        let turns = plan.upstreams().iter().map(|upstream| {
            // Workers start at different servers, or the first would get them all at once.
            let length = upstream.spread.turn.len() as u64;
            let start = usize::try_from(self.dice.below(length)).unwrap_or(0);
            let begin = || Rc::new(Turn { at: Cell::new(start), ..Turn::default() });
            Rc::clone(self.turns.entry(upstream.key).or_insert_with(begin))
        });
        let turns = turns.collect();
        Rc::new(Pinned { plan, seats, turns })
    }

    /// Forgets what no plan that is still in use names.
    pub(crate) fn forget(&mut self) {
        self.seats.retain(|_, seats| Rc::strong_count(seats) > 1);
        self.turns.retain(|_, turn| Rc::strong_count(turn) > 1);
    }

    /// These endpoints, and no others, are out by their health.
    pub(crate) fn heed(&mut self, plan: &Pinned, now: Instant, out: &[EndpointKey]) {
        for (key, seats) in &self.seats {
            let (was, is) = (seats.out.get(), out.contains(key));
            seats.out.set(is);
            if was != is {
                seats.back.set((!is).then_some(now));
            }
        }
        for ((id, upstream), turn) in (0..).zip(plan.upstreams()).zip(&plan.turns) {
            let Some(check) = &upstream.health else { continue };
            let places = 0..u16::try_from(upstream.endpoints.len()).unwrap_or(u16::MAX);
            let all = places.len() as u64;
            let spot = |endpoint| Spot { upstream: UpstreamId(id), endpoint };
            let fit = |e: &u16| plan.seats_at(spot(*e)).is_none_or(|seats| !seats.out.get());
            let fit = places.filter(fit).count() as u64;
            turn.panic.set(fit * 1_000_000 < all * u64::from(check.panic_ppm));
        }
    }

    /// An endpoint that is in and has not failed this flight, or, when there is none and `again`,
    /// any that is in.
    pub(crate) fn place(
        &mut self,
        now: Instant,
        plan: &Pinned,
        id: UpstreamId,
        tries: &Tries,
        again: bool,
    ) -> Option<Spot> {
        let upstream = plan.upstream(id)?;
        let fit = |e: u16| plan.is_fit(Spot { upstream: id, endpoint: e });
        let fresh = |e: u16| !tries.failed(e) && fit(e);
        let slow = upstream.health.as_ref().map_or(Duration::ZERO, |check| check.slow_start);
        let mut found = None;
        if !slow.is_zero() {
            // By its luck a request may be one that a server that just came back does not get.
            let luck = self.dice.below(nanos(slow));
            let warm = |e| plan.back_for(now, Spot { upstream: id, endpoint: e }) >= luck;
            found = self.pick(plan, id, upstream, &|e| fresh(e) && warm(e));
        }
        let endpoint = match found.or_else(|| self.pick(plan, id, upstream, &fresh)) {
            None if again => self.pick(plan, id, upstream, &fit),
            found => found,
        }?;
        Some(Spot { upstream: id, endpoint })
    }

    pub(crate) fn seats(&self) -> impl Iterator<Item = (EndpointKey, u32)> {
        self.seats.iter().map(|(key, seats)| (*key, seats.taken.get()))
    }

    fn pick(
        &mut self,
        plan: &Pinned,
        id: UpstreamId,
        upstream: &Upstream,
        open: &dyn Fn(u16) -> bool,
    ) -> Option<u16> {
        match upstream.spread.balance {
            Balance::RoundRobin => {
                next(&plan.turns.get(id.index())?.at, &upstream.spread.turn, open)
            }
            Balance::P2c => self.less_busy(plan, upstream, open),
            Balance::Weighted => self.by_weight(upstream, open),
        }
    }

    /// The less busy, by weight, of two different endpoints picked at random.
    fn less_busy(
        &mut self,
        plan: &Pinned,
        upstream: &Upstream,
        open: &dyn Fn(u16) -> bool,
    ) -> Option<u16> {
        let usable = |(_, e): &(u16, &Endpoint)| e.weight > 0;
        let endpoints =
            || (0_u16..).zip(&upstream.endpoints).filter(usable).filter(|(i, _)| open(*i));
        let count = endpoints().count() as u64;
        let first = self.dice.below(count);
        let second = self.dice.below(count.saturating_sub(1));
        let second = second + u64::from(second >= first);
        let nth = |n: u64| endpoints().nth(usize::try_from(n).ok()?);
        let (one, other) = (nth(first)?, nth(second));
        let load = |(i, _): (u16, &Endpoint)| {
            let seats = plan.seats.get(upstream.spread.first + usize::from(i));
            seats.map_or(0, |seats| u64::from(seats.taken.get()) + 1)
        };
        let Some(other) = other else { return Some(one.0) };
        // load / weight, without dividing
        let (a, b) = (load(one) * u64::from(other.1.weight), load(other) * u64::from(one.1.weight));
        Some(if b < a { other.0 } else { one.0 })
    }

    /// At random, by weight; when that one is not open, the next that is.
    fn by_weight(&mut self, upstream: &Upstream, open: &dyn Fn(u16) -> bool) -> Option<u16> {
        let sums = &upstream.spread.sums;
        let throw = self.dice.below(sums.last().copied().unwrap_or(0));
        let start = sums.partition_point(|sum| *sum <= throw);
        let usable = |i: &usize| upstream.endpoints.get(*i).is_some_and(|e| e.weight > 0);
        let places = (start..sums.len()).chain(0..start).filter(usable);
        places.filter_map(|i| u16::try_from(i).ok()).find(|i| open(*i))
    }
}

impl Pinned {
    pub(crate) fn endpoint(&self, spot: Spot) -> Option<&Endpoint> {
        self.upstream(spot.upstream)?.endpoints.get(usize::from(spot.endpoint))
    }

    pub(crate) fn sit(&self, spot: Spot) {
        if let Some(seats) = self.seats_at(spot) {
            seats.taken.set(seats.taken.get().saturating_add(1));
        }
    }

    pub(crate) fn stand(&self, spot: Spot) {
        if let Some(seats) = self.seats_at(spot) {
            debug_assert!(seats.taken.get() > 0);
            seats.taken.set(seats.taken.get().saturating_sub(1));
        }
    }

    /// Its health lets it be sent requests, or the upstream is in panic.
    fn is_fit(&self, spot: Spot) -> bool {
        let panic = || self.turns.get(spot.upstream.index()).is_some_and(|turn| turn.panic.get());
        self.seats_at(spot).is_none_or(|seats| !seats.out.get()) || panic()
    }

    /// How long, in nanoseconds, it has been back; for good when it never was out.
    fn back_for(&self, now: Instant, spot: Spot) -> u64 {
        let back = self.seats_at(spot).and_then(|seats| seats.back.get());
        back.map_or(u64::MAX, |back| nanos(now.since(back)))
    }

    fn seats_at(&self, spot: Spot) -> Option<&Seats> {
        let first = self.upstream(spot.upstream)?.spread.first;
        self.seats.get(first + usize::from(spot.endpoint)).map(Rc::as_ref)
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
