//! Where a request goes: which endpoint of its upstream.

pub(crate) mod guard;
pub(crate) mod order;

use core::cell::Cell;
use core::time::Duration;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use crate::draft::Balance;
use crate::flight::Tries;
use crate::ledger::boards::Boards;
use crate::mechanism::breaker::{Judge, Permit, Refusal};
use crate::mechanism::dice::Dice;
use crate::mechanism::window::Era;
use crate::plan::{Endpoint, EndpointKey, Plan, Upstream, UpstreamId, UpstreamKey};
use crate::steer::guard::{Eject, Guard, Permits, Verdict};
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
    /// Of every upstream, as long as there is room.
    guards: Box<[Option<Rc<Guard>>]>,
    /// Of every endpoint that may be taken out.
    wards: Box<[Option<Rc<Guard>>]>,
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
    guards: BTreeMap<u64, Rc<Guard>>,
    boards: Arc<Boards>,
    dice: Dice,
}

impl Steer {
    pub(crate) fn new(boards: Arc<Boards>, seed: u64) -> Self {
        let (seats, turns, guards) = Default::default();
        Self { seats, turns, guards, boards, dice: Dice::new(seed) }
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
        let mut guard = |key: u64| {
            let held = self.guards.get(&key).map(Rc::clone);
            let held = held.or_else(|| Guard::new(&self.boards, key))?;
            Some(Rc::clone(self.guards.entry(key).or_insert(held)))
        };
        let (mut guards, mut wards) = (Vec::new(), Vec::new());
        for upstream in plan.upstreams() {
            let resilience = &upstream.resilience;
            guards.push(guard(upstream.key.0));
            wards.extend(
                upstream
                    .endpoints
                    .iter()
                    .map(|endpoint| resilience.eject.as_ref().and_then(|_| guard(endpoint.key.0))),
            );
        }
        Rc::new(Pinned { plan, seats, turns, guards: guards.into(), wards: wards.into() })
    }

    /// Forgets what no plan that is still in use names.
    pub(crate) fn forget(&mut self) {
        self.seats.retain(|_, seats| Rc::strong_count(seats) > 1);
        self.turns.retain(|_, turn| Rc::strong_count(turn) > 1);
        self.guards.retain(|_, guard| Rc::strong_count(guard) > 1);
    }

    /// Leave of the upstream's breaker; `Ok(None)` when it has none.
    pub(crate) fn enter(
        &mut self,
        plan: &Pinned,
        id: UpstreamId,
        now: Instant,
    ) -> Result<Option<Permit>, Refusal> {
        let Some((guard, breaker)) = plan.breaker(id) else { return Ok(None) };
        let throw = self.dice.below(100);
        let mut judge = Judge { rule: &breaker.rule, now, dice: &mut self.dice };
        guard.board().admit(&mut judge, throw).map(Some)
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
    /// any that is in; with leave of its breaker, if it has one.
    pub(crate) fn place(
        &mut self,
        plan: &Pinned,
        id: UpstreamId,
        tries: &Tries,
        again: bool,
        now: Instant,
    ) -> Option<(Spot, Option<Permit>)> {
        let turn = plan.turns.get(id.index())?;
        let stood = turn.at.get();
        let found = self.find(plan, id, tries, again, now);
        if tries.calls > 0 {
            // With two servers, a retry that took a turn would send every request to the worse
            // one first.
            turn.at.set(stood);
        }
        found
    }

    fn find(
        &mut self,
        plan: &Pinned,
        id: UpstreamId,
        tries: &Tries,
        again: bool,
        now: Instant,
    ) -> Option<(Spot, Option<Permit>)> {
        let upstream = plan.upstream(id)?;
        let fit = |e: u16| plan.is_fit(Spot { upstream: id, endpoint: e });
        let fresh = |e: u16| !tries.failed(e) && fit(e);
        let slow = upstream.health.as_ref().map_or(Duration::ZERO, |check| check.slow_start);
        // By its luck a request may be one that a server that just came back does not get.
        let luck = (!slow.is_zero()).then(|| self.dice.below(nanos(slow)));
        let back = |e| plan.back_for(now, Spot { upstream: id, endpoint: e });
        let warm = |e: u16| fresh(e) && luck.is_none_or(|luck| back(e) >= luck);
        if let Some(eject) = &upstream.resilience.eject {
            let sound = Sound { plan, id, upstream, eject, now };
            let found = match luck {
                Some(_) => self.place_sound(&sound, &warm),
                None => None,
            };
            return match found.or_else(|| self.place_sound(&sound, &fresh)) {
                None if again => self.place_sound(&sound, &fit),
                found => found,
            };
        }
        let found = match luck {
            Some(_) => self.pick(plan, id, upstream, &warm),
            None => None,
        };
        let endpoint = match found.or_else(|| self.pick(plan, id, upstream, &fresh)) {
            None if again => self.pick(plan, id, upstream, &fit),
            found => found,
        }?;
        Some((Spot { upstream: id, endpoint }, None))
    }

    /// One that is not taken out; or any, when so many are that nobody knows any better.
    fn place_sound(
        &mut self,
        it: &Sound<'_>,
        open: &dyn Fn(u16) -> bool,
    ) -> Option<(Spot, Option<Permit>)> {
        let rule = &it.eject.breaker.rule;
        // Those that recover get their share; when there is nobody else, more than that.
        for throw in [self.dice.below(100), 0] {
            let skipped = Cell::new(false);
            let ready = |e: u16| {
                let ready = it.guard(e).is_none_or(|g| g.board().ready(rule, it.now, throw));
                skipped.set(skipped.get() || !ready);
                ready && open(e)
            };
            // Another worker may take the last probe between the look and the leave.
            for _ in 0..4 {
                let found = self.pick(it.plan, it.id, it.upstream, &ready);
                if skipped.get() && it.panics() {
                    let endpoint = self.pick(it.plan, it.id, it.upstream, open)?;
                    let permit = self.leave(it, endpoint, throw).unwrap_or(None);
                    return Some((Spot { upstream: it.id, endpoint }, permit));
                }
                let Some(endpoint) = found else { break };
                if let Ok(permit) = self.leave(it, endpoint, throw) {
                    return Some((Spot { upstream: it.id, endpoint }, permit));
                }
            }
        }
        None
    }

    fn leave(
        &mut self,
        it: &Sound<'_>,
        endpoint: u16,
        throw: u64,
    ) -> Result<Option<Permit>, Refusal> {
        let Some(guard) = it.guard(endpoint) else { return Ok(None) };
        let rule = &it.eject.breaker.rule;
        let mut judge = Judge { rule, now: it.now, dice: &mut self.dice };
        guard.board().admit(&mut judge, throw).map(Some)
    }

    /// Any time up to that.
    pub(crate) fn jitter(&mut self, most: Duration) -> Duration {
        Duration::from_nanos(self.dice.below(nanos(most)))
    }

    /// What an attempt came to, for the breakers that gave it leave.
    pub(crate) fn judge(
        &mut self,
        plan: &Pinned,
        spot: Spot,
        permits: Permits,
        verdict: Verdict,
        now: Instant,
    ) {
        let Permits { seat, upstream, endpoint } = permits;
        if let Some(seat) = seat {
            seat.settle(verdict);
        }
        if let (Some(permit), Some((guard, breaker))) = (upstream, plan.breaker(spot.upstream)) {
            let mut judge = Judge { rule: &breaker.rule, now, dice: &mut self.dice };
            let outcome = breaker.outcome(verdict);
            guard.board().settle(&mut judge, &guard.local, permit, outcome, &|| true);
        }
        let Some((sound, guard)) = plan.sound(spot, now) else { return };
        if let Some(permit) = endpoint {
            let breaker = &sound.eject.breaker;
            let mut judge = Judge { rule: &breaker.rule, now, dice: &mut self.dice };
            let outcome = breaker.outcome(verdict);
            let may = || sound.may_eject(spot.endpoint);
            guard.board().settle(&mut judge, &guard.local, permit, outcome, &may);
        }
    }

    /// A response that was judged by its head has broken off.
    pub(crate) fn retract(
        &mut self,
        plan: &Pinned,
        spot: Spot,
        eras: [Option<Era>; 2],
        now: Instant,
    ) {
        if let (Some(era), Some((guard, breaker))) = (eras[0], plan.breaker(spot.upstream))
            && breaker.failures.cut()
        {
            let mut judge = Judge { rule: &breaker.rule, now, dice: &mut self.dice };
            guard.board().retract(&mut judge, &guard.local, era, &|| true);
        }
        if let (Some(era), Some((sound, guard))) = (eras[1], plan.sound(spot, now))
            && sound.eject.breaker.failures.cut()
        {
            let rule = &sound.eject.breaker.rule;
            let mut judge = Judge { rule, now, dice: &mut self.dice };
            let may = || sound.may_eject(spot.endpoint);
            guard.board().retract(&mut judge, &guard.local, era, &may);
        }
    }

    /// Hands over to the node what this worker has counted for itself.
    pub(crate) fn tick(&mut self, plan: &Pinned, now: Instant) {
        for (id, upstream) in (0_u32..).zip(plan.upstreams()) {
            let id = UpstreamId(id);
            if let Some(guard) = plan.guard(id) {
                guard.tick();
            }
            if let Some((guard, breaker)) = plan.breaker(id) {
                let mut judge = Judge { rule: &breaker.rule, now, dice: &mut self.dice };
                guard.board().tick(&mut judge, &guard.local, &|| true);
            }
            if upstream.resilience.eject.is_none() {
                continue;
            }
            for (endpoint, _) in (0_u16..).zip(&upstream.endpoints) {
                let spot = Spot { upstream: id, endpoint };
                let Some((sound, guard)) = plan.sound(spot, now) else { continue };
                let rule = &sound.eject.breaker.rule;
                let mut judge = Judge { rule, now, dice: &mut self.dice };
                let may = || sound.may_eject(endpoint);
                guard.board().tick(&mut judge, &guard.local, &may);
            }
        }
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

/// The endpoints of an upstream that takes failing ones out.
struct Sound<'a> {
    plan: &'a Pinned,
    id: UpstreamId,
    upstream: &'a Upstream,
    eject: &'a Eject,
    now: Instant,
}

impl Sound<'_> {
    fn guard(&self, endpoint: u16) -> Option<&Guard> {
        let place = self.upstream.spread.first + usize::from(endpoint);
        self.plan.wards.get(place)?.as_deref()
    }

    fn out(&self, besides: Option<u16>) -> usize {
        let endpoints = (0_u16..).zip(&self.upstream.endpoints).map(|(e, _)| e);
        let others = endpoints.filter(|e| Some(*e) != besides);
        others.filter(|e| self.guard(*e).is_some_and(|g| g.board().is_out(self.now))).count()
    }

    fn may_eject(&self, endpoint: u16) -> bool {
        self.out(Some(endpoint)) < self.eject.out_max
    }

    fn panics(&self) -> bool {
        let all = self.upstream.endpoints.len() as u64;
        let sound = all - self.out(None) as u64;
        sound * 1_000_000 < all * u64::from(self.eject.panic.0)
    }
}

impl Pinned {
    pub(crate) fn guard(&self, id: UpstreamId) -> Option<&Guard> {
        self.guards.get(id.index())?.as_deref()
    }

    fn breaker(&self, id: UpstreamId) -> Option<(&Guard, &guard::Breaker)> {
        let guard = self.guard(id)?;
        Some((guard, self.upstream(id)?.resilience.breaker.as_ref()?))
    }

    fn sound(&self, spot: Spot, now: Instant) -> Option<(Sound<'_>, &Guard)> {
        let upstream = self.upstream(spot.upstream)?;
        let eject = upstream.resilience.eject.as_ref()?;
        let guard = self.wards.get(upstream.spread.first + usize::from(spot.endpoint))?;
        let sound = Sound { plan: self, id: spot.upstream, upstream, eject, now };
        Some((sound, guard.as_deref()?))
    }

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
