//! A request that is served allocates nothing.

mod written;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use sluice_policy::Policy;
use sluice_policy::decision::{Decision, Event, Failure};
use sluice_policy::facts::Facts;
use sluice_policy::flight::{Ending, Finish};
use sluice_policy::ledger::Ledger;
use sluice_policy::sim::{Head, facts};
use sluice_policy::time::{Instant, Now, Wall};

const PLAN: &str = r#"
    [upstream.a]
    servers = ["10.0.0.1:80", "10.0.0.2:80"]
    balance = "p2c"
    breaker = { consecutive = 100, slow = "1s" }
    [limit.each]
    key = ["ip", "header:x-key", "path", "method", "route"]
    rate = "100/s"
    [limit.all]
    key = ["route"]
    rate = "1000/s"
    [route.r]
    match = "GET *.acme.dev/v1/{id}/{*rest}"
    where = { header = { x-key = "*" }, query = { q = "a b" }, cookie = { c = "1" } }
    to = "a"
    addresses = { deny = ["10.9.0.0/16"] }
    size = { body = "1MiB" }
    limits = ["each", "all"]
    concurrency = { max = 100, key = ["ip"] }
    cache = { ttl = "1s", stale = "1min", key = ["header:x-key"] }
"#;

#[test]
fn a_decision_allocates_nothing() {
    let ledger = Arc::new(Ledger::new(1 << 12, [1; 16]));
    let mut policy = Policy::new(written::plan(PLAN), ledger, 1);
    let head = Head::new(&[("Host", "api.acme.dev"), ("X-Key", "k"), ("Cookie", "b=2; c=1")]);
    let ending = Ending { status: Some(200), bytes_in: 0, bytes_out: 0, finish: Finish::Whole };
    let (mut served, mut refused) = (0, 0);
    let counted = allocation_counter::measure(|| {
        for turn in 0..2000_u32 {
            let now = Now { at: Instant::from_nanos(u64::from(turn) * 100_000), wall: Wall(0) };
            let client = IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 + turn % 7));
            let facts = Facts {
                client,
                host: "api.acme.dev",
                query: "x=1&q=a%20b",
                headers: head.headers(),
                ..facts("/v1/7/x")
            };
            let mut flight = policy.begin(now, &facts);
            let mut decision = policy.decide(now, &facts, &mut flight, Event::Arrived);
            if let Decision::Serve(_) = decision {
                decision = policy.decide(now, &facts, &mut flight, Event::Missed);
            }
            if turn % 3 == 0 && matches!(decision, Decision::Call(_)) {
                let event = Event::Failed { failure: Failure::Connect, replayable: true };
                decision = policy.decide(now, &facts, &mut flight, event);
            }
            if matches!(decision, Decision::Call(_)) {
                decision =
                    policy.decide(now, &facts, &mut flight, Event::Responded { status: 200 });
            }
            match decision {
                Decision::Relay => served += 1,
                Decision::Answer(answer) if answer.status == 429 => refused += 1,
                other => panic!("{other:?}"),
            }
            let _ = policy.end(now, flight, ending);
        }
    });
    assert!(served > 100 && refused > 100, "{served} {refused}");
    assert_eq!(counted.count_total, 0, "{counted:?}");
    // And one would have been seen.
    let one = allocation_counter::measure(|| drop(std::hint::black_box(Box::new(served))));
    assert_eq!(one.count_total, 1);
}
