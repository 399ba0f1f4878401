//! `[limit.NAME]`: what an operator writes about a limit, and what it means.

use core::fmt;
use core::time::Duration;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer};

use super::Ask;
use super::key::{Key, PARTS};
use super::shared::{Lost, Shared, StoreName};
use crate::facts::Headers;
use crate::mechanism::calendar::Period;
use crate::mechanism::fixed::Fixed;
use crate::mechanism::gcra::Gcra;
use crate::mechanism::meter::Meter;
use crate::mechanism::sliding::Sliding;
use crate::plan::{Problem, stable_hash};
use crate::route::pattern::token_byte;
use crate::unit::{BadUnit, Rate, Span, two_lines};

/// Longer than any client waits for an answer.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// A month, as a rate writes it.
pub(crate) const MONTH: Duration = Duration::from_secs(30 * 86_400);

/// `[limit.NAME]`: how much is let through, for each key.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct LimitSpec {
    /// How it counts. Default `bucket`.
    #[serde(default)]
    pub kind: Kind,
    /// What is counted apart: `ip`, `api_key` (the field X-Api-Key), `header:NAME`, `route`,
    /// `path`, `method`, in any mix; `user|ip` is the user or else the address. Default: `ip`,
    /// which is one IPv4 address or one IPv6 /64; `ip/24` counts by /24, and by /48 of IPv6.
    #[serde(default)]
    pub key: Vec<String>,
    /// How much in how long: how fast a bucket fills or leaks, what a window admits.
    pub rate: Rate,
    /// How much a bucket holds, and so how many requests may come at once. Default: the rate's
    /// number.
    #[serde(default)]
    pub burst: Option<u32>,
    /// The longest that a leaky bucket keeps a request waiting for its turn. At most 60s.
    #[serde(default)]
    pub max_wait: Option<Span>,
    /// What one request takes: a number, or `header:NAME` for the number in that field (1 where
    /// it has none, and never more than the limit); `response:NAME` takes 1, and the rest of what
    /// that field of the response says when it comes, into debt if need be. Default 1.
    #[serde(default)]
    pub cost: Option<CostSpec>,
    /// Count and report, but refuse nobody.
    #[serde(default)]
    pub shadow: bool,
    /// Also limit every route that has no `limits` of its own.
    #[serde(default)]
    pub default: bool,
    /// Where it is counted: `redis` is over all gateways that share the Redis of `[store.redis]`;
    /// only a `bucket` can be. Default: in this process.
    #[serde(default)]
    pub store: Option<StoreName>,
    /// What to do while the store can't be asked: `open` lets everything through, `closed` refuses
    /// everything, `local` counts this gateway's share (the rate divided by `store.redis.nodes`).
    /// Default `local`.
    #[serde(default)]
    pub lost: Option<Lost>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A token bucket: a burst, then the rate.
    #[default]
    Bucket,
    /// At most so many in any window of that length, wherever it begins.
    Sliding,
    /// At most so many in each window; windows follow each other by the node's clock.
    Fixed,
    /// One after the other at the rate; who comes too early waits, at most `max_wait`.
    Leaky,
    /// At most so many in each hour, day or month of the calendar, in UTC.
    Quota,
}

/// A number, or the field that has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CostSpec {
    Fixed(u32),
    /// Lower case.
    Header(String),
    /// Of the response: 1 is taken at first. Lower case.
    Response(String),
}

/// What a limit means.
#[derive(Debug)]
pub(crate) struct Meaning {
    /// A hash of the limit's name: part of every key, so that limits never share a count.
    pub(crate) rule: u64,
    pub(crate) key: Key,
    pub(crate) meter: Meter,
    pub(crate) shadow: bool,
    /// Counted over several gateways.
    pub(super) shared: Option<Shared>,
    cost: CostSpec,
}

impl CostSpec {
    const fn follows(&self) -> bool {
        match self {
            Self::Response(_) => true,
            Self::Fixed(_) | Self::Header(_) => false,
        }
    }
}

impl Kind {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bucket => "bucket",
            Self::Sliding => "sliding",
            Self::Fixed => "fixed",
            Self::Leaky => "leaky",
            Self::Quota => "quota",
        }
    }
}

impl LimitSpec {
    /// A bucket with every default.
    pub fn bucket(rate: Rate) -> Self {
        Self {
            kind: Kind::Bucket,
            key: Vec::new(),
            rate,
            burst: None,
            max_wait: None,
            cost: None,
            shadow: false,
            default: false,
            store: None,
            lost: None,
        }
    }
}

impl Meaning {
    pub(crate) fn compile(
        name: &str,
        spec: &LimitSpec,
        nodes: Option<u32>,
        problems: &mut Vec<Problem>,
    ) -> Option<Self> {
        let found = problems.len();
        let shared = Shared::compile(spec, nodes, &format!("limit.{name}"), problems);
        let mut problem = |below: &str, message: String, hint: &str| {
            let path = format!("limit.{name}{below}");
            problems.push(Problem { path, message, hint: Some(hint.to_owned()) });
        };
        let default = ["ip".to_owned()];
        let texts = if spec.key.is_empty() { &default[..] } else { &spec.key };
        let key = Key::parse(texts).unwrap_or_else(|unread| {
            for i in unread {
                problem(&format!(".key[{i}]"), format!("nothing is called `{}`", texts[i]), PARTS);
            }
            Key::default()
        });
        combination(spec, &mut problem);
        let meter = meter(spec, &mut problem);
        let cost = spec.cost.clone().unwrap_or(CostSpec::Fixed(1));
        if let CostSpec::Fixed(cost) = cost {
            let quota = meter.map_or(cost, Meter::quota);
            if cost == 0 {
                problem(".cost", "a cost of 0 limits nothing".to_owned(), "write at least 1");
            } else if cost > quota {
                let message = format!("a request costs {cost}, but the limit holds {quota}");
                problem(".cost", message, "a request must fit the limit");
            }
        }
        let rule = match spec.kind {
            Kind::Bucket => stable_hash(&["limit", name]),
            kind => stable_hash(&["limit", name, kind.name()]),
        };
        let shadow = spec.shadow;
        (problems.len() == found).then_some(Self { rule, key, meter: meter?, shadow, shared, cost })
    }

    /// What this request takes: at least 1, at most all.
    pub(crate) fn cost(&self, ask: &Ask<'_>) -> u32 {
        match &self.cost {
            CostSpec::Fixed(cost) => *cost,
            CostSpec::Header(name) => self.stated(ask.facts.headers.get(name)),
            CostSpec::Response(_) => 1,
        }
    }

    /// Whether the response says what the request has cost.
    pub(crate) const fn follows(&self) -> bool {
        self.cost.follows()
    }

    /// What is still to be paid of what the response says.
    pub(crate) fn rest(&self, response: Headers<'_>) -> u32 {
        match &self.cost {
            CostSpec::Response(name) => self.stated(response.get(name)) - 1,
            CostSpec::Fixed(_) | CostSpec::Header(_) => 0,
        }
    }

    fn stated(&self, field: Option<&[u8]>) -> u32 {
        let text = field.and_then(|v| core::str::from_utf8(v).ok());
        let digits = text.filter(|v| !v.is_empty() && v.bytes().all(|b| b.is_ascii_digit()));
        // A number too long to read is large.
        let cost = digits.map_or(1, |v| v.parse().unwrap_or(u32::MAX));
        cost.clamp(1, self.meter.quota())
    }
}

/// Keys that this kind does not have, or must have.
fn combination(spec: &LimitSpec, problem: &mut impl FnMut(&str, String, &str)) {
    let kind = spec.kind.name();
    if spec.cost.as_ref().is_some_and(CostSpec::follows) {
        let owes = matches!(spec.kind, Kind::Bucket | Kind::Fixed | Kind::Quota);
        if !owes || spec.store.is_some() {
            let hint = "use a bucket, a fixed window or a quota, counted in this process";
            problem(".cost", "this limit can't take its cost from the response".to_owned(), hint);
        }
    }
    if spec.burst.is_some() && spec.kind != Kind::Bucket {
        let hint = "take it out; the rate says how many";
        problem(".burst", format!("only a bucket has a burst, and this is `{kind}`"), hint);
    }
    match (spec.max_wait, spec.kind) {
        (None, Kind::Leaky) => {
            let hint = "write the longest wait, like max_wait = \"500ms\"";
            problem("", "a leaky bucket needs `max_wait`".to_owned(), hint);
        }
        (Some(wait), Kind::Leaky) if wait.0.is_zero() || wait.0 > WAIT_MAX => {
            let hint = "write more than zero and at most 60s";
            problem(".max_wait", "out of bounds".to_owned(), hint);
        }
        (None, _) | (Some(_), Kind::Leaky) => {}
        (Some(_), Kind::Bucket | Kind::Sliding | Kind::Fixed | Kind::Quota) => {
            let hint = "take it out, or write kind = \"leaky\"";
            problem(".max_wait", format!("nobody waits at a limit of kind `{kind}`"), hint);
        }
    }
}

fn meter(spec: &LimitSpec, problem: &mut impl FnMut(&str, String, &str)) -> Option<Meter> {
    let (tokens, period) = (spec.rate.tokens().get(), spec.rate.period());
    let whole = u32::try_from(tokens).unwrap_or(u32::MAX);
    let windows = matches!(spec.kind, Kind::Sliding | Kind::Fixed | Kind::Quota);
    if windows && u64::from(whole) != tokens {
        problem(".rate", format!("{tokens} cannot be counted"), "write at most 4294967295");
        return None;
    }
    let (meter, why) = match spec.kind {
        Kind::Bucket => {
            let burst = spec.burst.unwrap_or(whole);
            if burst == 0 {
                problem(".burst", "a burst of 0 admits nothing".to_owned(), "write at least 1");
            }
            let why = "the bucket takes more than nine years to fill";
            let owing = spec.cost.as_ref().is_some_and(CostSpec::follows);
            let bucket = Gcra::new(spec.rate, burst.max(1));
            let bucket = bucket.map(|gcra| if owing { gcra.owing() } else { gcra });
            (bucket.map(Meter::Bucket), why)
        }
        Kind::Leaky => {
            let wait = spec.max_wait.map_or(WAIT_MAX, |wait| wait.0.min(WAIT_MAX));
            (Gcra::queue(spec.rate, wait).map(Meter::Queue), "more than nine years between two")
        }
        Kind::Sliding => {
            let why = "a sliding window is 1ms at least and admits at most 524224";
            (Sliding::new(whole, period).map(Meter::Sliding), why)
        }
        Kind::Fixed => {
            (Fixed::every(whole, period).map(Meter::Fixed), "a fixed window lasts 1s at least")
        }
        Kind::Quota => {
            let calendar = calendar(period).and_then(|period| Fixed::calendar(whole, period));
            (calendar.map(Meter::Fixed), "a quota is by the hour, the day or the month")
        }
    };
    if meter.is_none() {
        let hint = match spec.kind {
            Kind::Bucket => "make the burst smaller or the period shorter",
            Kind::Leaky => "make the period shorter",
            Kind::Sliding | Kind::Fixed => "use a bucket, or a longer window",
            Kind::Quota => "write \"…/h\", \"…/day\" or \"…/month\", or use kind = \"sliding\"",
        };
        problem(".rate", why.to_owned(), hint);
    }
    meter
}

pub(crate) fn calendar(period: Duration) -> Option<Period> {
    [(3600, Period::Hour), (86_400, Period::Day), (MONTH.as_secs(), Period::Month)]
        .into_iter()
        .find(|(seconds, _)| Duration::from_secs(*seconds) == period)
        .map(|(_, period)| period)
}

impl<'de> Deserialize<'de> for CostSpec {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(CostVisitor)
    }
}

struct CostVisitor;

impl CostVisitor {
    fn bad<E: de::Error>(what: &str) -> E {
        let hint = "write a number of at least 1, \"header:NAME\" or \"response:NAME\"";
        two_lines(BadUnit::new(format!("{what} is no cost"), hint))
    }
}

impl Visitor<'_> for CostVisitor {
    type Value = CostSpec;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number, \"header:NAME\" or \"response:NAME\"")
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<CostSpec, E> {
        u32::try_from(number).map(CostSpec::Fixed).map_err(|_| Self::bad(&number.to_string()))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<CostSpec, E> {
        u32::try_from(number).map(CostSpec::Fixed).map_err(|_| Self::bad(&number.to_string()))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<CostSpec, E> {
        let (from, name) = text.split_once(':').unwrap_or_default();
        let name = name.to_ascii_lowercase();
        match from {
            _ if name.is_empty() || !name.bytes().all(token_byte) => None,
            "header" => Some(CostSpec::Header(name)),
            "response" => Some(CostSpec::Response(name)),
            _ => None,
        }
        .ok_or_else(|| Self::bad(&format!("{text:?}")))
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for CostSpec {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Cost".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "anyOf": [
                { "type": "integer", "minimum": 1, "maximum": u32::MAX },
                {
                    "type": "string",
                    "description": "the field that has the cost",
                    "pattern": "^(header|response):.+$",
                    "examples": ["header:x-cost"],
                },
            ],
        })
    }
}
