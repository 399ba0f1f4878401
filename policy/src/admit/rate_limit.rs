//! Bound the rate of requests, by the named limits: token buckets that all workers share.

use core::time::Duration;

use serde::Deserialize;

use super::key::{Key, PARTS};
use super::shared::{self, Shared, Spent, Unready};
pub use super::shared::{Lost, StoreName};
use super::{Ask, Context, Filter, Verdict};
use crate::decision::Answer;
use crate::flight::{Flight, Limit, Step};
use crate::ledger::{CountKey, Taken};
use crate::mechanism::gcra::{Gcra, Level};
use crate::mechanism::lease::Terms;
use crate::plan::{Problem, stable_hash};
use crate::unit::Rate;

/// The most limits that one request can count against.
const LIMITS_MAX: usize = 8;

#[derive(Debug, Default)]
pub struct RateLimit;

/// `[limit.NAME]`: a token bucket per key.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct LimitSpec {
    /// What is counted apart: `ip`, `header:NAME`, `route`, `path`, `method`, in any mix. Default:
    /// `ip`, which is one IPv4 address or one IPv6 /64; `ip/24` counts by /24, and by /48 of IPv6.
    #[serde(default)]
    pub key: Vec<String>,
    /// How fast the bucket fills.
    pub rate: Rate,
    /// How much it holds, and so how many requests may come at once. Default: the rate's number.
    #[serde(default)]
    pub burst: Option<u32>,
    /// What one request takes. Default 1.
    #[serde(default)]
    pub cost: Option<u32>,
    /// Where it is counted: `redis` is over all gateways that share the Redis of `[store.redis]`.
    /// Default: in this process.
    #[serde(default)]
    pub store: Option<StoreName>,
    /// What to do while the store can't be asked: `open` lets everything through, `closed` refuses
    /// everything, `local` counts this gateway's share (the rate divided by `store.redis.nodes`).
    /// Default `local`.
    #[serde(default)]
    pub lost: Option<Lost>,
}

/// Every named limit of a plan, by its place.
#[derive(Debug, Default)]
pub(crate) struct Limits(Vec<Named>);

#[derive(Debug)]
struct Named {
    name: String,
    /// None when it could not be read: there is a problem for it, and no plan.
    meaning: Option<Meaning>,
}

#[derive(Debug)]
pub(super) struct Meaning {
    /// A hash of the limit's name: part of every key, so that limits never share a count.
    pub(super) rule: u64,
    pub(super) key: Key,
    pub(super) gcra: Gcra,
    pub(super) cost: u32,
    /// Counted over several gateways.
    pub(super) shared: Option<Shared>,
}

/// The limits of one route, by their places in the plan, each once.
#[derive(Debug)]
pub struct Rule(Box<[u16]>);

/// A limit that a request is being counted against.
#[derive(Clone, Copy)]
pub(super) struct Counted<'a> {
    pub(super) limit: u16,
    pub(super) meaning: &'a Meaning,
    pub(super) key: CountKey,
    taken: Option<Grasp>,
}

/// What was taken, to be given back if the next limit refuses.
#[derive(Clone, Copy)]
enum Grasp {
    Node(Taken),
    Store(Spent),
}

impl Limits {
    pub(crate) fn compile(
        specs: Vec<(String, LimitSpec)>,
        nodes: Option<u32>,
        problems: &mut Vec<Problem>,
    ) -> Self {
        if specs.len() > usize::from(u16::MAX) {
            problems.push(Problem {
                path: "limit".to_owned(),
                message: format!("{} limits", specs.len()),
                hint: Some(format!("at most {}", u16::MAX)),
            });
        }
        let compile = |(name, spec): (String, LimitSpec)| {
            let meaning = Meaning::compile(&name, &spec, nodes, problems);
            Named { name, meaning }
        };
        Self(specs.into_iter().map(compile).collect())
    }

    pub(crate) fn name(&self, limit: u16) -> &str {
        self.0.get(usize::from(limit)).map_or("", |named| &named.name)
    }

    fn meaning(&self, limit: u16) -> Option<&Meaning> {
        self.0.get(usize::from(limit))?.meaning.as_ref()
    }

    pub(crate) fn shared(&self) -> impl Iterator<Item = (&str, u64, Terms)> {
        let shared = |named: &Named| {
            let meaning = named.meaning.as_ref()?;
            Some((meaning.rule, meaning.shared.as_ref()?.terms))
        };
        self.0.iter().filter_map(move |named| {
            let (rule, terms) = shared(named)?;
            Some((named.name.as_str(), rule, terms))
        })
    }

    fn place(&self, name: &str) -> Option<u16> {
        u16::try_from(self.0.iter().position(|named| named.name == name)?).ok()
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|named| named.name.as_str())
    }
}

impl Meaning {
    fn compile(
        name: &str,
        spec: &LimitSpec,
        nodes: Option<u32>,
        problems: &mut Vec<Problem>,
    ) -> Option<Self> {
        let path = format!("limit.{name}");
        let found = problems.len();
        let shared = Shared::compile(spec, nodes, &path, problems);
        let mut problem = |below: &str, message: String, hint: &str| {
            let hint = Some(hint.to_owned());
            problems.push(Problem { path: format!("{path}{below}"), message, hint });
        };
        let default = ["ip".to_owned()];
        let texts = if spec.key.is_empty() { &default[..] } else { &spec.key };
        let key = Key::parse(texts).unwrap_or_else(|unread| {
            for i in unread {
                problem(&format!(".key[{i}]"), format!("nothing is called `{}`", texts[i]), PARTS);
            }
            Key::default()
        });
        let tokens = u32::try_from(spec.rate.tokens().get()).unwrap_or(u32::MAX);
        let (burst, cost) = (spec.burst.unwrap_or(tokens), spec.cost.unwrap_or(1));
        if burst == 0 {
            problem(".burst", "a burst of 0 admits nothing".to_owned(), "write at least 1");
        }
        if cost == 0 {
            problem(".cost", "a cost of 0 limits nothing".to_owned(), "write at least 1");
        }
        if cost > burst && burst > 0 {
            let message = format!("a request costs {cost}, but the bucket holds {burst}");
            problem(".cost", message, "a request must fit the burst");
        }
        let gcra = Gcra::new(spec.rate, burst.max(1));
        if gcra.is_none() {
            let hint = "make the burst smaller or the period shorter";
            problem(".rate", "the bucket takes more than nine years to fill".to_owned(), hint);
        }
        let rule = stable_hash(&["limit", name]);
        (problems.len() == found).then_some(Self { rule, key, gcra: gcra?, cost, shared })
    }
}

impl Filter for RateLimit {
    type Spec = Vec<String>;
    type Rule = Rule;

    fn compile(spec: Vec<String>, context: &mut Context<'_>) -> Option<Rule> {
        let mut places = Vec::with_capacity(spec.len());
        for (i, name) in spec.iter().enumerate() {
            match context.limits.place(name) {
                Some(place) if places.contains(&place) => {
                    let hint = Some("name each limit once".to_owned());
                    context.problem(&format!("[{i}]"), format!("`{name}` is named twice"), hint);
                }
                Some(place) => places.push(place),
                None => {
                    let names = context.limits.names().collect::<Vec<_>>().join(", ");
                    let hint = if names.is_empty() {
                        format!("write a table [limit.{name}]")
                    } else {
                        format!("there are: {names}")
                    };
                    let message = format!("no limit is called `{name}`");
                    context.problem(&format!("[{i}]"), message, Some(hint));
                }
            }
        }
        if places.len() > LIMITS_MAX {
            let hint = Some(format!("at most {LIMITS_MAX}"));
            context.problem("", format!("{} limits on one route", places.len()), hint);
        }
        Some(Rule(places.into()))
    }

    /// All or nothing: a refused request takes from none of its limits. Another worker may take
    /// the last token between our look and our grasp; what was grasped by then is given back.
    fn check(&mut self, ask: &Ask<'_>, rule: &Rule, flight: &mut Flight) -> Verdict {
        if let [limit] = *rule.0
            && ask.limits.meaning(limit).is_none_or(|meaning| meaning.shared.is_none())
        {
            return alone(ask, limit, flight);
        }
        let mut space = [None; LIMITS_MAX];
        for (slot, &limit) in space.iter_mut().zip(&rule.0) {
            if let Some(meaning) = ask.limits.meaning(limit) {
                let key = meaning.key.of(meaning.rule, ask.ledger, ask);
                *slot = Some(Counted { limit, meaning, key, taken: None });
            }
        }
        if let Some(refusal) = look(ask, &space, flight) {
            return refusal;
        }
        if let Some(verdict) = await_store(ask, &space, flight) {
            return verdict;
        }
        for i in 0..space.len() {
            let Some(counted) = &mut space[i] else { break };
            match take(ask, counted, flight) {
                Ok(taken) => counted.taken = Some(taken),
                Err(wait) => {
                    let (limit, meaning) = (counted.limit, counted.meaning);
                    give_back(ask, &space[..i]);
                    let level = Level { left: 0, reset: wait };
                    note(flight, limit, meaning, level, false);
                    return refuse(wait);
                }
            }
        }
        for counted in space.iter().flatten() {
            if let Some(taken) = counted.taken {
                let level = match taken {
                    Grasp::Node(taken) => taken.level,
                    Grasp::Store(spent) => spent.level,
                };
                note(flight, counted.limit, counted.meaning, level, true);
            }
        }
        Verdict::Pass
    }
}

fn take(ask: &Ask<'_>, counted: &Counted<'_>, flight: &Flight) -> Result<Grasp, Duration> {
    let Meaning { gcra, cost, .. } = *counted.meaning;
    match &counted.meaning.shared {
        Some(shared) => shared.take(ask, counted, flight).map(Grasp::Store),
        None => ask.ledger.take(ask.now.at, counted.key, gcra, cost).map(Grasp::Node),
    }
}

/// Whether the limits that a store counts refuse, or have nothing in hand yet.
fn await_store(
    ask: &Ask<'_>,
    space: &[Option<Counted<'_>>],
    flight: &mut Flight,
) -> Option<Verdict> {
    match shared::ready(ask, space, flight)? {
        Unready::Park(until) => Some(Verdict::Park(until)),
        Unready::Refused { limit, wait } => {
            let meaning = ask.limits.meaning(limit)?;
            note(flight, limit, meaning, Level { left: 0, reset: wait }, false);
            Some(refuse(wait))
        }
    }
}

/// The common case: one limit needs no look ahead and nothing to give back.
fn alone(ask: &Ask<'_>, limit: u16, flight: &mut Flight) -> Verdict {
    let Some(meaning) = ask.limits.meaning(limit) else { return Verdict::Pass };
    let key = meaning.key.of(meaning.rule, ask.ledger, ask);
    match ask.ledger.take(ask.now.at, key, meaning.gcra, meaning.cost) {
        Ok(taken) => {
            note(flight, limit, meaning, taken.level, true);
            Verdict::Pass
        }
        Err(wait) => {
            note(flight, limit, meaning, Level { left: 0, reset: wait }, false);
            refuse(wait)
        }
    }
}

/// Looks before taking, so that a refusal touches nothing. Every limit that refuses is noted, and
/// the longest wait is told.
fn look(ask: &Ask<'_>, space: &[Option<Counted<'_>>], flight: &mut Flight) -> Option<Verdict> {
    let mut longest = None;
    for Counted { limit, meaning, key, .. } in space.iter().flatten() {
        if meaning.shared.is_some() {
            continue;
        }
        match ask.ledger.peek(ask.now.at, *key, meaning.gcra, meaning.cost) {
            Ok(_) => {}
            Err((level, wait)) => {
                let level = Level { reset: wait, ..level };
                note(flight, *limit, meaning, level, false);
                longest = longest.max(Some(wait));
            }
        }
    }
    longest.map(refuse)
}

fn give_back(ask: &Ask<'_>, space: &[Option<Counted<'_>>]) {
    for counted in space.iter().flatten() {
        match counted.taken {
            Some(Grasp::Node(taken)) => {
                ask.ledger.give_back(taken, counted.meaning.gcra, counted.meaning.cost);
            }
            Some(Grasp::Store(spent)) => spent.give_back(ask.ledger),
            None => {}
        }
    }
}

fn refuse(wait: Duration) -> Verdict {
    let problem = Answer::problem(429, "limit.exceeded");
    Verdict::Deny(Answer { retry_after: Some(wait), ..problem })
}

/// Into the trail, and into the flight when it is the tightest: least left for its quota; of those
/// that refuse, the longest wait.
fn note(flight: &mut Flight, limit: u16, meaning: &Meaning, level: Level, passed: bool) {
    flight.trail.push(Step { filter: "limits", rule: Some(limit), passed, left: Some(level.left) });
    let gcra = meaning.gcra;
    let Level { left, reset } = level;
    let new = Limit { limit, quota: gcra.burst(), left, window: gcra.window(), reset };
    let tighter = flight.limit.is_none_or(|old| {
        if passed {
            u64::from(new.left) * u64::from(old.quota) < u64::from(old.left) * u64::from(new.quota)
        } else {
            flight.violated.is_none() || new.reset > old.reset
        }
    });
    if tighter {
        flight.limit = Some(new);
        if !passed {
            flight.violated = Some(limit);
        }
    }
}
