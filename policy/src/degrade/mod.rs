//! What a client gets when the real thing cannot be had: by cause, what the route's fallback says.
//! And what operators switch by hand ([`Switches`]).

mod switch;

use serde::Deserialize;

pub use self::switch::Switches;
use crate::decision::Answer;
use crate::plan::{Plan, ReplyId, RouteId};

/// Why the real thing cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// A limit is used up.
    Limited,
    /// Too much is in progress here: `concurrency`, or every connection to the server in use.
    Shed,
    /// No server may be asked: all are out, or a breaker is open.
    Open,
    /// The connection failed: refused, reset, broken off, or not HTTP.
    Connect,
    /// No answer in time.
    Timeout,
    /// The server answered with a status from 500 on.
    #[serde(rename = "5xx")]
    Status,
    /// Switched off by an operator.
    Off,
}

impl Cause {
    pub const ALL: [Self; 7] = [
        Self::Limited,
        Self::Shed,
        Self::Open,
        Self::Connect,
        Self::Timeout,
        Self::Status,
        Self::Off,
    ];

    /// As configurations, metrics and drills call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Limited => "limited",
            Self::Shed => "shed",
            Self::Open => "open",
            Self::Connect => "connect",
            Self::Timeout => "timeout",
            Self::Status => "5xx",
            Self::Off => "off",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|cause| cause.name() == name)
    }

    /// The cause of an answer of ours. None: the request itself is to blame.
    pub fn of(answer: &Answer) -> Option<Self> {
        Some(match answer.code {
            "limit.exceeded" | "drill.limited" => Self::Limited,
            "concurrency.exceeded"
            | "upstream.pool_full"
            | "upstream.shed"
            | "shed.lag"
            | "shed.in_flight"
            | "shed.cpu"
            | "shed.load"
            | "drill.shed" => Self::Shed,
            "upstream.none" | "upstream.open" | "drill.open" => Self::Open,
            "upstream.connect" | "upstream.closed" | "upstream.broken" | "upstream.malformed"
            | "upstream.cut" | "drill.connect" => Self::Connect,
            "upstream.connect_timeout"
            | "upstream.timeout"
            | "upstream.stalled"
            | "request.timeout"
            | "drill.timeout" => Self::Timeout,
            "upstream.status" | "drill.5xx" => Self::Status,
            "switch.off" | "switch.survival" | "drill.off" => Self::Off,
            _ => return None,
        })
    }

    /// What a drill answers in its name.
    pub(crate) const fn drill(self) -> Answer {
        match self {
            Self::Limited => Answer::problem(429, "drill.limited"),
            Self::Shed => Answer::problem(503, "drill.shed"),
            Self::Open => Answer::problem(503, "drill.open"),
            Self::Connect => Answer::problem(502, "drill.connect"),
            Self::Timeout => Answer::problem(504, "drill.timeout"),
            Self::Status => Answer::problem(502, "drill.5xx"),
            Self::Off => Answer::problem(503, "drill.off"),
        }
    }
}

/// Where a degraded answer comes from, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// An earlier response of the server.
    Stale,
    /// What the operator wrote.
    Static,
    /// A status and nothing else.
    Empty,
}

impl Source {
    pub const ALL: [Self; 3] = [Self::Stale, Self::Static, Self::Empty];

    /// As the header `x-degraded`, logs and metrics call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stale => "stale",
            Self::Static => "static",
            Self::Empty => "empty",
        }
    }
}

/// `fallback = { body = "{}" }`
#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct FallbackSpec {
    /// For which causes. Default: all but `limited`, so that who asks for too much is told so.
    pub on: Option<Vec<Cause>>,
    /// Default 503.
    pub status: Option<u16>,
    /// What it says. Default: nothing.
    pub body: Option<String>,
    /// The file that holds what it says, by its full path; read at the start and at each reload,
    /// at most 1MiB.
    pub file: Option<String>,
    /// Default `text/plain; charset=utf-8`.
    pub content_type: Option<String>,
}

/// What a route answers instead of failing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fallback {
    on: Causes,
    reply: ReplyId,
    source: Source,
}

impl Fallback {
    pub(crate) fn new(on: Option<&[Cause]>, reply: ReplyId, source: Source) -> Self {
        Self { on: Causes::new(on), reply, source }
    }

    const fn covers(self, cause: Cause) -> bool {
        self.on.cover(cause)
    }
}

/// A set of causes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Causes(u8);

impl Causes {
    /// Unless named, all but `limited`: who asks for too much is told so.
    pub(crate) fn new(named: Option<&[Cause]>) -> Self {
        let bit = |cause: &Cause| 1_u8 << (*cause as u8);
        let bits = match named {
            Some(causes) => causes.iter().fold(0, |on, cause| on | bit(cause)),
            None => Cause::ALL.iter().fold(0, |on, cause| on | bit(cause)) & !bit(&Cause::Limited),
        };
        Self(bits)
    }

    pub(crate) const fn cover(self, cause: Cause) -> bool {
        self.0 & (1 << (cause as u8)) != 0
    }
}

/// Whether the route has something to say instead.
pub(crate) fn covers(plan: &Plan, route: Option<RouteId>, cause: Cause) -> bool {
    let route = route.and_then(|id| plan.route(id));
    route.and_then(|route| route.fallback).is_some_and(|fallback| fallback.covers(cause))
}

/// What is answered instead, where the route says so for this cause.
pub(crate) fn instead(plan: &Plan, route: Option<RouteId>, answer: Answer) -> Answer {
    let fallback = || {
        let cause = Cause::of(&answer)?;
        let fallback = plan.route(route?)?.fallback?;
        let status = plan.reply(fallback.reply)?.status;
        fallback.covers(cause).then_some((status, fallback))
    };
    match fallback() {
        Some((status, Fallback { reply, source, .. })) => {
            Answer { status, reply: Some(reply), degraded: Some(source), ..answer }
        }
        None => answer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drill_has_the_cause_it_is_for() {
        for cause in Cause::ALL {
            assert_eq!(Cause::of(&cause.drill()), Some(cause));
            assert_eq!(Cause::named(cause.name()), Some(cause));
            let json = format!("\"{}\"", cause.name());
            assert_eq!(serde_json::from_str::<Cause>(&json).unwrap(), cause);
        }
        assert_eq!(Cause::of(&Answer::problem(413, "size.body")), None);
    }
}
