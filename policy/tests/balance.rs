//! How requests are spread over the servers of an upstream.

mod written;

use std::collections::BTreeMap;
use std::sync::Arc;

use sluice_policy::Policy;
use sluice_policy::decision::{Decision, Event, Failure};
use sluice_policy::flight::{Ending, Finish, Flight};
use sluice_policy::ledger::Ledger;
use sluice_policy::plan::EndpointKey;
use sluice_policy::sim::facts;
use sluice_policy::time::Now;

fn policy(balance: &str, servers: &str, seed: u64) -> (Policy, Vec<EndpointKey>) {
    let text = format!(
        "[upstream.a]\nservers = {servers}\nbalance = \"{balance}\"\n[route.r]\nmatch = \"/\"\nto = \"a\"\nretries = 4"
    );
    let plan = written::plan(&text);
    let keys = plan.upstreams()[0].endpoints.iter().map(|e| e.key).collect();
    (Policy::new(plan, Arc::new(Ledger::new(8, [0; 16])), seed), keys)
}

fn call(policy: &mut Policy) -> (EndpointKey, Flight) {
    let mut flight = policy.begin(Now::default(), &facts("/"));
    match policy.decide(Now::default(), &facts("/"), &mut flight, Event::Arrived) {
        Decision::Call(call) => (call.endpoint, flight),
        other => panic!("{other:?}"),
    }
}

fn end(policy: &mut Policy, flight: Flight) {
    let ending = Ending { status: Some(200), bytes_in: 0, bytes_out: 0, finish: Finish::Whole };
    let _ = policy.end(Now::default(), flight, ending);
}

const THREE: &str = r#"["a:1", "b:1", { addr = "c:1", weight = 2 }]"#;

fn shares(balance: &str, seed: u64) -> Vec<u32> {
    let (mut policy, keys) = policy(balance, THREE, seed);
    let mut counts = BTreeMap::new();
    for _ in 0..4000 {
        let (endpoint, flight) = call(&mut policy);
        *counts.entry(endpoint).or_insert(0) += 1;
        end(&mut policy, flight);
    }
    keys.iter().map(|key| counts[key]).collect()
}

#[test]
fn round_robin_follows_the_weights_exactly() {
    for seed in 0..8 {
        assert_eq!(shares("round_robin", seed), [1000, 1000, 2000], "seed {seed}");
    }
}

#[test]
fn weighted_follows_the_weights_by_chance() {
    for seed in 0..8 {
        let shares = shares("weighted", seed);
        let near = |got: u32, want: u32| got.abs_diff(want) < want / 8;
        assert!(
            near(shares[0], 1000) && near(shares[1], 1000) && near(shares[2], 2000),
            "{shares:?}"
        );
    }
}

#[test]
fn p2c_keeps_the_load_even_by_weight_when_requests_stay() {
    for seed in 0..8 {
        let (mut policy, keys) = policy("p2c", THREE, seed);
        let flights: Vec<_> = (0..400).map(|_| call(&mut policy).1).collect();
        let loads: BTreeMap<_, _> = policy.inspect(Now::default()).endpoints.into_iter().collect();
        let near = |got: u32, want: u32| got.abs_diff(want) <= 10;
        assert!(near(loads[&keys[0]], 100) && near(loads[&keys[2]], 200), "{seed}: {loads:?}");
        flights.into_iter().for_each(|flight| end(&mut policy, flight));
        let after = policy.inspect(Now::default());
        assert!(after.in_flight == 0 && after.endpoints.iter().all(|(_, n)| *n == 0));
    }
}

#[test]
fn a_request_is_not_sent_again_to_a_server_that_failed_it() {
    for balance in ["round_robin", "p2c", "weighted"] {
        for seed in 0..64 {
            let (mut policy, keys) = policy(balance, THREE, seed);
            let (first, mut flight) = call(&mut policy);
            let mut called = vec![first];
            for _ in 0..2 {
                let event = Event::Failed { failure: Failure::PoolFull, replayable: true };
                match policy.decide(Now::default(), &facts("/"), &mut flight, event) {
                    Decision::Call(call) => called.push(call.endpoint),
                    other => panic!("{balance} {seed}: {other:?}"),
                }
            }
            called.sort_unstable();
            called.dedup();
            assert_eq!(called.len(), keys.len(), "{balance} {seed}");
            let event = Event::Failed { failure: Failure::PoolFull, replayable: true };
            let last = policy.decide(Now::default(), &facts("/"), &mut flight, event);
            assert!(matches!(last, Decision::Answer(a) if a.code == "upstream.pool_full"));
            end(&mut policy, flight);
        }
    }
}

#[test]
fn servers_that_a_reload_takes_away_get_nothing_new() {
    let (mut policy, _) = policy("p2c", r#"["a:1", "b:1"]"#, 1);
    let old: Vec<_> = (0..4).map(|_| call(&mut policy).1).collect();
    let text = "[upstream.a]\nservers = [\"c:1\"]\n[route.r]\nmatch = \"/\"\nto = \"a\"";
    let plan = written::plan(text);
    let new = plan.upstreams()[0].endpoints[0].key;
    policy.adopt(Arc::clone(&plan));
    assert_eq!(policy.inspect(Now::default()).endpoints.len(), 3, "two still in use");
    let (endpoint, flight) = call(&mut policy);
    assert_eq!(endpoint, new);
    end(&mut policy, flight);
    old.into_iter().for_each(|flight| end(&mut policy, flight));
    policy.adopt(plan);
    assert_eq!(policy.inspect(Now::default()).endpoints, [(new, 0)]);
}
