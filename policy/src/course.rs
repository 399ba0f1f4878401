//! The course of one request through its decisions: admitted, sent, judged, tried again or ended.

use core::time::Duration;
use std::rc::Rc;

use crate::Policy;
use crate::admit::{Ask, Verdict};
use crate::decision::{Answer, Call, Decision, Failure};
use crate::degrade::{self, Cause, Source};
use crate::draft::retry::Retry;
use crate::facts::{Body, Facts};
use crate::flight::{Attempt, Finish, Flight, Otherwise, Phase, Step};
use crate::plan::{Plan, Route, RouteId, Target, UpstreamId};
use crate::recover::{Reach, Remedy, idempotent, remedy, within_budget};
use crate::steer::Spot;
use crate::steer::guard::{Permits, Verdict as Outcome, timed};
use crate::time::Now;

impl Policy {
    pub(crate) fn admit(&mut self, now: Now, facts: &Facts<'_>, flight: &mut Flight) -> Decision {
        let plan = Rc::clone(&flight.plan);
        let Some((id, route)) = routed(&plan, flight) else {
            return over(flight, Answer::problem(404, "route.none"));
        };
        let ask = Ask { now, facts, route: route.key, ledger: &self.ledger, limits: &plan.limits };
        match &route.cache {
            // A copy is not for whom a filter refuses: what is switched waits until they passed.
            Some(rule) => flight.caching.begin(rule, &ask),
            None => {
                if let Some(answer) = self.switches.verdict(route) {
                    return over(flight, answer);
                }
            }
        }
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
            let outcome = Outcome::Responded { status, took, timed: timed(facts.body) };
            self.steer.judge(&plan, attempt.spot, permits, outcome, now.at);
        }
        if let Some((_, route)) = routed(&plan, flight)
            && route.retry.on.status(status)
            && flight.tries.retries < route.retry.max
            && facts.body == Body::Empty
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
