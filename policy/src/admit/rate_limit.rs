//! Bound the rate of requests, by the named limits. All workers share the counts, and all gateways
//! those of a store.

use core::time::Duration;

use super::associated::Watched;
use super::bound::Promise;
use super::heavy::Watches;
use super::key::Key;
use super::limit::Meaning;
use super::shared::{self, Shared, Spent, Unready};
use super::{Ask, Context, Filter, Verdict};
use crate::decision::Answer;
use crate::facts::Headers;
use crate::flight::{Flight, Limit, Phase, Step, Wanting};
use crate::ledger::{CountKey, Receipt, Taken};
use crate::mechanism::gcra::Level;
use crate::mechanism::lease::Terms;
use crate::mechanism::meter::Meter;
use crate::plan::Problem;

pub use super::limit::{CostSpec, Kind, LimitSpec};
pub use super::shared::{Lost, StoreName};

/// The most limits that one request can count against.
pub(crate) const LIMITS_MAX: usize = 8;

/// One worker's memory.
#[derive(Debug, Default)]
pub struct RateLimit {
    /// What the last request took, in case that a later filter refuses it.
    kept: [Option<(u16, Kept)>; LIMITS_MAX],
    pub(super) watches: Watches,
}

/// Every named limit of a plan, by its place.
#[derive(Debug, Default)]
pub(crate) struct Limits {
    all: Vec<Named>,
    /// How many gateways share the store, if there is one.
    pub(super) nodes: Option<u32>,
}

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
    /// What is left, once it was taken from.
    level: Option<Level>,
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
        Self { all: specs.into_iter().map(compile).collect(), nodes }
    }

    pub(crate) fn name(&self, limit: u16) -> &str {
        self.all.get(usize::from(limit)).map_or("", |named| &named.name)
    }

    pub(crate) fn meter(&self, limit: u16) -> Option<Meter> {
        self.meaning(limit).map(|meaning| meaning.meter)
    }

    fn meaning(&self, limit: u16) -> Option<&Meaning> {
        self.all.get(usize::from(limit))?.meaning.as_ref()
    }

    pub(crate) fn named(&self) -> impl Iterator<Item = (&str, &Meaning)> {
        self.all.iter().filter_map(|named| Some((named.name.as_str(), named.meaning.as_ref()?)))
    }

    pub(crate) fn meanings(&self) -> impl Iterator<Item = &Meaning> {
        self.named().map(|(_, meaning)| meaning)
    }

    /// The rules of those that watch their heaviest keys.
    pub(crate) fn weighing(&self) -> impl Iterator<Item = u64> {
        self.meanings().filter(|meaning| meaning.watched > 0).map(|meaning| meaning.rule)
    }

    /// How limits watch that route.
    pub(crate) fn watching(&self, route: &str) -> Box<[Watched]> {
        let mut all = Vec::new();
        for Named { spec, meaning, .. } in &self.all {
            let watches = spec.busy.as_ref().is_some_and(|busy| busy.route == route);
            let association = meaning.as_ref().and_then(|meaning| meaning.association);
            if let Some(association) = association.filter(|_| watches)
                && !all.contains(&association.watched)
            {
                all.push(association.watched);
            }
        }
        all.into()
    }

    /// Whether the routes that are watched exist.
    pub(crate) fn check_routes(&self, routes: &[String], problems: &mut Vec<Problem>) {
        for Named { name, spec, .. } in &self.all {
            if let Some(busy) = spec.busy.as_ref().filter(|busy| !routes.contains(&busy.route)) {
                problems.push(Problem {
                    path: format!("limit.{name}.while.route"),
                    message: format!("there is no route named {:?}", busy.route),
                    hint: Some(format!("there are: {}", routes.join(", "))),
                });
            }
        }
    }

    /// Those that a store counts: name, rule, and how.
    pub(crate) fn shared(&self) -> impl Iterator<Item = (&str, u64, Terms)> {
        self.all.iter().filter_map(|Named { name, meaning, .. }| {
            let meaning = meaning.as_ref()?;
            Some((name.as_str(), meaning.rule, meaning.shared.as_ref()?.terms))
        })
    }

    /// One that a store counts: its rule, its key, and how.
    pub(super) fn stored(&self, name: &str) -> Option<(u64, &Key, &Shared)> {
        let meaning = self.meaning(self.place(name)?)?;
        Some((meaning.rule, &meaning.key, meaning.shared.as_ref()?))
    }

    fn place(&self, name: &str) -> Option<u16> {
        u16::try_from(self.all.iter().position(|named| named.name == name)?).ok()
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.all.iter().map(|named| named.name.as_str())
    }

    /// Those of every route that names none itself.
    pub(crate) fn defaults(&self) -> Option<Vec<String>> {
        let defaults = self.all.iter().filter(|named| named.spec.default);
        let names: Vec<_> = defaults.map(|named| named.name.clone()).collect();
        (!names.is_empty()).then_some(names)
    }

    pub(crate) fn promises(&self, proxied: bool) -> impl Iterator<Item = Promise> {
        self.all.iter().filter_map(move |Named { name, spec, meaning }| {
            let meaning = meaning.as_ref()?;
            let meter = meaning.meter;
            let store = meaning.shared.as_ref().map(|shared| shared.bound(proxied));
            Some(Promise::of(name, spec, meter.quota(), meter.window(), store))
        })
    }

    /// Whether the response says what a request costs, at any of them.
    pub(crate) fn follow(&self) -> bool {
        self.all.iter().any(|named| named.meaning.as_ref().is_some_and(Meaning::follows))
    }

    /// Whether any of them is a sliding window.
    pub(crate) fn slide(&self) -> bool {
        let mut meanings = self.all.iter().filter_map(|named| named.meaning.as_ref());
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
        if let [limit] = *rule.0
            && ask.limits.meaning(limit).is_some_and(|meaning| meaning.shared.is_none())
        {
            return match self.counted(ask, limit, flight.phase) {
                Some(counted) => self.check_one(ask, &counted, flight),
                None => Verdict::Pass,
            };
        }
        let mut space = [None; LIMITS_MAX];
        // As many as there are: most routes have one limit, and eight slots cost what they cost.
        let space = &mut space[..rule.0.len().min(LIMITS_MAX)];
        let mut free = space.iter_mut();
        for &limit in &rule.0 {
            if let Some(counted) = self.counted(ask, limit, flight.phase)
                && let Some(slot) = free.next()
            {
                *slot = Some(counted);
            }
        }
        // A store's alone needs no look ahead: taking refuses as well, and touches nothing.
        if space.len() > 1
            && let Some(refusal) = look(ask, space, flight)
        {
            return refusal;
        }
        let stored = |counted: &Counted<'_>| counted.meaning.shared.is_some();
        if space.iter().flatten().any(stored)
            && let Some(verdict) = await_store(ask, space, flight)
        {
            return verdict;
        }
        if let Err((refused, wait)) = self.take_all(ask, space, flight) {
            self.undo(ask, rule, flight);
            return refused.refuse(ask, wait, flight);
        }
        for counted in space.iter().flatten() {
            let Counted { limit, meaning, level, .. } = *counted;
            match level {
                Some(level) if !meaning.shadow => note(flight, limit, meaning, level, true),
                level => note_shadow(flight, limit, level),
            }
        }
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
    /// None when this limit does not count this request.
    fn counted<'a>(&mut self, ask: &Ask<'a>, limit: u16, phase: Phase) -> Option<Counted<'a>> {
        let meaning = ask.limits.meaning(limit)?;
        if meaning.association.is_some_and(|association| !association.holds(ask)) {
            return None;
        }
        let counted = Counted::new(ask, limit, meaning);
        if meaning.watched > 0 {
            // Asked again after a wait, it has been seen already.
            let fresh = if phase == Phase::New { counted.cost } else { 0 };
            let heavy = self.watches.seen(ask, meaning, counted.key.hash, fresh);
            if meaning.heaviest && !heavy {
                return None;
            }
        }
        Some(counted)
    }

    /// One limit alone, as most routes have: there is nothing to look ahead to.
    fn check_one(&mut self, ask: &Ask<'_>, counted: &Counted<'_>, flight: &mut Flight) -> Verdict {
        let Counted { limit, meaning, .. } = *counted;
        let [kept, ..] = &mut self.kept;
        match take(ask, counted, flight, kept) {
            Err(wait) if !meaning.shadow => return counted.refuse(ask, wait, flight),
            Ok(level) if !meaning.shadow => note(flight, limit, meaning, level, true),
            level => note_shadow(flight, limit, level.ok()),
        }
        Verdict::Pass
    }

    /// Up to the first that refuses and how long it does.
    fn take_all<'a>(
        &mut self,
        ask: &Ask<'_>,
        space: &mut [Option<Counted<'a>>],
        flight: &mut Flight,
    ) -> Result<(), (Counted<'a>, Duration)> {
        for (slot, counted) in self.kept.iter_mut().zip(space.iter_mut().flatten()) {
            match take(ask, counted, flight, slot) {
                Ok(level) => counted.level = Some(level),
                Err(_) if counted.meaning.shadow => {}
                Err(wait) => return Err((*counted, wait)),
            }
        }
        Ok(())
    }
}

impl<'a> Counted<'a> {
    fn new(ask: &Ask<'_>, limit: u16, meaning: &'a Meaning) -> Self {
        let key = meaning.key.of(meaning.rule, ask.ledger, ask);
        Self { limit, meaning, key, cost: meaning.cost(ask), level: None }
    }

    /// Taking from it failed.
    fn refuse(&self, ask: &Ask<'_>, wait: Duration, flight: &mut Flight) -> Verdict {
        let level = Level { left: left(ask, self), reset: wait };
        note(flight, self.limit, self.meaning, level, false);
        refuse(wait)
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

/// What is left then; what it takes to give it back goes into `kept`. Not through the result: a
/// window's receipt is large, and moving it thrice costs more than taking.
fn take(
    ask: &Ask<'_>,
    counted: &Counted<'_>,
    flight: &mut Flight,
    kept: &mut Option<(u16, Kept)>,
) -> Result<Level, Duration> {
    let Counted { limit, meaning, key, cost, .. } = *counted;
    if let Some(shared) = &meaning.shared {
        let spent = shared.take(ask, counted, flight)?;
        *kept = Some((limit, Kept::Store(spent)));
        return Ok(spent.level);
    }
    let Taken { level, delay, receipt } = ask.ledger.take(ask.now, key, meaning.meter, cost)?;
    if delay > flight.delay && !meaning.shadow {
        flight.delay = delay;
        flight.queued = receipt.slip().map(|slip| (limit, slip));
    }
    *kept = Some((limit, Kept::Node(receipt)));
    Ok(level)
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

fn refuse(wait: Duration) -> Verdict {
    let problem = Answer::problem(429, "limit.exceeded");
    Verdict::Deny(Answer { retry_after: Some(wait), ..problem })
}

/// Into the trail alone; without a level it would have been refused.
fn note_shadow(flight: &mut Flight, limit: u16, level: Option<Level>) {
    let left = Some(level.map_or(0, |level| level.left));
    let (filter, rule, passed) = ("shadow", Some(limit), level.is_some());
    flight.trail.push(Step { filter, rule, passed, left });
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
