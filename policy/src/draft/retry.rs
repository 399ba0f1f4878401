//! `retries`: how it is written, and what it means.

use core::fmt;
use core::time::Duration;

use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer};

use crate::decision::Failure;
use crate::draft::breaker::Failures;
use crate::flight::Tries;
use crate::plan::Problem;
use crate::unit::{ByteSize, Ratio, Span};

/// How often a request is tried again: a number, for what was never sent; or a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RetrySpec {
    pub max: Option<u8>,
    /// None: nothing but what was never sent.
    pub on: Option<Vec<String>>,
    pub budget: Option<Ratio>,
    pub per_try: Option<Span>,
    pub body: Option<ByteSize>,
    pub hold: Option<ByteSize>,
    pub hedge: bool,
}

/// What a route does about failed attempts.
#[derive(Clone, Debug)]
pub(crate) struct Retry {
    pub(crate) max: u8,
    /// What is tried again although it was sent, when it may be.
    pub(crate) on: Failures,
    /// The most that such retries may be of the requests, beyond a few a second.
    pub(crate) budget: Ratio,
    /// How long one attempt may take to bring a head, or all of what is held.
    pub(crate) per_try: Option<Duration>,
    /// The longest body that is kept to be sent again.
    pub(crate) body: u32,
    /// The longest response that is held until it is whole.
    pub(crate) hold: u32,
    /// What takes long is sent to a second server as well.
    pub(crate) hedge: bool,
}

impl Retry {
    /// Whether an attempt that broke off or took too long is ever followed by another.
    pub(crate) fn repeats(&self) -> bool {
        let asked = |failure| self.on.failed(failure) == Some(true);
        self.max > 0 && (asked(Failure::Cut) || asked(Failure::Stalled))
    }

    /// The most bytes of a body that are kept; 0 when nothing that was sent is tried again.
    pub(crate) fn keep(&self) -> u32 {
        if self.max > 0 && self.on != Failures::NONE { self.body } else { 0 }
    }

    /// How long to wait before the retry of that number, at most: any time up to that, by dice,
    /// so that retries of many requests do not come together.
    pub(crate) fn backoff(number: u8) -> Duration {
        let doubled = BACKOFF.saturating_mul(1 << number.saturating_sub(1).min(8));
        doubled.min(BACKOFF_MAX)
    }
}

impl RetrySpec {
    pub(crate) fn compile(self, path: &str, problems: &mut Vec<Problem>) -> Retry {
        let mut problem = |path: String, message: String, hint: &str| {
            problems.push(Problem { path, message, hint: Some(hint.to_owned()) });
        };
        let max = self.max.unwrap_or(RETRIES);
        if usize::from(max) > Tries::FAILED_MAX {
            let hint = format!("at most {}", Tries::FAILED_MAX);
            problem(path.to_owned(), format!("{max} retries"), &hint);
        }
        if self.per_try.is_some_and(|span| span.0.is_zero()) {
            let hint = "write more than zero, or leave it out";
            problem(format!("{path}.per_try"), "no time at all".to_owned(), hint);
        }
        let on = self.on.unwrap_or_default();
        let on = Failures::read(&on).unwrap_or_else(|i| {
            let hint = "connect, timeout, reset, 5xx, or a status from 400 to 599";
            problem(format!("{path}.on[{i}]"), "not a kind of failure".to_owned(), hint);
            Failures::NONE
        });
        let mut bytes = |key: &str, written: Option<ByteSize>, default: u64, message: &str| {
            let bytes = written.map_or(default, |bytes| bytes.0);
            let within = u32::try_from(bytes).ok().filter(|bytes| u64::from(*bytes) <= KEPT_MAX);
            if within.is_none() {
                let hint = "write at most 64KiB";
                problem(format!("{path}.{key}"), message.to_owned(), hint);
            }
            within.unwrap_or(0)
        };
        let body = bytes("body", self.body, BODY, "too much to be kept");
        let hold = bytes("hold", self.hold, HOLD, "too much to be held");
        let (budget, hedge) = (self.budget.unwrap_or(BUDGET), self.hedge);
        Retry { max, on, budget, per_try: self.per_try.map(|span| span.0), body, hold, hedge }
    }
}

/// The most of a request, and of a response, that one request may have kept.
const KEPT_MAX: u64 = 64 << 10;
const BODY: u64 = KEPT_MAX;
const HOLD: u64 = 16 << 10;
const RETRIES: u8 = 1;
const BUDGET: Ratio = Ratio(200_000);
/// Besides the budget, so that a service that is little asked can retry, too.
pub(crate) const BUDGET_FLOOR: u64 = 10;
const BACKOFF: Duration = Duration::from_millis(25);
const BACKOFF_MAX: Duration = Duration::from_millis(250);

impl<'de> Deserialize<'de> for RetrySpec {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(RetryVisitor)
    }
}

struct RetryVisitor;

impl<'de> Visitor<'de> for RetryVisitor {
    type Value = RetrySpec;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number or a table")
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<RetrySpec, E> {
        let max = u8::try_from(number).map_err(|_| E::custom("a number from 0 to 8 is wanted"))?;
        Ok(RetrySpec { max: Some(max), ..RetrySpec::default() })
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<RetrySpec, E> {
        self.visit_i64(i64::try_from(number).unwrap_or(i64::MAX))
    }

    fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<RetrySpec, A::Error> {
        let RetryTable { max, on, budget, per_try, body, hold, hedge } =
            RetryTable::deserialize(MapAccessDeserializer::new(map))?;
        let default = || ["reset", "502", "503", "504"].map(str::to_owned).to_vec();
        let on = Some(on.unwrap_or_else(default));
        Ok(RetrySpec { max, on, budget, per_try, body, hold, hedge })
    }
}

/// What is tried again, and how often.
#[derive(Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
struct RetryTable {
    /// How often one request is tried again. Default 1, at most 8.
    max: Option<u8>,
    /// Besides what was never sent: `"timeout"`, `"reset"`, `"5xx"`, or a status like `"503"`.
    /// Only GET, HEAD, OPTIONS, TRACE, PUT and DELETE. Default: reset, 502, 503 and 504.
    on: Option<Vec<String>>,
    /// The most that retries of what was sent may be of the requests to the upstream, over 10 s
    /// and all workers; 10 a second are always free. Default 20%.
    budget: Option<Ratio>,
    /// How long one attempt may take until the response's head, or all of a response that is held.
    /// Default: what is left of the route's `timeout`.
    per_try: Option<Span>,
    /// The longest body that is kept while it is sent, so that it can be sent again. At most, and
    /// by default, 64KiB.
    body: Option<ByteSize>,
    /// Responses of up to so many bytes, of a stated length and to what may be tried again, are
    /// passed on when they are whole: one that breaks off is a failed attempt, and clients see
    /// nothing of it. At most 64KiB; `"0B"` holds none. Default 16KiB.
    hold: Option<ByteSize>,
    /// Send a GET or HEAD that takes longer than 95% of the route's do to a second server as well,
    /// and take the answer that comes first. At most 5% of the requests, within `budget`.
    #[serde(default)]
    hedge: bool,
}

#[cfg(feature = "schema")]
mod schema {
    use std::borrow::Cow;

    use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

    use super::{RetrySpec, RetryTable};

    impl JsonSchema for RetrySpec {
        fn schema_name() -> Cow<'static, str> {
            "Retries".into()
        }

        fn json_schema(generator: &mut SchemaGenerator) -> Schema {
            let table = generator.subschema_for::<RetryTable>();
            json_schema!({ "anyOf": [{ "type": "integer", "minimum": 0, "maximum": 8 }, table] })
        }
    }
}
