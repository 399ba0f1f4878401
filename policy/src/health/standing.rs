//! How each server stands, and why: what its probes say, what its requests say, and what the
//! operator says, put together in one place.
//!
//! A server gets requests when none of the three keeps it out. They do not overrule each other: a
//! probe that is answered does not end an ejection, because it says that the process lives and not
//! that its requests go well; an ejection ends by its own probes, which are requests, and those
//! are only sent while the health checks are content, too. When several keep it out, all are told.

use core::fmt;

use crate::health::{Vital, Watch};
use crate::ledger::{BreakerKey, Ledger};
use crate::mechanism::breaker::{Force, State, View, share};
use crate::plan::{Endpoint, EndpointKey, Plan, Upstream};
use crate::time::{Instant, Now, Wall, nanos};

/// A server that the operator keeps requests from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drained {
    pub endpoint: EndpointKey,
    pub since: Wall,
    /// None: until somebody takes it back.
    pub until: Option<Instant>,
}

/// What a server gets, from all to nothing. The last of several reasons' is its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    In,
    /// It came back, and is getting its share by and by.
    SlowStart,
    /// It was ejected; a growing share of the requests is let through.
    Recovering,
    /// It was ejected; a few requests are let through to see.
    HalfOpen,
    Out,
    /// By hand.
    Drained,
}

impl Place {
    pub const ALL: [Self; 6] =
        [Self::In, Self::SlowStart, Self::Recovering, Self::HalfOpen, Self::Out, Self::Drained];

    pub const fn name(self) -> &'static str {
        match self {
            Self::In => "in",
            Self::SlowStart => "slow_start",
            Self::Recovering => "recovering",
            Self::HalfOpen => "half_open",
            Self::Out => "out",
            Self::Drained => "drained",
        }
    }
}

/// Who says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Witness {
    /// Its health checks.
    Probes,
    /// How its requests went.
    Requests,
    Operator,
}

/// One thing that somebody says of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    pub witness: Witness,
    pub place: Place,
    /// None: from the start, as far as probes go.
    pub since: Option<Wall>,
    /// Why, in words.
    pub why: String,
}

/// How one server stands.
#[derive(Clone, Debug)]
pub struct Standing<'a> {
    pub upstream: &'a str,
    pub endpoint: &'a Endpoint,
    pub place: Place,
    /// Never empty where anybody asks or judges.
    pub reasons: Vec<Reason>,
    /// So few servers are in that this one gets requests although it is out.
    pub panic: bool,
}

/// Every server of the plan.
pub fn standings<'a>(
    plan: &'a Plan,
    ledger: &Ledger,
    watch: &Watch,
    drained: &[Drained],
    now: Now,
) -> Vec<Standing<'a>> {
    let mut all = Vec::new();
    for upstream in plan.upstreams() {
        let first = all.len();
        for endpoint in &upstream.endpoints {
            let drained = drained.iter().find(|it| it.endpoint == endpoint.key);
            let vital = watch.vital(endpoint.key);
            let view = ledger.breaker(BreakerKey::from(endpoint.key), now.at);
            let view = view.filter(|_| upstream.resilience.eject.is_some());
            let probed = vital.map(|vital| by_probes(upstream, vital, now));
            let judged = view.and_then(|view| by_requests(upstream, &view, now));
            let reasons = drained.map(|it| by_hand(it, now)).into_iter().chain(judged);
            let mut reasons: Vec<Reason> = reasons.chain(probed).collect();
            let place = reasons.iter().map(|it| it.place).max().unwrap_or(Place::In);
            // What only says that all is well says nothing beside what does not.
            reasons.retain(|it| it.place != Place::In || place == Place::In);
            all.push(Standing { upstream: &upstream.name, endpoint, place, reasons, panic: false });
        }
        mark_panic(upstream, watch, &mut all[first..]);
    }
    all
}

fn by_hand(it: &Drained, now: Now) -> Reason {
    let why = match it.until {
        Some(until) => format!("by hand, for {} s more", until.since(now.at).as_secs()),
        None => "by hand, until it is taken back".to_owned(),
    };
    Reason { witness: Witness::Operator, place: Place::Drained, since: Some(it.since), why }
}

fn by_probes(upstream: &Upstream, vital: &Vital, now: Now) -> Reason {
    let slow = upstream.health.as_ref().map_or(0, |check| nanos(check.slow_start));
    let back = vital.changed.filter(|_| !vital.out).map(|back| nanos(now.at.since(back)));
    match back.filter(|back| *back < slow) {
        Some(back) => {
            let percent = u128::from(back) * 100 / u128::from(slow.max(1));
            let why = format!("{percent}% of its share; {vital}");
            Reason { witness: Witness::Probes, place: Place::SlowStart, since: vital.since, why }
        }
        None => {
            let place = if vital.out { Place::Out } else { Place::In };
            Reason { witness: Witness::Probes, place, since: vital.since, why: vital.to_string() }
        }
    }
}

/// None: its breaker is closed.
fn by_requests(upstream: &Upstream, view: &View, now: Now) -> Option<Reason> {
    let rule = &upstream.resilience.eject.as_ref()?.breaker.rule;
    let left = view.left.map_or(0, |left| left.as_secs());
    match view.forced {
        Some(Force::Open) => {
            let why = format!("forced open by hand, for {left} s more");
            return Some(Reason {
                witness: Witness::Operator,
                place: Place::Out,
                since: None,
                why,
            });
        }
        Some(Force::Closed | Force::Disabled) => return None,
        None => {}
    }
    let (cause, at) = view.opened?;
    let since = Some(Wall(now.wall.0.saturating_sub(now.at.since(at).as_secs())));
    let (place, how) = match view.state {
        State::Closed => return None,
        State::Open => (Place::Out, format!("ejected, {cause}; tried again in {left} s")),
        State::Probing => {
            let (sent, good) = view.probes;
            let of = rule.probes;
            (Place::HalfOpen, format!("{sent} of {of} probes sent, {good} good; ejected, {cause}"))
        }
        State::Recovering => {
            let percent = share(view.age, rule).min(100);
            (Place::Recovering, format!("{percent}% of its requests; was ejected, {cause}"))
        }
    };
    Some(Reason { witness: Witness::Requests, place, since, why: how })
}

fn mark_panic(upstream: &Upstream, watch: &Watch, all: &mut [Standing<'_>]) {
    let count = all.len() as u64;
    let few = |fit: usize, share_ppm: u32| fit as u64 * 1_000_000 < count * u64::from(share_ppm);
    let health_ppm = upstream.health.as_ref().map_or(0, |check| check.panic_ppm);
    let eject_ppm = upstream.resilience.eject.as_ref().map_or(0, |eject| eject.panic.0);
    let unwell = |it: &Standing<'_>| watch.vital(it.endpoint.key).is_some_and(|vital| vital.out);
    let kept_out = |it: &Standing<'_>| it.place >= Place::HalfOpen;
    let of_health = few(all.iter().filter(|it| !unwell(it)).count(), health_ppm);
    let of_ejection = few(all.iter().filter(|it| !kept_out(it)).count(), eject_ppm);
    for it in all.iter_mut().filter(|it| it.place == Place::Out || it.place == Place::HalfOpen) {
        let ejected = it.reasons.iter().any(|it| it.witness != Witness::Probes);
        it.panic = (of_health || !unwell(it)) && (of_ejection || !ejected);
    }
}

/// `out: ejected, 5 failures in a row`; when is said by whoever knows what time it is.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::In => "in",
            Self::SlowStart => "slow start",
            Self::Recovering => "recovering",
            Self::HalfOpen => "half-open",
            Self::Out => "out",
            Self::Drained => "drained",
        })
    }
}
