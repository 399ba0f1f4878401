//! Retries of what was sent: only when that is safe, within a budget, after a moment, elsewhere.

mod written;

use std::sync::Arc;
use std::time::Duration;

use sluice_policy::Policy;
use sluice_policy::decision::{Decision, Event, Failure};
use sluice_policy::facts::{Body, Facts};
use sluice_policy::flight::{Ending, Finish, Flight};
use sluice_policy::ledger::Ledger;
use sluice_policy::plan::Plan;
use sluice_policy::sim::facts;
use sluice_policy::sim::night::Night;
use sluice_policy::time::{Instant, Now, Wall};

fn plan(servers: &str, retries: &str) -> Arc<Plan> {
    written::plan(&format!(
        "[upstream.a]\nservers = {servers}\n[route.r]\nmatch = \"/\"\nto = \"a\"\nretries = {retries}\n"
    ))
}

const TWO: &str = r#"["a:1", "b:1"]"#;
const ALL: &str = r#"{ max = 2, on = ["timeout", "reset", "5xx"] }"#;

#[test]
fn a_storm_of_retries_is_bounded_by_the_budget() {
    for (seed, rate) in (0..12).zip([20, 200, 2000].into_iter().cycle()) {
        let plan = plan(TWO, ALL);
        let mut night = Night::new(&plan, 16, seed);
        let mut ill = |_, _, dice: &mut sluice_policy::mechanism::dice::Dice| {
            let event = match dice.below(2) {
                0 => Event::Responded { status: 503 },
                _ => Event::Failed { failure: Failure::Broken, replayable: true },
            };
            (Duration::from_millis(dice.below(50)), Some(event))
        };
        for _ in 0..30 {
            night.pass(Duration::from_secs(1), rate, &mut ill, &mut |_| {});
        }
        let retries = night.calls.iter().filter(|call| call.again).count() as u64;
        // In any ten seconds; a bucket is a second, so it may be eleven.
        for from in (0..20).map(|s| Instant::from_nanos((1 + s) * 1_000_000_000)) {
            let within = |at: Instant| at >= from && at.since(from) < Duration::from_secs(9);
            let of = |again| {
                night.calls.iter().filter(|c| c.again == again && within(c.at)).count() as u64
            };
            let bound = of(false) * 20 / 100 * 11 / 9 + 100 + 20;
            assert!(of(true) <= bound, "seed {seed}, {rate}/s: {} of {}", of(true), of(false));
        }
        let requests = night.requests();
        assert!(retries <= requests / 5 + 10 * 31 + 16, "{rate}/s: {retries} of {requests}");
        assert!(retries >= requests / 6, "{rate}/s: the budget is there to be used: {retries}");
    }
}

struct Stage {
    policy: Policy,
    now: Now,
}

impl Stage {
    fn new(plan: &Arc<Plan>, seed: u64) -> Self {
        let ledger = Arc::new(Ledger::new(8, [0; 16]));
        let policy = Policy::new(Arc::clone(plan), ledger, seed);
        Self { policy, now: Now { at: Instant::from_nanos(1_000_000_000), wall: Wall(1) } }
    }

    fn arrive(&mut self, facts: &Facts<'_>) -> (Flight, Decision) {
        let mut flight = self.policy.begin(self.now, facts);
        let decision = self.policy.decide(self.now, facts, &mut flight, Event::Arrived);
        (flight, decision)
    }

    fn tell(&mut self, facts: &Facts<'_>, flight: &mut Flight, event: Event) -> Decision {
        self.policy.decide(self.now, facts, flight, event)
    }

    fn end(&mut self, flight: Flight) {
        let finish = Finish::Whole;
        let ending = Ending { status: None, bytes_in: 0, bytes_out: 0, finish };
        let _ = self.policy.end(self.now, flight, ending);
    }
}

fn failed(failure: Failure, replayable: bool) -> Event {
    Event::Failed { failure, replayable }
}

#[test]
fn only_what_is_safe_to_send_twice_is_sent_twice() {
    let reset = failed(Failure::Broken, true);
    let status = |status| Event::Responded { status };
    for (retries, method, body, event, again) in [
        (ALL, "GET", Body::Empty, reset, true),
        (ALL, "PUT", Body::Length(9), reset, true),
        (ALL, "GET", Body::Empty, failed(Failure::TimedOut, true), true),
        (ALL, "GET", Body::Empty, failed(Failure::Malformed, true), true),
        (ALL, "GET", Body::Empty, status(503), true),
        (ALL, "GET", Body::Empty, status(500), true),
        (ALL, "HEAD", Body::Empty, status(599), true),
        (ALL, "GET", Body::Empty, status(429), false),
        (ALL, "GET", Body::Empty, status(404), false),
        (ALL, "GET", Body::Empty, status(200), false),
        // A short body is kept, a long one or one of unknown length can't be known to be here.
        (ALL, "PUT", Body::Length(9), status(503), true),
        (ALL, "DELETE", Body::Length(64 << 10), status(503), true),
        (ALL, "PUT", Body::Length((64 << 10) + 1), status(503), false),
        (ALL, "PUT", Body::Unknown, status(503), false),
        (r#"{ on = ["503"], body = "8B" }"#, "PUT", Body::Length(9), status(503), false),
        (ALL, "POST", Body::Empty, status(503), false),
        (ALL, "POST", Body::Length(9), reset, false),
        (ALL, "PATCH", Body::Empty, reset, false),
        (ALL, "PUT", Body::Unknown, failed(Failure::Broken, false), false),
        // What was not asked for.
        ("2", "GET", Body::Empty, reset, false),
        ("2", "GET", Body::Empty, status(503), false),
        (r#"{ on = ["reset"] }"#, "GET", Body::Empty, status(503), false),
        (r#"{ on = ["503"] }"#, "GET", Body::Empty, status(502), false),
        (r#"{ on = ["503"] }"#, "GET", Body::Empty, status(503), true),
        (r#"{ max = 0, on = ["5xx"] }"#, "GET", Body::Empty, status(503), false),
        ("{}", "GET", Body::Empty, status(503), true),
        ("{}", "GET", Body::Empty, status(500), false),
        ("{}", "GET", Body::Empty, failed(Failure::TimedOut, true), false),
    ] {
        let mut stage = Stage::new(&plan(TWO, retries), 1);
        let facts = Facts { method, body, ..facts("/") };
        let (mut flight, _) = stage.arrive(&facts);
        let decision = stage.tell(&facts, &mut flight, event);
        let what = format!("{retries} {method} {body:?} {event:?}: {decision:?}");
        assert_eq!(matches!(decision, Decision::Wait(_)), again, "{what}");
        stage.end(flight);
    }
}

#[test]
fn a_retry_goes_elsewhere_after_a_moment_that_grows() {
    let (mut longest, mut shortest) = ([Duration::ZERO; 2], Duration::MAX);
    for seed in 0..200 {
        let plan = plan(r#"["a:1", "b:1", "c:1"]"#, ALL);
        let mut stage = Stage::new(&plan, seed);
        let facts = facts("/");
        let (mut flight, mut decision) = stage.arrive(&facts);
        let mut called = Vec::new();
        for longest in &mut longest {
            let Decision::Call(call) = decision else { panic!("{decision:?}") };
            assert!(!called.contains(&call.endpoint), "seed {seed}");
            called.push(call.endpoint);
            let event = Event::Responded { status: 503 };
            let Decision::Wait(until) = stage.tell(&facts, &mut flight, event) else {
                panic!("no wait")
            };
            let wait = until.since(stage.now.at);
            (*longest, shortest) = ((*longest).max(wait), shortest.min(wait));
            stage.now.at = until;
            decision = stage.tell(&facts, &mut flight, Event::Woke);
        }
        assert!(matches!(decision, Decision::Call(call) if !called.contains(&call.endpoint)));
        let event = Event::Responded { status: 503 };
        assert_eq!(stage.tell(&facts, &mut flight, event), Decision::Relay, "no more tries");
        stage.end(flight);
    }
    let near = |found: Duration, ms| {
        found <= Duration::from_millis(ms) && found > Duration::from_millis(ms * 9 / 10)
    };
    assert!(near(longest[0], 25) && near(longest[1], 50), "{longest:?}");
    assert!(shortest < Duration::from_millis(1), "any time up to that: {shortest:?}");
}

#[test]
fn what_came_is_passed_on_when_it_cannot_be_tried_again_after_all() {
    // A breaker that opens meanwhile: the response that is here is better than none.
    let text = r#"
        [upstream.a]
        servers = ["a:1"]
        breaker = { consecutive = 1 }
        [route.r]
        match = "/"
        to = "a"
        retries = { on = ["503"] }
    "#;
    let mut stage = Stage::new(&written::plan(text), 1);
    let facts = facts("/");
    let (mut flight, _) = stage.arrive(&facts);
    let decision = stage.tell(&facts, &mut flight, Event::Responded { status: 503 });
    let Decision::Wait(until) = decision else { panic!("{decision:?}") };
    stage.now.at = until;
    assert_eq!(stage.tell(&facts, &mut flight, Event::Woke), Decision::Relay);
    stage.end(flight);
}

#[test]
fn one_attempt_may_have_less_time_than_the_request() {
    let text = r#"{ per_try = "2s", on = ["timeout"] }"#;
    let mut stage = Stage::new(&plan(TWO, text), 1);
    let (flight, decision) = stage.arrive(&facts("/"));
    let Decision::Call(call) = decision else { panic!("{decision:?}") };
    assert_eq!(call.first_byte, Duration::from_secs(2));
    stage.end(flight);
}

#[test]
fn a_retry_that_would_come_after_the_deadline_is_not_waited_for() {
    for seed in 0..50 {
        let mut stage = Stage::new(&plan(TWO, ALL), seed);
        let facts = facts("/");
        let (mut flight, _) = stage.arrive(&facts);
        stage.now.at = stage.now.at + Duration::from_secs(10);
        let decision = stage.tell(&facts, &mut flight, failed(Failure::TimedOut, true));
        assert!(matches!(decision, Decision::Answer(a) if a.code == "upstream.timeout"));
        stage.end(flight);
    }
}

#[test]
fn no_failure_is_tried_again_more_often_than_said() {
    const FOUR: &str = r#"["a:1", "b:1", "c:1", "d:1"]"#;
    for failure in [Failure::Broken, Failure::TimedOut, Failure::Connect, Failure::PoolFull] {
        let mut stage = Stage::new(&plan(FOUR, ALL), 1);
        let facts = facts("/");
        let (mut flight, mut decision) = stage.arrive(&facts);
        let mut called = Vec::new();
        for _ in 0..16 {
            match decision {
                Decision::Call(call) => {
                    called.push(call.endpoint);
                    decision = stage.tell(&facts, &mut flight, failed(failure, true));
                }
                Decision::Wait(until) => {
                    stage.now.at = until;
                    decision = stage.tell(&facts, &mut flight, Event::Woke);
                }
                Decision::Answer(_) => break,
                other => panic!("{other:?}"),
            }
        }
        assert!(matches!(decision, Decision::Answer(_)), "{failure:?}: {decision:?}");
        assert_eq!(called.len(), 3, "{failure:?}");
        called.dedup();
        assert_eq!(called.len(), 3, "{failure:?}: elsewhere each time");
        stage.end(flight);
    }
}

#[test]
fn connecting_again_to_the_only_server_is_within_the_budget() {
    let plan = plan(r#"["a:1"]"#, r#"{ max = 3, on = ["connect"] }"#);
    let mut night = Night::new(&plan, 16, 1);
    let refused = Event::Failed { failure: Failure::Connect, replayable: true };
    let mut react = |_, _, _: &mut _| (Duration::from_millis(1), Some(refused));
    night.pass(Duration::from_secs(20), 400, &mut react, &mut |_| {});
    let again = night.calls.iter().filter(|call| call.again).count() as u64;
    let bound = night.requests() / 5 + 10 * 30 + 16;
    assert!(again > night.requests() / 6 && again <= bound, "{again} of at most {bound}");
}

#[test]
fn with_two_servers_the_worse_is_not_asked_first_by_everybody() {
    let plan = plan(TWO, r#"{ max = 1, on = ["503"] }"#);
    let worse = plan.upstreams()[0].endpoints[1].key;
    let mut stage = Stage::new(&plan, 1);
    let facts = facts("/");
    let mut first = 0;
    for _ in 0..20 {
        let (mut flight, mut decision) = stage.arrive(&facts);
        first += usize::from(matches!(decision, Decision::Call(call) if call.endpoint == worse));
        while let Decision::Call(_) | Decision::Wait(_) = decision {
            let status = match decision {
                Decision::Call(call) if call.endpoint != worse => 200,
                _ => 503,
            };
            let event = match decision {
                Decision::Wait(_) => Event::Woke,
                _ => Event::Responded { status },
            };
            decision = stage.tell(&facts, &mut flight, event);
        }
        stage.end(flight);
    }
    assert_eq!(first, 10);
}

#[test]
fn each_wait_fits_into_the_time_that_is_left() {
    let bounded = |upstream: &str, route: &str| {
        let plan = written::plan(&format!(
            "[upstream.a]\nservers = {TWO}\n{upstream}\n[route.r]\nmatch = \"/\"\nto = \"a\"\n{route}\n"
        ));
        let mut stage = Stage::new(&plan, 1);
        let hurried = Facts { patience: Some(Duration::from_millis(900)), ..facts("/") };
        let (mut flight, decision) = stage.arrive(&hurried);
        let Decision::Call(first) = decision else { panic!("{decision:?}") };
        let again = stage.tell(&hurried, &mut flight, failed(Failure::PoolFull, true));
        stage.end(flight);
        (first, again)
    };
    let ms = Duration::from_millis;
    let (call, _) = bounded("", "");
    assert_eq!((call.first_byte, call.queue), (ms(900), Duration::ZERO));
    let (call, _) = bounded("timeout = { first_byte = \"300ms\" }", "");
    assert_eq!(call.first_byte, ms(300));
    let both = bounded("timeout = { first_byte = \"300ms\" }", "retries = { per_try = \"200ms\" }");
    assert_eq!(both.0.first_byte, ms(200));
    // A full pool is waited at only where there is no other server to go to.
    let (first, again) = bounded("queue = { wait = \"5s\" }", "retries = 2");
    assert_eq!(first.queue, Duration::ZERO);
    assert!(matches!(again, Decision::Call(call) if call.queue == ms(900)), "{again:?}");
}
