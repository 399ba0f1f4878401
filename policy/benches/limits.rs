//! What one look at a limit costs, for each way to count and 1,000, 100,000 and 1,000,000 keys.

#[path = "../tests/written/mod.rs"]
mod written;

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use criterion::{Criterion, criterion_group, criterion_main};
use sluice_policy::Policy;
use sluice_policy::decision::{Decision, Event};
use sluice_policy::facts::Facts;
use sluice_policy::flight::{Ending, Finish};
use sluice_policy::ledger::Ledger;
use sluice_policy::mechanism::dice::Dice;
use sluice_policy::sim::facts;
use sluice_policy::time::{Instant, Now, Wall};

const ROUTE: &str = "[route.r]\nmatch = \"/{*rest}\"\nrespond = { body = \"ok\" }\n";

const KINDS: [(&str, &str); 6] = [
    ("no limit", ""),
    ("bucket", "rate = \"1000000/s\""),
    ("fixed", "kind = \"fixed\"\nrate = \"1000000/s\""),
    ("quota", "kind = \"quota\"\nrate = \"1000000000/day\""),
    ("log of 10", "kind = \"sliding\"\nrate = \"10/s\""),
    ("sliding of 1000", "kind = \"sliding\"\nrate = \"1000/s\""),
];

fn policy(kind: &str) -> Policy {
    let text = match kind {
        "" => ROUTE.to_owned(),
        kind => format!("[limit.l]\n{kind}\n{ROUTE}limits = [\"l\"]\n"),
    };
    Policy::new(written::plan(&text), Arc::new(Ledger::new(1 << 21, [3; 16])), 1)
}

fn ask(policy: &mut Policy, at_ns: u64, client: u32) -> Decision {
    let now = Now { at: Instant::from_nanos(at_ns), wall: Wall(at_ns / 1_000_000_000) };
    let facts = Facts { client: IpAddr::V4(Ipv4Addr::from_bits(client)), ..facts("/") };
    let mut flight = policy.begin(now, &facts);
    let decision = policy.decide(now, &facts, &mut flight, Event::Arrived);
    let ending = Ending { status: Some(200), bytes_in: 0, bytes_out: 0, finish: Finish::Whole };
    black_box(policy.end(now, flight, ending));
    decision
}

/// Of the whole decision; `no limit` is what to take off.
fn kinds(c: &mut Criterion) {
    for (name, kind) in KINDS {
        for keys in [1_000_u64, 100_000, 1_000_000] {
            let (mut policy, mut dice, mut at) = (policy(kind), Dice::new(7), 1_000_000_000);
            c.bench_function(&format!("{name}, {keys} keys"), |b| {
                b.iter(|| {
                    at += 1000;
                    let client = u32::try_from(dice.below(keys)).unwrap_or(0);
                    black_box(ask(&mut policy, at, client))
                });
            });
        }
    }
}

criterion_group!(benches, kinds);
criterion_main!(benches);
