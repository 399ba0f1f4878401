//! The memory of one request across its decisions, and the record that is kept of it.

use core::time::Duration;
use std::rc::Rc;

use crate::admit::rate_limit::LIMITS_MAX;
use crate::cache::{Caching, Use};
use crate::decision::{Answer, Failure, Need};
use crate::degrade::Cause;
use crate::ledger::leases::Occupied;
use crate::ledger::{Permit, Slip};
use crate::mechanism::pace::Pace;
use crate::mechanism::window::Era;
use crate::plan::{EndpointKey, Plan, Route, RouteId, UpstreamId};
use crate::shed::Priority;
use crate::shed::tenant::Tenant;
use crate::steer::guard::Permits;
use crate::steer::{Pinned, Spot};
use crate::time::Instant;

/// One request in progress. It holds permits (a concurrency slot, a place at an endpoint), so it
/// is not `Clone` and must go back through `Policy::end`, whichever way the request went.
#[derive(Debug)]
#[must_use = "give it back with Policy::end"]
pub struct Flight {
    /// A flight is judged to its end by the plan it began under.
    pub(crate) plan: Rc<Pinned>,
    pub(crate) arrived: Instant,
    pub(crate) route: Option<RouteId>,
    pub(crate) phase: Phase,
    /// Filters passed so far.
    pub(crate) stage: u8,
    /// The stage and the need of the last `Learn`.
    pub(crate) asked: Option<(u8, Need)>,
    /// Until when a response's head must have come, over all attempts.
    pub(crate) deadline: Instant,
    /// Bytes of body to keep so that it could be sent again.
    pub(crate) keep: u32,
    pub(crate) tries: Tries,
    /// The attempt in progress or relayed. It holds a seat at its endpoint.
    pub(crate) attempt: Option<Attempt>,
    /// The other attempt of a hedged request.
    pub(crate) second: Option<Attempt>,
    pub(crate) hedge: Hedge,
    /// How long such calls take, when it may be hedged.
    pub(crate) pace: Option<Rc<Pace>>,
    pub(crate) permit: Option<Permit>,
    /// The same, of places that a store counts.
    pub(crate) occupied: Option<Occupied>,
    pub(crate) limit: Option<Limit>,
    pub(crate) violated: Option<u16>,
    /// Every limit that refused this request.
    pub(crate) wanting: [Option<Wanting>; LIMITS_MAX],
    /// How long the request waits for its turn, and the limit that makes it wait.
    pub(crate) delay: Duration,
    pub(crate) queued: Option<(u16, Slip)>,
    pub(crate) body_bytes_max: Option<u64>,
    pub(crate) answer: Option<Answer>,
    /// What becomes of it when it cannot be tried again after all.
    pub(crate) otherwise: Otherwise,
    pub(crate) trail: Trail,
    pub(crate) parked: Option<Parked>,
    /// The store's keeper is to look at what was wished, though nobody waits.
    pub(crate) kicks: bool,
    pub(crate) caching: Caching,
    /// Whose it is, once it was let in.
    pub(crate) tenant: Option<Tenant>,
}

/// A flight that waits for a store to be asked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parked {
    pub(crate) since: Instant,
    /// One bit for each limit of the route that tokens were wished of.
    pub(crate) wished: u8,
}

/// Where a flight stands, and so which events may come.
///
/// ```text
/// New ──Arrived──► (filters) ──► Calling ──Responded──► Over
///                   │    ▲ │        │ ▲ │     (before either of these two: Looking ──Missed──►)
///                   ▼    │ │        └─┘ └──Failed, no more tries──► Over
///       Asking, Parked ──┘ │        Failed, tried again: at once, or after Waiting
///         Learned, Woke    └► Queued ──Woke──► Calling ──Slow──► Racing
///                                                 ▲  Overtaken, Fell, Responded │
///                                                 └─────────────────────────────┘
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    New,
    /// No route: all but the method matches one.
    Misplaced,
    Asking,
    /// Waits for `Woke`, and is then judged on.
    Parked,
    /// For its turn at a leaky bucket.
    Queued,
    Calling,
    /// At two endpoints at once.
    Racing,
    /// Before a retry.
    Waiting,
    /// For a copy: over when there is one, else where it was before.
    Looking,
    Over,
}

/// What the client gets when a retry comes to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Otherwise {
    Answer(Answer),
    /// The response that was not good enough: the engine still has it.
    Relay {
        status: u16,
    },
}

/// One attempt, from the call until the request has left the endpoint.
#[derive(Debug)]
pub(crate) struct Attempt {
    pub(crate) spot: Spot,
    pub(crate) sent: Instant,
    /// Given back when the attempt has been judged.
    pub(crate) permits: Permits,
    /// Of the breakers that judged it.
    pub(crate) judged: [Option<Era>; 2],
}

/// Whether a request was sent to a second endpoint because the first took long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hedge {
    #[default]
    None,
    Sent,
    /// And that one answered first.
    Won,
}

/// The attempts of one flight.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tries {
    pub(crate) calls: u8,
    pub(crate) retries: u8,
    /// A connection that was found dead has been replaced once.
    pub(crate) refreshed: bool,
    /// Attempts that ended behind the head of a response that was held.
    pub(crate) cut: u8,
    pub(crate) last: Option<Spot>,
    /// What the request is known by, where that decides where it goes.
    pub(crate) affinity: Option<u64>,
    failed: [u16; Self::FAILED_MAX],
    failed_len: u8,
}

impl Tries {
    /// The most endpoints remembered, and so the most `retries` that may be configured.
    pub(crate) const FAILED_MAX: usize = 8;

    /// Whether this endpoint, by its place in the upstream, has failed this flight.
    pub(crate) fn failed(&self, endpoint: u16) -> bool {
        self.failed.iter().take(usize::from(self.failed_len)).any(|e| *e == endpoint)
    }

    /// An attempt has failed in that way.
    pub(crate) fn count(&mut self, failure: Failure) {
        self.cut = self.cut.saturating_add(u8::from(failure.behind_head()));
    }

    pub(crate) fn fail(&mut self, endpoint: u16) {
        if let Some(free) = self.failed.get_mut(usize::from(self.failed_len)) {
            *free = endpoint;
            self.failed_len += 1;
        }
    }
}

impl Flight {
    pub(crate) fn priority(&self, route: &Route) -> Priority {
        let heavy = self.tenant.as_ref().is_some_and(|tenant| tenant.heavy);
        if heavy { route.priority.lower() } else { route.priority }
    }

    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// What the route says about rewriting; None when no route matched.
    /// Whether it waits for a store of shared counts.
    pub fn awaits_store(&self) -> bool {
        self.phase == Phase::Parked
    }

    pub fn route(&self) -> Option<&Route> {
        self.plan.route(self.route?)
    }

    pub fn route_id(&self) -> Option<RouteId> {
        self.route
    }

    /// The tightest limit this request counted against, or the one that refused it, for the
    /// `RateLimit` response fields.
    pub fn limit(&self) -> Option<Limit> {
        self.limit
    }

    /// What the `RateLimit` response fields tell: every limit that refused this request, or else
    /// the tightest that it counted against.
    pub fn limits(&self) -> impl Iterator<Item = Limit> {
        // They fill the row from its beginning.
        let refused = self.wanting.iter().map_while(|wanting| *wanting).filter_map(|wanting| {
            let Wanting { limit, left, reset } = wanting;
            let meter = self.plan.limits.meter(limit)?;
            Some(Limit { limit, quota: meter.quota(), left, window: meter.window(), reset })
        });
        let tightest = self.limit.filter(|_| self.violated.is_none());
        refused.chain(tightest)
    }

    /// The limit that refused this request, by its place in the plan.
    pub fn violated(&self) -> Option<u16> {
        self.violated
    }

    /// The most bytes of body that the route takes. A length that was stated has been checked; a
    /// body of unknown length that grows past this is to be cut off with 413, code `size.body`.
    pub fn body_bytes_max(&self) -> Option<u64> {
        self.body_bytes_max
    }
}

/// A limit that refused a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanting {
    pub(crate) limit: u16,
    pub(crate) left: u32,
    pub(crate) reset: Duration,
}

/// What is left of a limit, and when there is more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Which limit, by its place in the plan; `Plan::limit_name` tells its name.
    pub limit: u16,
    /// The most that can be admitted at once (the burst).
    pub quota: u32,
    pub left: u32,
    /// The time in which an empty limit is whole again.
    pub window: Duration,
    /// Until there is more; zero when nothing is missing.
    pub reset: Duration,
}

/// How the request ended, as the engine saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ending {
    /// The status the client saw; None if it left first.
    pub status: Option<u16>,
    pub bytes_in: u64,
    pub bytes_out: u64,
    pub finish: Finish,
}

/// Whether the exchange came to its end, and who cut it if not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Finish {
    #[default]
    Whole,
    /// The client left, or stopped reading or sending for too long.
    ClientGone,
    /// The response broke off after its head, which the client had by then.
    UpstreamCut,
    /// Something of ours failed.
    Fault,
}

/// One request, finished. The access log, the metrics, the trace and the replay tool all read
/// this and nothing else.
#[derive(Clone, Debug)]
pub struct Record {
    pub(crate) plan: Rc<Pinned>,
    pub route: Option<RouteId>,
    pub upstream: Option<UpstreamId>,
    /// The endpoint of the last attempt.
    pub endpoint: Option<EndpointKey>,
    pub attempts: u8,
    /// Those of them that ended behind the head of a response that was held.
    pub cut: u8,
    pub hedge: Hedge,
    pub arrived: Instant,
    pub took: Duration,
    /// Our own reply, when the response is not the upstream's.
    pub answer: Option<Answer>,
    /// The tightest limit it counted against, or the one that refused it.
    pub limit: Option<Limit>,
    /// The limit that refused it, by its place in the plan.
    pub violated: Option<u16>,
    pub ending: Ending,
    pub trail: Trail,
    /// What the cache of its route did for it.
    pub cache: Option<Use>,
}

impl Record {
    /// The plan this request was judged by: the one in which its ids mean something.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// What it was shed by, and its class, by name.
    pub fn shed(&self) -> Option<(&'static str, &'static str)> {
        let reason = crate::shed::reason(self.answer?.code)?;
        let route = self.plan.route(self.route?)?;
        Some((reason, route.priority.name()))
    }

    /// What became of a hedge, by name, when there was one.
    pub fn hedged(&self) -> Option<&'static str> {
        match self.hedge {
            Hedge::None => None,
            Hedge::Sent => Some("sent"),
            Hedge::Won => Some("won"),
        }
    }

    /// Why and from where, by name, when the answer stood for what could not be had.
    pub fn degraded(&self) -> Option<(&'static str, &'static str)> {
        let answer = self.answer?;
        let source = answer.degraded?;
        Some((Cause::of(&answer)?.name(), source.name()))
    }
}

/// What each rule saw, in the order they were asked. Bounded; what does not fit is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trail {
    steps: [Option<Step>; Self::STEPS_MAX],
    dropped: u8,
}

impl Trail {
    pub const STEPS_MAX: usize = 8;

    pub fn steps(&self) -> impl Iterator<Item = &Step> {
        // They fill the row from its beginning.
        self.steps.iter().map_while(Option::as_ref)
    }

    pub fn dropped(&self) -> u8 {
        self.dropped
    }

    pub(crate) fn push(&mut self, step: Step) {
        match self.steps.iter_mut().find(|s| s.is_none()) {
            Some(free) => *free = Some(step),
            None => self.dropped = self.dropped.saturating_add(1),
        }
    }
}

/// One rule's look at the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The filter, by its name in the chain; `shadow` for a limit that is not enforced.
    pub filter: &'static str,
    /// Which rule of that filter, where it has several (limits): its place in the plan.
    pub rule: Option<u16>,
    pub passed: bool,
    /// What was left after this request (tokens, slots), where the rule counts.
    pub left: Option<u32>,
}

impl Step {
    /// What refused it, where no rule counts.
    pub(crate) const fn refused(filter: &'static str) -> Self {
        Self { filter, rule: None, passed: false, left: None }
    }
}
