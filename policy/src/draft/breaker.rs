//! `breaker` and `eject`: how they are written, and what they mean.

use core::fmt;
use core::time::Duration;

use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer};

use crate::decision::Failure;
use crate::draft::over::Over;
use crate::mechanism::breaker::{CALLS_MAX, Rule};
use crate::mechanism::window::BUCKETS;
use crate::plan::Problem;
use crate::unit::{BadUnit, Ratio, Span, two_lines};

/// When to stop sending requests to something that fails: a preset, or a table. What a table does
/// not say of `errors`, `slow` and `consecutive` opens nothing; without any of them it is
/// `errors = "50%"`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BreakerSpec {
    pub errors: Option<Ratio>,
    pub slow: Option<Span>,
    pub slow_share: Option<Ratio>,
    pub consecutive: Option<u32>,
    pub over: Option<Over>,
    pub min_requests: Option<u32>,
    pub open_for: Option<Span>,
    pub open_max: Option<Span>,
    pub probes: Option<u8>,
    pub ramp: Option<Span>,
    pub failures: Option<Vec<String>>,
}

/// Whether and how single servers are taken out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EjectSpec {
    Off,
    On {
        breaker: Option<Box<BreakerSpec>>,
        max: Option<Ratio>,
        panic: Option<Ratio>,
        outliers: bool,
    },
}

/// What counts as failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failures {
    connect: bool,
    timeout: bool,
    reset: bool,
    /// A bit for each status from 400 to 599.
    statuses: [u64; 4],
}

impl Failures {
    pub(crate) const NONE: Self =
        Self { connect: false, timeout: false, reset: false, statuses: [0; 4] };

    pub(crate) fn failed(&self, failure: Failure) -> Option<bool> {
        match failure {
            // Our own bound says nothing about the server.
            Failure::PoolFull => None,
            Failure::Connect => Some(self.connect),
            Failure::ConnectTimeout | Failure::TimedOut | Failure::Stalled => Some(self.timeout),
            Failure::Stale | Failure::Broken | Failure::Malformed | Failure::Cut => {
                Some(self.reset)
            }
        }
    }

    /// Whether a response that breaks off counts.
    pub(crate) fn cut(&self) -> bool {
        self.reset
    }

    pub(crate) fn status(&self, status: u16) -> bool {
        let at = usize::from(status.wrapping_sub(400));
        self.statuses.get(at / 64).is_some_and(|word| word >> (at % 64) & 1 == 1)
    }

    /// The first word that means nothing is an error.
    pub(crate) fn read(words: &[String]) -> Result<Self, usize> {
        let mut all = Self::NONE;
        for (i, word) in words.iter().enumerate() {
            match word.as_str() {
                "connect" => all.connect = true,
                "timeout" => all.timeout = true,
                "reset" => all.reset = true,
                "5xx" => (500..600).for_each(|status| all.set(status)),
                number => match number.parse() {
                    Ok(status @ 400..=599) => all.set(status),
                    Ok(_) | Err(_) => return Err(i),
                },
            }
        }
        Ok(all)
    }

    fn set(&mut self, status: u16) {
        let at = usize::from(status - 400);
        self.statuses[at / 64] |= 1 << (at % 64);
    }
}

impl Default for Failures {
    /// Not 501 or 505: they are about the request, not about how the server is.
    fn default() -> Self {
        let mut all = Self { connect: true, timeout: true, reset: true, ..Self::NONE };
        [500, 502, 503, 504].into_iter().for_each(|status| all.set(status));
        all
    }
}

impl BreakerSpec {
    /// 50 % failures, or 50 % slower than 500 ms, of at least 20 calls in 10 s; open 10 s.
    pub(crate) fn standard() -> Self {
        let half = Some(Ratio(500_000));
        let slow = Some(Span(Duration::from_millis(500)));
        Self { errors: half, slow, slow_share: half, ..Self::default() }
    }

    fn preset(name: &str) -> Option<Self> {
        let seconds = |s| Some(Span(Duration::from_secs(s)));
        match name {
            "default" => Some(Self::standard()),
            "classic" => Some(Self {
                consecutive: Some(5),
                open_for: seconds(30),
                probes: Some(2),
                ..Self::default()
            }),
            "node" => Some(Self {
                errors: Some(Ratio(150_000)),
                over: Some(Over::Time(Span(Duration::from_secs(10)))),
                open_for: seconds(30),
                ..Self::default()
            }),
            _ => None,
        }
    }

    pub(crate) fn compile(&self, path: &str, problems: &mut Vec<Problem>) -> (Rule, Failures) {
        let mut problem = |key: &str, message: String, hint: &str| {
            let path = format!("{path}.{key}");
            problems.push(Problem { path, message, hint: Some(hint.to_owned()) });
        };
        for (key, ratio) in [("errors", self.errors), ("slow_share", self.slow_share)] {
            if ratio.is_some_and(|ratio| ratio.0 == 0 || ratio.0 > 1_000_000) {
                problem(key, "no share to open at".to_owned(), "from above 0% to 100%");
            }
        }
        for (key, span) in [
            ("slow", self.slow),
            ("over", self.over.and_then(Over::time)),
            ("open_for", self.open_for),
            ("open_max", self.open_max),
            ("ramp", self.ramp),
        ] {
            let bad = |span: Span| span.0 < Duration::from_millis(10) || span.0 > SPAN_MAX;
            if let Some(span) = span.filter(|span| bad(*span)) {
                problem(key, format!("{span} is out of bounds"), "from 10ms to 1h");
            }
        }
        if let Some(calls) = self.over.and_then(Over::calls) {
            if !(CALLS_MIN..=CALLS_MAX).contains(&calls) {
                let hint = format!("from {CALLS_MIN} to {CALLS_MAX} requests");
                problem("over", format!("{calls} requests are out of bounds"), &hint);
            }
            if self.min_requests.is_some_and(|least| least > calls) {
                let message = format!("there are never more than {calls}");
                problem("min_requests", message, "at most as many as `over` says");
            }
        }
        if self.slow_share.is_some() && self.slow.is_none() {
            let hint = "say from when on a call is slow, like `slow = \"500ms\"`";
            problem("slow_share", "a share of nothing".to_owned(), hint);
        }
        if self.consecutive == Some(0) {
            problem("consecutive", "no failure at all".to_owned(), "at least 1");
        }
        if self.probes.is_some_and(|probes| !(1..=PROBES_MAX).contains(&probes)) {
            problem("probes", "out of bounds".to_owned(), "from 1 to 63");
        }
        let failures = match self.failures.as_deref().map(Failures::read) {
            None => Failures::default(),
            Some(Ok(failures)) => failures,
            Some(Err(i)) => {
                let hint = "connect, timeout, reset, 5xx, or a status from 400 to 599";
                problem(&format!("failures[{i}]"), "not a kind of failure".to_owned(), hint);
                Failures::default()
            }
        };
        (self.rule(), failures)
    }

    fn rule(&self) -> Rule {
        let span = |written: Option<Span>, default| written.map_or(default, |span| span.0);
        let any = self.errors.is_some() || self.slow.is_some() || self.consecutive.is_some();
        let half = Ratio(500_000);
        let open = span(self.open_for, Duration::from_secs(10));
        let calls = self.over.and_then(Over::calls);
        Rule {
            errors: if any { self.errors } else { Some(half) },
            slow: self.slow.map(|slow| (slow.0, self.slow_share.unwrap_or(half))),
            consecutive: self.consecutive,
            requests_min: self.min_requests.unwrap_or_else(|| 20.min(calls.unwrap_or(20))).max(1),
            bucket: span(self.over.and_then(Over::time), Duration::from_secs(10)) / BUCKETS,
            calls,
            open,
            open_max: span(self.open_max, Duration::from_secs(300)).max(open),
            probes: self.probes.unwrap_or(10),
            ramp: span(self.ramp, Duration::from_secs(5)),
            #[cfg(any(test, feature = "sim"))]
            mutant: None,
        }
    }
}

const PROBES_MAX: u8 = 63;
const CALLS_MIN: u32 = 5;
const SPAN_MAX: Duration = Duration::from_secs(3600);
const PRESETS: &str = "the presets are \"default\", \"classic\" and \"node\"";

impl<'de> Deserialize<'de> for BreakerSpec {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(BreakerVisitor)
    }
}

struct BreakerVisitor;

impl<'de> Visitor<'de> for BreakerVisitor {
    type Value = BreakerSpec;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a preset, or a table")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<BreakerSpec, E> {
        BreakerSpec::preset(text).ok_or_else(|| {
            two_lines(BadUnit::new(format!("there is no breaker called {text:?}"), PRESETS))
        })
    }

    fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<BreakerSpec, A::Error> {
        let table = BreakerTable::deserialize(MapAccessDeserializer::new(map))?;
        Ok(table.spec())
    }
}

/// When to stop sending requests, and how to come back. Judged over all workers.
#[derive(Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
struct BreakerTable {
    /// Open when this share of the calls fails.
    errors: Option<Ratio>,
    /// From when on a call is slow, even a good one: until the response's head has come, or all
    /// of a response that is held (`retries.hold`). Calls with a body of unknown length, or of
    /// more than 64 KiB, are not judged by their time.
    slow: Option<Span>,
    /// Open when this share of the calls is slow. Default 50%.
    slow_share: Option<Ratio>,
    /// Open after so many failures in a row.
    consecutive: Option<u32>,
    /// How far is looked back: a time, or the last so many calls, like `"100 requests"`. Default
    /// 10s.
    over: Option<Over>,
    /// The shares mean nothing below so many calls. Default 20.
    min_requests: Option<u32>,
    /// How long it stays open the first time; twice as long each time after, until it was well
    /// for a minute or as long as it was open last. Default 10s.
    open_for: Option<Span>,
    /// The longest it stays open. Default 5min.
    open_max: Option<Span>,
    /// After that, so many requests of the whole node are let through to see; all must go well.
    /// Default 10, at most 63.
    probes: Option<u8>,
    /// Then 10, 25, 50 and 100% of the requests are let through, each for this long. Default 5s.
    ramp: Option<Span>,
    /// What counts as failed: `"connect"`, `"timeout"`, `"reset"`, `"5xx"`, or a status like
    /// `"429"`. Default: connect, timeout, reset, 500, 502, 503 and 504.
    failures: Option<Vec<String>>,
}

impl BreakerTable {
    fn spec(self) -> BreakerSpec {
        let Self { errors, slow, slow_share, consecutive, over, min_requests, .. } = self;
        let Self { open_for, open_max, probes, ramp, failures, .. } = self;
        BreakerSpec {
            errors,
            slow,
            slow_share,
            consecutive,
            over,
            min_requests,
            open_for,
            open_max,
            probes,
            ramp,
            failures,
        }
    }
}

impl<'de> Deserialize<'de> for EjectSpec {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(EjectVisitor)
    }
}

struct EjectVisitor;

impl<'de> Visitor<'de> for EjectVisitor {
    type Value = EjectSpec;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"on\", \"off\", or a table")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<EjectSpec, E> {
        match text {
            "on" => Ok(EjectSpec::On { breaker: None, max: None, panic: None, outliers: false }),
            "off" => Ok(EjectSpec::Off),
            _ => {
                let message = format!("{text:?} is not a way to take servers out");
                Err(two_lines(BadUnit::new(message, "write \"on\", \"off\" or a table")))
            }
        }
    }

    fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<EjectSpec, A::Error> {
        let EjectTable { breaker, max, panic, outliers } =
            EjectTable::deserialize(MapAccessDeserializer::new(map))?;
        Ok(EjectSpec::On { breaker: breaker.map(Box::new), max, panic, outliers })
    }
}

/// Single servers that fail are taken out for a while, each with a breaker of its own.
#[derive(Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
struct EjectTable {
    /// When a server is taken out, and how it comes back: as in the upstream's `breaker`, which is
    /// also the default; without one, `"default"`.
    breaker: Option<BreakerSpec>,
    /// The most of the servers that are out at once, but always at least one. Default 50%.
    max: Option<Ratio>,
    /// When less than this share is left, nobody knows any better, and all get requests again.
    /// Default 50%; 0% is never.
    panic: Option<Ratio>,
    /// Whether a server is also taken out when it fails far oftener than the others: among five or
    /// more with 100 calls each in `over`, below the mean less 1.9 standard deviations, and at
    /// least 5% below it. Default false.
    #[serde(default)]
    outliers: bool,
}

#[cfg(feature = "schema")]
mod schema {
    use std::borrow::Cow;

    use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

    use super::{BreakerSpec, BreakerTable, EjectSpec, EjectTable};

    impl JsonSchema for BreakerSpec {
        fn schema_name() -> Cow<'static, str> {
            "Breaker".into()
        }

        fn json_schema(generator: &mut SchemaGenerator) -> Schema {
            let table = generator.subschema_for::<BreakerTable>();
            let presets = ["default", "classic", "node"];
            json_schema!({ "anyOf": [{ "type": "string", "enum": presets }, table] })
        }
    }

    impl JsonSchema for EjectSpec {
        fn schema_name() -> Cow<'static, str> {
            "Eject".into()
        }

        fn json_schema(generator: &mut SchemaGenerator) -> Schema {
            let table = generator.subschema_for::<EjectTable>();
            json_schema!({ "anyOf": [{ "type": "string", "enum": ["on", "off"] }, table] })
        }
    }
}
