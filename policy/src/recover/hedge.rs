//! Hedging: a request that takes longer than nineteen of twenty do is sent to a second server as
//! well, and whichever answers first is the answer.
//!
//! Only what may be sent twice (GET, HEAD, no body), once a request, within the budget of retries,
//! for at most one request in twenty, and never while the breaker is not closed.

use core::time::Duration;
use std::collections::BTreeMap;
use std::rc::Rc;

use crate::Policy;
use crate::course::{prepare, routed};
use crate::decision::{Call, Decision, Failure};
use crate::facts::{Body, Facts};
use crate::flight::{Attempt, Flight, Hedge, Phase};
use crate::mechanism::pace::Pace;
use crate::plan::{Plan, Route, RouteKey, Target};
use crate::steer::Spot;
use crate::steer::guard::{Permits, Verdict};
use crate::time::Now;

/// How long the calls of each route that hedges take.
#[derive(Debug, Default)]
pub(crate) struct Paces(BTreeMap<RouteKey, Rc<Pace>>);

impl Paces {
    /// The pace of what this request would be hedged by; None when it never is.
    pub(crate) fn of(&mut self, route: Option<&Route>, facts: &Facts<'_>) -> Option<Rc<Pace>> {
        let route = route.filter(|route| route.retry.hedge)?;
        let forwards = matches!(route.target, Target::Upstream(_));
        let safe = matches!(facts.method, "GET" | "HEAD") && facts.body == Body::Empty;
        (forwards && safe).then(|| Rc::clone(self.0.entry(route.key).or_default()))
    }

    /// Forget the routes that do not hedge any more.
    pub(crate) fn forget(&mut self, plan: &Plan) {
        let hedges = |key: &RouteKey| plan.routes().iter().any(|r| r.key == *key && r.retry.hedge);
        self.0.retain(|key, _| hedges(key));
    }
}

/// When the engine is to ask for a hedge; None: never.
pub(crate) fn after(flight: &Flight, servers: usize, left: Duration) -> Option<Duration> {
    let pace = flight.pace.as_ref().filter(|_| flight.hedge == Hedge::None && servers > 1)?;
    Some(pace.p95()?.max(SHORTEST)).filter(|after| *after < left)
}

impl Policy {
    /// The call takes long.
    pub(crate) fn slow(&mut self, now: Now, flight: &mut Flight) -> Decision {
        let plan = Rc::clone(&flight.plan);
        let first = flight.attempt.as_ref().map(|attempt| attempt.spot);
        let (Some(first), Some((_, route))) = (first, routed(&plan, flight)) else {
            return Decision::Await;
        };
        let left = flight.deadline.since(now.at);
        let may = flight.hedge == Hedge::None && flight.pace.is_some() && !left.is_zero();
        if !may || !self.steer.is_closed(&plan, first.upstream, now.at) {
            return Decision::Await;
        }
        let priority = flight.priority(route);
        let Ok(seat) = self.shed.enter(&plan, first.upstream, priority) else {
            return Decision::Await;
        };
        let Ok(upstream) = self.steer.enter(&plan, first.upstream, now.at) else {
            if let Some(seat) = seat {
                seat.settle(Verdict::Nothing);
            }
            return Decision::Await;
        };
        let mut tries = flight.tries;
        tries.fail(first.endpoint);
        let found = self.steer.place(&plan, first.upstream, &tries, false, now.at);
        let (spot, endpoint) = match found {
            Some((spot, permit)) => (Some(spot), permit),
            None => (None, None),
        };
        let permits = Permits { seat, upstream, endpoint };
        let within =
            || plan.guard(first.upstream).is_some_and(|g| g.hedge(now.at, route.retry.budget));
        let Some(spot) = spot.filter(|_| within()) else {
            let nowhere = Spot { endpoint: u16::MAX, ..first };
            let spot = spot.unwrap_or(nowhere);
            self.steer.judge(&plan, spot, permits, Verdict::Nothing, now.at);
            return Decision::Await;
        };
        let Some(call) = prepare(now, flight, &plan, route, spot) else {
            self.steer.judge(&plan, spot, permits, Verdict::Nothing, now.at);
            return Decision::Await;
        };
        tries.calls = tries.calls.saturating_add(1);
        flight.tries = tries;
        flight.hedge = Hedge::Sent;
        flight.second = Some(Attempt { spot, sent: now.at, permits, judged: [None; 2] });
        flight.phase = Phase::Racing;
        plan.sit(spot);
        // A server that is busy itself is no help.
        Decision::Hedge(Call { queue: Duration::ZERO, hedge: None, ..call })
    }

    /// The second has answered first: it is the call from here on.
    pub(crate) fn overtaken(
        &mut self,
        now: Now,
        facts: &Facts<'_>,
        flight: &mut Flight,
        status: u16,
    ) -> Decision {
        let loser = core::mem::replace(&mut flight.attempt, flight.second.take());
        if let Some(loser) = loser {
            let took = now.at.since(loser.sent);
            if let Some(pace) = &flight.pace {
                // It would have taken longer still.
                pace.record(now.at, took);
            }
            self.lost(now, flight, loser, Verdict::Overtaken { took });
        }
        flight.hedge = Hedge::Won;
        flight.tries.last = flight.attempt.as_ref().map(|attempt| attempt.spot);
        flight.phase = Phase::Calling;
        self.responded(now, facts, flight, status)
    }

    /// The first has answered first.
    pub(crate) fn outrun(&mut self, now: Now, flight: &mut Flight) {
        flight.phase = Phase::Calling;
        if let Some(loser) = flight.second.take() {
            self.lost(now, flight, loser, Verdict::Nothing);
        }
    }

    /// One of the two has failed; the other is the call from here on.
    pub(crate) fn fell(
        &mut self,
        now: Now,
        flight: &mut Flight,
        second: bool,
        failure: Failure,
    ) -> Decision {
        let fallen = match second {
            true => flight.second.take(),
            false => core::mem::replace(&mut flight.attempt, flight.second.take()),
        };
        if let Some(fallen) = fallen {
            let verdict = match failure {
                // It was closed before, most likely, and says nothing about the server.
                Failure::Stale => Verdict::Nothing,
                Failure::PoolFull
                | Failure::Connect
                | Failure::ConnectTimeout
                | Failure::Broken
                | Failure::Malformed
                | Failure::TimedOut
                | Failure::Cut
                | Failure::Stalled => Verdict::Failed(failure),
            };
            flight.tries.count(failure);
            flight.tries.fail(fallen.spot.endpoint);
            self.lost(now, flight, fallen, verdict);
        }
        flight.tries.last = flight.attempt.as_ref().map(|attempt| attempt.spot);
        flight.phase = Phase::Calling;
        Decision::Await
    }

    fn lost(&mut self, now: Now, flight: &Flight, attempt: Attempt, verdict: Verdict) {
        let Attempt { spot, permits, .. } = attempt;
        flight.plan.stand(spot);
        self.steer.judge(&flight.plan, spot, permits, verdict, now.at);
    }
}

/// Timers are no finer, and what is faster needs no help.
const SHORTEST: Duration = Duration::from_millis(2);
