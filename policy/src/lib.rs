//! Decides; never does.
//!
//! No IO, no clock, no threads, no randomness of its own, and no panic on any input. A request is
//! a [`Flight`]: [`Policy::begin`] opens it, [`Policy::decide`] is told each [`Event`] and returns
//! the [`Decision`] to carry out, [`Policy::end`] closes it.

#![forbid(unsafe_code)]

pub mod admit;
pub mod cache;
mod compile;
mod course;
pub mod decision;
pub mod degrade;
pub mod draft;
pub mod facts;
pub mod flight;
mod header;
pub mod health;
pub mod keeper;
pub mod ledger;
pub mod mechanism;
pub mod plan;
mod recover;
mod route;
pub mod shed;
#[cfg(any(test, feature = "sim"))]
pub mod sim;
mod steer;
pub mod time;
pub mod unit;
pub mod world;

use core::time::Duration;
use std::rc::Rc;
use std::sync::Arc;

use crate::admit::rate_limit::settle;
use crate::admit::{Ask, Chain};
use crate::cache::Caching;
use crate::course::over;
use crate::decision::{Answer, Decision, Event};
use crate::degrade::Switches;
use crate::facts::{Facts, Headers};
use crate::flight::{Ending, Flight, Otherwise, Phase, Record, Tries};
use crate::ledger::Ledger;
use crate::plan::Plan;
use crate::recover::hedge::Paces;
use crate::recover::idempotent;
use crate::route::Hit;
use crate::shed::Shed;
use crate::steer::{Pinned, Steer};
use crate::time::{Instant, Now};
use crate::world::{Effect, Signal, Snapshot};

/// One worker's judgement: the shared plan and this worker's own memory.
#[derive(Debug)]
pub struct Policy {
    plan: Rc<Pinned>,
    ledger: Arc<Ledger>,
    chain: Chain,
    steer: Steer,
    switches: Switches,
    shed: Shed,
    paces: Paces,
    in_flight: u32,
    /// A flight has been parked since the last poll.
    parked: bool,
    /// The latest time this worker was told.
    latest: Instant,
}

impl Policy {
    /// `seed` feeds the dice (balancing, jitter): the same seed and the same events give the same
    /// decisions.
    pub fn new(plan: Arc<Plan>, ledger: Arc<Ledger>, seed: u64) -> Self {
        let mut steer = Steer::new(Arc::clone(&ledger.boards), seed);
        ledger.make_room(&plan);
        Self {
            shed: Shed::new(&ledger, &plan, seed),
            plan: steer.pin(plan),
            ledger,
            chain: Chain::default(),
            steer,
            switches: Switches::default(),
            paces: Paces::default(),
            in_flight: 0,
            parked: false,
            latest: Instant::default(),
        }
    }

    /// Judge new flights by this plan. What was learnt under the old one stays.
    pub fn adopt(&mut self, plan: Arc<Plan>) {
        self.ledger.make_room(&plan);
        self.shed.adopt(&plan);
        self.paces.forget(&plan);
        self.plan = self.steer.pin(plan);
        self.steer.forget();
    }

    /// Open a flight for a request whose head has been read. First event: `Arrived`.
    pub fn begin(&mut self, now: Now, facts: &Facts<'_>) -> Flight {
        let now = self.forward(now);
        self.in_flight = self.in_flight.saturating_add(1);
        let (route, phase) = match self.plan.table.find(facts) {
            Hit::Route(id) => (Some(id), Phase::New),
            Hit::Method => (None, Phase::Misplaced),
            Hit::None => (None, Phase::New),
        };
        let found = route.and_then(|id| self.plan.route(id));
        Flight {
            plan: Rc::clone(&self.plan),
            arrived: now.at,
            route,
            phase,
            stage: 0,
            asked: None,
            deadline: recover::deadline(now, found, facts),
            keep: recover::keep(found, facts),
            tries: Tries::default(),
            attempt: None,
            second: None,
            hedge: flight::Hedge::None,
            pace: self.paces.of(found, facts),
            permit: None,
            limit: None,
            violated: None,
            wanting: [None; admit::rate_limit::LIMITS_MAX],
            delay: Duration::ZERO,
            queued: None,
            body_bytes_max: None,
            answer: None,
            otherwise: Otherwise::Answer(Answer::problem(503, "upstream.none")),
            trail: flight::Trail::default(),
            parked: None,
            kicks: false,
            occupied: None,
            caching: Caching::default(),
            tenant: None,
        }
    }

    /// What to do next with this request.
    pub fn decide(
        &mut self,
        now: Now,
        facts: &Facts<'_>,
        flight: &mut Flight,
        event: Event,
    ) -> Decision {
        let now = self.forward(now);
        match (flight.phase, event) {
            (Phase::New, Event::Arrived)
            | (Phase::Asking, Event::Learned)
            | (Phase::Parked, Event::Woke) => self.admit(now, facts, flight),
            (Phase::Misplaced, Event::Arrived) => {
                over(flight, Answer::problem(405, "route.method"))
            }
            (Phase::Queued, Event::Woke) => self.turn(now, flight),
            (Phase::Calling, Event::Responded { status }) => {
                self.responded(now, facts, flight, status)
            }
            (Phase::Calling, Event::Failed { failure, replayable }) => {
                self.recover(now, flight, failure, replayable && idempotent(facts.method))
            }
            (Phase::Calling, Event::Slow) => self.slow(now, flight),
            (Phase::Racing, Event::Responded { status }) => {
                self.outrun(now, flight);
                self.responded(now, facts, flight, status)
            }
            (Phase::Racing, Event::Overtaken { status }) => {
                self.overtaken(now, facts, flight, status)
            }
            (Phase::Racing, Event::Fell { second, failure }) => {
                self.fell(now, flight, second, failure)
            }
            (Phase::Waiting, Event::Woke) => self.woke(now, flight),
            (Phase::Looking, Event::Missed) => self.missed(now, flight),
            // A caller that brings an event out of order is told so, and the request is over.
            (
                Phase::New
                | Phase::Misplaced
                | Phase::Asking
                | Phase::Parked
                | Phase::Queued
                | Phase::Calling
                | Phase::Racing
                | Phase::Waiting
                | Phase::Looking
                | Phase::Over,
                Event::Arrived
                | Event::Learned
                | Event::Responded { .. }
                | Event::Failed { .. }
                | Event::Slow
                | Event::Overtaken { .. }
                | Event::Fell { .. }
                | Event::Woke
                | Event::Missed,
            ) => over(flight, Answer::problem(500, "event.unexpected")),
        }
    }

    /// The response that is passed on has this head: limits that take their cost from it are
    /// charged the rest. Without such limits it does nothing.
    pub fn settle(
        &mut self,
        now: Now,
        facts: &Facts<'_>,
        flight: &mut Flight,
        response: Headers<'_>,
    ) {
        let plan = Rc::clone(&flight.plan);
        let route = flight.route.and_then(|id| Some((plan.rules.limits_of(id)?, plan.route(id)?)));
        if let Some((rule, route)) = route.filter(|_| plan.limits.follow()) {
            let now = self.forward(now);
            let (ledger, limits) = (&*self.ledger, &plan.limits);
            let ask = Ask { now, facts, route: route.key, ledger, limits };
            settle(&ask, rule, response, flight);
        }
    }

    /// The request is over, whichever way. Takes the flight, so no permit can leak.
    pub fn end(&mut self, now: Now, mut flight: Flight, ending: Ending) -> Record {
        self.finish(now, &mut flight, ending)
    }

    /// [`Self::end`] for a flight that stays where it is, which saves a kilobyte of copying. Once,
    /// and nothing else after it.
    pub fn finish(&mut self, now: Now, flight: &mut Flight, ending: Ending) -> Record {
        let now = self.forward(now);
        debug_assert!(self.in_flight > 0, "a flight of another worker");
        self.in_flight = self.in_flight.saturating_sub(1);
        self.leave(now, flight, ending.finish);
        if flight.phase == Phase::Queued
            && let Some((limit, slip)) = flight.queued.take()
            && let Some(meter) = flight.plan.limits.meter(limit)
        {
            // It left the queue: its turn goes to the next, if none has come after it.
            self.ledger.give_back_word(&slip, meter);
        }
        if let Some(tenant) = flight.tenant.take() {
            self.ledger.tenants.leave(tenant);
        }
        if let Some(route) = flight.route {
            let plan = Rc::clone(&flight.plan);
            self.chain.end(&self.ledger, &plan.rules, route, flight);
        }
        debug_assert!(flight.permit.is_none(), "a filter kept a permit");
        let (last, cache) = (flight.tries.last, flight.cache_use());
        Record {
            route: flight.route,
            upstream: last.map(|spot| spot.upstream),
            endpoint: last.and_then(|spot| flight.plan.endpoint(spot)).map(|e| e.key),
            attempts: flight.tries.calls,
            cut: flight.tries.cut,
            hedge: flight.hedge,
            arrived: flight.arrived,
            took: now.at.since(flight.arrived),
            answer: flight.answer,
            limit: flight.limit,
            violated: flight.violated,
            ending,
            trail: flight.trail,
            cache,
            plan: Rc::clone(&flight.plan),
        }
    }

    /// News from outside.
    pub fn signal(&mut self, now: Now, signal: Signal<'_>) {
        let now = self.forward(now);
        match signal {
            Signal::Tick => {
                let plan = Rc::clone(&self.plan);
                self.steer.tick(&plan, now.at);
                self.shed.tick(&self.ledger, &plan, now.at, self.in_flight);
                self.chain.tick(&self.ledger, &plan.limits, now.at);
            }
            Signal::Force { breaker, force } => {
                self.ledger.force(breaker, now.at, force);
            }
            Signal::Vitals { out } => self.steer.heed(&self.plan, now.at, out),
            Signal::Pressure { lag } => self.shed.lagged(lag),
            Signal::Switches(switches) => {
                self.steer.drain(&self.plan, now.at, &switches.drained);
                self.switches = switches.clone();
            }
            // Nothing that decides listens to these yet.
            Signal::Members { .. } | Signal::Probed { .. } => {}
        }
    }

    /// Errands for the engine. Call until None.
    pub fn poll(&mut self, _now: Now) -> Option<Effect> {
        core::mem::take(&mut self.parked).then_some(Effect::Kick)
    }

    /// When to bring `Signal::Tick`.
    pub fn deadline(&self) -> Option<Instant> {
        None
    }

    /// What this worker knows, for the admin API.
    pub fn inspect(&self, _now: Now) -> Snapshot {
        Snapshot {
            in_flight: self.in_flight,
            endpoints: self.steer.seats().collect(),
            shedding: self.shed.shedding(),
            top: self.chain.top(&self.plan.limits),
        }
    }

    /// This worker judges no more: what it has in progress is no longer counted in the node's.
    pub fn retire(&mut self) {
        self.shed.retire(&self.ledger);
    }

    /// A clock that goes back stands still instead.
    fn forward(&mut self, now: Now) -> Now {
        self.latest = self.latest.max(now.at);
        Now { at: self.latest, ..now }
    }
}

impl Drop for Policy {
    fn drop(&mut self) {
        self.retire();
    }
}
