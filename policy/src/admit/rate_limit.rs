//! Bound the rate of requests, by the named limits. All workers share the counts, and all gateways
//! those of a store.

use core::time::Duration;

use super::bound::Promise;
use super::limit::Meaning;
use super::shared::{self, Spent, Unready};
use super::{Ask, Context, Filter, Verdict};
use crate::decision::Answer;
use crate::facts::Headers;
use crate::flight::{Flight, Limit, Step, Wanting};
use crate::ledger::{CountKey, Receipt, Taken};
use crate::mechanism::gcra::Level;
use crate::mechanism::lease::Terms;
use crate::mechanism::meter::Meter;
use crate::plan::Problem;

pub use super::limit::{CostSpec, Kind, LimitSpec};
pub use super::shared::{Lost, StoreName};

/// The most limits that one request can count against.
pub(crate) const LIMITS_MAX: usize = 8;

/// What the last request took, in case that a later filter refuses it.
#[derive(Debug, Default)]
pub struct RateLimit {
    kept: [Option<(u16, Kept)>; LIMITS_MAX],
}

/// Every named limit of a plan, by its place.
#[derive(Debug, Default)]
pub(crate) struct Limits(Vec<Named>);

#[derive(Debug)]
struct Named {
    name: String,
    spec: LimitSpec,
    /// None when it could not be read: there is a problem for it, and no plan.
    meaning: Option<Meaning>,
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
    pub(super) cost: u32,
    taken: Option<Grasp>,
}

/// What was taken.
#[derive(Clone, Copy)]
enum Grasp {
    Node(Taken),
    Store(Spent),
}

/// What it takes to give it back.
#[derive(Clone, Copy, Debug)]
enum Kept {
    Node(Receipt),
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
            Named { name, spec, meaning }
        };
        Self(specs.into_iter().map(compile).collect())
    }

    pub(crate) fn name(&self, limit: u16) -> &str {
        self.0.get(usize::from(limit)).map_or("", |named| &named.name)
    }

    pub(crate) fn meter(&self, limit: u16) -> Option<Meter> {
        self.meaning(limit).map(|meaning| meaning.meter)
    }

    fn meaning(&self, limit: u16) -> Option<&Meaning> {
        self.0.get(usize::from(limit))?.meaning.as_ref()
    }

    /// Those that a store counts: name, rule, and how.
    pub(crate) fn shared(&self) -> impl Iterator<Item = (&str, u64, Terms)> {
        self.0.iter().filter_map(|Named { name, meaning, .. }| {
            let meaning = meaning.as_ref()?;
            Some((name.as_str(), meaning.rule, meaning.shared.as_ref()?.terms))
        })
    }

    fn place(&self, name: &str) -> Option<u16> {
        u16::try_from(self.0.iter().position(|named| named.name == name)?).ok()
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|named| named.name.as_str())
    }

    /// Those of every route that names none itself.
    pub(crate) fn defaults(&self) -> Option<Vec<String>> {
        let defaults = self.0.iter().filter(|named| named.spec.default);
        let names: Vec<_> = defaults.map(|named| named.name.clone()).collect();
        (!names.is_empty()).then_some(names)
    }

    pub(crate) fn promises(&self) -> impl Iterator<Item = Promise> {
        self.0.iter().filter_map(|Named { name, spec, meaning }| {
            let meter = meaning.as_ref()?.meter;
            Some(Promise::of(name, spec, meter.quota(), meter.window()))
        })
    }

    /// Whether the response says what a request costs, at any of them.
    pub(crate) fn follow(&self) -> bool {
        self.0.iter().any(|named| named.meaning.as_ref().is_some_and(Meaning::follows))
    }

    /// Whether any of them is a sliding window.
    pub(crate) fn slide(&self) -> bool {
        let mut meanings = self.0.iter().filter_map(|named| named.meaning.as_ref());
        meanings.any(|meaning| matches!(meaning.meter, Meter::Sliding(_)))
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
        self.kept = [None; LIMITS_MAX];
        let mut space = [None; LIMITS_MAX];
        for (slot, &limit) in space.iter_mut().zip(&rule.0) {
            if let Some(meaning) = ask.limits.meaning(limit) {
                let key = meaning.key.of(meaning.rule, ask.ledger, ask);
                let cost = meaning.cost(ask);
                *slot = Some(Counted { limit, meaning, key, cost, taken: None });
            }
        }
        // One limit alone needs no look ahead: taking refuses as well, and touches nothing.
        if rule.0.len() > 1
            && let Some(refusal) = look(ask, &space, flight)
        {
            return refusal;
        }
        let stored = |counted: &Counted<'_>| counted.meaning.shared.is_some();
        if space.iter().flatten().any(stored)
            && let Some(verdict) = await_store(ask, &space, flight)
        {
            return verdict;
        }
        for i in 0..space.len() {
            let Some(counted) = &mut space[i] else { break };
            match take(ask, counted, flight) {
                Ok(taken) => counted.taken = Some(taken),
                Err(_) if counted.meaning.shadow => {}
                Err(wait) => {
                    let refused = *counted;
                    give_back(ask, &space[..i]);
                    let level = Level { left: left(ask, &refused), reset: wait };
                    note(flight, refused.limit, refused.meaning, level, false);
                    return refuse(wait);
                }
            }
        }
        self.keep(&space, flight);
        Verdict::Pass
    }

    fn undo(&mut self, ask: &Ask<'_>, _: &Rule, flight: &mut Flight) {
        for (limit, kept) in self.kept.iter_mut().filter_map(Option::take) {
            if let Some(meter) = ask.limits.meter(limit) {
                kept.give_back(ask, meter);
            }
        }
        (flight.delay, flight.queued) = (Duration::ZERO, None);
    }
}

impl RateLimit {
    /// Notes what was taken, and keeps the receipts.
    fn keep(&mut self, space: &[Option<Counted<'_>>], flight: &mut Flight) {
        for (slot, counted) in self.kept.iter_mut().zip(space.iter().flatten()) {
            let Counted { limit, meaning, taken, .. } = *counted;
            *slot = taken.map(|taken| (limit, taken.kept()));
            if let Some(Grasp::Node(Taken { delay, receipt, .. })) = taken
                && !meaning.shadow
                && delay > flight.delay
            {
                flight.delay = delay;
                flight.queued = Some((limit, receipt));
            }
            match taken.map(|taken| taken.level()) {
                Some(level) if !meaning.shadow => note(flight, limit, meaning, level, true),
                level => {
                    let (passed, left) = (level.is_some(), level.map_or(0, |level| level.left));
                    let (filter, rule) = ("shadow", Some(limit));
                    flight.trail.push(Step { filter, rule, passed, left: Some(left) });
                }
            }
        }
    }
}

impl Grasp {
    fn level(&self) -> Level {
        match self {
            Self::Node(taken) => taken.level,
            Self::Store(spent) => spent.level,
        }
    }

    fn kept(&self) -> Kept {
        match *self {
            Self::Node(taken) => Kept::Node(taken.receipt),
            Self::Store(spent) => Kept::Store(spent),
        }
    }
}

impl Kept {
    fn give_back(self, ask: &Ask<'_>, meter: Meter) {
        match self {
            Self::Node(receipt) => ask.ledger.give_back(&receipt, meter),
            Self::Store(spent) => spent.give_back(ask.ledger),
        }
    }
}

fn take(ask: &Ask<'_>, counted: &Counted<'_>, flight: &Flight) -> Result<Grasp, Duration> {
    let Counted { meaning, key, cost, .. } = *counted;
    match &meaning.shared {
        Some(shared) => shared.take(ask, counted, flight).map(Grasp::Store),
        None => ask.ledger.take(ask.now, key, meaning.meter, cost).map(Grasp::Node),
    }
}

/// The response says what the request has cost: what is not paid yet is charged, into debt if
/// need be.
pub(crate) fn settle(ask: &Ask<'_>, rule: &Rule, response: Headers<'_>, flight: &mut Flight) {
    for &limit in &rule.0 {
        let Some(meaning) = ask.limits.meaning(limit) else { continue };
        let rest = meaning.rest(response);
        // A shadow that would have refused has counted nothing, and counts nothing now.
        let refused = |step: &Step| step.rule == Some(limit) && !step.passed;
        if rest == 0 || flight.trail.steps().any(refused) {
            continue;
        }
        let key = meaning.key.of(meaning.rule, ask.ledger, ask);
        let level = ask.ledger.charge(ask.now, key, meaning.meter, rest);
        if let (Some(level), Some(told)) = (level, &mut flight.limit)
            && told.limit == limit
        {
            (told.left, told.reset) = (level.left, level.reset);
        }
    }
}

/// What is left of a limit that has just refused: less than it costs, but maybe not nothing.
fn left(ask: &Ask<'_>, refused: &Counted<'_>) -> u32 {
    let Counted { meaning, key, cost, .. } = *refused;
    if meaning.shared.is_some() {
        return 0;
    }
    let seen = ask.ledger.peek(ask.now, key, meaning.meter, cost);
    seen.err().map_or(0, |(level, _)| level.left)
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

/// Looks before taking, so that a refusal touches nothing. Every limit that refuses is noted, and
/// the longest wait is told.
fn look(ask: &Ask<'_>, space: &[Option<Counted<'_>>], flight: &mut Flight) -> Option<Verdict> {
    let mut longest = None;
    for Counted { limit, meaning, key, cost, .. } in space.iter().flatten() {
        if meaning.shadow || meaning.shared.is_some() {
            continue;
        }
        match ask.ledger.peek(ask.now, *key, meaning.meter, *cost) {
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
        if let Some(taken) = counted.taken {
            taken.kept().give_back(ask, counted.meaning.meter);
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
    let meter = meaning.meter;
    let Level { left, reset } = level;
    let new = Limit { limit, quota: meter.quota(), left, window: meter.window(), reset };
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
    if !passed && let Some(free) = flight.wanting.iter_mut().find(|slot| slot.is_none()) {
        *free = Some(Wanting { limit, left, reset });
    }
}
