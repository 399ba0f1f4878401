//! Real threads on one ledger: what is admitted is what one worker alone would have admitted.

#![expect(clippy::unwrap_used, reason = "a test may")]

mod written;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;

use sluice_policy::Policy;
use sluice_policy::decision::{Decision, Event};
use sluice_policy::facts::Facts;
use sluice_policy::flight::{Ending, Finish};
use sluice_policy::ledger::Ledger;
use sluice_policy::mechanism::dice::Dice;
use sluice_policy::plan::Plan;
use sluice_policy::sim::facts;
use sluice_policy::time::{Instant, Now, Wall};

const THREADS: u64 = 8;

fn plan(limits: &str, route: &str) -> Arc<Plan> {
    let respond = "[route.r]\nmatch = \"/{*rest}\"\nrespond = { body = \"ok\" }\n";
    written::plan(&format!("{limits}\n{respond}{route}"))
}

fn ask(policy: &mut Policy, at_ns: u64, client: u32) -> (bool, sluice_policy::flight::Flight) {
    let now = Now { at: Instant::from_nanos(at_ns), wall: Wall(0) };
    let client = IpAddr::V4(Ipv4Addr::from_bits(client));
    let facts = Facts { client, ..facts("/") };
    let mut flight = policy.begin(now, &facts);
    match policy.decide(now, &facts, &mut flight, Event::Arrived) {
        Decision::Answer(answer) => (answer.status == 200, flight),
        other => panic!("{other:?}"),
    }
}

fn end(policy: &mut Policy, at_ns: u64, flight: sluice_policy::flight::Flight) {
    let now = Now { at: Instant::from_nanos(at_ns), wall: Wall(0) };
    let ending = Ending { status: Some(200), bytes_in: 0, bytes_out: 0, finish: Finish::Whole };
    policy.end(now, flight, ending);
}

/// Every thread asks for every client at about the same moment; how many each client got.
fn hammer(plan: &Arc<Plan>, keys_max: usize, clients: u32, asks: u32) -> Vec<u64> {
    let ledger = Arc::new(Ledger::new(keys_max, [9; 16]));
    let admitted: Vec<_> = (0..clients).map(|_| AtomicU64::new(0)).collect();
    let start = Barrier::new(usize::try_from(THREADS).unwrap());
    thread::scope(|scope| {
        for seed in 0..THREADS {
            let (ledger, admitted, start) = (Arc::clone(&ledger), &admitted, &start);
            scope.spawn(move || {
                let mut policy = Policy::new(Arc::clone(plan), ledger, seed);
                for client in 0..clients {
                    if client % 16 == 0 {
                        start.wait();
                    }
                    for _ in 0..asks {
                        let (passed, flight) = ask(&mut policy, 1_000_000_000, client);
                        let count = &admitted[usize::try_from(client).unwrap()];
                        count.fetch_add(u64::from(passed), Ordering::Relaxed);
                        end(&mut policy, 1_000_000_000, flight);
                    }
                }
            });
        }
    });
    admitted.into_iter().map(AtomicU64::into_inner).collect()
}

#[test]
fn one_a_minute_over_any_number_of_workers_admits_one() {
    let plan = plan("[limit.slow]\nrate = \"1/min\"", "limits = [\"slow\"]");
    let admitted = hammer(&plan, 1 << 16, 2048, 4);
    let wrong: Vec<_> = admitted.iter().enumerate().filter(|(_, n)| **n != 1).collect();
    assert_eq!(wrong, []);
}

#[test]
fn every_kind_is_exact_over_any_number_of_workers() {
    let kinds = [
        ("kind = \"sliding\"\nrate = \"5/min\"", 5),
        ("kind = \"sliding\"\nrate = \"64/min\"", 64),
        ("kind = \"sliding\"\nrate = \"100/min\"", 100),
        ("kind = \"fixed\"\nrate = \"7/min\"", 7),
        ("kind = \"quota\"\nrate = \"9/day\"", 9),
    ];
    for (kind, limit) in kinds {
        let plan = plan(&format!("[limit.l]\n{kind}"), "limits = [\"l\"]");
        let roomy = hammer(&plan, 1 << 16, 64, 16);
        assert!(roomy.iter().all(|n| *n == limit), "{kind}: {roomy:?}");
        let full = hammer(&plan, 64, 512, 16);
        assert!(full.iter().all(|n| *n <= limit), "{kind}: {full:?}");
    }
}

#[test]
fn a_full_table_admits_too_little_and_never_too_much() {
    let plan = plan("[limit.slow]\nrate = \"3/min\"", "limits = [\"slow\"]");
    let admitted = hammer(&plan, 64, 2048, 4);
    let wrong: Vec<_> = admitted.iter().enumerate().filter(|(_, n)| **n > 3).collect();
    assert_eq!(wrong, []);
    // Those in the table get all that is theirs, and the others share the overflow.
    let full = admitted.iter().filter(|n| **n == 3).count();
    assert!((32..=64 + 64).contains(&full), "{full}");
}

/// Keys come and go all the time here: places change hands while others look at them.
#[test]
fn places_that_change_hands_lose_nothing() {
    const PERIOD_NS: u64 = 1_000_000_000;
    let plan = plan("[limit.l]\nrate = \"1/s\"", "limits = [\"l\"]");
    let ledger = Arc::new(Ledger::new(64, [9; 16]));
    let (clock, admitted) = (AtomicU64::new(PERIOD_NS), [const { AtomicU64::new(0) }; 256]);
    thread::scope(|scope| {
        for seed in 0..THREADS {
            let (ledger, plan, clock, admitted) = (Arc::clone(&ledger), &plan, &clock, &admitted);
            scope.spawn(move || {
                let mut policy = Policy::new(Arc::clone(plan), ledger, seed);
                let mut dice = Dice::new(seed);
                for _ in 0..20_000 {
                    let now = clock.fetch_add(1_000_000, Ordering::Relaxed);
                    // Most of them at a few, which therefore change between full and owing.
                    let crowd = if dice.below(4) > 0 { 8 } else { 256 };
                    let client = dice.below(crowd);
                    let (passed, flight) = ask(&mut policy, now, u32::try_from(client).unwrap());
                    let count = &admitted[usize::try_from(client).unwrap()];
                    count.fetch_add(u64::from(passed), Ordering::Relaxed);
                    end(&mut policy, now, flight);
                }
            });
        }
    });
    let seconds = clock.into_inner() / PERIOD_NS;
    let admitted = admitted.map(AtomicU64::into_inner);
    assert!(admitted.iter().all(|n| *n <= seconds), "{admitted:?} in {seconds} s");
    // The few that are asked for all the time get what is theirs.
    assert!(admitted[..8].iter().all(|n| *n > seconds * 9 / 10), "{admitted:?} in {seconds} s");
}

#[test]
fn several_limits_take_all_or_nothing_between_threads() {
    let limits = "[limit.wide]\nkey = [\"route\"]\nrate = \"1000/h\"\n[limit.slow]\nrate = \"2/h\"";
    let plan = plan(limits, "limits = [\"wide\", \"slow\"]");
    let admitted = hammer(&plan, 1 << 16, 400, 8);
    // 400 clients x 2 fit the wide limit, so nobody may be short unless the slow one refused.
    let wrong: Vec<_> = admitted.iter().enumerate().filter(|(_, n)| **n != 2).collect();
    assert_eq!(wrong, []);
}

#[test]
fn permits_never_exceed_the_bound_and_all_go_back() {
    let plan = plan("", "concurrency = { max = 5, key = [\"ip\"] }");
    let ledger = Arc::new(Ledger::new(64, [9; 16]));
    let (over, most) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        for seed in 0..THREADS {
            let (ledger, plan, over, most) = (Arc::clone(&ledger), &plan, &over, &most);
            scope.spawn(move || {
                let mut policy = Policy::new(Arc::clone(plan), Arc::clone(&ledger), seed);
                for round in 0..2000 {
                    let flights: Vec<_> = (0..3).map(|_| ask(&mut policy, round, 1).1).collect();
                    let out = ledger.permits();
                    over.fetch_or(out > 5, Ordering::Relaxed);
                    most.fetch_max(out, Ordering::Relaxed);
                    flights.into_iter().for_each(|flight| end(&mut policy, round, flight));
                }
            });
        }
    });
    assert!(!over.into_inner());
    assert!(most.into_inner() >= 3);
    assert_eq!(ledger.permits(), 0);
}
