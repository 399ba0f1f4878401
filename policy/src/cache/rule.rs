//! `cache = { … }` of a route: as it is written, and what it means.

use core::time::Duration;

use serde::Deserialize;

use crate::admit::key::{Key, PARTS};
use crate::degrade::{Cause, Causes};
use crate::plan::{Problem, stable_hash};
use crate::unit::{ByteSize, Span};

/// `cache = { ttl = "10s", stale = "10min" }`
#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct CacheSpec {
    /// How long a response that says nothing about it answers others, too. What the server says
    /// (`Cache-Control`, `Expires`) goes before. Default: such a response answers nobody else.
    pub ttl: Option<Span>,
    /// For how long after that a copy is served when the real thing cannot be had; never longer
    /// than the server's own `stale-if-error`. Default: not at all.
    pub stale: Option<Span>,
    /// For which causes. Default: all but `limited`, so that who asks for too much is told so.
    pub stale_on: Option<Vec<Cause>>,
    /// What tells copies apart besides host, path, query and what the server's `Vary` names: as in
    /// the `key` of a limit.
    pub key: Vec<String>,
    /// A longer response is not kept. Default 1MiB, at most 1GiB.
    pub max_body: Option<ByteSize>,
}

/// What is kept of a route's responses.
#[derive(Clone, Debug)]
pub(crate) struct Rule {
    pub(crate) ttl: Duration,
    pub(crate) stale: Duration,
    pub(crate) stale_on: Causes,
    pub(crate) key: Key,
    pub(crate) body_bytes_max: u64,
    /// Whatever a copy depends on that stands in the configuration. Copies of another edition are
    /// of no use.
    pub(crate) edition: u64,
}

impl CacheSpec {
    /// `depends`: what else of the route bears on what its server answers.
    pub(crate) fn compile(self, path: &str, depends: &str, problems: &mut Vec<Problem>) -> Rule {
        let written = format!("{self:?}");
        let mut problem = |below: &str, message: String, hint: &str| {
            let hint = Some(hint.to_owned());
            problems.push(Problem { path: format!("{path}{below}"), message, hint });
        };
        for (below, span) in [(".ttl", self.ttl), (".stale", self.stale)] {
            if span.is_some_and(|span| span.0.is_zero()) {
                problem(below, "no time at all".to_owned(), "write more, or leave it out");
            }
        }
        if self.stale_on.as_ref().is_some_and(Vec::is_empty) {
            let hint = "name a cause, or leave `stale` out";
            problem(".stale_on", "it never comes up".to_owned(), hint);
        }
        if self.stale_on.is_some() && self.stale.is_none() {
            let hint = "write for how long, like `stale = \"10min\"`";
            problem(".stale_on", "without `stale` this does nothing".to_owned(), hint);
        }
        let body_bytes_max = self.max_body.map_or(BODY_BYTES_MAX, |size| size.0);
        if !(1..=BODY_BYTES_LIMIT).contains(&body_bytes_max) {
            problem(".max_body", "out of bounds".to_owned(), "write 1B to 1GiB");
        }
        let key = Key::parse(&self.key).unwrap_or_else(|unread| {
            for i in unread {
                let message = format!("{:?} is no part of a key", self.key[i]);
                problem(&format!(".key[{i}]"), message, &format!("the parts are {PARTS}"));
            }
            Key::default()
        });
        let span = |span: Option<Span>| span.map_or(Duration::ZERO, |span| span.0);
        Rule {
            ttl: span(self.ttl),
            stale: span(self.stale),
            stale_on: Causes::new(self.stale_on.as_deref()),
            key,
            body_bytes_max,
            edition: stable_hash(&[path, &written, depends]),
        }
    }
}

impl Rule {
    /// Whether a copy may stand in for this cause.
    pub(crate) fn covers(&self, cause: Cause) -> bool {
        !self.stale.is_zero() && self.stale_on.cover(cause)
    }
}

const BODY_BYTES_MAX: u64 = 1 << 20;
const BODY_BYTES_LIMIT: u64 = 1 << 30;
