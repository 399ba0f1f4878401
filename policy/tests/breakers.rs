//! Breakers, by their laws: sixteen workers on one ledger, endpoints that die, hang and flap.

#![expect(clippy::unwrap_used, reason = "a test may")]

mod written;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use sluice_policy::Policy;
use sluice_policy::decision::{Decision, Event, Failure};
use sluice_policy::facts::{Body, Facts};
use sluice_policy::flight::{Ending, Finish, Flight};
use sluice_policy::ledger::Ledger;
use sluice_policy::mechanism::dice::Dice;
use sluice_policy::plan::{EndpointKey, Plan};
use sluice_policy::sim::facts;
use sluice_policy::sim::night::{Night, Reaction, Seen};
use sluice_policy::time::{Instant, Now, Wall};
use sluice_policy::world::{Force, Signal, State, View};

const WORKERS: u64 = 16;
const PROBES: u64 = 4;
const OPEN: Duration = Duration::from_secs(5);

fn plan(servers: &str, more: &str) -> Arc<Plan> {
    written::plan(&format!(
        "[upstream.a]\nservers = {servers}\n{more}\n[route.r]\nmatch = \"/\"\nto = \"a\"\nretries = 0\n"
    ))
}

fn breaker() -> Arc<Plan> {
    plan(
        r#"["a:1"]"#,
        r#"breaker = { errors = "50%", min_requests = 20, open_for = "5s", open_max = "40s", probes = 4, ramp = "2s" }"#,
    )
}

fn view(plan: &Plan, ledger: &Ledger, now: Now) -> View {
    ledger.breaker(plan.upstreams()[0].key.into(), now.at).unwrap()
}

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

#[test]
fn probes_whose_clients_leave_count_as_nothing_and_others_go_in_their_place() {
    let plan = breaker();
    let mut night = Night::new(&plan, WORKERS, 3);
    night.pass(Duration::from_secs(4), 50, &mut |_, _, dice| bad(dice), &mut |_| {});
    assert_eq!(view(&plan, &night.ledger, night.now()).state, State::Open);
    // Every client leaves after a moment: probes come and go, never more than four at once.
    let (mut out, mut most, mut probes) = (Vec::<Instant>::new(), 0, 0);
    let mut leaving = |_: EndpointKey, at: Instant, _: &mut Dice| {
        out.retain(|end| *end > at);
        out.push(at + Duration::from_millis(100));
        most = most.max(out.len() as u64);
        probes += 1;
        (Duration::from_millis(100), None)
    };
    night.pass(Duration::from_secs(10), 200, &mut leaving, &mut |_| {});
    assert_eq!(view(&plan, &night.ledger, night.now()).state, State::Probing);
    assert!(most == PROBES && probes > 20, "{most} at once, {probes} in all");
    // They are given back, so well-behaved clients bring it home.
    night.pass(Duration::from_secs(30), 200, &mut |_, _, _| good(10), &mut |_| {});
    assert_eq!(view(&plan, &night.ledger, night.now()).state, State::Closed);
}

#[test]
fn probes_that_hang_open_it_again_after_a_while() {
    let plan = breaker();
    let mut night = Night::new(&plan, WORKERS, 4);
    night.pass(Duration::from_secs(4), 50, &mut |_, _, dice| bad(dice), &mut |_| {});
    let mut hang = |_: EndpointKey, _: Instant, _: &mut Dice| (Duration::from_secs(600), None);
    night.pass(Duration::from_secs(10), 50, &mut hang, &mut |_| {});
    assert_eq!(view(&plan, &night.ledger, night.now()).state, State::Probing);
    night.pass(Duration::from_secs(25), 50, &mut hang, &mut |_| {});
    let view = view(&plan, &night.ledger, night.now());
    assert_eq!((view.state, view.openings), (State::Open, 2));
}

#[test]
fn slow_calls_open_it_and_slow_probes_keep_it_open() {
    let plan = plan(r#"["a:1"]"#, r#"breaker = "default""#);
    let mut night = Night::new(&plan, WORKERS, 5);
    night.pass(Duration::from_secs(5), 50, &mut |_, _, _| good(450), &mut |_| {});
    assert_eq!(view(&plan, &night.ledger, night.now()).state, State::Closed);
    night.pass(Duration::from_secs(10), 50, &mut |_, _, _| good(550), &mut |_| {});
    assert_eq!(view(&plan, &night.ledger, night.now()).state, State::Open);
    night.pass(Duration::from_secs(60), 50, &mut |_, _, _| good(550), &mut |_| {});
    assert!(view(&plan, &night.ledger, night.now()).openings >= 3);
}

#[test]
fn the_way_back_is_a_ramp() {
    let plan = breaker();
    let mut night = Night::new(&plan, WORKERS, 6);
    night.pass(Duration::from_secs(4), 50, &mut |_, _, dice| bad(dice), &mut |_| {});
    let mut by_step: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    let mut began = None;
    let mut look = |seen: Seen<'_>| {
        if view(&plan, seen.ledger, seen.now).state != State::Recovering {
            return;
        }
        let began = *began.get_or_insert(seen.now.at);
        let step = by_step.entry(seen.now.at.since(began).as_secs() / 2).or_default();
        step.0 += u64::from(matches!(seen.decision, Decision::Call(_)));
        step.1 += u64::from(matches!(seen.decision, Decision::Call(_) | Decision::Answer(_)));
    };
    night.pass(Duration::from_secs(40), 1000, &mut |_, _, _| good(10), &mut look);
    let shares: Vec<u64> = by_step.values().map(|(let_in, all)| let_in * 100 / all).collect();
    for (step, expected) in [10, 25, 50, 100].into_iter().enumerate() {
        assert!(shares[step].abs_diff(expected) <= 4, "{shares:?}");
    }
    assert_eq!(view(&plan, &night.ledger, night.now()).state, State::Closed);
}

struct Stage {
    plan: Arc<Plan>,
    ledger: Arc<Ledger>,
    policy: Policy,
    now: Now,
}

impl Stage {
    fn new(plan: Arc<Plan>) -> Self {
        let ledger = Arc::new(Ledger::new(8, [0; 16]));
        let policy = Policy::new(Arc::clone(&plan), Arc::clone(&ledger), 1);
        let now = Now { at: Instant::from_nanos(1_000_000_000), wall: Wall(1) };
        Self { plan, ledger, policy, now }
    }

    fn pass(&mut self, time: Duration) {
        self.now.at = self.now.at + time;
    }

    fn arrive(&mut self) -> (Flight, Decision) {
        let mut flight = self.policy.begin(self.now, &facts("/"));
        let decision = self.policy.decide(self.now, &facts("/"), &mut flight, Event::Arrived);
        (flight, decision)
    }

    fn finish(&mut self, mut flight: Flight, event: Event, finish: Finish) -> Decision {
        let decision = self.policy.decide(self.now, &facts("/"), &mut flight, event);
        self.end(flight, finish);
        decision
    }

    fn end(&mut self, flight: Flight, finish: Finish) {
        let ending = Ending { status: None, bytes_in: 0, bytes_out: 0, finish };
        let _ = self.policy.end(self.now, flight, ending);
    }

    fn serve(&mut self, event: Event) -> Decision {
        let (flight, decision) = self.arrive();
        match decision {
            Decision::Call(_) => self.finish(flight, event, Finish::Whole),
            refused => {
                self.end(flight, Finish::Whole);
                refused
            }
        }
    }

    fn state(&self) -> State {
        view(&self.plan, &self.ledger, self.now).state
    }

    fn force(&mut self, force: Option<(Force, Duration)>) {
        let force = force.map(|(force, time)| (force, self.now.at + time));
        let breaker = self.plan.upstreams()[0].key.into();
        self.policy.signal(self.now, Signal::Force { breaker, force });
    }
}

const WELL: Event = Event::Responded { status: 200 };
const ILL: Event = Event::Responded { status: 503 };

#[test]
fn an_open_breaker_answers_503_and_says_when_to_come_again() {
    let mut stage = Stage::new(breaker());
    for _ in 0..20 {
        assert_eq!(stage.state(), State::Closed);
        assert_eq!(stage.serve(ILL), Decision::Relay);
    }
    assert_eq!(stage.state(), State::Open);
    let (flight, decision) = stage.arrive();
    let Decision::Answer(answer) = decision else { panic!("{decision:?}") };
    assert_eq!((answer.status, answer.code), (503, "upstream.open"));
    let after = answer.retry_after.unwrap();
    assert!(after > OPEN * 3 / 4 && after <= OPEN, "{after:?}");
    let ending = Ending { status: None, bytes_in: 0, bytes_out: 0, finish: Finish::Whole };
    let record = stage.policy.end(stage.now, flight, ending);
    let steps: Vec<_> = record.trail.steps().map(|step| (step.filter, step.passed)).collect();
    assert_eq!(steps, [("breaker", false)]);
}

#[test]
fn what_was_begun_in_an_older_era_is_ignored() {
    let mut stage = Stage::new(breaker());
    // Begun while all was well; their failures come when it is well again.
    let late: Vec<_> = (0..400).map(|_| stage.arrive().0).collect();
    for _ in 0..20 {
        let _ = stage.serve(ILL);
    }
    for _ in 0..40 {
        stage.pass(Duration::from_secs(1));
        for _ in 0..20 {
            let _ = stage.serve(WELL);
        }
    }
    assert_eq!(stage.state(), State::Closed);
    for flight in late {
        let _ = stage.finish(flight, ILL, Finish::Whole);
    }
    assert_eq!(stage.state(), State::Closed);
}

#[test]
fn what_counts_as_failed_is_what_the_operator_says_and_a_client_that_leaves_does_not() {
    let failed = |failure| Event::Failed { failure, replayable: true };
    let only = |kinds: &str| {
        format!(r#"breaker = {{ consecutive = 5, failures = [{kinds}], open_for = "5s" }}"#)
    };
    for (written, event, opens) in [
        (r#"breaker = "classic""#.to_owned(), ILL, true),
        (r#"breaker = "classic""#.to_owned(), Event::Responded { status: 500 }, true),
        (r#"breaker = "classic""#.to_owned(), Event::Responded { status: 501 }, false),
        (r#"breaker = "classic""#.to_owned(), Event::Responded { status: 429 }, false),
        (r#"breaker = "classic""#.to_owned(), failed(Failure::Connect), true),
        (r#"breaker = "classic""#.to_owned(), failed(Failure::TimedOut), true),
        (r#"breaker = "classic""#.to_owned(), failed(Failure::Broken), true),
        (r#"breaker = "classic""#.to_owned(), failed(Failure::PoolFull), false),
        (only(r#""429""#), Event::Responded { status: 429 }, true),
        (only(r#""connect""#), ILL, false),
        (only(r#""connect""#), failed(Failure::TimedOut), false),
        (only(r#""timeout""#), failed(Failure::ConnectTimeout), true),
        (only(r#""5xx""#), Event::Responded { status: 599 }, true),
        (only(r#""5xx""#), Event::Responded { status: 499 }, false),
    ] {
        let mut stage = Stage::new(plan(r#"["a:1"]"#, &written));
        for _ in 0..5 {
            assert_eq!(stage.state(), State::Closed);
            let _ = stage.serve(event);
        }
        assert_eq!(stage.state() == State::Open, opens, "{written}: {event:?}");
    }
    // Clients that leave, before and after the head; and a response that breaks off.
    let mut stage = Stage::new(plan(r#"["a:1"]"#, r#"breaker = "classic""#));
    for _ in 0..20 {
        let (flight, _) = stage.arrive();
        stage.end(flight, Finish::ClientGone);
        let (flight, _) = stage.arrive();
        let _ = stage.finish(flight, WELL, Finish::ClientGone);
    }
    assert_eq!(stage.state(), State::Closed);
    let (flight, _) = stage.arrive();
    let _ = stage.finish(flight, WELL, Finish::UpstreamCut);
    let opened = plan(r#"["a:1"]"#, r#"breaker = { errors = "50%", min_requests = 20 }"#);
    let mut stage = Stage::new(opened);
    for _ in 0..64 {
        let (flight, _) = stage.arrive();
        let _ = stage.finish(flight, WELL, Finish::UpstreamCut);
    }
    assert_eq!(stage.state(), State::Open);
}

#[test]
fn a_success_between_ends_a_row_of_failures() {
    let mut stage = Stage::new(plan(r#"["a:1"]"#, r#"breaker = "classic""#));
    for _ in 0..10 {
        for _ in 0..4 {
            let _ = stage.serve(ILL);
        }
        let _ = stage.serve(WELL);
    }
    assert_eq!(stage.state(), State::Closed);
}

#[test]
fn a_row_of_failures_is_one_eras_and_ends_with_what_is_slow() {
    let row = r#"breaker = { consecutive = 5, slow = "500ms", slow_share = "100%" }"#;
    let mut stage = Stage::new(plan(r#"["a:1"]"#, row));
    let ill = |stage: &mut Stage, times: usize| {
        for _ in 0..times {
            let _ = stage.serve(ILL);
        }
    };
    ill(&mut stage, 4);
    let (slow, _) = stage.arrive();
    stage.pass(Duration::from_millis(600));
    let _ = stage.finish(slow, WELL, Finish::Whole);
    ill(&mut stage, 4);
    assert_eq!(stage.state(), State::Closed, "a slow one is no failure");
    // Its head was good; by the time that it breaks off, it is of another era.
    let (mut cut, _) = stage.arrive();
    let _ = stage.policy.decide(stage.now, &facts("/"), &mut cut, WELL);
    ill(&mut stage, 4);
    stage.force(None);
    ill(&mut stage, 4);
    assert_eq!(stage.state(), State::Closed, "four of this era");
    stage.end(cut, Finish::UpstreamCut);
    assert_eq!(stage.state(), State::Closed, "and not a fifth of another");
    ill(&mut stage, 1);
    assert_eq!(stage.state(), State::Open);
}

/// A breaker that is half-open with the next request: what it says of its probes.
fn half_open(more: &str) -> Stage {
    let of = "breaker = { consecutive = 1, open_for = \"5s\", probes = 1, ramp = \"2s\" }";
    let mut stage = Stage::new(plan(r#"["a:1"]"#, &format!("{of}\n{more}")));
    let _ = stage.serve(ILL);
    assert_eq!(stage.state(), State::Open);
    stage.pass(OPEN);
    stage
}

#[test]
fn a_probe_that_goes_nowhere_gives_its_place_back() {
    // Every server is out: there is nowhere to send the probe.
    let mut stage = half_open("health = {}");
    let key = stage.plan.upstreams()[0].endpoints[0].key;
    stage.policy.signal(stage.now, Signal::Vitals { out: &[key] });
    assert!(matches!(stage.serve(WELL), Decision::Answer(a) if a.code == "upstream.none"));
    stage.policy.signal(stage.now, Signal::Vitals { out: &[] });
    assert_eq!(stage.serve(WELL), Decision::Relay);
    assert_eq!(stage.state(), State::Recovering);
    // Its client has no time.
    let mut stage = half_open("");
    let hurried = Facts { patience: Some(Duration::ZERO), ..facts("/") };
    let mut flight = stage.policy.begin(stage.now, &hurried);
    let decision = stage.policy.decide(stage.now, &hurried, &mut flight, Event::Arrived);
    assert!(matches!(decision, Decision::Answer(a) if a.code == "request.timeout"), "{decision:?}");
    stage.end(flight, Finish::Whole);
    assert_eq!(stage.serve(WELL), Decision::Relay);
    assert_eq!(stage.state(), State::Recovering);
}

#[test]
fn few_failures_on_the_way_back_open_it_again() {
    let mut stage = Stage::new(breaker());
    for _ in 0..20 {
        let _ = stage.serve(ILL);
    }
    stage.pass(OPEN);
    for _ in 0..PROBES {
        assert_eq!(stage.serve(WELL), Decision::Relay);
    }
    assert_eq!(stage.state(), State::Recovering);
    let mut passed = 0;
    while stage.state() == State::Recovering {
        passed += usize::from(stage.serve(ILL) == Decision::Relay);
    }
    assert_eq!((stage.state(), passed), (State::Open, 5));
}

#[test]
fn how_long_a_long_upload_takes_is_not_the_servers_fault() {
    for (body, opens) in [
        (Body::Empty, true),
        (Body::Length(64 << 10), true),
        (Body::Length((64 << 10) + 1), false),
        (Body::Unknown, false),
    ] {
        let mut stage = Stage::new(plan(r#"["a:1"]"#, r#"breaker = "default""#));
        let put = Facts { method: "PUT", body, ..facts("/") };
        for _ in 0..40 {
            let mut flight = stage.policy.begin(stage.now, &put);
            let decision = stage.policy.decide(stage.now, &put, &mut flight, Event::Arrived);
            if let Decision::Call(_) = decision {
                stage.pass(Duration::from_millis(510));
                let _ = stage.policy.decide(stage.now, &put, &mut flight, WELL);
            }
            stage.end(flight, Finish::Whole);
        }
        assert_eq!(stage.state() == State::Open, opens, "{body:?}");
    }
}

#[test]
fn the_operator_has_the_last_word_for_as_long_as_he_said() {
    let hour = Duration::from_secs(3600);
    let mut stage = Stage::new(breaker());
    stage.force(Some((Force::Open, hour)));
    assert!(matches!(stage.serve(WELL), Decision::Answer(a) if a.code == "upstream.open"));
    stage.pass(hour);
    assert_eq!(stage.serve(WELL), Decision::Relay, "it is over by itself");
    for force in [Force::Closed, Force::Disabled] {
        stage.force(Some((force, hour)));
        for _ in 0..100 {
            assert_eq!(stage.serve(ILL), Decision::Relay);
        }
        assert_eq!(stage.state(), State::Closed);
        stage.force(None);
        let _ = stage.serve(ILL);
        assert_eq!(stage.state(), State::Closed, "what was before does not count");
    }
    for _ in 0..20 {
        let _ = stage.serve(ILL);
    }
    assert_eq!(stage.state(), State::Open);
    stage.force(None);
    assert_eq!(stage.serve(WELL), Decision::Relay, "taken back: closed");
}

#[test]
fn a_reload_changes_the_rule_and_keeps_the_state() {
    let mut stage = Stage::new(breaker());
    for _ in 0..20 {
        let _ = stage.serve(ILL);
    }
    stage.policy.adopt(plan(r#"["a:1", "b:1"]"#, r#"breaker = "default""#));
    assert_eq!(stage.state(), State::Open);
    assert!(matches!(stage.serve(WELL), Decision::Answer(a) if a.code == "upstream.open"));
    stage.policy.adopt(plan(r#"["a:1"]"#, ""));
    assert_eq!(stage.serve(WELL), Decision::Relay, "no breaker, nothing in the way");
}

const FOUR: &str = r#"["a:1", "b:1", "c:1", "d:1"]"#;
const EJECT: &str =
    r#"eject = { breaker = { consecutive = 5, open_for = "5s", probes = 2, ramp = "2s" } }"#;

fn out(night: &Night, plan: &Plan) -> Vec<usize> {
    let endpoints = plan.upstreams()[0].endpoints.iter().enumerate();
    let state = |key: EndpointKey| night.ledger.breaker(key.into(), night.now().at).unwrap().state;
    let out = endpoints.filter(|(_, e)| matches!(state(e.key), State::Open | State::Probing));
    out.map(|(i, _)| i).collect()
}

#[test]
fn a_server_that_fails_is_taken_out_gets_nothing_and_comes_back() {
    for balance in ["round_robin", "p2c", "weighted"] {
        let plan = plan(FOUR, &format!("balance = \"{balance}\"\n{EJECT}"));
        let sick = plan.upstreams()[0].endpoints[1].key;
        let mut night = Night::new(&plan, WORKERS, 7);
        let mut react = |endpoint, _: Instant, dice: &mut Dice| match endpoint == sick {
            true => bad(dice),
            false => good(20),
        };
        night.pass(Duration::from_secs(3), 200, &mut react, &mut |_| {});
        assert_eq!(out(&night, &plan), [1], "{balance}");
        let before = night.calls.len();
        night.pass(Duration::from_secs(20), 200, &mut react, &mut |_| {});
        let probes = night.calls[before..].iter().filter(|call| call.endpoint == sick).count();
        assert!(probes <= 6, "{balance}: {probes} probes in 20 s");
        night.pass(Duration::from_secs(60), 200, &mut |_, _, _| good(20), &mut |_| {});
        assert_eq!(out(&night, &plan), [] as [usize; 0]);
        let before = night.calls.len();
        night.pass(Duration::from_secs(5), 200, &mut |_, _, _| good(20), &mut |_| {});
        let back = night.calls[before..].iter().filter(|call| call.endpoint == sick).count();
        assert!(back > 180, "{balance}: {back} of a quarter of 1000");
    }
}

#[test]
fn never_more_than_the_maximum_is_out_and_in_panic_all_serve() {
    for seed in 0..16 {
        let plan = plan(FOUR, EJECT);
        let mut night = Night::new(&plan, WORKERS, seed);
        let keys: Vec<_> = plan.upstreams()[0].endpoints.iter().map(|e| e.key).collect();
        let most = std::cell::Cell::new(0);
        let mut look = |seen: Seen<'_>| {
            let is_out = |key: &&EndpointKey| {
                let state = seen.ledger.breaker((**key).into(), seen.now.at).unwrap().state;
                matches!(state, State::Open | State::Probing)
            };
            most.set(most.get().max(keys.iter().filter(is_out).count()));
        };
        night.pass(Duration::from_secs(30), 300, &mut |_, _, dice| bad(dice), &mut look);
        assert_eq!(most.get(), 2, "seed {seed}: half of four");
        assert!(night.done.iter().all(|r| r.answer.is_none_or(|a| a.code != "upstream.none")));
    }
    // All four may be out, and with fewer than half of them left nobody is kept from any.
    let plan =
        plan(FOUR, r#"eject = { max = "100%", breaker = { consecutive = 5, open_for = "60s" } }"#);
    let mut night = Night::new(&plan, WORKERS, 1);
    night.pass(Duration::from_secs(10), 300, &mut |_, _, dice| bad(dice), &mut |_| {});
    assert!(out(&night, &plan).len() > 2);
    let before = night.calls.len();
    night.pass(Duration::from_secs(2), 300, &mut |_, _, _| good(5), &mut |_| {});
    let calls = &night.calls[before..];
    let reached = plan.upstreams()[0].endpoints.iter();
    assert!(reached.clone().all(|e| calls.iter().any(|call| call.endpoint == e.key)));
    assert!(calls.len() > 500);
}
