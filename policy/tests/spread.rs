//! Balancing by key, by speed and by zone: who gets what, who moves, and who comes back.

mod written;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use sluice_policy::Policy;
use sluice_policy::decision::{Decision, Event, Failure};
use sluice_policy::flight::{Ending, Finish, Flight};
use sluice_policy::ledger::Ledger;
use sluice_policy::mechanism::dice::Dice;
use sluice_policy::plan::{EndpointKey, Plan};
use sluice_policy::sim::night::{Call, Night, Reaction};
use sluice_policy::sim::{Head, facts};
use sluice_policy::time::{Instant, Now, Wall};
use sluice_policy::world::Signal;

const WORKERS: u64 = 16;

fn plan(zone: &str, servers: &str, more: &str) -> Arc<Plan> {
    written::plan(&format!(
        "zone = \"{zone}\"\n[upstream.a]\nservers = {servers}\n{more}\n\
         [route.r]\nmatch = \"/{{*rest}}\"\nto = \"a\"\nretries = 3\n"
    ))
}

fn keys(plan: &Plan) -> Vec<EndpointKey> {
    plan.upstreams()[0].endpoints.iter().map(|e| e.key).collect()
}

fn now(ms: u64) -> Now {
    Now { at: Instant::from_nanos(1_000_000_000 + ms * 1_000_000), wall: Wall(1) }
}

/// Workers on one ledger.
struct Node {
    workers: Vec<Policy>,
}

impl Node {
    fn new(plan: &Arc<Plan>, workers: u64) -> Self {
        let ledger = Arc::new(Ledger::new(8, [7; 16]));
        let worker = |seed| Policy::new(Arc::clone(plan), Arc::clone(&ledger), seed);
        Self { workers: (0..workers).map(worker).collect() }
    }

    /// A request of that user; it stays until it is ended.
    fn call(&mut self, worker: usize, user: &str) -> (EndpointKey, Flight) {
        let head = Head::new(&[("X-User", user)]);
        let head = if user.is_empty() { Head::default() } else { head };
        let facts = sluice_policy::facts::Facts { headers: head.headers(), ..facts("/a") };
        let policy = &mut self.workers[worker];
        let mut flight = policy.begin(now(0), &facts);
        match policy.decide(now(0), &facts, &mut flight, Event::Arrived) {
            Decision::Call(call) => (call.endpoint, flight),
            other => panic!("{other:?}"),
        }
    }

    fn end(&mut self, worker: usize, flight: Flight) {
        let ending = Ending { status: Some(200), bytes_in: 0, bytes_out: 0, finish: Finish::Whole };
        let _ = self.workers[worker].end(now(0), flight, ending);
    }

    fn ask(&mut self, worker: usize, user: &str) -> EndpointKey {
        let (endpoint, flight) = self.call(worker, user);
        self.end(worker, flight);
        endpoint
    }

    fn vitals(&mut self, out: &[EndpointKey]) {
        for worker in &mut self.workers {
            worker.signal(now(0), Signal::Vitals { out });
            worker.signal(now(0), Signal::Tick);
        }
    }
}

const BY_USER: &str = r#"balance = { kind = "hash", key = ["header:x-user"] }
health = {}"#;

#[test]
fn a_key_sticks_over_workers_and_restarts_and_only_the_share_of_who_leaves_moves() {
    let servers = r#"["a:1", "b:1", { addr = "c:1", weight = 2 }, "d:1"]"#;
    let plan = plan("", servers, BY_USER);
    let keys = keys(&plan);
    let place = |key: EndpointKey| keys.iter().position(|k| *k == key).unwrap();
    let users: Vec<String> = (0..5000).map(|i| format!("user-{i}")).collect();
    let (mut node, mut other) = (Node::new(&plan, 4), Node::new(&plan, 1));
    let before: Vec<usize> = users.iter().map(|user| place(node.ask(0, user))).collect();
    for (i, user) in users.iter().enumerate() {
        assert_eq!(place(node.ask(i % 4, user)), before[i], "another worker");
        assert_eq!(place(other.ask(0, user)), before[i], "another gateway");
    }
    for (server, weight) in [1, 1, 2, 1].into_iter().enumerate() {
        let count = before.iter().filter(|b| **b == server).count();
        assert!(count.abs_diff(weight * 1000) < weight * 100, "{server}: {count}");
    }
    for (gone, key) in keys.iter().enumerate() {
        node.vitals(&[*key]);
        let mut heirs = BTreeSet::new();
        for (i, user) in users.iter().enumerate() {
            let after = place(node.ask(i % 4, user));
            assert_ne!(after, gone);
            if before[i] == gone {
                heirs.insert(after);
            } else {
                assert_eq!(after, before[i], "{user} had nothing to do with it");
            }
        }
        assert_eq!(heirs.len(), 3, "what it had spreads over all others");
        node.vitals(&[]);
        let back = users.iter().enumerate().all(|(i, user)| place(node.ask(0, user)) == before[i]);
        assert!(back, "and comes back with it");
    }
}

#[test]
fn no_server_has_more_than_its_bounded_share_however_popular_a_key_is() {
    let servers = r#"["a:1", "b:1", { addr = "c:1", weight = 2 }]"#;
    let plan = plan("", servers, BY_USER);
    let keys = keys(&plan);
    let mut dice = Dice::new(5);
    let mut node = Node::new(&plan, WORKERS);
    let mut open: Vec<(usize, EndpointKey, Flight)> = Vec::new();
    let mut loads: BTreeMap<EndpointKey, u64> = BTreeMap::new();
    for step in 0..20_000_u64 {
        let leaves = dice.below(100) < 40 + step / 500 && !open.is_empty();
        if leaves {
            let at = usize::try_from(dice.below(open.len() as u64)).unwrap();
            let (worker, endpoint, flight) = open.swap_remove(at);
            *loads.get_mut(&endpoint).unwrap() -= 1;
            node.end(worker, flight);
            continue;
        }
        let worker = usize::try_from(dice.below(WORKERS)).unwrap();
        // Nine of ten are one user.
        let user = if dice.below(10) > 0 { "star".to_owned() } else { dice.below(9).to_string() };
        let (endpoint, flight) = node.call(worker, &user);
        open.push((worker, endpoint, flight));
        let load = loads.entry(endpoint).or_default();
        *load += 1;
        let weight = if endpoint == keys[2] { 2 } else { 1 };
        let bound = (5 * open.len() as u64 * weight).div_ceil(4 * 4).max(4);
        assert!(*load <= bound, "{step}: {load} of {}, at most {bound}", open.len());
    }
    open.drain(..).for_each(|(worker, _, flight)| node.end(worker, flight));
    // Everything has been given back: the star is at home again.
    let home = node.ask(0, "star");
    assert!((0..100).all(|i| node.ask(i % 16, "star") == home));
}

#[test]
fn a_key_stays_at_home_while_few_requests_are_under_way() {
    let plan = plan("", r#"["a:1", "b:1", "c:1"]"#, BY_USER);
    let mut node = Node::new(&plan, WORKERS);
    let home = node.ask(0, "star");
    let open: Vec<_> = (0..4).map(|worker| node.call(worker, "star")).collect();
    assert!(open.iter().all(|(endpoint, _)| *endpoint == home));
    assert_ne!(node.ask(0, "star"), home, "the fifth is beyond any share");
}

#[test]
fn requests_without_the_key_are_not_all_sent_to_one_server() {
    let plan = plan("", r#"["a:1", "b:1", "c:1"]"#, BY_USER);
    let mut node = Node::new(&plan, 1);
    let mut counts: BTreeMap<EndpointKey, u32> = BTreeMap::new();
    (0..3000).for_each(|_| *counts.entry(node.ask(0, "")).or_default() += 1);
    assert!(counts.len() == 3 && counts.values().all(|n| *n > 800), "{counts:?}");
}

#[test]
fn a_retry_of_a_key_goes_to_its_next_choice() {
    let plan = plan("", r#"["a:1", "b:1", "c:1"]"#, BY_USER);
    let mut node = Node::new(&plan, 1);
    let (first, mut flight) = node.call(0, "x");
    let event = Event::Failed { failure: Failure::Connect, replayable: true };
    let decision = node.workers[0].decide(now(0), &facts("/a"), &mut flight, event);
    let Decision::Call(second) = decision else { panic!("{decision:?}") };
    node.end(0, flight);
    assert_ne!(second.endpoint, first);
    node.vitals(&[first]);
    assert_eq!(node.ask(0, "x"), second.endpoint);
}

fn well(ms: u64) -> Reaction {
    (Duration::from_millis(ms), Some(Event::Responded { status: 200 }))
}

fn shares(calls: &[Call], keys: &[EndpointKey]) -> Vec<usize> {
    let share = |key| calls.iter().filter(|call| call.endpoint == key).count() * 1000 / calls.len();
    keys.iter().map(|key| share(*key)).collect()
}

#[test]
fn a_slow_server_gets_less_and_one_that_is_quick_again_comes_back() {
    for seed in 0..4 {
        let plan = plan("", r#"["a:1", "b:1", "c:1"]"#, r#"balance = "peak_ewma""#);
        let keys = keys(&plan);
        let mut night = Night::new(&plan, 4, seed);
        let slow = keys[0];
        let pass = |night: &mut Night, time: u64, ms: u64| {
            let before = night.calls.len();
            let mut react = |key: EndpointKey, _: Instant, dice: &mut Dice| {
                well(if key == slow { ms } else { 10 } + dice.below(5))
            };
            night.pass(Duration::from_secs(time), 400, &mut react, &mut |_| {});
            shares(&night.calls[before..], &keys)
        };
        let even = pass(&mut night, 10, 10);
        assert!(even.iter().all(|n| (280..390).contains(n)), "seed {seed}: {even:?}");
        let slowed = pass(&mut night, 10, 300);
        assert!(slowed[0] < 60, "seed {seed}: {slowed:?}");
        pass(&mut night, 50, 10);
        let again = pass(&mut night, 10, 10);
        assert!(again.iter().all(|n| (250..420).contains(n)), "seed {seed}: {again:?}");
    }
}

#[test]
fn a_server_that_fails_at_once_is_no_quick_one_and_weights_count() {
    let servers = r#"["a:1", "b:1", { addr = "c:1", weight = 3 }]"#;
    let plan = plan("", servers, r#"balance = "peak_ewma""#);
    let keys = keys(&plan);
    let mut night = Night::new(&plan, 4, 3);
    let mut react = |key: EndpointKey, _: Instant, _: &mut Dice| match key == keys[0] {
        true => (Duration::ZERO, Some(Event::Responded { status: 503 })),
        false => well(20),
    };
    night.pass(Duration::from_secs(20), 1000, &mut react, &mut |_| {});
    let shares = shares(&night.calls, &keys);
    assert!(shares[0] < 20, "{shares:?}");
    assert!(shares[2] > shares[1] * 3 / 2, "{shares:?}");
}

const ZONES: &str = r#"[
    { addr = "a:1", labels = { zone = "x" } }, { addr = "b:1", labels = { zone = "x" } },
    { addr = "c:1", labels = { zone = "y" } }, { addr = "d:1", weight = 3, labels = { zone = "y" } },
    "e:1", { addr = "f:1", labels = { zone = "x" } }, { addr = "g:1", labels = { zone = "x" } },
]"#;

#[test]
fn the_own_zone_first_then_its_part_and_the_rest_by_weight() {
    for balance in [
        "balance = \"round_robin\"",
        "balance = \"p2c\"",
        "balance = \"weighted\"",
        "balance = { kind = \"hash\", key = [\"header:x-user\"] }",
    ] {
        let plan = plan("x", ZONES, &format!("{balance}\nhealth = {{}}"));
        let keys = keys(&plan);
        let mut node = Node::new(&plan, 1);
        let counts = |node: &mut Node| {
            let mut counts: BTreeMap<EndpointKey, i64> = BTreeMap::new();
            (0..8000).for_each(|i| *counts.entry(node.ask(0, &i.to_string())).or_default() += 1);
            keys.iter().map(|key| counts.get(key).copied().unwrap_or(0)).collect::<Vec<_>>()
        };
        let near = |got: i64, want: i64| (got - want).abs() <= 150 + want / 10;
        let all = counts(&mut node);
        assert!([0, 1, 5, 6].iter().all(|i| near(all[*i], 2000)), "{balance}: {all:?}");
        assert_eq!([all[2], all[3], all[4]], [0; 3], "{balance}");
        // One of four is out: three quarters are still enough.
        node.vitals(&[keys[0]]);
        let three = counts(&mut node);
        assert_eq!([three[0], three[2], three[3], three[4]], [0; 4], "{balance}: {three:?}");
        // Two: they keep 70 %, and the rest goes 1 : 3 : 1.
        node.vitals(&[keys[0], keys[1]]);
        let two = counts(&mut node);
        assert!(near(two[5], 2800) && near(two[6], 2800), "{balance}: {two:?}");
        if balance.contains("p2c") {
            // One at a time: it is idle, and so a coin is thrown between two.
            assert!(near(two[2] + two[3] + two[4], 2400), "{balance}: {two:?}");
        } else {
            let far = [two[2], two[3], two[4]];
            assert!(near(far[0], 480) && near(far[1], 1440) && near(far[2], 480), "{two:?}");
        }
        node.vitals(&[keys[0], keys[1], keys[5], keys[6]]);
        let none = counts(&mut node);
        assert_eq!(none[2] + none[3] + none[4], 8000, "{balance}: {none:?}");
    }
}

#[test]
fn zones_do_not_matter_where_the_operator_says_so_or_where_there_is_only_one() {
    for (zone, more) in [("x", "prefer_zone = false"), ("z", ""), ("", "")] {
        let plan = plan(zone, ZONES, more);
        let mut node = Node::new(&plan, 1);
        let reached: BTreeSet<_> = (0..100).map(|_| node.ask(0, "")).collect();
        assert_eq!(reached.len(), 7, "{zone} {more}");
    }
}

#[test]
fn a_zone_that_is_ejected_spills_over_and_gets_its_requests_back() {
    let more = r#"eject = { max = "100%", panic = "0%", breaker = { consecutive = 3, open_for = "5s", probes = 2, ramp = "1s" } }"#;
    let servers = r#"[{ addr = "a:1", labels = { zone = "x" } }, { addr = "b:1", labels = { zone = "x" } }, "c:1", "d:1"]"#;
    let plan = plan("x", servers, more);
    let keys = keys(&plan);
    let mut night = Night::new(&plan, WORKERS, 1);
    let mut pass = |time: u64, ill: bool| {
        let before = night.calls.len();
        let mut react = |key: EndpointKey, _: Instant, _: &mut Dice| match ill && key == keys[0] {
            true => (Duration::from_millis(1), Some(Event::Responded { status: 503 })),
            false => well(5),
        };
        night.pass(Duration::from_secs(time), 500, &mut react, &mut |_| {});
        shares(&night.calls[before..], &keys)
    };
    let quiet = pass(5, false);
    assert!(quiet[2] + quiet[3] == 0 && quiet[0].abs_diff(500) < 40, "{quiet:?}");
    pass(2, true);
    let ejected = pass(2, true);
    // Half of the zone is left, which is taken to manage 70 % of what comes.
    assert!(ejected[0] < 5 && ejected[1].abs_diff(700) < 60, "{ejected:?}");
    assert!(ejected[2].abs_diff(150) < 60 && ejected[3].abs_diff(150) < 60, "{ejected:?}");
    pass(30, false);
    let back = pass(5, false);
    assert!(back[2] + back[3] == 0 && back[0].abs_diff(500) < 40, "{back:?}");
}
