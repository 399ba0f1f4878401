//! What else takes servers out, and keeps them out: counted calls, being far worse than the
//! others, thresholds for a while, an operator's hand.

#![expect(clippy::unwrap_used, reason = "a test may")]

mod written;

use std::sync::Arc;
use std::time::Duration;

use sluice_policy::decision::Event;
use sluice_policy::degrade::Switches;
use sluice_policy::ledger::BreakerKey;
use sluice_policy::mechanism::dice::Dice;
use sluice_policy::plan::{EndpointKey, Plan};
use sluice_policy::sim::night::{Night, Reaction};
use sluice_policy::time::Instant;
use sluice_policy::unit::Ratio;
use sluice_policy::world::{Cause, Signal, State, Thresholds};

const WORKERS: u64 = 16;
const SIX: &str = r#"["a:1", "b:1", "c:1", "d:1", "e:1", "f:1"]"#;

fn plan(servers: &str, more: &str) -> Arc<Plan> {
    written::plan(&format!(
        "[upstream.a]\nservers = {servers}\n{more}\n[route.r]\nmatch = \"/\"\nto = \"a\"\nretries = 0\n"
    ))
}

fn keys(plan: &Plan) -> Vec<EndpointKey> {
    plan.upstreams()[0].endpoints.iter().map(|e| e.key).collect()
}

fn whole(plan: &Plan) -> BreakerKey {
    plan.upstreams()[0].key.into()
}

fn state(night: &Night, key: impl Into<BreakerKey>) -> State {
    night.ledger.breaker(key.into(), night.now().at).unwrap().state
}

fn answer(status: u16, ms: u64) -> Reaction {
    (Duration::from_millis(ms), Some(Event::Responded { status }))
}

/// Fails so many of a hundred.
fn failing(dice: &mut Dice, percent: u64) -> Reaction {
    answer(if dice.below(100) < percent { 503 } else { 200 }, 5)
}

#[test]
fn the_last_hundred_calls_open_it_whenever_they_were_and_not_the_hundred_and_first() {
    let rule = r#"breaker = { errors = "50%", over = "100 requests", min_requests = 100 }"#;
    let plan = plan(r#"["a:1"]"#, rule);
    let mut night = Night::new(&plan, WORKERS, 1);
    // A call a second: a window of ten seconds would never hold a hundred.
    let pass = |night: &mut Night, status: u16, seconds: u64| {
        let time = Duration::from_secs(seconds);
        night.pass(time, 1, &mut |_, _, _| answer(status, 5), &mut |_| {});
    };
    pass(&mut night, 200, 40);
    pass(&mut night, 503, 20);
    assert_eq!(state(&night, whole(&plan)), State::Closed, "far from half, far from a hundred");
    pass(&mut night, 503, 300);
    let view = night.ledger.breaker(whole(&plan), night.now().at).unwrap();
    assert!(view.entered[1] > 0, "{view:?}");
}

#[test]
fn a_window_of_calls_opens_over_all_workers_at_its_share() {
    let rule = r#"breaker = { errors = "30%", over = "50 requests", min_requests = 50, open_for = "60s" }"#;
    for (percent, opens) in [(10, false), (60, true)] {
        let plan = plan(r#"["a:1"]"#, rule);
        let mut night = Night::new(&plan, WORKERS, percent);
        let mut react = |_: EndpointKey, _: Instant, dice: &mut Dice| failing(dice, percent);
        night.pass(Duration::from_secs(3), 200, &mut react, &mut |_| {});
        assert_eq!(state(&night, whole(&plan)) == State::Open, opens, "{percent}%");
    }
}

#[test]
fn a_server_far_worse_than_the_others_is_taken_out_and_none_when_all_are_alike() {
    for (outliers, worse, expected) in [(true, 25, true), (false, 25, false), (true, 3, false)] {
        let eject =
            format!(r#"eject = {{ outliers = {outliers}, breaker = {{ errors = "90%" }} }}"#);
        let plan = plan(SIX, &eject);
        let keys = keys(&plan);
        let mut night = Night::new(&plan, WORKERS, 7);
        let mut react = |key: EndpointKey, _: Instant, dice: &mut Dice| {
            failing(dice, if key == keys[2] { worse } else { 3 })
        };
        night.pass(Duration::from_secs(8), 600, &mut react, &mut |_| {});
        let out = |key: &EndpointKey| {
            night.ledger.breaker((*key).into(), night.now().at).unwrap().entered[1] > 0
        };
        let found: Vec<bool> = keys.iter().map(out).collect();
        assert_eq!(found[2], expected, "{outliers} {worse}%: {found:?}");
        if worse > 3 {
            assert_eq!(found.iter().filter(|out| **out).count(), usize::from(expected));
        }
        if expected {
            let view = night.ledger.breaker(keys[2].into(), night.now().at).unwrap();
            let Some((Cause::Outlier { good_ppm, usual_ppm }, _)) = view.opened else {
                panic!("{view:?}")
            };
            assert!(good_ppm < 850_000 && usual_ppm > 900_000, "{view:?}");
        }
    }
}

#[test]
fn thresholds_for_a_while_are_those_of_all_workers_and_end_by_themselves() {
    let plan =
        plan(r#"["a:1"]"#, r#"breaker = { errors = "80%", open_for = "1s", ramp = "10ms" }"#);
    let mut night = Night::new(&plan, WORKERS, 2);
    let pass = |night: &mut Night, seconds: u64| {
        let opened =
            |night: &Night| night.ledger.breaker(whole(&plan), night.now().at).unwrap().entered[1];
        let before = opened(night);
        let mut react = |_: EndpointKey, _: Instant, dice: &mut Dice| failing(dice, 40);
        night.pass(Duration::from_secs(seconds), 200, &mut react, &mut |_| {});
        opened(night) - before
    };
    assert_eq!(pass(&mut night, 10), 0);
    let wanted = Thresholds { errors: Some(Ratio(200_000)), ..Thresholds::default() };
    let until = night.now().at + Duration::from_secs(20);
    assert!(night.ledger.tune(whole(&plan), Some((wanted, until))));
    let view = night.ledger.breaker(whole(&plan), night.now().at).unwrap();
    assert_eq!(view.thresholds, Some((wanted, Duration::from_secs(20))));
    assert!(pass(&mut night, 10) > 0, "40% is more than 20%");
    night.pass(Duration::from_secs(150), 200, &mut |_, _, _| answer(200, 5), &mut |_| {});
    assert_eq!(state(&night, whole(&plan)), State::Closed);
    assert_eq!(pass(&mut night, 10), 0, "and less than 80%");
    // A call is slow when the operator says so for a while.
    night.pass(Duration::from_secs(15), 0, &mut |_, _, _| answer(200, 5), &mut |_| {});
    let slow = Thresholds { slow: Some(Duration::from_millis(3)), ..Thresholds::default() };
    let until = night.now().at + Duration::from_secs(20);
    night.ledger.tune(whole(&plan), Some((slow, until)));
    night.pass(Duration::from_millis(800), 200, &mut |_, _, _| answer(200, 5), &mut |_| {});
    let view = night.ledger.breaker(whole(&plan), night.now().at).unwrap();
    assert!(matches!(view.opened, Some((Cause::Slow { .. }, _))), "{view:?}");
    night.ledger.tune(whole(&plan), None);
    assert_eq!(night.ledger.breaker(whole(&plan), night.now().at).unwrap().thresholds, None);
}

#[test]
fn a_drained_server_gets_nothing_even_when_nobody_else_is_in() {
    let plan = plan(r#"["a:1", "b:1"]"#, r#"health = { panic = "100%", slow_start = "2s" }"#);
    let keys = keys(&plan);
    let mut night = Night::new(&plan, 4, 2);
    let tell = |night: &mut Night, drained: &[EndpointKey], out: &[EndpointKey]| {
        let switches = Switches { drained: drained.to_vec(), ..Switches::default() };
        let now = night.now();
        for worker in &mut night.workers {
            worker.signal(now, Signal::Vitals { out });
            worker.signal(now, Signal::Switches(&switches));
        }
    };
    let pass = |night: &mut Night, ms: u64| {
        let before = night.calls.len();
        night.pass(Duration::from_millis(ms), 400, &mut |_, _, _| answer(200, 1), &mut |_| {});
        let first = night.calls[before..].iter().filter(|call| call.endpoint == keys[0]).count();
        (first, night.calls.len() - before - first)
    };
    tell(&mut night, &keys[..1], &[]);
    let (drained, other) = pass(&mut night, 1000);
    assert!(drained == 0 && other > 300);
    tell(&mut night, &keys[..1], &keys);
    let (drained, other) = pass(&mut night, 1000);
    assert!(drained == 0 && other > 300, "panic is about health");
    tell(&mut night, &keys[..1], &[]);
    pass(&mut night, 3000);
    tell(&mut night, &[], &[]);
    let (back, other) = pass(&mut night, 400);
    assert!(back * 4 < other, "it starts slowly: {back} of {other}");
    pass(&mut night, 2000);
    let (back, other) = pass(&mut night, 1000);
    assert!(back.abs_diff(other) < 60, "{back} {other}");
}

#[test]
fn what_its_probes_say_counts_when_one_more_is_to_be_ejected() {
    // Two of four may be out; their health has put two out already.
    let plan = plan(
        r#"["a:1", "b:1", "c:1", "d:1"]"#,
        "health = {}\neject = { panic = \"0%\", breaker = { consecutive = 3, open_for = \"60s\" } }",
    );
    let keys = keys(&plan);
    let mut night = Night::new(&plan, WORKERS, 3);
    let now = night.now();
    night.workers.iter_mut().for_each(|w| w.signal(now, Signal::Vitals { out: &keys[..2] }));
    night.pass(Duration::from_secs(3), 300, &mut |_, _, _| answer(503, 1), &mut |_| {});
    assert!(keys.iter().all(|key| state(&night, *key) == State::Closed));
    let now = night.now();
    night.workers.iter_mut().for_each(|w| w.signal(now, Signal::Vitals { out: &keys[..1] }));
    night.pass(Duration::from_secs(3), 300, &mut |_, _, _| answer(503, 1), &mut |_| {});
    let open = keys.iter().filter(|key| state(&night, **key) == State::Open).count();
    assert_eq!(open, 1, "one by its health, one for its failures");
}

#[test]
fn few_calls_make_nobody_an_outlier() {
    let plan = plan(SIX, "eject = { outliers = true, breaker = { errors = \"90%\" } }");
    let keys = keys(&plan);
    let mut night = Night::new(&plan, WORKERS, 11);
    // Ninety calls of each in ten seconds.
    let mut react = |key: EndpointKey, _: Instant, dice: &mut Dice| {
        failing(dice, if key == keys[2] { 60 } else { 1 })
    };
    night.pass(Duration::from_secs(30), 6 * 9, &mut react, &mut |_| {});
    assert!(keys.iter().all(|key| state(&night, *key) == State::Closed));
    let calls = night.calls.iter().filter(|call| call.endpoint == keys[2]).count();
    assert!(calls > 200, "{calls}");
}

#[test]
fn a_server_that_its_probes_keep_out_is_not_tried_by_requests() {
    let eject = "eject = { breaker = { consecutive = 3, open_for = \"1s\" } }";
    let plan = plan(r#"["a:1", "b:1", "c:1"]"#, &format!("health = {{}}\n{eject}"));
    let keys = keys(&plan);
    let mut night = Night::new(&plan, WORKERS, 4);
    let mut react = |key: EndpointKey, _: Instant, _: &mut Dice| {
        answer(if key == keys[0] { 503 } else { 200 }, 1)
    };
    night.pass(Duration::from_millis(500), 200, &mut react, &mut |_| {});
    assert_eq!(state(&night, keys[0]), State::Open);
    let now = night.now();
    night.workers.iter_mut().for_each(|w| w.signal(now, Signal::Vitals { out: &keys[..1] }));
    let before = night.calls.len();
    night.pass(Duration::from_secs(20), 200, &mut react, &mut |_| {});
    assert!(night.calls[before..].iter().all(|call| call.endpoint != keys[0]));
    let now = night.now();
    night.workers.iter_mut().for_each(|w| w.signal(now, Signal::Vitals { out: &[] }));
    night.pass(Duration::from_secs(2), 200, &mut react, &mut |_| {});
    assert!(night.calls.iter().rev().take(400).any(|call| call.endpoint == keys[0]), "a probe");
}

#[test]
fn a_server_that_recovers_gets_a_growing_part_of_its_share() {
    let eject =
        "eject = { breaker = { consecutive = 3, open_for = \"1s\", probes = 2, ramp = \"4s\" } }";
    let plan = plan(r#"["a:1", "b:1"]"#, eject);
    let keys = keys(&plan);
    let mut night = Night::new(&plan, WORKERS, 5);
    let mut ill = |key: EndpointKey, _: Instant, _: &mut Dice| {
        answer(if key == keys[0] { 503 } else { 200 }, 1)
    };
    night.pass(Duration::from_millis(500), 400, &mut ill, &mut |_| {});
    while state(&night, keys[0]) != State::Recovering {
        night.pass(Duration::from_millis(20), 400, &mut |_, _, _| answer(200, 1), &mut |_| {});
    }
    // Of every other request: 10, 25, 50, and then all of it. Round robin passes it over, and
    // comes to it again with the next.
    for most in [180, 400, 690] {
        let before = night.calls.len();
        night.pass(Duration::from_secs(4), 400, &mut |_, _, _| answer(200, 1), &mut |_| {});
        let got = night.calls[before..].iter().filter(|call| call.endpoint == keys[0]).count();
        assert!(got > most / 4 && got < most, "{got}, not {most}");
    }
}
