//! Responses that break off behind their head, where they are held and where they are not.

#![expect(clippy::unwrap_used, reason = "a test may")]

mod written;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use sluice_policy::Policy;
use sluice_policy::decision::{Decision, Event, Failure, Hold};
use sluice_policy::facts::{Body, Facts};
use sluice_policy::flight::{Ending, Finish, Flight};
use sluice_policy::ledger::Ledger;
use sluice_policy::plan::Plan;
use sluice_policy::sim::night::Night;
use sluice_policy::sim::{Done, Request, World, facts};
use sluice_policy::time::{Instant, Now, Wall};

const METHODS: [&str; 8] = ["GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE", "POST", "PATCH"];

fn plan(retries: &str) -> Arc<Plan> {
    written::plan(&format!(
        "[upstream.a]\nservers = [\"a:1\", \"b:1\"]\n\
         [route.r]\nmatch = \"/\"\nto = \"a\"\nretries = {retries}\n"
    ))
}

const NOW: Now = Now { at: Instant::from_nanos(1_000_000_000), wall: Wall(1) };

fn policy(retries: &str) -> Policy {
    Policy::new(plan(retries), Arc::new(Ledger::new(8, [0; 16])), 1)
}

fn arrive(policy: &mut Policy, facts: &Facts<'_>) -> Flight {
    let mut flight = policy.begin(NOW, facts);
    let decision = policy.decide(NOW, facts, &mut flight, Event::Arrived);
    assert!(matches!(decision, Decision::Call(_)), "{decision:?}");
    flight
}

fn end(policy: &mut Policy, flight: Flight) {
    let ending = Ending { status: None, bytes_in: 0, bytes_out: 0, finish: Finish::Whole };
    let _ = policy.end(NOW, flight, ending);
}

fn hold(retries: &str, facts: &Facts<'_>) -> Option<Hold> {
    let mut policy = policy(retries);
    let flight = arrive(&mut policy, facts);
    let hold = flight.hold(facts);
    end(&mut policy, flight);
    hold
}

#[test]
fn what_could_be_sent_again_has_its_short_responses_held() {
    for (retries, statuses, length_max) in [
        ("{}", [true, true, false], Some(16 << 10)),
        ("{ on = [\"reset\"] }", [true, true, true], Some(16 << 10)),
        ("{ on = [\"timeout\"], hold = \"64KiB\" }", [true, true, true], Some(64 << 10)),
        ("{ on = [\"reset\", \"404\"], hold = \"1B\" }", [true, false, true], Some(1)),
        ("{ hold = \"0B\" }", [false; 3], None),
        ("{ max = 0 }", [false; 3], None),
        ("{ on = [\"503\", \"connect\"] }", [false; 3], None),
        ("3", [false; 3], None),
    ] {
        for method in METHODS {
            let idempotent = !["POST", "PATCH"].contains(&method);
            let hold = hold(retries, &Facts { method, ..facts("/") });
            let takes = |status, length| hold.is_some_and(|hold| hold.takes(status, length));
            let held = [200, 404, 503].map(|status| takes(status, 1));
            let what = format!("{retries} {method}");
            assert_eq!(held, if idempotent { statuses } else { [false; 3] }, "{what}");
            let most = length_max.filter(|_| idempotent);
            assert_eq!(hold.is_some(), most.is_some(), "{what}");
            if let Some(most) = most {
                assert!(takes(200, most) && !takes(200, most + 1), "{what}");
            }
        }
    }
    let within = hold("{ per_try = \"2s\" }", &facts("/")).unwrap().within;
    assert_eq!(within, Some(Duration::from_secs(2)));
}

#[test]
fn a_status_that_would_not_be_tried_again_is_held_like_any_other() {
    // Where a body is not kept, a status is not tried again; nor when there are no more tries.
    let long = Facts { method: "PUT", body: Body::Length((64 << 10) + 1), ..facts("/") };
    assert!(hold("{}", &long).unwrap().takes(503, 1));
    let (mut policy, get) = (policy("{}"), facts("/"));
    let mut flight = arrive(&mut policy, &get);
    assert!(!flight.hold(&get).unwrap().takes(503, 1));
    let again = policy.decide(NOW, &get, &mut flight, Event::Responded { status: 503 });
    assert!(matches!(again, Decision::Wait(_)), "{again:?}");
    let again = policy.decide(NOW, &get, &mut flight, Event::Woke);
    assert!(matches!(again, Decision::Call(_)), "{again:?}");
    assert!(flight.hold(&get).unwrap().takes(503, 1));
    end(&mut policy, flight);
}

/// Of one request, while nothing fails but that responses break off.
fn is_lawful(done: &Done, held_max: u64) {
    let Done { request, held, record, .. } = done;
    let idempotent = !["POST", "PATCH"].contains(&request.method);
    let what = format!("{request:?} {}", done.line());
    assert_eq!(record.cut, *held, "{what}");
    assert!(idempotent || *held == 0, "{what}");
    // Repeated only after an attempt whose response was held, and no more often than said.
    assert!(record.attempts <= 1 + held.min(&2), "{what}");
    let code = record.answer.map(|answer| answer.code);
    match record.ending.finish {
        Finish::UpstreamCut => assert!(!idempotent || held_max < 24 << 10, "{what}"),
        Finish::Whole if code.is_none() => assert_eq!(record.ending.status, Some(200), "{what}"),
        Finish::Whole => {
            assert!(["upstream.cut", "upstream.stalled"].contains(&code.unwrap()), "{what}");
            assert!(*held > 0, "{what}");
        }
        Finish::ClientGone | Finish::Fault => panic!("{what}"),
    }
}

#[test]
fn what_broke_off_behind_its_head_is_repeated_only_where_a_repeat_is_allowed() {
    let (mut again, mut broken) = (0, 0);
    for seed in 0..64 {
        let held_max = [16 << 10, 64 << 10][usize::try_from(seed % 2).unwrap()];
        let retries = format!(
            "{{ max = 2, on = [\"reset\", \"timeout\"], hold = \"{}KiB\" }}",
            held_max >> 10
        );
        let ledger = Arc::new(Ledger::new(64, [1; 16]));
        let mut world = World::new(&plan(&retries), ledger, 3, seed);
        world.cutting = 10 + seed;
        for _ in 0..400 {
            world.pass(Duration::from_millis(5));
            let method = METHODS[usize::try_from(world.dice.below(8)).unwrap()];
            let client = IpAddr::V4(Ipv4Addr::LOCALHOST);
            let body = if method == "PUT" { Body::Length(100) } else { Body::Empty };
            let done = world.serve(Request { method, body, ..Request::get(client, "/") });
            is_lawful(&done, held_max);
            again += u32::from(done.record.attempts > 1);
            broken += u32::from(done.record.ending.finish == Finish::UpstreamCut);
        }
    }
    assert!(again > 1000 && broken > 1000, "{again} repeated, {broken} broken off");
}

#[test]
fn a_storm_of_broken_responses_keeps_to_the_budget() {
    for seed in 0..4 {
        let plan = plan("{ max = 2, on = [\"reset\", \"timeout\"] }");
        let mut night = Night::new(&plan, 16, seed);
        let mut ill = |_, _, dice: &mut sluice_policy::mechanism::dice::Dice| {
            let failure = [Failure::Cut, Failure::Stalled][usize::from(dice.below(2) == 0)];
            let event = Event::Failed { failure, replayable: true };
            (Duration::from_millis(dice.below(50)), Some(event))
        };
        night.pass(Duration::from_secs(20), 500, &mut ill, &mut |_| {});
        let again = night.calls.iter().filter(|call| call.again).count() as u64;
        let bound = night.requests() / 5 + 10 * 30 + 16;
        assert!(again > night.requests() / 6 && again <= bound, "{again} of at most {bound}");
        let cut: u64 = night.done.iter().map(|record| u64::from(record.cut)).sum();
        assert!(cut + 64 >= night.calls.len() as u64, "{cut} of {}", night.calls.len());
    }
}

#[test]
fn breakers_learn_of_it_as_of_a_reset_or_a_time_out() {
    for (failures, failure, opens) in [
        ("reset", Failure::Cut, true),
        ("timeout", Failure::Stalled, true),
        ("timeout", Failure::Cut, false),
        ("reset", Failure::Stalled, false),
    ] {
        let plan = written::plan(&format!(
            "[upstream.a]\nservers = [\"a:1\"]\n\
             breaker = {{ consecutive = 3, failures = [\"{failures}\"] }}\n\
             [route.r]\nmatch = \"/\"\nto = \"a\"\nretries = {{ max = 0 }}\n"
        ));
        let mut policy = Policy::new(plan, Arc::new(Ledger::new(8, [0; 16])), 1);
        for _ in 0..3 {
            let mut flight = arrive(&mut policy, &facts("/"));
            let failed = Event::Failed { failure, replayable: true };
            let _ = policy.decide(NOW, &facts("/"), &mut flight, failed);
            end(&mut policy, flight);
        }
        let mut flight = policy.begin(NOW, &facts("/"));
        let decision = policy.decide(NOW, &facts("/"), &mut flight, Event::Arrived);
        assert_eq!(!matches!(decision, Decision::Call(_)), opens, "{failures} {failure:?}");
        end(&mut policy, flight);
    }
}
