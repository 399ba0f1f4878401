//! Ten million keys for real. Takes minutes and 256 MB, so by hand:
//! `cargo test --release -p sluice-policy --test millions -- --ignored --nocapture`.

#![expect(clippy::unwrap_used, reason = "a test may")]

mod written;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use sluice_policy::Policy;
use sluice_policy::decision::{Decision, Event};
use sluice_policy::facts::Facts;
use sluice_policy::flight::{Ending, Finish};
use sluice_policy::ledger::{Figures, Ledger};
use sluice_policy::sim::facts;
use sluice_policy::time::{Instant, Now, Wall};

const KEYS: u32 = 10_000_000;
/// As `server.limit_keys` has it: 18.25 bytes each, and some megabytes that do not depend on it.
const PLACES: usize = 13_750_000;
const BYTES_MAX: u64 = 256_000_000;
/// Of each key. Key n spends one more than n mod 3 of them at first.
const TOKENS: u32 = 3;

fn admitted(policy: &mut Policy, at_ns: u64, client: u32) -> bool {
    let now = Now { at: Instant::from_nanos(at_ns), wall: Wall(1) };
    let facts = Facts { client: IpAddr::V4(Ipv4Addr::from_bits(client)), ..facts("/") };
    let mut flight = policy.begin(now, &facts);
    let decision = policy.decide(now, &facts, &mut flight, Event::Arrived);
    let ending = Ending { status: None, bytes_in: 0, bytes_out: 0, finish: Finish::Whole };
    policy.end(now, flight, ending);
    matches!(decision, Decision::Answer(answer) if answer.status == 200)
}

/// What the process has in memory.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

fn figures(ledger: &Ledger) -> Figures {
    ledger.tables().next().unwrap().1
}

#[test]
#[ignore = "takes minutes and 256 MB"]
fn ten_million_keys_fit_and_each_of_them_is_right() {
    let before = resident();
    let text = format!(
        "[limit.l]\nrate = \"{TOKENS}/day\"\n[route.r]\nmatch = \"/{{*rest}}\"\n\
         respond = {{ body = \"ok\" }}\nlimits = [\"l\"]\n"
    );
    let ledger = Arc::new(Ledger::new(PLACES, [3; 16]));
    let mut policy = Policy::new(written::plan(&text), Arc::clone(&ledger), 1);
    let mut at_ns = 1_000_000_000;
    let mut spent = vec![0_u8; KEYS as usize];
    let list = spent.len() as u64;
    for n in 0..KEYS {
        for _ in 0..=n % TOKENS {
            at_ns += 1000;
            spent[n as usize] += u8::from(admitted(&mut policy, at_ns, n));
        }
    }
    let filled = figures(&ledger);
    let grown = resident() - before;
    println!(
        "{filled:?}; {} MB resident, the list of the test with {} MB not counted",
        (grown - list) / 1_000_000,
        list / 1_000_000
    );
    // And now all the rest of each, and one more: none has been mixed up with another.
    let [mut short, mut exact, mut over] = [0_u32; 3];
    for n in 0..KEYS {
        for _ in 0..=TOKENS {
            at_ns += 1000;
            spent[n as usize] += u8::from(admitted(&mut policy, at_ns, n));
        }
        match u32::from(spent[n as usize]).cmp(&TOKENS) {
            std::cmp::Ordering::Less => short += 1,
            std::cmp::Ordering::Equal => exact += 1,
            std::cmp::Ordering::Greater => over += 1,
        }
    }
    println!(
        "{exact} keys had exactly {TOKENS}, {short} fewer, {over} more; {:?}",
        figures(&ledger)
    );
    assert!(grown - list <= BYTES_MAX, "{grown} bytes");
    assert_eq!(over, 0);
    assert!(filled.held * 100 >= u64::from(KEYS) * 99, "{filled:?}");
    assert!(short * 100 <= KEYS, "{short} were refused too early");
}
