//! Hedging over nights: it helps, it stays within its budget, and it knows when not to.

#![expect(clippy::unwrap_used, reason = "a test may")]

mod written;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use sluice_policy::Policy;
use sluice_policy::decision::{Decision, Event, Failure};
use sluice_policy::facts::{Body, Facts};
use sluice_policy::flight::{Ending, Finish, Flight, Hedge};
use sluice_policy::ledger::Ledger;
use sluice_policy::mechanism::dice::Dice;
use sluice_policy::plan::{EndpointKey, Plan};
use sluice_policy::sim::facts;
use sluice_policy::sim::night::Night;
use sluice_policy::time::{Instant, Now, Wall};
use sluice_policy::world::State;

const RATE: u64 = 400;
const SECONDS: u64 = 30;

fn plan(hedge: bool) -> Arc<Plan> {
    written::plan(&format!(
        r#"
        [upstream.a]
        servers = ["a:1", "b:1", "c:1"]
        breaker = {{ errors = "10%", min_requests = 50, open_for = "2s", probes = 4 }}
        [route.r]
        match = "/"
        to = "a"
        timeout = "5s"
        retries = {{ max = 2, on = ["reset", "5xx"], hedge = {hedge} }}
    "#
    ))
}

/// 5 to 15 ms, and now and then stuck for two seconds or lost.
fn world(
    stuck_in: u64,
) -> impl FnMut(EndpointKey, Instant, &mut Dice) -> (Duration, Option<Event>) {
    move |_, _, dice| {
        let quick = Duration::from_micros(5_000 + dice.below(10_000));
        match dice.below(stuck_in) {
            0 => (Duration::from_secs(2), Some(Event::Responded { status: 200 })),
            1 => (quick * 3, Some(Event::Failed { failure: Failure::Broken, replayable: true })),
            2 => (quick, None),
            _ => (quick, Some(Event::Responded { status: 200 })),
        }
    }
}

fn night(plan: &Arc<Plan>, workers: u64, seed: u64, stuck_in: u64) -> Night {
    let mut night = Night::new(plan, workers, seed);
    let upstream = plan.upstreams()[0].key;
    let mut react = world(stuck_in);
    let mut open = false;
    night.pass(Duration::from_secs(SECONDS), RATE, &mut react, &mut |seen| {
        let state = seen.ledger.breaker(upstream.into(), seen.now.at).unwrap().state;
        open |= state != State::Closed;
        let hedged = matches!(seen.decision, Decision::Hedge(_));
        assert!(!hedged || state == State::Closed, "seed {seed}: hedged while {state:?}");
    });
    assert_eq!(open, stuck_in < 10, "seed {seed}");
    // Everything ends, and nothing is held.
    night.pass(Duration::from_secs(20), 0, &mut react, &mut |_| {});
    assert_eq!(night.under_way(), 0, "seed {seed}");
    for worker in &night.workers {
        let seats = worker.inspect(night.now()).endpoints;
        assert!(seats.iter().all(|(_, taken)| *taken == 0), "seed {seed}: seats go back");
    }
    night
}

fn percentile(night: &Night, of_1000: usize) -> Duration {
    let mut took: Vec<Duration> = night.done.iter().map(|record| record.took).collect();
    took.sort_unstable();
    took[took.len() * of_1000 / 1000]
}

#[test]
fn hedges_and_retries_stay_within_their_budget_over_all_workers() {
    for seed in 0..12 {
        // One in three fails or is stuck: everything wants a hedge, or a retry.
        for stuck_in in [6, 40] {
            let night = night(&plan(true), 1 + seed % 4, seed, stuck_in);
            for from in (0..SECONDS - 10).map(|s| Instant::from_nanos((1 + s) * 1_000_000_000)) {
                let within = |at: Instant| at >= from && at.since(from) < Duration::from_secs(9);
                let (mut first, mut again, mut hedges) = (0, 0, 0);
                for call in night.calls.iter().filter(|call| within(call.at)) {
                    first += u64::from(!call.again);
                    again += u64::from(call.again);
                    hedges += u64::from(call.hedge);
                }
                // A bucket is a second, so ten seconds may be eleven.
                let (first, what) = (first * 11 / 9, format!("seed {seed}, 1 in {stuck_in}"));
                assert!(hedges <= first / 20 + 8, "{what}: {hedges} hedges of {first}");
                assert!(again <= first / 5 + 100 + 8, "{what}: {again} again of {first}");
            }
        }
    }
}

#[test]
fn a_hedge_goes_elsewhere_and_there_is_one_at_most() {
    for seed in 0..12 {
        let night = night(&plan(true), 2, seed, 60);
        let mut called: BTreeMap<u64, Vec<_>> = BTreeMap::new();
        night.calls.iter().for_each(|call| called.entry(call.request).or_default().push(call));
        for calls in called.values() {
            assert!(calls.iter().filter(|call| call.hedge).count() <= 1, "seed {seed}");
            for pair in calls.windows(2).filter(|pair| pair[1].hedge) {
                assert_ne!(pair[0].endpoint, pair[1].endpoint, "seed {seed}");
            }
        }
        let sent = night.done.iter().filter(|record| record.hedge != Hedge::None).count();
        assert_eq!(sent, night.calls.iter().filter(|call| call.hedge).count(), "seed {seed}");
        assert!(sent > 0 && night.done.iter().any(|record| record.hedge == Hedge::Won));
    }
}

#[test]
fn what_is_stuck_now_and_then_is_not_waited_for() {
    for seed in 0..4 {
        let [without, with] = [false, true].map(|hedge| night(&plan(hedge), 2, seed, 60));
        let [slow, fast] = [&without, &with].map(|night| percentile(night, 990));
        assert!(slow >= Duration::from_secs(2), "seed {seed}: {slow:?}");
        assert!(fast < Duration::from_millis(200), "seed {seed}: {fast:?}");
    }
}

#[test]
fn too_few_requests_are_not_hedged() {
    let plan = plan(true);
    let mut night = Night::new(&plan, 1, 1);
    let mut react = world(10);
    night.pass(Duration::from_secs(9), 10, &mut react, &mut |seen| {
        assert!(!matches!(seen.decision, Decision::Hedge(_)));
    });
    assert!(night.done.len() > 60);
}

#[test]
fn hedges_and_retries_of_sixteen_workers_share_one_budget_exactly() {
    for seed in 0..4 {
        let plan = written::plan(
            r#"
            [upstream.a]
            servers = ["a:1", "b:1", "c:1"]
            [route.r]
            match = "/"
            to = "a"
            timeout = "5s"
            retries = { max = 3, on = ["reset", "5xx"], hedge = true }
        "#,
        );
        let mut night = Night::new(&plan, 16, seed);
        let quick = |dice: &mut Dice| Duration::from_micros(5_000 + dice.below(5_000));
        // Well for as long as it takes to know how long a call takes.
        let mut well =
            |_, _, dice: &mut Dice| (quick(dice), Some(Event::Responded { status: 200 }));
        night.pass(Duration::from_secs(10), RATE, &mut well, &mut |_| {});
        // Then half of the calls fail, some of them late, and one in ten of the others is stuck.
        let mut ill = |_, _, dice: &mut Dice| match dice.below(20) {
            0..6 => (quick(dice), Some(Event::Responded { status: 503 })),
            6..10 => {
                let failed = Event::Failed { failure: Failure::Broken, replayable: true };
                (quick(dice) * 8, Some(failed))
            }
            10 => (Duration::from_secs(1), Some(Event::Responded { status: 200 })),
            _ => (quick(dice), Some(Event::Responded { status: 200 })),
        };
        night.pass(Duration::from_secs(30), RATE, &mut ill, &mut |_| {});
        // The budget's buckets are seconds, and it looks at ten of them.
        let (mut fullest, mut hedged) = (0, 0);
        for second in 1..=31 {
            let within = |call: &&sluice_policy::sim::night::Call| {
                (second..second + 10).contains(&(call.at.as_nanos() / 1_000_000_000))
            };
            let (mut first, mut again, mut hedges) = (0, 0, 0);
            for call in night.calls.iter().filter(within) {
                first += u64::from(!call.again);
                again += u64::from(call.again);
                hedges += u64::from(call.hedge);
            }
            let what = format!("seed {seed}, from second {second}: {first} requests");
            // Spent when it is decided, and sent a moment after.
            assert!(again <= first / 5 + 100 + 20, "{what}, {again} more");
            assert!(hedges <= first / 20 + 8, "{what}, {hedges} hedges");
            fullest = fullest.max(again * 1000 / (first / 5 + 100));
            hedged = hedged.max(hedges * 1000 / (first / 20));
        }
        assert!(fullest > 950 && hedged > 500, "seed {seed}: {fullest} and {hedged} of 1000");
    }
}

#[test]
fn whoever_loses_or_is_not_sent_leaves_no_probe_behind() {
    let plan = written::plan(
        r#"
        [upstream.a]
        servers = ["a:1", "b:1", "c:1"]
        eject = { max = "100%", panic = "0%", breaker = { consecutive = 3, open_for = "300ms", probes = 60 } }
        [route.r]
        match = "/"
        to = "a"
        timeout = "5s"
        retries = { max = 2, on = ["reset"], hedge = true }
    "#,
    );
    let keys: Vec<_> = plan.upstreams()[0].endpoints.iter().map(|e| e.key).collect();
    let mut half_open = 0;
    for seed in 0..8 {
        let mut night = Night::new(&plan, 16, seed);
        for round in 0..12 {
            let sick = keys[round % keys.len()];
            let react = |failing: u64, key: EndpointKey, dice: &mut Dice| {
                let quick = Duration::from_micros(5_000 + dice.below(5_000));
                match dice.below(20) {
                    n if n < failing && key == sick => (quick * 4, Some(FAILED)),
                    0..2 => (quick * 30, Some(WELL)),
                    2 => (quick * 10, None),
                    _ => (quick, Some(WELL)),
                }
            };
            let ms = Duration::from_millis;
            night.pass(ms(400), RATE, &mut |key, _, dice| react(15, key, dice), &mut |_| {});
            night.pass(ms(500), RATE, &mut |key, _, dice| react(0, key, dice), &mut |_| {});
            night.pass(ms(6_000), 0, &mut |key, _, dice| react(0, key, dice), &mut |_| {});
            assert_eq!(night.under_way(), 0, "seed {seed}");
            for key in &keys {
                let view = night.ledger.breaker((*key).into(), night.now().at).unwrap();
                if view.state == State::Probing {
                    half_open += 1;
                    assert_eq!(view.probes.0, view.probes.1, "seed {seed}: nobody is there");
                }
            }
        }
    }
    assert!(half_open > 3, "{half_open} were half-open");
}

/// One worker that knows how long calls take.
struct Stage {
    plan: Arc<Plan>,
    ledger: Arc<Ledger>,
    policy: Policy,
    now: Now,
}

const QUICK: Duration = Duration::from_millis(10);
const WELL: Event = Event::Responded { status: 200 };
const FAILED: Event = Event::Failed { failure: Failure::Broken, replayable: true };

impl Stage {
    fn new(servers: &str, upstream: &str, retries: &str) -> Self {
        let plan = written::plan(&format!(
            "[upstream.a]\nservers = {servers}\n{upstream}\n[route.r]\nmatch = \"/\"\nto = \"a\"\n\
             retries = {{ hedge = true, {retries} }}\n"
        ));
        let ledger = Arc::new(Ledger::new(8, [0; 16]));
        let policy = Policy::new(Arc::clone(&plan), Arc::clone(&ledger), 3);
        let now = Now { at: Instant::from_nanos(1_000_000_000), wall: Wall(1) };
        Self { plan, ledger, policy, now }
    }

    fn warm(mut self, took: Duration) -> Self {
        for _ in 0..256 {
            let _ = self.serve(took, WELL);
        }
        self
    }

    fn arrive(&mut self, facts: &Facts<'_>) -> (Flight, Decision) {
        let mut flight = self.policy.begin(self.now, facts);
        let decision = self.policy.decide(self.now, facts, &mut flight, Event::Arrived);
        (flight, decision)
    }

    fn tell(&mut self, flight: &mut Flight, event: Event) -> Decision {
        self.policy.decide(self.now, &facts("/"), flight, event)
    }

    fn end(&mut self, flight: Flight) {
        let finish = Finish::Whole;
        let ending = Ending { status: None, bytes_in: 0, bytes_out: 0, finish };
        let _ = self.policy.end(self.now, flight, ending);
    }

    fn serve(&mut self, took: Duration, event: Event) -> Decision {
        let (mut flight, mut decision) = self.arrive(&facts("/"));
        if let Decision::Call(_) = decision {
            self.now.at = self.now.at + took;
            decision = self.tell(&mut flight, event);
        }
        self.end(flight);
        decision
    }

    /// When it would be hedged.
    fn after(&mut self, facts: &Facts<'_>) -> Option<Duration> {
        let (flight, decision) = self.arrive(facts);
        self.end(flight);
        let Decision::Call(call) = decision else { panic!("{decision:?}") };
        call.hedge
    }
}

const TWO: &str = r#"["a:1", "b:1"]"#;

#[test]
fn only_what_may_be_sent_twice_at_once_is_hedged_and_not_too_soon() {
    let mut stage = Stage::new(TWO, "", "").warm(QUICK);
    let plain = facts("/");
    for (facts, hedged) in [
        (plain, true),
        (Facts { method: "HEAD", ..plain }, true),
        (Facts { method: "POST", ..plain }, false),
        (Facts { method: "PUT", ..plain }, false),
        (Facts { body: Body::Length(3), ..plain }, false),
        (Facts { patience: Some(QUICK), ..plain }, false),
    ] {
        let after = stage.after(&facts);
        assert_eq!(after.is_some(), hedged, "{} {:?}", facts.method, facts.body);
        assert!(after.is_none_or(|after| after >= QUICK && after <= QUICK * 9 / 8), "{after:?}");
    }
    let alone = Stage::new(r#"["a:1"]"#, "", "").warm(QUICK).after(&plain);
    assert_eq!(alone, None, "there is nowhere to go");
    let fast = Stage::new(TWO, "", "").warm(Duration::from_micros(100)).after(&plain);
    assert_eq!(fast, Some(Duration::from_millis(2)));
    // How quick servers are with their errors says nothing.
    for _ in 0..2_000 {
        let _ = stage.serve(Duration::from_millis(1), Event::Responded { status: 500 });
    }
    assert!(stage.after(&plain) >= Some(QUICK));
}

#[test]
fn a_request_is_hedged_once_and_then_goes_where_it_has_not_been() {
    let mut stage =
        Stage::new(r#"["a:1", "b:1", "c:1"]"#, "", "max = 2, on = [\"reset\"]").warm(QUICK);
    for (second, failure) in [
        (true, Failure::Broken),
        (false, Failure::Broken),
        (true, Failure::Cut),
        (false, Failure::Stalled),
    ] {
        let (mut flight, decision) = stage.arrive(&facts("/"));
        let Decision::Call(first) = decision else { panic!("{decision:?}") };
        let decision = stage.tell(&mut flight, Event::Slow);
        let Decision::Hedge(hedge) = decision else { panic!("{decision:?}") };
        assert_ne!(first.endpoint, hedge.endpoint);
        assert_eq!(hedge.hedge, None);
        let fell = Event::Fell { second, failure };
        assert_eq!(stage.tell(&mut flight, fell), Decision::Await);
        assert_eq!(stage.tell(&mut flight, Event::Slow), Decision::Await, "once");
        let decision = stage.tell(&mut flight, FAILED);
        let Decision::Wait(until) = decision else { panic!("{decision:?}") };
        stage.now.at = until;
        let decision = stage.tell(&mut flight, Event::Woke);
        let Decision::Call(third) = decision else { panic!("{decision:?}") };
        assert!(![first.endpoint, hedge.endpoint].contains(&third.endpoint));
        assert_eq!(third.hedge, None, "not again");
        stage.end(flight);
    }
}

#[test]
fn a_hedge_waits_for_no_connection() {
    let mut stage = Stage::new(TWO, "queue = { wait = \"1s\" }", "max = 0").warm(QUICK);
    let (mut flight, decision) = stage.arrive(&facts("/"));
    assert!(matches!(decision, Decision::Call(call) if call.queue == Duration::from_secs(1)));
    let decision = stage.tell(&mut flight, Event::Slow);
    assert!(matches!(decision, Decision::Hedge(call) if call.queue.is_zero()), "{decision:?}");
    stage.end(flight);
}

#[test]
fn nothing_is_hedged_on_the_way_back() {
    let breaker = "breaker = { consecutive = 3, open_for = \"2s\", probes = 1, ramp = \"60s\" }";
    let mut stage = Stage::new(TWO, breaker, "max = 0").warm(QUICK);
    let hedged = |stage: &mut Stage| {
        for _ in 0..200 {
            let (mut flight, decision) = stage.arrive(&facts("/"));
            let called = matches!(decision, Decision::Call(_));
            let decision = called.then(|| stage.tell(&mut flight, Event::Slow));
            stage.end(flight);
            match decision {
                Some(Decision::Hedge(_)) => return true,
                Some(_) => return false,
                None => stage.now.at = stage.now.at + Duration::from_millis(1),
            }
        }
        panic!("nothing is let through")
    };
    assert!(hedged(&mut stage));
    for _ in 0..3 {
        let _ = stage.serve(QUICK, Event::Responded { status: 503 });
    }
    stage.now.at = stage.now.at + Duration::from_secs(2);
    assert!(!hedged(&mut stage), "a probe");
    let _ = stage.serve(QUICK, WELL);
    let whole = stage.plan.upstreams()[0].key.into();
    let state = |stage: &Stage| stage.ledger.breaker(whole, stage.now.at).unwrap().state;
    assert_eq!(state(&stage), State::Recovering);
    assert!(
        (0..60).all(|_| !hedged(&mut stage)),
        "of those that are let through, one in ten might"
    );
}

#[test]
fn a_hedge_that_is_beyond_its_budget_gives_back_its_place_as_a_probe() {
    let eject =
        "eject = { panic = \"0%\", breaker = { consecutive = 1, open_for = \"1s\", probes = 1 } }";
    let mut stage = Stage::new(TWO, eject, "max = 0").warm(QUICK);
    let keys: Vec<_> = stage.plan.upstreams()[0].endpoints.iter().map(|e| e.key).collect();
    loop {
        let (mut flight, _) = stage.arrive(&facts("/"));
        let decision = stage.tell(&mut flight, Event::Slow);
        stage.end(flight);
        match decision {
            Decision::Hedge(_) => {}
            _ => break,
        }
    }
    let (mut flight, decision) = stage.arrive(&facts("/"));
    let Decision::Call(ill) = decision else { panic!("{decision:?}") };
    let _ = stage.tell(&mut flight, Event::Responded { status: 503 });
    stage.end(flight);
    stage.now.at = stage.now.at + Duration::from_secs(1);
    let view = |stage: &Stage| stage.ledger.breaker(ill.endpoint.into(), stage.now.at).unwrap();
    assert_eq!(view(&stage).state, State::Open);
    let well = keys.into_iter().find(|key| *key != ill.endpoint).unwrap();
    for _ in 0..8 {
        let (mut flight, decision) = stage.arrive(&facts("/"));
        if matches!(decision, Decision::Call(call) if call.endpoint == well) {
            assert_eq!(stage.tell(&mut flight, Event::Slow), Decision::Await);
            let found = view(&stage);
            assert_eq!((found.state, found.probes), (State::Probing, (0, 0)));
            stage.end(flight);
            return;
        }
        stage.end(flight);
    }
    panic!("nothing goes to the server that is well");
}
