//! Where a request goes: which endpoint of its upstream.

pub(crate) mod balance;
pub(crate) mod guard;
pub(crate) mod hash;
pub(crate) mod order;
mod outlier;
mod search;
mod zone;

use core::cell::Cell;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use crate::decision::Failure;
use crate::flight::Tries;
use crate::ledger::boards::Boards;
use crate::mechanism::breaker::{Judge, Permit, Refusal};
use crate::mechanism::dice::Dice;
use crate::mechanism::ewma::PeakEwma;
use crate::mechanism::window::Era;
use crate::plan::{Endpoint, EndpointKey, Plan, UpstreamId, UpstreamKey};
use crate::steer::balance::Rule;
use crate::steer::guard::{Guard, Permits, Verdict};
use crate::steer::search::Search;
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
    /// So does the operator.
    drained: Cell<bool>,
    /// It came back then, and is getting its share by and by.
    back: Cell<Option<Instant>>,
    /// How long its responses take.
    pace: PeakEwma,
}

/// One upstream, as this worker knows it.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    /// How far round robin has come, and how far among the servers of other zones.
    at: Cell<usize>,
    far: Cell<usize>,
    /// The share of the requests that leave the gateway's own zone.
    far_ppm: Cell<u32>,
    /// So few servers are in that nobody's health counts.
    panic: Cell<bool>,
    /// When outliers were last looked for.
    judged: Cell<u64>,
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
            let counted = matches!(upstream.spread.balance, Rule::Hash(_));
            let watched = counted || upstream.resilience.eject.is_some();
            guards.push(guard(upstream.key.0));
            let each = upstream.endpoints.iter();
            wards.extend(each.map(|endpoint| watched.then(|| guard(endpoint.key.0)).flatten()));
        }
        let pinned = Pinned { plan, seats, turns, guards: guards.into(), wards: wards.into() };
        pinned.prepare();
        Rc::new(pinned)
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

    /// Whether the upstream's breaker, if it has one, lets everything through.
    pub(crate) fn is_closed(&self, plan: &Pinned, id: UpstreamId, now: Instant) -> bool {
        plan.breaker(id).is_none_or(|(guard, _)| guard.board().is_closed(now))
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

    /// The operator keeps requests from these endpoints, and from no others.
    pub(crate) fn drain(&self, plan: &Pinned, now: Instant, drained: &[EndpointKey]) {
        for (key, seats) in &self.seats {
            let is = drained.contains(key);
            if seats.drained.replace(is) && !is {
                seats.back.set(Some(now));
            }
        }
        plan.survey(now);
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
        let stood = (turn.at.get(), turn.far.get());
        let found = self.find(plan, id, tries, again, now);
        if tries.calls > 0 {
            // With two servers, a retry that took a turn would send every request to the worse
            // one first.
            turn.at.set(stood.0);
            turn.far.set(stood.1);
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
        let it = Search::new(plan, id, now)?;
        let near = self.side(plan, it.upstream, id.index(), tries.affinity);
        let it = Search { affinity: tries.affinity, near, ..it };
        let fit = |e: u16| plan.is_fit(Spot { upstream: id, endpoint: e });
        let fresh = |e: u16| !tries.failed(e) && fit(e);
        let slow = it.upstream.health.as_ref().map_or(Duration::ZERO, |check| check.slow_start);
        // By its luck a request may be one that a server that just came back does not get.
        let luck = (!slow.is_zero()).then(|| self.dice.below(nanos(slow)));
        let back = |e| plan.back_for(now, Spot { upstream: id, endpoint: e });
        let warm = |e: u16| fresh(e) && luck.is_none_or(|luck| back(e) >= luck);
        let found = match luck {
            Some(_) => self.place_sound(&it, &warm),
            None => None,
        };
        match found.or_else(|| self.place_sound(&it, &fresh)) {
            None if again => self.place_sound(&it, &fit),
            found => found,
        }
    }

    /// One that is not taken out; or any, when so many are that nobody knows any better.
    fn place_sound(
        &mut self,
        it: &Search<'_>,
        open: &dyn Fn(u16) -> bool,
    ) -> Option<(Spot, Option<Permit>)> {
        let Some(eject) = it.eject() else {
            let endpoint = self.pick(it, open)?;
            return Some((Spot { upstream: it.id, endpoint }, None));
        };
        let rule = &eject.breaker.rule;
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
                let found = self.pick(it, &ready);
                if skipped.get() && it.panics() {
                    let endpoint = self.pick(it, open)?;
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
        it: &Search<'_>,
        endpoint: u16,
        throw: u64,
    ) -> Result<Option<Permit>, Refusal> {
        let (Some(eject), Some(guard)) = (it.eject(), it.guard(endpoint)) else { return Ok(None) };
        let mut judge = Judge { rule: &eject.breaker.rule, now: it.now, dice: &mut self.dice };
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
        plan.learn(spot, verdict, now);
        let Permits { seat, upstream, endpoint } = permits;
        if let Some(seat) = seat {
            seat.settle(verdict);
        }
        if let (Some(permit), Some((guard, breaker))) = (upstream, plan.breaker(spot.upstream)) {
            let mut judge = Judge { rule: &breaker.rule, now, dice: &mut self.dice };
            let outcome = breaker.outcome(guard.board(), verdict, now);
            guard.board().settle(&mut judge, &guard.local, permit, outcome, &|| true);
        }
        if let (Some(permit), Some((sound, guard))) = (endpoint, plan.sound(spot, now))
            && let Some(eject) = sound.eject()
        {
            let breaker = &eject.breaker;
            let mut judge = Judge { rule: &breaker.rule, now, dice: &mut self.dice };
            let outcome = breaker.outcome(guard.board(), verdict, now);
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
            && let Some(eject) = sound.eject()
            && eject.breaker.failures.cut()
        {
            let mut judge = Judge { rule: &eject.breaker.rule, now, dice: &mut self.dice };
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
            let Some(eject) = &upstream.resilience.eject else { continue };
            let Some(it) = Search::new(plan, id, now) else { continue };
            for (endpoint, _) in (0_u16..).zip(&upstream.endpoints) {
                let Some(guard) = it.guard(endpoint) else { continue };
                let rule = &eject.breaker.rule;
                let mut judge = Judge { rule, now, dice: &mut self.dice };
                let may = || it.may_eject(endpoint);
                guard.board().tick(&mut judge, &guard.local, &may);
            }
            self.judge_outliers(&it);
        }
        plan.survey(now);
    }

    pub(crate) fn seats(&self) -> impl Iterator<Item = (EndpointKey, u32)> {
        self.seats.iter().map(|(key, seats)| (*key, seats.taken.get()))
    }
}

impl Pinned {
    /// Makes room for what breakers count, before a request needs it.
    fn prepare(&self) {
        for (upstream, guard) in self.plan.upstreams.iter().zip(&self.guards) {
            let (whole, eject) = (&upstream.resilience.breaker, &upstream.resilience.eject);
            if let (Some(guard), Some(breaker)) = (guard, whole) {
                guard.board().prepare(&breaker.rule);
            }
            let wards = self.wards.iter().skip(upstream.spread.first);
            for ward in wards.take(upstream.endpoints.len()).flatten() {
                if let Some(eject) = eject {
                    ward.board().prepare(&eject.breaker.rule);
                }
            }
        }
    }

    pub(crate) fn guard(&self, id: UpstreamId) -> Option<&Guard> {
        self.guards.get(id.index())?.as_deref()
    }

    fn breaker(&self, id: UpstreamId) -> Option<(&Guard, &guard::Breaker)> {
        let guard = self.guard(id)?;
        Some((guard, self.upstream(id)?.resilience.breaker.as_ref()?))
    }

    fn sound(&self, spot: Spot, now: Instant) -> Option<(Search<'_>, &Guard)> {
        let it = Search::new(self, spot.upstream, now)?;
        it.eject()?;
        let place = it.upstream.spread.first + usize::from(spot.endpoint);
        Some((it, self.wards.get(place)?.as_deref()?))
    }

    pub(crate) fn endpoint(&self, spot: Spot) -> Option<&Endpoint> {
        self.upstream(spot.upstream)?.endpoints.get(usize::from(spot.endpoint))
    }

    pub(crate) fn sit(&self, spot: Spot) {
        if let Some(seats) = self.seats_at(spot) {
            seats.taken.set(seats.taken.get().saturating_add(1));
        }
        for guard in self.counted(spot).into_iter().flatten() {
            guard.load().fetch_add(1, Relaxed);
        }
    }

    pub(crate) fn stand(&self, spot: Spot) {
        if let Some(seats) = self.seats_at(spot) {
            debug_assert!(seats.taken.get() > 0);
            seats.taken.set(seats.taken.get().saturating_sub(1));
        }
        for guard in self.counted(spot).into_iter().flatten() {
            guard.load().fetch_sub(1, Relaxed);
        }
    }

    /// Where the requests at an endpoint are counted over all workers, if they have to be: its
    /// own, and its upstream's.
    fn counted(&self, spot: Spot) -> Option<[&Guard; 2]> {
        let spread = &self.upstream(spot.upstream)?.spread;
        let Rule::Hash(_) = spread.balance else { return None };
        let own = self.wards.get(spread.first + usize::from(spot.endpoint))?.as_deref()?;
        Some([own, self.guard(spot.upstream)?])
    }

    /// How long an endpoint took, where that matters.
    fn learn(&self, spot: Spot, verdict: Verdict, now: Instant) {
        let Some(upstream) = self.upstream(spot.upstream) else { return };
        let Rule::PeakEwma { half_life_ns } = upstream.spread.balance else { return };
        let Some(seats) = self.seats_at(spot) else { return };
        match verdict {
            Verdict::Responded { status: 500 | 502 | 503 | 504, .. } => {
                seats.pace.failed(now, half_life_ns);
            }
            Verdict::Responded { took, timed: true, .. } | Verdict::Overtaken { took } => {
                seats.pace.took(now, took, half_life_ns);
            }
            Verdict::Failed(failure) if failure != Failure::PoolFull => {
                seats.pace.failed(now, half_life_ns);
            }
            Verdict::Responded { .. } | Verdict::Failed(_) | Verdict::Nothing => {}
        }
    }

    /// Its health lets it be sent requests, or the upstream is in panic.
    fn is_fit(&self, spot: Spot) -> bool {
        let panic = || self.turns.get(spot.upstream.index()).is_some_and(|turn| turn.panic.get());
        let Some(seats) = self.seats_at(spot) else { return true };
        !seats.drained.get() && (!seats.out.get() || panic())
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
