//! What an operator writes about decisions, before it is checked. The config crate reads it from
//! TOML; `Plan::compile` turns it into what is meant.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::admit::Specs;
use crate::admit::rate_limit::LimitSpec;
use crate::unit::{Network, Span};

/// Everything about decisions, by name. Names are what logs, metrics and the console use.
#[derive(Debug, Default)]
pub struct Draft {
    pub upstreams: Vec<(String, UpstreamSpec)>,
    pub limits: Vec<(String, LimitSpec)>,
    /// Each route with the filters it turns on.
    pub routes: Vec<(String, RouteSpec, Specs)>,
}

/// `[upstream.NAME]`: a service and the servers that offer it.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct UpstreamSpec {
    /// `"host:port"`, or `{ addr = "host:port", weight = 2 }`.
    pub servers: Vec<ServerSpec>,
    /// How requests are spread over the servers.
    #[serde(default)]
    pub balance: Balance,
    /// The most connections a worker holds to one server; a request that finds none free is
    /// answered 503.
    pub connections: Option<u32>,
    /// An idle connection is closed after this long. Keep it below the server's own.
    pub keepalive: Option<Span>,
    #[serde(default)]
    pub timeout: TimeoutSpec,
}

/// One server. Its text form is its address alone, with weight 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerSpec {
    pub addr: String,
    pub weight: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Balance {
    /// One after the other, by weight, evenly interleaved.
    #[default]
    RoundRobin,
    /// The less busy of two picked at random (power of two choices), by weight.
    P2c,
    /// At random, by weight.
    Weighted,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct TimeoutSpec {
    /// Until a connection is made. Default 1s.
    pub connect: Option<Span>,
    /// From the request sent to the response's head. Default: what the route's `timeout` leaves.
    pub first_byte: Option<Span>,
    /// Between two pieces of a body, either way. Default 60s.
    pub idle: Option<Span>,
}

/// `[route.NAME]`: which requests, and what becomes of them. Exactly one of `to`, `redirect` and
/// `respond`.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RouteSpec {
    /// `[METHOD[,METHOD]] [host]/path`. A host may start with `*.`; a path may hold `{name}` (one
    /// segment) and end in `{*rest}` (everything).
    #[serde(rename = "match")]
    pub matches: String,
    /// More that must hold.
    #[serde(rename = "where", default)]
    pub also: WhereSpec,
    /// The upstream, by name.
    pub to: Option<String>,
    pub redirect: Option<RedirectSpec>,
    pub respond: Option<RespondSpec>,
    /// Until the response's head has come, over all tries. Default 10s.
    pub timeout: Option<Span>,
    /// How often a request that was never sent is tried again elsewhere. Default 1.
    pub retries: Option<u8>,
    /// Taken off the front of the path, on a segment boundary.
    pub strip_prefix: Option<String>,
    /// Put in front of the path, after stripping.
    pub add_prefix: Option<String>,
    #[serde(default)]
    pub request_headers: HeaderSpec,
    #[serde(default)]
    pub response_headers: HeaderSpec,
}

/// More that must hold for a route to match. A value of `"*"` means: present.
#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct WhereSpec {
    pub header: BTreeMap<String, String>,
    pub query: BTreeMap<String, String>,
    pub cookie: BTreeMap<String, String>,
    /// Client networks; any one of them.
    pub from: Vec<Network>,
}

#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RedirectSpec {
    /// Where to. `{uri}` at the end stands for the request's path and query.
    pub to: String,
    /// 301, 302, 303, 307 or 308. Default 308.
    pub status: Option<u16>,
}

#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RespondSpec {
    /// Default 200.
    pub status: Option<u16>,
    #[serde(default)]
    pub body: String,
    /// Default `text/plain; charset=utf-8`.
    pub content_type: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct HeaderSpec {
    /// Replaces every field of that name.
    pub set: BTreeMap<String, String>,
    pub remove: Vec<String>,
}
