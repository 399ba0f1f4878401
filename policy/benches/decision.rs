//! What a decision costs: begin, decide (arrived), decide (responded), end.

#[path = "../tests/written/mod.rs"]
mod written;

use std::fmt::Write;
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use criterion::{Criterion, criterion_group, criterion_main};
use sluice_policy::Policy;
use sluice_policy::decision::{Decision, Event};
use sluice_policy::facts::Facts;
use sluice_policy::flight::{Ending, Finish, Record};
use sluice_policy::ledger::Ledger;
use sluice_policy::sim::facts;
use sluice_policy::time::{Instant, Now, Wall};

const UPSTREAM: &str = r#"
    [upstream.a]
    servers = ["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"]
    [limit.fair]
    rate = "1000000000/s"
"#;

const GUARDED: &str = r#"
    servers = ["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"]
    breaker = { errors = "50%", slow = "500ms", consecutive = 5 }
    eject = "on"
"#;

const THREE_FILTERS: &str = r#"
    addresses = { allow = ["10.0.0.0/8", "192.168.0.0/16"], deny = ["10.9.0.0/16"] }
    size = { body = "10MiB" }
    limits = ["fair"]
"#;

fn serve(policy: &mut Policy, at_ns: u64, facts: &Facts<'_>) -> Record {
    let now = Now { at: Instant::from_nanos(at_ns), wall: Wall(1) };
    let mut flight = policy.begin(now, facts);
    let decision = policy.decide(now, facts, &mut flight, Event::Arrived);
    assert!(matches!(decision, Decision::Call(_)), "{decision:?}");
    let decision = policy.decide(now, facts, &mut flight, Event::Responded { status: 200 });
    assert_eq!(black_box(decision), Decision::Relay);
    let ending = Ending { status: Some(200), bytes_in: 0, bytes_out: 100, finish: Finish::Whole };
    policy.end(now, flight, ending)
}

fn decisions(c: &mut Criterion) {
    let bare = "[route.r]\nmatch = \"/v1/orders/{*rest}\"\nto = \"a\"\n";
    let filtered = format!("{bare}{THREE_FILTERS}");
    let mut many = filtered.clone();
    for i in 0..500 {
        let _ = write!(many, "[route.r{i}]\nmatch = \"GET /v1/r{i}/{{id}}\"\nto = \"a\"\n");
    }
    let guarded = format!("{filtered}retries = {{ on = [\"5xx\"] }}\n[upstream.b]\n{GUARDED}");
    let guarded = guarded.replacen("to = \"a\"", "to = \"b\"", 1);
    for (name, routes, clients) in [
        ("bare", bare, 1),
        ("three filters", &filtered, 1),
        ("three filters, 100k clients", &filtered, 100_000),
        ("three filters, 500 routes", &many, 1),
        ("three filters, breaker and retries", &guarded, 1),
    ] {
        let plan = written::plan(&format!("{UPSTREAM}{routes}"));
        let mut policy = Policy::new(plan, Arc::new(Ledger::new(1 << 20, [3; 16])), 1);
        let mut turn = 0_u32;
        c.bench_function(name, |b| {
            b.iter(|| {
                turn = turn.wrapping_add(1);
                let client = IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 + turn % clients));
                let facts = Facts { client, ..facts("/v1/orders/17") };
                serve(&mut policy, u64::from(turn) * 1000, black_box(&facts))
            });
        });
    }
}

criterion_group!(benches, decisions);
criterion_main!(benches);
