//! The course of one request through its decisions: admitted, sent, judged, tried again or ended.

use core::time::Duration;
use std::rc::Rc;

use crate::Policy;
use crate::admit::associated::beat;
use crate::admit::{Ask, Verdict};
use crate::decision::{Answer, Call, Decision, Failure};
use crate::degrade::{self, Cause, Source};
use crate::draft::retry::Retry;
use crate::facts::Facts;
use crate::flight::{Attempt, Finish, Flight, Hedge, Otherwise, Phase, Step};
use crate::plan::{Plan, Route, RouteId, Target, Upstream, UpstreamId};
use crate::recover::{Reach, Remedy, hedge, idempotent, is_kept, remedy, within_budget};
use crate::shed::Priority;
use crate::steer::guard::{Permits, Verdict as Outcome, timed};
use crate::steer::hash::affinity;
use crate::steer::{Pinned, Spot};
use crate::time::Now;

impl Policy {
    pub(crate) fn admit(&mut self, now: Now, facts: &Facts<'_>, flight: &mut Flight) -> Decision {
        let plan = Rc::clone(&flight.plan);
        let Some((id, route)) = routed(&plan, flight) else {
            return over(flight, Answer::problem(404, "route.none"));
        };
        // A copy is not for whom a filter refuses: there, what is switched waits until they passed.
        if route.cache.is_none()
            && let Some(answer) = self.switches.verdict(route)
        {
            return over(flight, answer);
        }
        if flight.phase == Phase::New {
            beat(&self.ledger, route, now.at);
            let priority = self.rank(facts, flight, route);
            if let Some(answer) = self.shed.verdict(&self.ledger, &plan, self.in_flight, priority) {
                flight.trail.push(Step::refused("shed"));
                return over(flight, answer);
            }
        }
        flight.tries.affinity = affinity(&plan, route, facts);
        let ask = Ask { now, facts, route: route.key, ledger: &self.ledger, limits: &plan.limits };
        if let Some(rule) = &route.cache {
            flight.caching.begin(rule, &ask);
        }
        let verdict = self.chain.check(&ask, &plan.rules, id, flight);
        self.parked |= core::mem::take(&mut flight.kicks);
        match verdict {
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

    /// What it is worth: what its route says, or less when it is of somebody who has too much in
    /// progress already.
    fn rank(&self, facts: &Facts<'_>, flight: &mut Flight, route: &Route) -> Priority {
        if let Some(tenant) = facts.identity.and_then(|identity| identity.tenant) {
            flight.tenant = Some(self.ledger.tenants.enter(self.ledger.hasher(), tenant));
        }
        flight.priority(route)
    }

    /// The wait is over.
    pub(crate) fn turn(&mut self, now: Now, flight: &mut Flight) -> Decision {
        let plan = Rc::clone(&flight.plan);
        match routed(&plan, flight) {
            Some((_, route)) => self.proceed(now, flight, route),
            None => over(flight, Answer::problem(404, "route.none")),
        }
    }

    fn proceed(&mut self, now: Now, flight: &mut Flight, route: &Route) -> Decision {
        if route.cache.is_some() {
            if let Some(answer) = self.switches.verdict(route) {
                return over(flight, answer);
            }
            if let Some(lookup) = flight.caching.look_for_fresh() {
                flight.phase = Phase::Looking;
                return Decision::Serve(lookup);
            }
        }
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

    /// No copy will do: on as if there were none.
    pub(crate) fn missed(&mut self, now: Now, flight: &mut Flight) -> Decision {
        if flight.caching.fails() {
            return settle(flight, flight.otherwise);
        }
        let plan = Rc::clone(&flight.plan);
        match routed(&plan, flight) {
            Some((_, route)) => self.proceed(now, flight, route),
            None => over(flight, Answer::problem(404, "route.none")),
        }
    }

    pub(crate) fn recover(
        &mut self,
        now: Now,
        flight: &mut Flight,
        failure: Failure,
        repeatable: bool,
    ) -> Decision {
        let failed = stand(flight);
        flight.tries.count(failure);
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
        if number > route.retry.max || until >= flight.deadline {
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

    pub(crate) fn woke(&mut self, now: Now, flight: &mut Flight) -> Decision {
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
        let seat = match self.shed.enter(&plan, id, flight.priority(route)) {
            Ok(seat) => seat,
            Err(shed) => {
                flight.trail.push(Step::refused("adaptive"));
                if flight.tries.calls == 0 {
                    flight.otherwise = Otherwise::Answer(shed);
                }
                return self.nowhere(now, flight, id, Permits { upstream, ..Permits::default() });
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
            return self.nowhere(now, flight, id, Permits { seat, upstream, endpoint: None });
        };
        self.send(now, flight, route, spot, Permits { seat, upstream, endpoint }, false)
    }

    /// It goes to no server: what was held for it is given back.
    fn nowhere(
        &mut self,
        now: Now,
        flight: &mut Flight,
        id: UpstreamId,
        permits: Permits,
    ) -> Decision {
        let plan = Rc::clone(&flight.plan);
        let nowhere = Spot { upstream: id, endpoint: u16::MAX };
        self.steer.judge(&plan, nowhere, permits, Outcome::Nothing, now.at);
        give_up(flight)
    }

    /// The breakers hear how it went, by what is known with the head; and it may not be good
    /// enough to be passed on.
    pub(crate) fn responded(
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
            if let Some(pace) = flight.pace.as_ref().filter(|_| status < 500)
                && flight.hedge != Hedge::Won
            {
                pace.record(now.at, took);
            }
            let outcome = Outcome::Responded { status, took, timed: timed(facts.body) };
            self.steer.judge(&plan, attempt.spot, permits, outcome, now.at);
        }
        if let Some((_, route)) = routed(&plan, flight)
            && route.retry.on.status(status)
            && flight.tries.retries < route.retry.max
            && is_kept(flight, facts.body)
            && idempotent(facts.method)
            && let Some(Attempt { spot, .. }) = stand(flight)
        {
            flight.otherwise = Otherwise::Relay { status };
            return self.wait(now, flight, route, spot);
        }
        finish(flight, Otherwise::Relay { status })
    }

    /// The request leaves its endpoint, if it is at one.
    pub(crate) fn leave(&mut self, now: Now, flight: &mut Flight, finish: Finish) {
        if flight.second.is_some() {
            self.outrun(now, flight);
        }
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
        let plan = Rc::clone(&flight.plan);
        let Some(call) = prepare(now, flight, &plan, route, spot) else {
            self.steer.judge(&plan, spot, permits, Outcome::Nothing, now.at);
            return over(flight, Answer::problem(504, "request.timeout"));
        };
        flight.phase = Phase::Calling;
        flight.tries.calls = flight.tries.calls.saturating_add(1);
        flight.tries.last = Some(spot);
        flight.attempt = Some(Attempt { spot, sent: now.at, permits, judged: [None; 2] });
        plan.sit(spot);
        Decision::Call(Call { fresh, ..call })
    }
}

/// A call of that endpoint; None when there is no time left, or no such endpoint.
pub(crate) fn prepare(
    now: Now,
    flight: &Flight,
    plan: &Pinned,
    route: &Route,
    spot: Spot,
) -> Option<Call> {
    let left = Some(flight.deadline.since(now.at)).filter(|left| !left.is_zero())?;
    let (upstream, endpoint) = (plan.upstream(spot.upstream)?, plan.endpoint(spot)?);
    let bounds = [upstream.timeouts.first_byte, route.retry.per_try];
    let first_byte = bounds.into_iter().flatten().min().unwrap_or(left);
    Some(Call {
        upstream: spot.upstream,
        endpoint: endpoint.key,
        fresh: false,
        keep: flight.keep,
        queue: queue_wait(flight, route, upstream, spot).min(left),
        connect: upstream.timeouts.connect,
        first_byte,
        idle: upstream.timeouts.idle,
        hedge: hedge::after(flight, upstream.endpoints.len(), left.min(first_byte)),
        deadline: flight.deadline,
    })
}

pub(crate) fn routed<'a>(plan: &'a Plan, flight: &Flight) -> Option<(RouteId, &'a Route)> {
    let id = flight.route?;
    Some((id, plan.route(id)?))
}

/// How long to wait at a full pool: not at all, when there is a server that could be asked instead.
fn queue_wait(flight: &Flight, route: &Route, upstream: &Upstream, here: Spot) -> Duration {
    if upstream.queue_wait.is_zero() || flight.tries.retries >= route.retry.max {
        return upstream.queue_wait;
    }
    let open = |e: &u16| *e != here.endpoint && !flight.tries.failed(*e);
    match (0_u16..).zip(&upstream.endpoints).any(|(e, _)| open(&e)) {
        true => Duration::ZERO,
        false => upstream.queue_wait,
    }
}

/// The attempt, if there is one, has left its endpoint; its permits are yet to be given back.
fn stand(flight: &mut Flight) -> Option<Attempt> {
    let attempt = flight.attempt.take()?;
    flight.plan.stand(attempt.spot);
    Some(attempt)
}

fn give_up(flight: &mut Flight) -> Decision {
    finish(flight, flight.otherwise)
}

/// What a client is told to wait at an open breaker, in bounds.
const OPEN_WAIT_MIN: Duration = Duration::from_secs(1);
const OPEN_WAIT_MAX: Duration = Duration::from_secs(300);

pub(crate) fn over(flight: &mut Flight, answer: Answer) -> Decision {
    finish(flight, Otherwise::Answer(answer))
}

/// The end, unless an earlier response is better than it.
fn finish(flight: &mut Flight, otherwise: Otherwise) -> Decision {
    let failed = otherwise.failed();
    if let Some((answer, cause)) = failed
        && flight.route().and_then(|route| route.cache.as_ref()).is_some_and(|r| r.covers(cause))
        && let Some(lookup) = flight.caching.look_for_any()
    {
        flight.otherwise = otherwise;
        flight.answer = Some(Answer { degraded: Some(Source::Stale), ..answer });
        flight.phase = Phase::Looking;
        return Decision::Serve(lookup);
    }
    settle(flight, otherwise)
}

/// The end: what the route's fallback says, or the failure as it is.
fn settle(flight: &mut Flight, otherwise: Otherwise) -> Decision {
    flight.phase = Phase::Over;
    let answer = match (otherwise, otherwise.failed()) {
        (Otherwise::Answer(answer), _) => answer,
        (Otherwise::Relay { .. }, Some((answer, cause)))
            if degrade::covers(&flight.plan, flight.route, cause) =>
        {
            answer
        }
        (Otherwise::Relay { .. }, _) => {
            flight.answer = None;
            return Decision::Relay;
        }
    };
    let answer = degrade::instead(&flight.plan, flight.route, answer);
    flight.answer = Some(answer);
    Decision::Answer(answer)
}

impl Otherwise {
    /// What failed, when something did that is not the request's own fault.
    fn failed(self) -> Option<(Answer, Cause)> {
        let answer = match self {
            Self::Answer(answer) => answer,
            Self::Relay { status: status @ 500.. } => Answer::problem(status, "upstream.status"),
            Self::Relay { .. } => return None,
        };
        Some((answer, Cause::of(&answer)?))
    }
}
