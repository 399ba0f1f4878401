//! What the operator meant: compiled, checked, immutable, shared by every worker.

use core::hash::Hasher;
use core::time::Duration;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use siphasher::sip::SipHasher13;

use crate::admit::Rules;
use crate::admit::associated::Watched;
use crate::admit::bound::{PlacesPromise, Promise};
use crate::admit::named::Limits;
use crate::admit::overrides::Override;
use crate::cache;
use crate::degrade::Fallback;
use crate::draft::retry::Retry;
use crate::facts::Facts;
use crate::health::Check;
use crate::ledger::BreakerKey;
use crate::mechanism::adaptive::Rule;
use crate::mechanism::lease::Terms;
use crate::mechanism::meter::Meter;
use crate::route::Table;
use crate::shed::Priority;
use crate::steer::balance::Rule as BalanceRule;
use crate::steer::guard::Resilience;

macro_rules! id {
    ($($(#[$doc:meta])* $name:ident: $int:ty)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $int);

        impl $name {
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }
    )*};
}

// An Id indexes the plan that issued it, and no other. A Key means the same in every plan, worker
// and restart: memory and shared counters are filed under Keys, so a reload keeps them.
id! {
    RouteId: u32
    UpstreamId: u32
    /// A reply that the operator wrote: a redirect or a fixed response.
    ReplyId: u32
}

macro_rules! key {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);

        impl $name {
            /// The key of what has these names: the same in every process.
            pub fn of(names: &[&str]) -> Self {
                Self(stable_hash(names))
            }
        }
    )*};
}

key! {
    /// A hash of the upstream's name and the server as written ("10.0.0.1:9000").
    EndpointKey
    /// A hash of the upstream's name.
    UpstreamKey
    /// A hash of the route's name.
    RouteKey
    /// A hash of the name of a group of routes.
    GroupKey
}

/// A hash of what a stored response depends on. Known to this process alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CacheKey(pub u128);

/// Compiled, checked, immutable. `Plan::compile` is the only way to make one.
#[derive(Debug)]
pub struct Plan {
    pub(crate) routes: Vec<Route>,
    pub(crate) upstreams: Vec<Upstream>,
    pub(crate) replies: Vec<Reply>,
    pub(crate) limits: Limits,
    /// Something before the store hides when it restarts.
    pub(crate) proxied: bool,
    pub(crate) shed: crate::shed::node::Rule,
    pub(crate) rules: Rules,
    pub(crate) table: Table,
}

/// What the engine needs of a route.
#[derive(Debug)]
pub struct Route {
    pub name: String,
    pub key: RouteKey,
    pub rewrite: Rewrite,
    /// What it is switched off by.
    pub group: Option<(String, GroupKey)>,
    /// It lives on in survival mode.
    pub vital: bool,
    /// What is given up last, and first, when there is too much.
    pub priority: Priority,
    /// How limits of other routes watch this one.
    pub(crate) watched: Box<[Watched]>,
    pub(crate) fallback: Option<Fallback>,
    pub(crate) cache: Option<cache::Rule>,
    pub(crate) target: Target,
    /// From the request's arrival to the response's head.
    pub(crate) timeout: Duration,
    pub(crate) retry: Retry,
}

/// What becomes of a request that was let through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Upstream(UpstreamId),
    Redirect(ReplyId),
    Respond(ReplyId),
}

/// How a request and its response are changed on the way (B3).
#[derive(Clone, Debug, Default)]
pub struct Rewrite {
    /// Taken off the front of the path, on a segment boundary; the rest starts with `/`.
    pub strip_prefix: Option<String>,
    /// Put in front of the path, after stripping.
    pub add_prefix: Option<String>,
    pub request_headers: HeaderEdit,
    pub response_headers: HeaderEdit,
}

/// Header fields to set (replacing every field of that name) and to remove. Names lower case.
#[derive(Clone, Debug, Default)]
pub struct HeaderEdit {
    pub set: Vec<(String, String)>,
    pub remove: Vec<String>,
}

/// What the engine needs of an upstream.
#[derive(Debug)]
pub struct Upstream {
    pub name: String,
    pub key: UpstreamKey,
    pub endpoints: Vec<Endpoint>,
    /// Pool bound per worker and endpoint.
    pub connections_max: u32,
    /// The most requests that wait for a connection of one full pool.
    pub queue_max: u32,
    /// How long they wait.
    pub(crate) queue_wait: Duration,
    /// An idle connection is closed after this long.
    pub keepalive: Duration,
    pub(crate) spread: Spread,
    pub(crate) timeouts: Timeouts,
    pub(crate) resilience: Resilience,
    pub(crate) adaptive: Option<Rule>,
    pub(crate) health: Option<Check>,
}

/// How requests are spread over the endpoints, worked out ahead.
#[derive(Debug)]
pub(crate) struct Spread {
    pub(crate) balance: BalanceRule,
    /// Some servers are in the gateway's own zone and some are not, and that matters.
    pub(crate) zoned: bool,
    /// Endpoints (by place in the upstream) in the order of smooth weighted round robin, one turn.
    pub(crate) turn: Box<[u16]>,
    /// Sums of weights up to and including each endpoint.
    pub(crate) sums: Box<[u64]>,
    /// The place of the first endpoint among all endpoints of the plan.
    pub(crate) first: usize,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeouts {
    pub(crate) connect: Duration,
    /// None: what is left until the request's deadline.
    pub(crate) first_byte: Option<Duration>,
    pub(crate) idle: Duration,
}

#[derive(Debug)]
pub struct Endpoint {
    pub key: EndpointKey,
    /// As written: `host:port`.
    pub address: String,
    pub weight: u32,
    pub labels: BTreeMap<String, String>,
    /// In the gateway's own zone.
    pub(crate) near: bool,
}

/// A reply that the operator wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    pub status: u16,
    /// Redirects. `{path}` and `{query}` have been left out on purpose: the engine appends the
    /// request's path and query when this ends in `{uri}`.
    pub location: Option<String>,
    pub content_type: String,
    pub body: Arc<[u8]>,
    /// The body is what this file holds; see [`Plan::supply`].
    pub file: Option<String>,
}

/// One thing wrong with what was written, where, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where, as keys joined by dots and indices in brackets: `route.orders.limits[1]`.
    pub path: String,
    pub message: String,
    pub hint: Option<String>,
}

impl HeaderEdit {
    pub fn is_empty(&self) -> bool {
        self.set.is_empty() && self.remove.is_empty()
    }

    /// Whether fields of that name are set or removed.
    #[inline]
    pub fn names(&self, name: &[u8]) -> bool {
        let is = |edited: &String| edited.as_bytes().eq_ignore_ascii_case(name);
        self.set.iter().any(|(set, _)| is(set)) || self.remove.iter().any(is)
    }
}

impl Route {
    /// Whether any response to this route may be kept.
    pub fn keeps_responses(&self) -> bool {
        self.cache.is_some()
    }
}

impl Plan {
    /// Checks everything and reports every problem, not the first.
    pub fn compile(draft: crate::draft::Draft) -> Result<Self, Vec<Problem>> {
        crate::compile::compile(draft)
    }

    pub fn routes(&self) -> &[Route] {
        &self.routes
    }

    pub fn route(&self, id: RouteId) -> Option<&Route> {
        self.routes.get(id.index())
    }

    pub fn upstreams(&self) -> &[Upstream] {
        &self.upstreams
    }

    pub fn upstream(&self, id: UpstreamId) -> Option<&Upstream> {
        self.upstreams.get(id.index())
    }

    pub fn reply(&self, id: ReplyId) -> Option<&Reply> {
        self.replies.get(id.index())
    }

    /// Every breaker: its upstream, the server when it is one server's, and its key.
    pub fn breakers(&self) -> impl Iterator<Item = (&str, Option<&str>, BreakerKey)> {
        self.upstreams.iter().flat_map(|upstream| {
            let name = upstream.name.as_str();
            let whole = upstream.resilience.breaker.as_ref();
            let whole = whole.map(|_| (name, None, BreakerKey::from(upstream.key)));
            let ejecting = upstream.resilience.eject.is_some();
            let each = upstream.endpoints.iter().filter(move |_| ejecting);
            let each = each.map(move |e| (name, Some(e.address.as_str()), BreakerKey::from(e.key)));
            whole.into_iter().chain(each)
        })
    }

    /// The endpoint of that upstream with that server, as written.
    pub fn endpoint(&self, upstream: &str, server: &str) -> Option<&Endpoint> {
        let upstream = self.upstreams.iter().find(|it| it.name == upstream)?;
        upstream.endpoints.iter().find(|it| it.address == server)
    }

    /// The files that hold bodies of replies. Whoever may open files gives what they hold to
    /// [`Plan::supply`].
    pub fn files(&self) -> Vec<String> {
        self.replies.iter().filter_map(|reply| reply.file.clone()).collect()
    }

    /// What that file holds.
    pub fn supply(&mut self, file: &str, body: &Arc<[u8]>) {
        for reply in self.replies.iter_mut().filter(|reply| reply.file.as_deref() == Some(file)) {
            reply.body = Arc::clone(body);
        }
    }

    /// Whether there are limits that take their cost from the response: [`crate::Policy::settle`]
    /// is of use.
    pub fn follows(&self) -> bool {
        self.limits.follow()
    }

    /// The names of all limits, by their place in the plan.
    pub fn limit_names(&self) -> impl Iterator<Item = &str> {
        self.limits.names()
    }

    /// The most that each limit admits at once, and the time in which an empty one is whole again.
    pub fn limit_sizes(&self) -> impl Iterator<Item = (u32, Duration)> {
        let size = |meter: Meter| (meter.quota(), meter.window());
        self.limits.meters().map(move |meter| meter.map(size).unwrap_or_default())
    }

    /// The name of a limit, as written: what logs, metrics and the `RateLimit` fields call it.
    /// Empty when this plan has no such limit.
    pub fn limit_name(&self, limit: u16) -> &str {
        self.limits.name(limit)
    }

    /// Limits that are counted over several gateways: name, rule, and how the store counts them.
    pub fn shared(&self) -> impl Iterator<Item = (Cow<'_, str>, u64, Terms)> {
        let limits = self.limits.shared().map(|(name, rule, terms)| (name.into(), rule, terms));
        let routes = self.routes.iter().zip(self.rules.concurrency());
        limits.chain(routes.filter_map(|(route, rule)| {
            let (rule, terms) = rule?.shared()?;
            Some((format!("route.{}", route.name).into(), rule, terms))
        }))
    }

    /// How one key of a shared limit is counted, as written in the store.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn override_of(&self, field: &str, value: &str) -> Result<Override, String> {
        Override::parse(&self.limits, field, value)
    }

    /// Every rule by which responses are kept: the route's name, and the edition of the rule. Copies
    /// of any other edition are of no use.
    pub fn cache_editions(&self) -> impl Iterator<Item = (&str, u64)> {
        let rule = |route: &Route| route.cache.as_ref().map(|rule| rule.edition);
        self.routes.iter().filter_map(move |route| Some((route.name.as_str(), rule(route)?)))
    }

    /// What each limit promises, for operators.
    pub fn promises(&self) -> impl Iterator<Item = Promise> {
        self.limits.promises(self.proxied)
    }

    /// The same of the requests in progress that routes bound.
    pub fn places(&self) -> impl Iterator<Item = PlacesPromise> {
        let routes = self.routes.iter().zip(self.rules.concurrency());
        routes.filter_map(|(route, rule)| Some(rule?.promise(&route.name)))
    }

    /// The methods that routes take where this request went: for the `Allow` field of a 405. The
    /// one look-up that allocates; it is not on the way of a request that is served.
    pub fn allowed_methods(&self, facts: &Facts<'_>) -> Vec<&str> {
        self.table.methods(facts)
    }
}

/// The same in every process and version of a plan. Names are set apart, so that `a` + `bc` is not
/// `ab` + `c`.
pub(crate) fn stable_hash(names: &[&str]) -> u64 {
    let mut hasher = SipHasher13::new();
    for name in names {
        hasher.write(name.as_bytes());
        hasher.write_u8(0xff);
    }
    hasher.finish()
}
