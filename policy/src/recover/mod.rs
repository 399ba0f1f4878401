//! What if an attempt fails: try again, or give up with which answer.
//!
//! What was never sent may be sent elsewhere. What may have been sent is sent again by itself in one
//! case only: a reused connection turned out to be closed, the method may be repeated (RFC 9110 section
//! 9.2.2), and every byte of the request is still there. And where the route's `retries` ask for it,
//! under the same conditions, after a moment and within a budget.

pub(crate) mod hedge;
pub(crate) mod hold;

use core::time::Duration;

use crate::decision::{Answer, Failure};
use crate::facts::{Body, Facts};
use crate::flight::{Flight, Step};
use crate::plan::{Route, UpstreamId};
use crate::time::{Instant, Now};

/// What to do about a failed attempt. The answer is for when that cannot be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Remedy {
    /// The same endpoint, over a new connection. Does not count as a retry.
    Refresh,
    /// An endpoint that has not failed this request.
    Elsewhere(Answer),
    /// The same, or when there is none, any.
    Again(Answer),
    GiveUp(Answer),
}

pub(crate) fn remedy(failure: Failure, repeatable: bool, refreshed: bool) -> Remedy {
    match failure {
        // Knocking at the same full door again would only add to the crowd.
        Failure::PoolFull => Remedy::Elsewhere(Answer::problem(503, "upstream.pool_full")),
        Failure::Connect => Remedy::Again(Answer::problem(502, "upstream.connect")),
        Failure::ConnectTimeout => Remedy::Again(Answer::problem(504, "upstream.connect_timeout")),
        Failure::Stale if repeatable && !refreshed => Remedy::Refresh,
        Failure::Stale => Remedy::GiveUp(Answer::problem(502, "upstream.closed")),
        Failure::Broken => Remedy::GiveUp(Answer::problem(502, "upstream.broken")),
        Failure::Malformed => Remedy::GiveUp(Answer::problem(502, "upstream.malformed")),
        Failure::TimedOut => Remedy::GiveUp(Answer::problem(504, "upstream.timeout")),
        Failure::Cut => Remedy::GiveUp(Answer::problem(502, "upstream.cut")),
        Failure::Stalled => Remedy::GiveUp(Answer::problem(504, "upstream.stalled")),
    }
}

/// Whether a request may be sent twice (RFC 9110 section 9.2.2). Methods that nobody has defined
/// may do anything.
pub fn idempotent(method: &str) -> bool {
    matches!(method, "GET" | "HEAD" | "OPTIONS" | "TRACE" | "PUT" | "DELETE")
}

/// When a request is over, whatever is being tried: the client may have less time than the route.
pub(crate) fn deadline(now: Now, route: Option<&Route>, facts: &Facts<'_>) -> Instant {
    let timeout = route.map_or(Duration::ZERO, |route| route.timeout);
    now.at + facts.patience.map_or(timeout, |patience| patience.min(timeout))
}

/// How much of a request's body is worth keeping: none where nothing would send it again, or when
/// not all of it could be kept.
pub(crate) fn keep(route: Option<&Route>, facts: &Facts<'_>) -> u32 {
    let Some(route) = route else { return 0 };
    let most = match (facts.body, route.retry.keep()) {
        (Body::Empty, _) | (_, 0) => return 0,
        (Body::Length(n), most) if n > u64::from(most) => return 0,
        (Body::Length(_) | Body::Unknown, most) => most,
    };
    if idempotent(facts.method) { most } else { 0 }
}

/// Whether a request can be sent again after a response has come: when all of it is surely here.
pub(crate) fn is_kept(flight: &Flight, body: Body) -> bool {
    match body {
        Body::Empty => true,
        Body::Length(n) => n <= u64::from(flight.keep),
        Body::Unknown => false,
    }
}

/// Where a request may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Endpoints that have not failed it.
    Others,
    /// When there is none, any.
    All,
    AllWithinBudget,
}

/// Whether one more retry is within the budget of the upstream, over all workers.
pub(crate) fn within_budget(now: Now, flight: &mut Flight, route: &Route, id: UpstreamId) -> bool {
    let guard = flight.plan.guard(id);
    let within = guard.is_none_or(|guard| guard.spend(now.at, route.retry.budget));
    if !within {
        flight.trail.push(Step::refused("retry"));
    }
    within
}
