//! The laws of breakers, over nights with sixteen workers; and breakers that are wrong on purpose,
//! each of which must break one.

#![expect(clippy::unwrap_used, reason = "a test may")]

mod written;

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use sluice_policy::decision::{Decision, Event, Failure};
use sluice_policy::mechanism::dice::Dice;
use sluice_policy::plan::{EndpointKey, Plan};
use sluice_policy::sim::night::{Night, Reaction, Seen};
use sluice_policy::sim::{MISTAKES, MISTAKES_OF_EJECTION, Mistake};
use sluice_policy::time::Instant;
use sluice_policy::world::{State, View};

const WORKERS: u64 = 16;
const RATE: u64 = 200;
const PROBES: u8 = 4;
const OPEN: Duration = Duration::from_secs(5);
const OPEN_MAX: Duration = Duration::from_secs(40);
/// Openings are remembered for so long, at least.
const CALM: Duration = Duration::from_secs(60);
/// A probe that has not come back by then hangs.
const PROBING: Duration = Duration::from_secs(29);
const SEEDS: u64 = 10;

fn plan(upstream: &str, mistake: Option<Mistake>) -> Arc<Plan> {
    let mut plan = written::plan(&format!(
        "[upstream.a]\n{upstream}\n[route.r]\nmatch = \"/\"\nto = \"a\"\nretries = 0\n"
    ));
    if let Some(mistake) = mistake {
        mistake.spoil(Arc::get_mut(&mut plan).unwrap());
    }
    plan
}

const BREAKER: &str = r#"
    servers = ["a:1"]
    breaker = { errors = "50%", min_requests = 20, open_for = "5s", open_max = "40s", probes = 4, ramp = "2s" }
"#;

fn good(ms: u64) -> Reaction {
    (Duration::from_millis(ms), Some(Event::Responded { status: 200 }))
}

fn bad(dice: &mut Dice) -> Reaction {
    let failed = |failure| Some(Event::Failed { failure, replayable: true });
    let event = match dice.below(4) {
        0 => failed(Failure::Connect),
        1 => failed(Failure::Broken),
        2 => failed(Failure::TimedOut),
        _ => Some(Event::Responded { status: 503 }),
    };
    (Duration::from_millis(dice.below(300)), event)
}

/// What an endpoint does while it is not well, by the kind of night.
fn ill(kind: u64, at: Instant, dice: &mut Dice) -> Reaction {
    let second = at.as_nanos() / 1_000_000_000;
    let failing = match kind {
        0 => 100,
        1 if second % 7 < 3 => 100,
        1 => 0,
        2 => 60,
        // Well for a moment and then ill again: as long as it takes to close.
        3 if second % 24 < 10 => 100,
        3 => 0,
        // And then some calls hang for longer than anybody probes.
        _ if second % 40 < 10 => 100,
        _ => 0,
    };
    match dice.below(100) {
        n if n < failing => bad(dice),
        // Some clients leave.
        n if n >= 97 => (Duration::from_millis(dice.below(200)), None),
        n if n >= 82 && kind == 4 => (Duration::from_secs(100), None),
        // Or come back very late.
        95 => (Duration::from_secs(5 + dice.below(30)), bad(dice).1),
        _ => good(dice.below(200)),
    }
}

/// Follows the breaker of an upstream and notes the laws that it breaks.
#[derive(Default)]
struct Laws {
    last: Option<View>,
    opened: Option<Instant>,
    /// Of the last opening, the how manieth it was.
    openings: u8,
    closed: Option<Instant>,
    half_open: Option<Instant>,
    /// From when on nothing new goes wrong.
    well: Option<Instant>,
    broken: Vec<String>,
}

impl Laws {
    fn look(&mut self, view: View, seen: Seen<'_>) {
        let now = seen.now.at;
        let called = matches!(seen.decision, Decision::Call(_));
        self.hold(!called || view.state != State::Open, "let through while open");
        let (sent, good) = view.probes;
        self.hold(sent <= PROBES && good <= sent, "more probes than there may be");
        let last = self.last.replace(view);
        let Some(before) = last.filter(|last| last.state != view.state) else { return };
        match view.state {
            State::Open => self.opened(before, view, now),
            State::Recovering => {
                let (sent, good) = before.probes;
                let last = sent == PROBES && good + 1 == sent;
                let hangs = self.half_open.is_some_and(|since| now.since(since) >= PROBING);
                self.hold(last && !hangs, "recovers before its probes are good");
            }
            State::Closed => self.closed = Some(now),
            State::Probing => self.half_open = Some(now),
        }
    }

    fn opened(&mut self, before: View, view: View, now: Instant) {
        if let Some(opened) = self.opened.replace(now) {
            // No oscillation faster than the backoff.
            let backoff = (OPEN * (1 << (self.openings.max(1) - 1))).min(OPEN_MAX);
            let passed = now.since(opened);
            self.hold(passed >= backoff * 4 / 5, &format!("open again after {passed:?}"));
            let calm = self
                .closed
                .is_some_and(|closed| before.state == State::Closed && now.since(closed) >= CALM);
            self.hold(calm || view.openings == self.openings + 1, "forgets that it was open");
        }
        self.openings = view.openings;
        // Results of an older era count for nothing: all of this one are good.
        let began = before.age + Duration::from_millis(100);
        let since = self.well.filter(|well| began < now.since(*well));
        let judged = matches!(before.state, State::Closed | State::Recovering);
        self.hold(since.is_none() || !judged, "opens for what was before");
    }

    fn hold(&mut self, holds: bool, law: &str) {
        if !holds && self.broken.len() < 8 {
            self.broken.push(law.to_owned());
        }
    }
}

/// One night from first to last; what laws it broke.
fn night(seed: u64, mistake: Option<Mistake>) -> Vec<String> {
    let plan = plan(BREAKER, mistake);
    let whole = plan.upstreams()[0].key.into();
    let mut night = Night::new(&plan, WORKERS, seed);
    let mut laws = Laws::default();
    let view = |seen: &Seen<'_>| seen.ledger.breaker(whole, seen.now.at).unwrap();
    let mut react = |_: EndpointKey, at: Instant, dice: &mut Dice| ill(seed % 5, at, dice);
    let mut look = |seen: Seen<'_>| laws.look(view(&seen), seen);
    night.pass(Duration::from_secs(150), RATE, &mut react, &mut look);
    // Liveness: well again, it closes and serves everything, whatever was before.
    night.pass(Duration::from_secs(130), RATE, &mut |_, _, _| good(20), &mut look);
    let before = night.done.len();
    night.pass(Duration::from_secs(5), RATE, &mut |_, _, _| good(20), &mut look);
    laws.hold(laws.opened.is_some(), "never opens");
    let found = night.ledger.breaker(whole, night.now().at).unwrap();
    laws.hold((found.state, found.openings) == (State::Closed, 0), "does not come back");
    let served = night.done[before..].iter().all(|r| r.ending.status == Some(200));
    laws.hold(served, "does not serve everything");
    // Calls that hang and fail late, when it has been open and is well again.
    let mut late = |_: EndpointKey, _: Instant, dice: &mut Dice| {
        (Duration::from_secs(8) + Duration::from_millis(dice.below(12_000)), bad(dice).1)
    };
    night.pass(Duration::from_secs(9), RATE, &mut late, &mut |seen| laws.look(view(&seen), seen));
    laws.well = Some(night.now().at);
    let mut look = |seen: Seen<'_>| laws.look(view(&seen), seen);
    night.pass(Duration::from_secs(30), RATE, &mut |_, _, _| good(20), &mut look);
    let found = night.ledger.breaker(whole, night.now().at).unwrap();
    laws.hold(found.state == State::Closed, "does not come back while old calls end");
    // Every permit ends: whoever leaves as a probe leaves no probe behind.
    night.pass(Duration::from_secs(5), RATE, &mut |_, _, dice| bad(dice), &mut |_| {});
    let leave = |_: EndpointKey, _: Instant, _: &mut Dice| (Duration::from_millis(50), None);
    night.pass(Duration::from_secs(10), RATE, &mut { leave }, &mut |_| {});
    night.pass(Duration::from_secs(110), 0, &mut |_, _, _| good(1), &mut |_| {});
    laws.hold(night.under_way() == 0, "a flight does not end");
    let found = night.ledger.breaker(whole, night.now().at).unwrap();
    let none = found.state == State::Probing && found.probes == (0, 0);
    laws.hold(none, "a probe whose client left is still out");
    laws.broken
}

#[test]
fn laws_of_a_breaker_hold_over_nights_that_fail_hang_and_flap() {
    for seed in 0..SEEDS {
        assert_eq!(night(seed, None), [] as [String; 0], "seed {seed}");
    }
}

#[test]
fn a_breaker_that_is_wrong_is_noticed() {
    for mistake in MISTAKES {
        let caught = (0..SEEDS).find_map(|seed| night(seed, Some(mistake)).pop());
        assert!(caught.is_some(), "{mistake:?}");
    }
}

/// A night of servers that all fail; the most that were out at once, and what a server got in panic.
fn ejected(seed: u64, share: &str, mistake: Option<Mistake>) -> (usize, Vec<usize>) {
    let plan = plan(
        &format!(
            "servers = [\"a:1\", \"b:1\", \"c:1\", \"d:1\"]\n\
             eject = {{ max = \"{share}\", breaker = {{ consecutive = 5, open_for = \"60s\" }} }}"
        ),
        mistake,
    );
    let keys: Vec<_> = plan.upstreams()[0].endpoints.iter().map(|e| e.key).collect();
    let mut night = Night::new(&plan, WORKERS, seed);
    let most = Cell::new(0);
    let mut look = |seen: Seen<'_>| {
        let state =
            |key: &EndpointKey| seen.ledger.breaker((*key).into(), seen.now.at).unwrap().state;
        let is_out = |key: &&EndpointKey| matches!(state(key), State::Open | State::Probing);
        most.set(most.get().max(keys.iter().filter(is_out).count()));
    };
    night.pass(Duration::from_secs(8), RATE, &mut |_, _, dice| bad(dice), &mut look);
    let before = night.calls.len();
    night.pass(Duration::from_secs(2), RATE, &mut |_, _, _| good(5), &mut look);
    let got = |key: &EndpointKey| {
        night.calls[before..].iter().filter(|call| call.endpoint == *key).count()
    };
    (most.get(), keys.iter().map(got).collect())
}

#[test]
fn taking_servers_out_keeps_its_bounds_and_one_that_does_not_is_noticed() {
    for seed in 0..SEEDS {
        let (most, got) = ejected(seed, "50%", None);
        // Half are left, which is no panic: the others get all of it.
        assert_eq!((most, got.iter().filter(|n| **n == 0).count()), (2, 2), "seed {seed}: {got:?}");
        let (most, got) = ejected(seed, "100%", None);
        assert!(most > 2 && got.iter().all(|n| *n > 40), "seed {seed}: {most} out, {got:?}");
    }
    for mistake in MISTAKES_OF_EJECTION {
        let caught = (0..SEEDS).any(|seed| {
            let (most, _) = ejected(seed, "50%", Some(mistake));
            let (_, got) = ejected(seed, "100%", Some(mistake));
            most != 2 || !got.iter().all(|n| *n > 40)
        });
        assert!(caught, "{mistake:?}");
    }
}
