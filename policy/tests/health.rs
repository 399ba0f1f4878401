//! When servers are asked how they are, and who gets requests after the answers.

mod written;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use sluice_policy::Policy;
use sluice_policy::decision::{Decision, Event};
use sluice_policy::flight::{Ending, Finish};
use sluice_policy::health::{Sign, Watch};
use sluice_policy::ledger::Ledger;
use sluice_policy::plan::{EndpointKey, Plan};
use sluice_policy::sim::facts;
use sluice_policy::time::{Instant, Now, Wall};
use sluice_policy::world::{Effect, Signal};

fn plan(servers: &str, health: &str) -> Arc<Plan> {
    written::plan(&format!(
        "[upstream.a]\nservers = {servers}\nhealth = {health}\n[route.r]\nmatch = \"/\"\nto = \"a\""
    ))
}

fn keys(plan: &Plan) -> Vec<EndpointKey> {
    plan.upstreams()[0].endpoints.iter().map(|e| e.key).collect()
}

fn at(ms: u64) -> Now {
    Now { at: Instant::from_nanos(ms * 1_000_000), wall: Wall(ms / 1000) }
}

/// Asks in steps of 10 ms and answers at once by the time; when each question came, and each
/// change: (ms, out).
fn live(
    watch: &mut Watch,
    from: u64,
    to: u64,
    answer: impl Fn(u64) -> Sign,
) -> (Vec<u64>, Vec<(u64, bool)>) {
    let (mut asked, mut changes) = (Vec::new(), Vec::new());
    for ms in (from..to).step_by(10) {
        while let Some(Effect::Probe(probe)) = watch.poll(at(ms)) {
            asked.push(ms);
            let (endpoint, sign) = (probe.endpoint, answer(ms));
            if watch.signal(at(ms), Signal::Probed { endpoint, sign }) {
                changes.push((ms, !watch.out().is_empty()));
            }
        }
        assert!(watch.deadline().is_some_and(|next| next > at(ms).at));
    }
    (asked, changes)
}

#[test]
fn a_server_that_dies_is_out_within_fall_times_every_and_comes_back_within_rise() {
    for seed in 0..50 {
        let plan = plan(r#"["a:1"]"#, r#"{ every = "2s", fall = 3, rise = 2, timeout = "1s" }"#);
        let mut watch = Watch::new(at(0), plan, seed);
        let died = 10_000 + seed * 40;
        let dead = |ms| if (died..30_000).contains(&ms) { Sign::Refused } else { Sign::Well };
        let (asked, changes) = live(&mut watch, 0, 40_000, dead);
        let [(out, true), (back, false)] = changes[..] else { panic!("{changes:?}") };
        let failures = asked.iter().filter(|ms| (died..=out).contains(*ms)).count();
        assert_eq!(failures, 3, "seed {seed}: {asked:?}");
        assert!(out - died <= 3 * 2_000, "seed {seed}: {}", out - died);
        assert!(back - 30_000 <= 2 * 2_000, "seed {seed}: {}", back - 30_000);
        let calm: Vec<_> = asked.iter().filter(|ms| **ms < died).collect();
        let gaps = calm.windows(2).map(|pair| pair[1] - pair[0]);
        let gaps: Vec<u64> = gaps.collect();
        assert!(gaps.iter().all(|gap| (1_800..=2_010).contains(gap)), "{calm:?}");
        assert!(gaps.iter().any(|gap| *gap != gaps[0]), "gateways would ask in step: {gaps:?}");
        let doubts: Vec<_> = asked.iter().filter(|ms| (died..=out).contains(*ms)).collect();
        assert!(doubts.windows(2).all(|pair| pair[1] - pair[0] <= 1_010), "{doubts:?}");
    }
}

#[test]
fn a_single_failure_changes_nothing_but_the_first_of_all_does() {
    let plan = plan(r#"["a:1"]"#, r#"{ every = "1s" }"#);
    let mut watch = Watch::new(at(0), Arc::clone(&plan), 1);
    let flaky = |ms: u64| if ms / 1_000 % 3 == 1 { Sign::Status(500) } else { Sign::Well };
    assert_eq!(live(&mut watch, 0, 20_000, flaky).1, []);
    let mut watch = Watch::new(at(0), plan, 1);
    let (_, changes) = live(&mut watch, 0, 1_000, |_| Sign::Closed);
    assert!(matches!(changes[..], [(ms, true)] if ms <= 260), "{changes:?}");
}

#[test]
fn what_is_known_survives_a_reload_and_goes_with_the_check() {
    let plan = |health| plan(r#"["a:1", "b:1"]"#, health);
    let mut watch = Watch::new(at(0), plan(r#"{ every = "1s" }"#), 1);
    live(&mut watch, 0, 1_000, |_| Sign::TimedOut);
    assert_eq!(watch.out().len(), 2);
    watch.adopt(at(1_000), plan(r#"{ every = "2s", path = "/" }"#));
    assert_eq!(watch.out().len(), 2);
    let (asked, _) = live(&mut watch, 1_000, 1_300, |_| Sign::TimedOut);
    assert_eq!(asked.len(), 2, "what is asked now is asked at once");
    let vital = watch.vitals().next().unwrap();
    assert_eq!(vital.since, Some(Wall(0)));
    assert!(vital.to_string().ends_with(" failed probes, last: no answer in time"), "{vital}");
    let bare = "[upstream.a]\nservers = [\"a:1\"]\n[route.r]\nmatch = \"/\"\nto = \"a\"";
    watch.adopt(at(2_000), written::plan(bare));
    assert_eq!((watch.out(), watch.deadline()), (Vec::new(), None));
}

#[test]
fn an_answer_that_nobody_waits_for_counts_as_nothing() {
    let plan = plan(r#"["a:1"]"#, "{ fall = 1 }");
    let mut watch = Watch::new(at(0), Arc::clone(&plan), 1);
    let late = Signal::Probed { endpoint: keys(&plan)[0], sign: Sign::Refused };
    assert!(!watch.signal(at(0), late));
    assert!(watch.poll(at(300)).is_some());
    assert!(watch.poll(at(300)).is_none(), "asked once");
    assert!(watch.signal(at(300), late));
    assert!(!watch.signal(at(300), late));
}

/// How many of a thousand requests each server gets; those without a server last.
fn shares(policy: &mut Policy, keys: &[EndpointKey], now: Now) -> Vec<u32> {
    let mut counts: BTreeMap<Option<EndpointKey>, u32> = BTreeMap::new();
    for _ in 0..1000 {
        let mut flight = policy.begin(now, &facts("/"));
        let endpoint = match policy.decide(now, &facts("/"), &mut flight, Event::Arrived) {
            Decision::Call(call) => Some(call.endpoint),
            Decision::Answer(answer) => {
                assert_eq!((answer.status, answer.code), (503, "upstream.none"));
                None
            }
            other => panic!("{other:?}"),
        };
        *counts.entry(endpoint).or_default() += 1;
        let ending = Ending { status: None, bytes_in: 0, bytes_out: 0, finish: Finish::Whole };
        let _ = policy.end(now, flight, ending);
    }
    let keys = keys.iter().copied().map(Some).chain([None]);
    keys.map(|key| counts.get(&key).copied().unwrap_or(0)).collect()
}

#[test]
fn servers_that_are_out_get_nothing_unless_too_many_are() {
    const FOUR: &str = r#"["a:1", "b:1", "c:1", "d:1"]"#;
    let even = vec![250, 250, 250, 250, 0];
    for (health, out, expected) in [
        ("{}", vec![], even.clone()),
        ("{}", vec![1, 3], vec![500, 0, 500, 0, 0]),
        ("{}", vec![0, 1, 3], vec![0, 0, 1000, 0, 0]),
        ("{}", vec![0, 1, 2, 3], vec![0, 0, 0, 0, 1000]),
        ("{ panic = \"50%\" }", vec![1, 3], vec![500, 0, 500, 0, 0]),
        ("{ panic = \"50%\" }", vec![0, 1, 3], even.clone()),
        ("{ panic = \"1%\" }", vec![0, 1, 2, 3], even),
    ] {
        let plan = plan(FOUR, health);
        let keys = keys(&plan);
        let mut policy = Policy::new(plan, Arc::new(Ledger::new(8, [0; 16])), 1);
        let out: Vec<_> = out.into_iter().map(|i: usize| keys[i]).collect();
        policy.signal(at(0), Signal::Vitals { out: &out });
        assert_eq!(shares(&mut policy, &keys, at(0)), expected, "{health} {out:?}");
        policy.signal(at(0), Signal::Vitals { out: &[] });
        assert_eq!(shares(&mut policy, &keys, at(0)), [250, 250, 250, 250, 0], "all back");
    }
}

#[test]
fn a_server_that_came_back_gets_its_share_by_and_by() {
    for balance in ["round_robin", "p2c", "weighted"] {
        let text = format!(
            "[upstream.a]\nservers = [\"a:1\", \"b:1\"]\nbalance = \"{balance}\"\n\
             health = {{ slow_start = \"10s\" }}\n[route.r]\nmatch = \"/\"\nto = \"a\""
        );
        let plan = written::plan(&text);
        let keys = keys(&plan);
        let mut policy = Policy::new(plan, Arc::new(Ledger::new(8, [0; 16])), 7);
        policy.signal(at(0), Signal::Vitals { out: &keys[..1] });
        policy.signal(at(1_000), Signal::Vitals { out: &[] });
        for (age, share) in [(0, 0), (Duration::from_secs(2).as_millis(), 100), (5_000, 250)] {
            let now = at(1_000 + u64::try_from(age).unwrap());
            let got = shares(&mut policy, &keys, now)[0];
            // Round robin gives a passed-over server its next chance sooner: somewhat more.
            assert!(got.abs_diff(share) <= 100, "{balance} after {age} ms: {got}, not {share}");
        }
        let got = shares(&mut policy, &keys, at(11_000))[0];
        assert!(got.abs_diff(500) <= 60, "{balance}: {got}");
    }
}
