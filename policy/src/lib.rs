//! Decides; never does.
//!
//! No IO, no clock, no threads, no randomness of its own, and no panic on any input. A request is
//! a [`Flight`]: [`Policy::begin`] opens it, [`Policy::decide`] is told each [`Event`] and returns
//! the [`Decision`] to carry out, [`Policy::end`] closes it.

#![forbid(unsafe_code)]

pub mod admit;
mod compile;
pub mod decision;
pub mod draft;
pub mod facts;
pub mod flight;
mod header;
pub mod ledger;
pub mod mechanism;
pub mod plan;
mod recover;
mod route;
#[cfg(any(test, feature = "sim"))]
pub mod sim;
mod steer;
pub mod time;
pub mod unit;
pub mod world;

use std::rc::Rc;
use std::sync::Arc;

use crate::admit::{Ask, Chain, Verdict};
use crate::decision::{Answer, Call, Decision, Event, Failure};
use crate::facts::Facts;
use crate::flight::{Ending, Flight, Phase, Record, Tries};
use crate::ledger::Ledger;
use crate::plan::{Plan, Route, RouteId, Target, UpstreamId};
use crate::recover::{Remedy, idempotent, remedy};
use crate::route::Hit;
use crate::steer::{Pinned, Spot, Steer};
use crate::time::{Instant, Now};
use crate::world::{Effect, Signal, Snapshot};

/// One worker's judgement: the shared plan and this worker's own memory.
#[derive(Debug)]
pub struct Policy {
    plan: Rc<Pinned>,
    ledger: Arc<Ledger>,
    chain: Chain,
    steer: Steer,
    in_flight: u32,
    /// The latest time this worker was told.
    latest: Instant,
}

impl Policy {
    /// `seed` feeds the dice (balancing, jitter): the same seed and the same events give the same
    /// decisions.
    pub fn new(plan: Arc<Plan>, ledger: Arc<Ledger>, seed: u64) -> Self {
        let mut steer = Steer::new(seed);
        if plan.limits.slide() {
            ledger.prepare();
        }
        Self {
            plan: steer.pin(plan),
            ledger,
            chain: Chain::default(),
            steer,
            in_flight: 0,
            latest: Instant::default(),
        }
    }

    /// Judge new flights by this plan. What was learnt under the old one stays.
    pub fn adopt(&mut self, plan: Arc<Plan>) {
        if plan.limits.slide() {
            self.ledger.prepare();
        }
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
        Flight {
            plan: Rc::clone(&self.plan),
            arrived: now.at,
            route,
            phase,
            stage: 0,
            asked: None,
            tries: Tries::default(),
            attempt: None,
            permit: None,
            limit: None,
            violated: None,
            wanting: [None; admit::rate_limit::LIMITS_MAX],
            delay: core::time::Duration::ZERO,
            queued: None,
            body_bytes_max: None,
            answer: None,
            trail: flight::Trail::default(),
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
            (Phase::New, Event::Arrived) | (Phase::Asking, Event::Learned) => {
                self.admit(now, facts, flight)
            }
            (Phase::Misplaced, Event::Arrived) => {
                over(flight, Answer::problem(405, "route.method"))
            }
            (Phase::Waiting, Event::Woke) => self.turn(now, flight),
            (Phase::Calling, Event::Responded { .. }) => {
                flight.phase = Phase::Over;
                Decision::Relay
            }
            (Phase::Calling, Event::Failed { failure, replayable }) => {
                self.recover(now, flight, failure, replayable && idempotent(facts.method))
            }
            // A caller that brings an event out of order is told so, and the request is over.
            (
                Phase::New
                | Phase::Misplaced
                | Phase::Asking
                | Phase::Waiting
                | Phase::Calling
                | Phase::Over,
                Event::Arrived
                | Event::Learned
                | Event::Responded { .. }
                | Event::Failed { .. }
                | Event::Woke
                | Event::Missed,
            ) => over(flight, Answer::problem(500, "event.unexpected")),
        }
    }

    /// The request is over, whichever way. Takes the flight, so no permit can leak.
    pub fn end(&mut self, now: Now, mut flight: Flight, ending: Ending) -> Record {
        let now = self.forward(now);
        debug_assert!(self.in_flight > 0, "a flight of another worker");
        self.in_flight = self.in_flight.saturating_sub(1);
        settle(&mut flight);
        if flight.phase == Phase::Waiting
            && let Some((limit, receipt)) = flight.queued.take()
            && let Some(meter) = flight.plan.limits.meter(limit)
        {
            // It left the queue: its turn goes to the next, if none has come after it.
            self.ledger.give_back(&receipt, meter);
        }
        if let Some(route) = flight.route {
            let plan = Rc::clone(&flight.plan);
            self.chain.end(&self.ledger, &plan.rules, route, &mut flight);
        }
        debug_assert!(flight.permit.is_none(), "a filter kept a permit");
        let last = flight.tries.last;
        Record {
            route: flight.route,
            upstream: last.map(|spot| spot.upstream),
            endpoint: last.and_then(|spot| flight.plan.endpoint(spot)).map(|e| e.key),
            attempts: flight.tries.calls,
            arrived: flight.arrived,
            took: now.at.since(flight.arrived),
            answer: flight.answer,
            limit: flight.limit,
            violated: flight.violated,
            ending,
            trail: flight.trail,
            plan: flight.plan,
        }
    }

    /// News from outside. Nothing that decides listens to any yet.
    pub fn signal(&mut self, _now: Now, signal: Signal<'_>) {
        match signal {
            Signal::Tick | Signal::Members { .. } | Signal::Pressure { .. } => {}
        }
    }

    /// Errands for the engine. Call until None.
    pub fn poll(&mut self, _now: Now) -> Option<Effect> {
        None
    }

    /// When to bring `Signal::Tick`.
    pub fn deadline(&self) -> Option<Instant> {
        None
    }

    /// What this worker knows, for the admin API.
    pub fn inspect(&self, _now: Now) -> Snapshot {
        Snapshot { in_flight: self.in_flight, endpoints: self.steer.seats().collect() }
    }

    /// A clock that goes back stands still instead.
    fn forward(&mut self, now: Now) -> Now {
        self.latest = self.latest.max(now.at);
        Now { at: self.latest, ..now }
    }

    fn admit(&mut self, now: Now, facts: &Facts<'_>, flight: &mut Flight) -> Decision {
        let plan = Rc::clone(&flight.plan);
        let Some((id, route)) = routed(&plan, flight) else {
            return over(flight, Answer::problem(404, "route.none"));
        };
        let ask = Ask { now, facts, route: route.key, ledger: &self.ledger, limits: &plan.limits };
        match self.chain.check(&ask, &plan.rules, id, flight) {
            Verdict::Pass if !flight.delay.is_zero() => {
                flight.phase = Phase::Waiting;
                Decision::Wait(now.at + flight.delay)
            }
            Verdict::Pass => self.proceed(now, flight, route),
            Verdict::Need(need) if flight.asked == Some((flight.stage, need)) => {
                over(flight, Answer::problem(500, "facts.unmet"))
            }
            Verdict::Need(need) => {
                flight.asked = Some((flight.stage, need));
                flight.phase = Phase::Asking;
                Decision::Learn(need)
            }
            Verdict::Deny(answer) => over(flight, answer),
        }
    }

    /// The wait is over.
    fn turn(&mut self, now: Now, flight: &mut Flight) -> Decision {
        let plan = Rc::clone(&flight.plan);
        match routed(&plan, flight) {
            Some((_, route)) => self.proceed(now, flight, route),
            None => over(flight, Answer::problem(404, "route.none")),
        }
    }

    fn proceed(&mut self, now: Now, flight: &mut Flight, route: &Route) -> Decision {
        let (reply, code) = match route.target {
            Target::Upstream(id) => {
                let none = Answer::problem(503, "upstream.none");
                return self.call(now, flight, route, id, Remedy::Again(none));
            }
            Target::Redirect(reply) => (reply, "route.redirect"),
            Target::Respond(reply) => (reply, "route.respond"),
        };
        let status = flight.plan.reply(reply).map_or(500, |r| r.status);
        over(flight, Answer { reply: Some(reply), ..Answer::problem(status, code) })
    }

    fn recover(
        &mut self,
        now: Now,
        flight: &mut Flight,
        failure: Failure,
        repeatable: bool,
    ) -> Decision {
        let failed = settle(flight);
        let plan = Rc::clone(&flight.plan);
        let (Some(failed), Some((_, route))) = (failed, routed(&plan, flight)) else {
            return over(flight, Answer::problem(500, "event.unexpected"));
        };
        let remedy = remedy(failure, repeatable, flight.tries.refreshed);
        match remedy {
            Remedy::Refresh => {
                flight.tries.refreshed = true;
                return self.send(now, flight, route, failed, true);
            }
            Remedy::GiveUp(answer) => return over(flight, answer),
            Remedy::Elsewhere(answer) | Remedy::Again(answer) => {
                if flight.tries.retries >= route.retries_max {
                    return over(flight, answer);
                }
            }
        }
        flight.tries.retries += 1;
        flight.tries.fail(failed.endpoint);
        self.call(now, flight, route, failed.upstream, remedy)
    }

    /// Sends it to an endpoint of the upstream, or answers as the remedy says when there is none.
    fn call(
        &mut self,
        now: Now,
        flight: &mut Flight,
        route: &Route,
        id: UpstreamId,
        remedy: Remedy,
    ) -> Decision {
        let (again, otherwise) = match remedy {
            Remedy::Again(answer) => (true, answer),
            Remedy::Elsewhere(answer) | Remedy::GiveUp(answer) => (false, answer),
            Remedy::Refresh => (false, Answer::problem(502, "upstream.closed")),
        };
        match self.steer.place(&flight.plan, id, &flight.tries, again) {
            Some(spot) => self.send(now, flight, route, spot, false),
            None => over(flight, otherwise),
        }
    }

    fn send(
        &mut self,
        now: Now,
        flight: &mut Flight,
        route: &Route,
        spot: Spot,
        fresh: bool,
    ) -> Decision {
        let deadline = flight.arrived + route.timeout;
        let left = deadline.since(now.at);
        if left.is_zero() {
            return over(flight, Answer::problem(504, "request.timeout"));
        }
        let plan = Rc::clone(&flight.plan);
        let (Some(upstream), Some(endpoint)) = (plan.upstream(spot.upstream), plan.endpoint(spot))
        else {
            return over(flight, Answer::problem(503, "upstream.none"));
        };
        flight.phase = Phase::Calling;
        flight.tries.calls = flight.tries.calls.saturating_add(1);
        flight.tries.last = Some(spot);
        flight.attempt = Some(spot);
        plan.sit(spot);
        Decision::Call(Call {
            upstream: spot.upstream,
            endpoint: endpoint.key,
            fresh,
            connect: upstream.timeouts.connect,
            first_byte: upstream.timeouts.first_byte.unwrap_or(left),
            idle: upstream.timeouts.idle,
            deadline,
        })
    }
}

fn routed<'a>(plan: &'a Plan, flight: &Flight) -> Option<(RouteId, &'a Route)> {
    let id = flight.route?;
    Some((id, plan.route(id)?))
}

/// The attempt, if there is one, has left its endpoint.
fn settle(flight: &mut Flight) -> Option<Spot> {
    let spot = flight.attempt.take()?;
    flight.plan.stand(spot);
    Some(spot)
}

fn over(flight: &mut Flight, answer: Answer) -> Decision {
    flight.phase = Phase::Over;
    flight.answer = Some(answer);
    Decision::Answer(answer)
}
