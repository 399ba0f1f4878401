//! Decides; never does.
//!
//! No IO, no clock, no threads, no randomness of its own, and no panic on any input. A request is
//! a [`Flight`]: [`Policy::begin`] opens it, [`Policy::decide`] is told each [`Event`] and returns
//! the [`Decision`] to carry out, [`Policy::end`] closes it.

#![forbid(unsafe_code)]

pub mod admit;
mod compile;
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
#[cfg(any(test, feature = "sim"))]
pub mod sim;
mod steer;
pub mod time;
pub mod unit;
pub mod world;

use core::time::Duration;
use std::rc::Rc;
use std::sync::Arc;

use crate::admit::{Ask, Chain, Verdict};
use crate::decision::{Answer, Call, Decision, Event, Failure};
use crate::degrade::{Cause, Switches};
use crate::draft::retry::Retry;
use crate::facts::{Body, Facts};
use crate::flight::{Attempt, Ending, Finish, Flight, Otherwise, Phase, Record, Step, Tries};
use crate::ledger::Ledger;
use crate::plan::{Plan, Route, RouteId, Target, UpstreamId};
use crate::recover::{Remedy, idempotent, remedy};
use crate::route::Hit;
use crate::steer::guard::{Permits, Verdict as Outcome, timed};
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
    switches: Switches,
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
        if plan.limits.slide() {
            ledger.prepare();
        }
        Self {
            plan: steer.pin(plan),
            ledger,
            chain: Chain::default(),
            steer,
            switches: Switches::default(),
            in_flight: 0,
            parked: false,
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
            delay: Duration::ZERO,
            queued: None,
            body_bytes_max: None,
            answer: None,
            otherwise: Otherwise::Answer(Answer::problem(503, "upstream.none")),
            trail: flight::Trail::default(),
            parked: None,
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
            (Phase::Waiting, Event::Woke) => self.woke(now, flight),
            // A caller that brings an event out of order is told so, and the request is over.
            (
                Phase::New
                | Phase::Misplaced
                | Phase::Asking
                | Phase::Parked
                | Phase::Queued
                | Phase::Calling
                | Phase::Waiting
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
        self.leave(now, &mut flight, ending.finish);
        if flight.phase == Phase::Queued
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

    /// News from outside.
    pub fn signal(&mut self, now: Now, signal: Signal<'_>) {
        let now = self.forward(now);
        match signal {
            Signal::Tick => {
                let plan = Rc::clone(&self.plan);
                self.steer.tick(&plan, now.at);
            }
            Signal::Force { breaker, force } => {
                self.ledger.force(breaker, now.at, force);
            }
            Signal::Vitals { out } => self.steer.heed(&self.plan, now.at, out),
            Signal::Switches(switches) => self.switches = switches.clone(),
            // Nothing that decides listens to these yet.
            Signal::Members { .. } | Signal::Probed { .. } | Signal::Pressure { .. } => {}
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
        if let Some(answer) = self.switches.verdict(route) {
            return over(flight, answer);
        }
        let ask = Ask { now, facts, route: route.key, ledger: &self.ledger, limits: &plan.limits };
        match self.chain.check(&ask, &plan.rules, id, flight) {
            Verdict::Pass if !flight.delay.is_zero() => {
                flight.phase = Phase::Queued;
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
            Verdict::Park(until) => {
                flight.phase = Phase::Parked;
                self.parked = true;
                Decision::Wait(until)
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
                if let Some(guard) = flight.plan.guard(id) {
                    guard.asked(now.at);
                }
                return self.call(now, flight, route, id, Reach::Others);
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
        let failed = stand(flight);
        let plan = Rc::clone(&flight.plan);
        let (Some(failed), Some((_, route))) = (failed, routed(&plan, flight)) else {
            return over(flight, Answer::problem(500, "event.unexpected"));
        };
        let Attempt { spot, permits, .. } = failed;
        let remedy = remedy(failure, repeatable, flight.tries.refreshed);
        if remedy == Remedy::Refresh {
            flight.tries.refreshed = true;
            return self.send(now, flight, route, spot, permits, true);
        }
        self.steer.judge(&plan, spot, permits, Outcome::Failed(failure), now.at);
        let (reach, answer) = match remedy {
            Remedy::Elsewhere(answer) => (Reach::Others, answer),
            Remedy::Again(answer) => (Reach::AllWithinBudget, answer),
            Remedy::GiveUp(answer) => {
                flight.otherwise = Otherwise::Answer(answer);
                return match repeatable && route.retry.on.failed(failure) == Some(true) {
                    true => self.wait(now, flight, route, spot),
                    false => over(flight, answer),
                };
            }
            Remedy::Refresh => return over(flight, Answer::problem(500, "event.unexpected")),
        };
        flight.otherwise = Otherwise::Answer(answer);
        if flight.tries.retries >= route.retry.max {
            return over(flight, answer);
        }
        flight.tries.retries += 1;
        flight.tries.fail(spot.endpoint);
        self.call(now, flight, route, spot.upstream, reach)
    }

    /// Before it is sent again, a moment passes, and the budget must allow it.
    fn wait(&mut self, now: Now, flight: &mut Flight, route: &Route, spot: Spot) -> Decision {
        let number = flight.tries.retries.saturating_add(1);
        let until = now.at + self.steer.jitter(Retry::backoff(number));
        if number > route.retry.max || until >= flight.arrived + route.timeout {
            return give_up(flight);
        }
        if !within_budget(now, flight, route, spot.upstream) {
            return give_up(flight);
        }
        flight.tries.retries = number;
        flight.tries.fail(spot.endpoint);
        flight.phase = Phase::Waiting;
        Decision::Wait(until)
    }

    fn woke(&mut self, now: Now, flight: &mut Flight) -> Decision {
        let plan = Rc::clone(&flight.plan);
        let (Some(spot), Some((_, route))) = (flight.tries.last, routed(&plan, flight)) else {
            return over(flight, Answer::problem(500, "event.unexpected"));
        };
        self.call(now, flight, route, spot.upstream, Reach::All)
    }

    /// Sends it to an endpoint of the upstream; when there is none, what was to be otherwise.
    fn call(
        &mut self,
        now: Now,
        flight: &mut Flight,
        route: &Route,
        id: UpstreamId,
        reach: Reach,
    ) -> Decision {
        let plan = Rc::clone(&flight.plan);
        let upstream = match self.steer.enter(&plan, id, now.at) {
            Ok(permit) => permit,
            Err(refusal) => {
                flight.trail.push(Step::refused("breaker"));
                if flight.tries.calls == 0 {
                    let wait = refusal.wait.clamp(OPEN_WAIT_MIN, OPEN_WAIT_MAX);
                    let open = Answer::problem(503, "upstream.open");
                    flight.otherwise =
                        Otherwise::Answer(Answer { retry_after: Some(wait), ..open });
                }
                return give_up(flight);
            }
        };
        let mut found = self.steer.place(&plan, id, &flight.tries, false, now.at);
        let all = match reach {
            Reach::Others => false,
            Reach::All => found.is_none(),
            Reach::AllWithinBudget => found.is_none() && within_budget(now, flight, route, id),
        };
        if all {
            found = self.steer.place(&plan, id, &flight.tries, true, now.at);
        }
        let Some((spot, endpoint)) = found else {
            let nowhere = Spot { upstream: id, endpoint: u16::MAX };
            let permits = Permits { upstream, endpoint: None };
            self.steer.judge(&plan, nowhere, permits, Outcome::Nothing, now.at);
            return give_up(flight);
        };
        self.send(now, flight, route, spot, Permits { upstream, endpoint }, false)
    }

    /// The breakers hear how it went, by what is known with the head; and it may not be good
    /// enough to be passed on.
    fn responded(
        &mut self,
        now: Now,
        facts: &Facts<'_>,
        flight: &mut Flight,
        status: u16,
    ) -> Decision {
        let plan = Rc::clone(&flight.plan);
        if let Some(attempt) = &mut flight.attempt {
            let permits = core::mem::take(&mut attempt.permits);
            attempt.judged = permits.eras();
            let took = now.at.since(attempt.sent);
            let outcome = Outcome::Responded { status, took, timed: timed(facts.body) };
            self.steer.judge(&plan, attempt.spot, permits, outcome, now.at);
        }
        let instead = Answer::problem(status, "upstream.status");
        let replaced = status >= 500 && degrade::covers(&plan, flight.route, Cause::Status);
        if let Some((_, route)) = routed(&plan, flight)
            && route.retry.on.status(status)
            && flight.tries.retries < route.retry.max
            && facts.body == Body::Empty
            && idempotent(facts.method)
            && let Some(Attempt { spot, .. }) = stand(flight)
        {
            flight.otherwise = if replaced { Otherwise::Answer(instead) } else { Otherwise::Relay };
            return self.wait(now, flight, route, spot);
        }
        if replaced {
            return over(flight, instead);
        }
        flight.phase = Phase::Over;
        Decision::Relay
    }

    /// The request leaves its endpoint, if it is at one.
    fn leave(&mut self, now: Now, flight: &mut Flight, finish: Finish) {
        let Some(Attempt { spot, permits, judged, .. }) = stand(flight) else { return };
        let plan = Rc::clone(&flight.plan);
        self.steer.judge(&plan, spot, permits, Outcome::Nothing, now.at);
        if finish == Finish::UpstreamCut {
            self.steer.retract(&plan, spot, judged, now.at);
        }
    }

    fn send(
        &mut self,
        now: Now,
        flight: &mut Flight,
        route: &Route,
        spot: Spot,
        permits: Permits,
        fresh: bool,
    ) -> Decision {
        let deadline = flight.arrived + route.timeout;
        let left = deadline.since(now.at);
        let plan = Rc::clone(&flight.plan);
        let there = (plan.upstream(spot.upstream), plan.endpoint(spot));
        let (Some(upstream), Some(endpoint), false) = (there.0, there.1, left.is_zero()) else {
            self.steer.judge(&plan, spot, permits, Outcome::Nothing, now.at);
            return over(flight, Answer::problem(504, "request.timeout"));
        };
        flight.phase = Phase::Calling;
        flight.tries.calls = flight.tries.calls.saturating_add(1);
        flight.tries.last = Some(spot);
        flight.attempt = Some(Attempt { spot, sent: now.at, permits, judged: [None; 2] });
        plan.sit(spot);
        let bounds = [upstream.timeouts.first_byte, route.retry.per_try];
        let first_byte = bounds.into_iter().flatten().min();
        Decision::Call(Call {
            upstream: spot.upstream,
            endpoint: endpoint.key,
            fresh,
            connect: upstream.timeouts.connect,
            first_byte: first_byte.unwrap_or(left),
            idle: upstream.timeouts.idle,
            deadline,
        })
    }
}

fn routed<'a>(plan: &'a Plan, flight: &Flight) -> Option<(RouteId, &'a Route)> {
    let id = flight.route?;
    Some((id, plan.route(id)?))
}

/// The attempt, if there is one, has left its endpoint; its permits are yet to be given back.
fn stand(flight: &mut Flight) -> Option<Attempt> {
    let attempt = flight.attempt.take()?;
    flight.plan.stand(attempt.spot);
    Some(attempt)
}

/// Where a request may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    /// Endpoints that have not failed it.
    Others,
    /// When there is none, any.
    All,
    AllWithinBudget,
}

/// Whether one more retry is within the budget of the upstream, over all workers.
fn within_budget(now: Now, flight: &mut Flight, route: &Route, id: UpstreamId) -> bool {
    let guard = flight.plan.guard(id);
    let within = guard.is_none_or(|guard| guard.spend(now.at, route.retry.budget));
    if !within {
        flight.trail.push(Step::refused("retry"));
    }
    within
}

fn give_up(flight: &mut Flight) -> Decision {
    match flight.otherwise {
        Otherwise::Answer(answer) => over(flight, answer),
        Otherwise::Relay => {
            flight.phase = Phase::Over;
            Decision::Relay
        }
    }
}

/// What a client is told to wait at an open breaker, in bounds.
const OPEN_WAIT_MIN: Duration = Duration::from_secs(1);
const OPEN_WAIT_MAX: Duration = Duration::from_secs(300);

fn over(flight: &mut Flight, answer: Answer) -> Decision {
    let answer = degrade::instead(&flight.plan, flight.route, answer);
    flight.phase = Phase::Over;
    flight.answer = Some(answer);
    Decision::Answer(answer)
}
