//! Bound the rate of requests, by the named limits. All workers share the counts, and all gateways
//! those of a store.

use core::time::Duration;

use super::heavy::Watches;
use super::limit::Meaning;
use super::named::Whose;
use super::shared::{self, Spent, Unready};
use super::{Ask, Context, Filter, Verdict};
use crate::decision::Answer;
use crate::facts::Headers;
use crate::flight::{Flight, Limit, Phase, Step, Wanting};
use crate::ledger::{CountKey, Receipt, Taken};
use crate::mechanism::gcra::Level;
use crate::mechanism::meter::Meter;

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

/// The limits of one route, by their places in the plan, each once.
#[derive(Debug)]
pub struct Rule {
    places: Box<[u16]>,
    whose: Whose,
}

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

impl Rule {
    /// Those that count for this request.
    fn places<'a>(&'a self, ask: &Ask<'a>) -> &'a [u16] {
        let tenants = &ask.limits.tenants;
        if self.whose >= Whose::Tenant || tenants.is_empty() {
            return &self.places;
        }
        let tenant = ask.facts.identity.and_then(|identity| identity.tenant);
        tenant.and_then(|tenant| tenants.get(tenant)).unwrap_or(&self.places)
    }
}

impl Filter for RateLimit {
    type Spec = Vec<String>;
    type Rule = Rule;

    fn compile(spec: Vec<String>, context: &mut Context<'_>) -> Option<Rule> {
        let (limits, whose) = (context.limits, context.whose);
        let mut problem = |below: &str, message, hint| context.problem(below, message, hint);
        Some(Rule { places: limits.places(&spec, &mut problem), whose })
    }

    /// All or nothing: a refused request takes from none of its limits. Another worker may take
    /// the last token between our look and our grasp; what was grasped by then is given back.
    fn check(&mut self, ask: &Ask<'_>, rule: &Rule, flight: &mut Flight) -> Verdict {
        self.kept = [None; LIMITS_MAX];
        let places = rule.places(ask);
        if let [limit] = *places
            && ask.limits.meaning(limit).is_some_and(|meaning| meaning.shared.is_none())
        {
            return match self.counted(ask, limit, flight.phase) {
                Some(counted) => self.check_one(ask, &counted, flight),
                None => Verdict::Pass,
            };
        }
        let mut space = [None; LIMITS_MAX];
        // As many as there are: most routes have one limit, and eight slots cost what they cost.
        let space = &mut space[..places.len().min(LIMITS_MAX)];
        let mut free = space.iter_mut();
        for &limit in places {
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
        let taken = self.take_all(ask, space, flight);
        // A later filter may wait for the store on its own account.
        flight.parked = None;
        if let Err((refused, wait)) = taken {
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
    for &limit in rule.places(ask) {
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
        match ask.ledger.look(ask.now, *key, meaning.meter, *cost) {
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
