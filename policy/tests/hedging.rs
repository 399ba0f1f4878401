//! Hedging over nights: it helps, it stays within its budget, and it knows when not to.

#![expect(clippy::unwrap_used, reason = "a test may")]

mod written;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use sluice_policy::decision::{Decision, Event, Failure};
use sluice_policy::flight::Hedge;
use sluice_policy::mechanism::dice::Dice;
use sluice_policy::plan::{EndpointKey, Plan};
use sluice_policy::sim::night::Night;
use sluice_policy::time::Instant;
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
