//! What the operator meant: compiled, checked, immutable, shared by every worker.

use core::time::Duration;
use std::sync::Arc;

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
    )*};
}

key! {
    /// A hash of the upstream's name and the server as written ("10.0.0.1:9000").
    EndpointKey
    /// A hash of the upstream's name.
    UpstreamKey
    /// A hash of the route's name.
    RouteKey
    /// A hash of what the stored response depends on.
    CacheKey
}

/// Compiled, checked, immutable. `Plan::compile` is the only way to make one.
#[derive(Debug)]
pub struct Plan {
    pub(crate) routes: Vec<Route>,
    pub(crate) upstreams: Vec<Upstream>,
    pub(crate) replies: Vec<Reply>,
}

/// One worker's hold on the shared plan. Flights clone the worker's own `Rc<Pinned>`, so pinning
/// a plan touches no cache line of another core.
#[derive(Debug)]
pub(crate) struct Pinned(pub(crate) Arc<Plan>);

impl core::ops::Deref for Pinned {
    type Target = Plan;

    fn deref(&self) -> &Plan {
        &self.0
    }
}

/// What the engine needs of a route.
#[derive(Debug)]
pub struct Route {
    pub name: String,
    pub key: RouteKey,
    pub rewrite: Rewrite,
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
    /// An idle connection is closed after this long.
    pub keepalive: Duration,
}

#[derive(Debug)]
pub struct Endpoint {
    pub key: EndpointKey,
    /// As written: `host:port`.
    pub address: String,
    pub weight: u32,
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
}

/// One thing wrong with what was written, where, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where, as keys joined by dots and indices in brackets: `route.orders.limits[1]`.
    pub path: String,
    pub message: String,
    pub hint: Option<String>,
}

impl Plan {
    /// Checks everything and reports every problem, not the first.
    pub fn compile(_draft: crate::draft::Draft) -> Result<Self, Vec<Problem>> {
        todo!()
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

    /// The name of a limit, as written: what logs, metrics and the `RateLimit` fields call it.
    pub fn limit_name(&self, _limit: u16) -> &str {
        todo!()
    }
}
