//! What an operator writes about decisions, before it is checked. The config crate reads it from
//! TOML; `Plan::compile` turns it into what is meant.

pub mod balance;
pub mod breaker;
pub mod over;
pub mod retry;

use core::fmt;
use core::str::FromStr;
use std::collections::BTreeMap;

use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer};

use crate::admit::Specs;
use crate::admit::rate_limit::LimitSpec;
use crate::cache::CacheSpec;
use crate::degrade::FallbackSpec;
use crate::draft::balance::BalanceSpec;
use crate::draft::breaker::{BreakerSpec, EjectSpec};
use crate::draft::retry::RetrySpec;
use crate::health::HealthSpec;
use crate::shed::Priority;
use crate::shed::adaptive::AdaptiveSpec;
use crate::shed::spec::ShedSpec;
use crate::unit::{BadUnit, Network, Span, two_lines};

/// Everything about decisions, by name. Names are what logs, metrics and the console use.
#[derive(Debug, Default)]
pub struct Draft {
    pub upstreams: Vec<(String, UpstreamSpec)>,
    pub limits: Vec<(String, LimitSpec)>,
    /// The limits of tenants, on every route that names none itself.
    pub tenants: Vec<(String, Vec<String>)>,
    /// Each route with the filters it turns on.
    pub routes: Vec<(String, RouteSpec, Specs)>,
    /// How many gateways share the store of counts; None: there is no store.
    pub nodes: Option<u32>,
    /// Something stands before that store that hides when it restarts.
    pub proxied: bool,
    /// The node's own bounds.
    pub shed: ShedSpec,
    /// The zone that this gateway is in.
    pub zone: Option<String>,
}

/// `[upstream.NAME]`: a service and the servers that offer it.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct UpstreamSpec {
    /// At least one: `"host:port"`, or `{ addr = "host:port", weight = 2, labels = { zone = "a" } }`.
    pub servers: Vec<ServerSpec>,
    /// How requests are spread over the servers: a word, or a table that says more, like
    /// `{ kind = "hash", key = ["cookie:sid|ip"] }`. Default `round_robin`.
    #[serde(default)]
    pub balance: BalanceSpec,
    /// Whether servers with the label `zone` of the gateway's own `server.zone` are preferred, for
    /// as long as enough of them are well. Default true.
    #[serde(default = "yes")]
    pub prefer_zone: bool,
    /// The most connections a worker holds to one server; a request that finds none free is
    /// answered 503. Default 64.
    pub connections: Option<u32>,
    /// Let a few requests wait for a connection instead, first come, first served. Default: none.
    pub queue: Option<QueueSpec>,
    /// An idle connection is closed after this long. Keep it below the server's own. Default 30s.
    pub keepalive: Option<Span>,
    /// How long to wait for a server.
    #[serde(default)]
    pub timeout: TimeoutSpec,
    /// When to stop sending requests to it, for a while: `"default"` (50% failed or slower than
    /// 500ms, of at least 20 in 10s; open 10s), `"classic"` (5 failures in a row; open 30s; 2
    /// probes), `"node"` (15% failed in 10s; open 30s), or a table. Default: never.
    pub breaker: Option<BreakerSpec>,
    /// Whether single servers that fail are taken out: `"on"`, `"off"`, or a table. Default:
    /// `"on"` where there is a `breaker`.
    pub eject: Option<EjectSpec>,
    /// How many requests of this node may be under way to it at once, learnt from how long answers
    /// take: `"on"`, `"off"`, or a table. What is over it is answered 503. Default `"off"`.
    pub adaptive: Option<AdaptiveSpec>,
    /// What is known of the servers. Changes nothing: `sluice check` compares it with the rest.
    pub backend: Option<BackendSpec>,
    /// Ask the servers how they are, and send nothing to those that are not well.
    pub health: Option<HealthSpec>,
}

/// What is known of the servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct BackendSpec {
    /// After how long a server gives up a request.
    pub timeout: Option<Span>,
    /// How many requests one server works on at once.
    pub workers: Option<u32>,
}

/// Requests that find every connection in use and wait for one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct QueueSpec {
    /// The most that wait, for each worker and server. Default 16.
    pub max: Option<u32>,
    /// How long they wait before they are answered 503. Default 50ms.
    pub wait: Option<Span>,
}

/// One server. Its text form is its address alone, with weight 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerSpec {
    pub addr: String,
    pub weight: u32,
    pub labels: BTreeMap<String, String>,
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
    /// segment) and end in `{*rest}` (whatever follows, also nothing: `/a/{*rest}` takes `/a`).
    #[serde(rename = "match")]
    pub matches: String,
    /// More that must hold.
    #[serde(rename = "where", default)]
    pub also: WhereSpec,
    /// The upstream, by name.
    pub to: Option<String>,
    /// Send the client elsewhere.
    pub redirect: Option<RedirectSpec>,
    /// Answer with this.
    pub respond: Option<RespondSpec>,
    /// Until the response's head has come, over all tries. Default 10s.
    pub timeout: Option<Span>,
    /// How long clients wait before they give up, as far as is known. Changes nothing: `sluice check`
    /// compares it with the rest.
    pub client_timeout: Option<Span>,
    /// How often a request that was never sent is tried again elsewhere, or a table that also says
    /// what else is tried again. Default 1, at most 8.
    pub retries: Option<RetrySpec>,
    /// Taken off the front of the path, on a segment boundary.
    pub strip_prefix: Option<String>,
    /// Put in front of the path, after stripping.
    pub add_prefix: Option<String>,
    /// What is answered instead of failing.
    pub fallback: Option<FallbackSpec>,
    /// Keep responses, to answer others with them and to serve them when the server fails.
    pub cache: Option<CacheSpec>,
    /// A name by which operators switch this route off, together with all others of that name.
    pub group: Option<String>,
    /// It lives on in survival mode, when only what is vital does.
    #[serde(default)]
    pub vital: bool,
    /// What is given up last, and first, when there is too much: `critical`, `high`, `normal` or
    /// `low`. Default `normal`.
    #[serde(default)]
    pub priority: Priority,
    /// What is changed in the header fields that a server sees.
    #[serde(default)]
    pub request_headers: HeaderSpec,
    /// What is changed in the header fields that a client sees.
    #[serde(default)]
    pub response_headers: HeaderSpec,
}

/// More that must hold for a route to match. A value of `"*"` means: present.
#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct WhereSpec {
    /// Header fields, by name.
    pub header: BTreeMap<String, String>,
    /// Query parameters, by name.
    pub query: BTreeMap<String, String>,
    /// Cookies, by name.
    pub cookie: BTreeMap<String, String>,
    /// Client networks; any one of them.
    pub from: Vec<Network>,
}

/// A reply that sends the client elsewhere.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RedirectSpec {
    /// Where to. `{uri}` at the end stands for the request's path and query.
    pub to: String,
    /// 301, 302, 303, 307 or 308. Default 308.
    pub status: Option<u16>,
}

/// A reply of fixed text.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RespondSpec {
    /// Default 200.
    pub status: Option<u16>,
    /// What it says. Default: nothing.
    #[serde(default)]
    pub body: String,
    /// Default `text/plain; charset=utf-8`.
    pub content_type: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct HeaderSpec {
    /// Replaces every field of that name, also one that the gateway writes itself.
    pub set: BTreeMap<String, String>,
    /// Names of fields to take off. `host` of a request can only be replaced.
    pub remove: Vec<String>,
}

const fn yes() -> bool {
    true
}

impl FromStr for ServerSpec {
    type Err = BadUnit;

    /// `host:port`; an IPv6 address stands in brackets.
    fn from_str(text: &str) -> Result<Self, BadUnit> {
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) if host.starts_with('[') == host.ends_with(']') => (host, port),
            Some(_) | None => (text, ""),
        };
        if port.is_empty() {
            let host = host.trim_end_matches(':');
            let hint = format!("write the port that the server listens on, like \"{host}:8080\"");
            return Err(BadUnit::new(format!("{text:?} has no port"), hint));
        }
        let form = "write \"host:port\", like \"10.0.0.11:9000\" or \"[2001:db8::1]:9000\"";
        let bad = |what: &str| Err(BadUnit::new(format!("{text:?} {what}"), form));
        if !port.bytes().all(|b| b.is_ascii_digit()) || !port.parse().is_ok_and(|p: u16| p > 0) {
            return bad("has no port between 1 and 65535");
        }
        match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
            Some(inner) if inner.parse::<core::net::Ipv6Addr>().is_err() => {
                return bad("has no IPv6 address in its brackets");
            }
            Some(_) => {}
            None if host.contains(':') => return bad("has an IPv6 address without brackets"),
            None if host.is_empty() => return bad("has no host"),
            None if host.contains(|c: char| !c.is_ascii_alphanumeric() && !"-._".contains(c)) => {
                return bad("has a host that is neither an address nor a name");
            }
            None => {}
        }
        Ok(Self { addr: text.to_owned(), weight: 1, labels: BTreeMap::new() })
    }
}

impl<'de> Deserialize<'de> for ServerSpec {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(ServerVisitor)
    }
}

struct ServerVisitor;

impl<'de> Visitor<'de> for ServerVisitor {
    type Value = ServerSpec;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"host:port\" or a table with addr and weight")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<ServerSpec, E> {
        text.parse().map_err(two_lines)
    }

    fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<ServerSpec, A::Error> {
        let table = ServerTable::deserialize(MapAccessDeserializer::new(map))?;
        Ok(ServerSpec { weight: table.weight.0, labels: table.labels, ..table.addr.0 })
    }
}

/// A server that says more than its address.
#[derive(Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
struct ServerTable {
    /// `host:port`; an IPv6 address stands in brackets.
    addr: Address,
    /// Its share of the requests, relative to the other servers. Default 1.
    #[serde(default)]
    weight: Weight,
    /// What sets it apart from the others, like `{ zone = "a" }`: up to 16 names of lower case
    /// letters, digits, `-` and `_`, with texts of up to 64 characters.
    #[serde(default)]
    labels: BTreeMap<String, String>,
}

struct Address(ServerSpec);

impl<'de> Deserialize<'de> for Address {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map(Self).map_err(two_lines)
    }
}

struct Weight(u32);

impl Default for Weight {
    fn default() -> Self {
        Self(1)
    }
}

impl<'de> Deserialize<'de> for Weight {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        match u32::deserialize(from)? {
            weight @ 1..=WEIGHT_MAX => Ok(Self(weight)),
            weight => Err(two_lines(BadUnit::new(
                format!("a weight of {weight} is out of bounds"),
                format!("a weight is between 1 and {WEIGHT_MAX}; to rest a server, leave it out"),
            ))),
        }
    }
}

/// Keeps sums over an upstream's servers far from overflow.
const WEIGHT_MAX: u32 = 1000;

#[cfg(feature = "schema")]
mod schema {
    use std::borrow::Cow;

    use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

    use super::{Address, ServerSpec, ServerTable, WEIGHT_MAX, Weight};

    impl JsonSchema for ServerSpec {
        fn schema_name() -> Cow<'static, str> {
            "Server".into()
        }

        fn json_schema(generator: &mut SchemaGenerator) -> Schema {
            let table = generator.subschema_for::<ServerTable>();
            json_schema!({ "anyOf": [Address::json_schema(generator), table] })
        }
    }

    impl JsonSchema for Address {
        fn inline_schema() -> bool {
            true
        }

        fn schema_name() -> Cow<'static, str> {
            "Address".into()
        }

        fn json_schema(_: &mut SchemaGenerator) -> Schema {
            json_schema!({
                "type": "string",
                "pattern": r"^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}$",
                "examples": ["10.0.0.11:9000", "orders.internal:80", "[2001:db8::1]:9000"],
            })
        }
    }

    impl JsonSchema for Weight {
        fn inline_schema() -> bool {
            true
        }

        fn schema_name() -> Cow<'static, str> {
            "Weight".into()
        }

        fn json_schema(_: &mut SchemaGenerator) -> Schema {
            json_schema!({ "type": "integer", "minimum": 1, "maximum": WEIGHT_MAX })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_a_host_and_a_port() {
        for (text, problem) in [
            ("10.0.0.11:9000", None),
            ("orders.internal:80", None),
            ("[2001:db8::1]:9000", None),
            ("10.0.0.12", Some("has no port")),
            ("orders:", Some("has no port")),
            ("[::1]", Some("has no port")),
            (":80", Some("has no host")),
            ("orders:http", Some("has no port between 1 and 65535")),
            ("orders:0", Some("has no port between 1 and 65535")),
            ("orders:+80", Some("has no port between 1 and 65535")),
            ("orders:65536", Some("has no port between 1 and 65535")),
            ("2001:db8::1:9000", Some("has an IPv6 address without brackets")),
            ("[orders]:80", Some("has no IPv6 address in its brackets")),
            ("http://orders:80", Some("has an IPv6 address without brackets")),
            ("orders/x:80", Some("has a host that is neither an address nor a name")),
        ] {
            let found = text.parse::<ServerSpec>().err().map(|bad| bad.message);
            assert_eq!(found, problem.map(|what| format!("{text:?} {what}")));
        }
    }

    #[test]
    fn a_server_may_be_a_table_with_a_weight() {
        for (json, expected) in [
            (r#""a:1""#, Ok(1)),
            (r#"{"addr":"a:1"}"#, Ok(1)),
            (r#"{"addr":"a:1","weight":7}"#, Ok(7)),
            (r#"{"addr":"a:1","weight":0}"#, Err("a weight of 0 is out of bounds")),
            (r#"{"addr":"a"}"#, Err("\"a\" has no port")),
            (r#"{"weight":1}"#, Err("missing field `addr`")),
        ] {
            let found = serde_json::from_str::<ServerSpec>(json).map(|server| server.weight);
            match (found, expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{json}"),
                (Err(found), Err(start)) => {
                    assert!(found.to_string().starts_with(start), "{found}")
                }
                (found, expected) => panic!("{json}: {found:?} instead of {expected:?}"),
            }
        }
    }
}
