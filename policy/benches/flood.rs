//! What a flood of fresh keys does to others: `cargo bench -p sluice-policy --bench flood`.
//!
//! One worker asks for 1,000 keys that the table knows, another brings fresh keys, up to a million
//! a second. With the flood and without take turns, round by round, so that the machine's mood does
//! the same to both. Fresh keys that owe for an hour fill the table first; then none finds a place.

#![expect(clippy::disallowed_types, reason = "a bench has a clock")]

#[path = "../tests/written/mod.rs"]
mod written;

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant as Stopwatch};

use sluice_policy::Policy;
use sluice_policy::decision::{Decision, Event};
use sluice_policy::facts::Facts;
use sluice_policy::flight::{Ending, Finish};
use sluice_policy::ledger::Ledger;
use sluice_policy::mechanism::dice::Dice;
use sluice_policy::sim::facts;
use sluice_policy::time::{Instant, Now, Wall};

const KNOWN: u64 = 1000;
const FRESH_PER_SECOND: u64 = 1_000_000;
/// A few milliseconds each, so that some have both cores to themselves.
const ROUND: u32 = 10_000;
const ROUNDS: usize = 200;
/// What the flood may do between two looks at the clock.
const BURST: u64 = 100;

/// Asked by the known keys, and what they get.
const LIMITS: [(&str, &str, u16); 3] = [
    ("bucket, admitted", "rate = \"1000000/s\"", 200),
    ("bucket, refused", "rate = \"1/h\"", 429),
    ("sliding of 5000, admitted", "kind = \"sliding\"\nrate = \"5000/s\"", 200),
];

struct Worker(Policy);

impl Worker {
    fn new(ledger: &Arc<Ledger>, name: &str, limit: &str) -> Self {
        let text = format!(
            "[limit.{name}]\n{limit}\n[route.r]\nmatch = \"/{{*rest}}\"\n\
             respond = {{ body = \"ok\" }}\nlimits = [\"{name}\"]\n"
        );
        Self(Policy::new(written::plan(&text), Arc::clone(ledger), 1))
    }

    fn ask(&mut self, at_ns: u64, client: u64) -> u16 {
        let now = Now { at: Instant::from_nanos(at_ns), wall: Wall(1) };
        let client = IpAddr::V4(Ipv4Addr::from_bits(u32::try_from(client).unwrap_or(0)));
        let facts = Facts { client, ..facts("/") };
        let mut flight = self.0.begin(now, &facts);
        let decision = black_box(self.0.decide(now, &facts, &mut flight, Event::Arrived));
        let ending = Ending { status: None, bytes_in: 0, bytes_out: 0, finish: Finish::Whole };
        self.0.end(now, flight, ending);
        match decision {
            Decision::Answer(answer) => answer.status,
            other => panic!("{other:?}"),
        }
    }
}

/// What both workers know.
#[derive(Default)]
struct Shared {
    at_ns: AtomicU64,
    /// 0: rest, 1: flood, 2: leave.
    task: AtomicU64,
    flooded: AtomicU64,
}

fn main() {
    println!(
        "nanoseconds a decision of {KNOWN} known keys; the quietest quarter of {ROUNDS} rounds"
    );
    println!(
        "| known keys | alone | in the flood | ratio | fresh keys/s |\n|---|---:|---:|---:|---:|"
    );
    for (name, limit, expected) in LIMITS {
        measure(name, limit, expected);
    }
}

fn measure(name: &str, limit: &str, expected: u16) {
    let ledger = Arc::new(Ledger::new(1 << 20, [3; 16]));
    let mut asker = Worker::new(&ledger, "known", limit);
    let shared = Shared { at_ns: AtomicU64::new(1_000_000_000), ..Shared::default() };
    for client in 0..KNOWN {
        asker.ask(shared.at_ns.load(Relaxed), client);
    }
    let (mut dice, mut wrong) = (Dice::new(7), 0_u64);
    let mut took = [const { Vec::new() }; 2];
    let mut flooded = (0, Duration::ZERO);
    thread::scope(|scope| {
        scope.spawn(|| flood(&ledger, &shared));
        for turn in 0..2 * ROUNDS {
            let with = turn % 2;
            shared.task.store(with as u64, Relaxed);
            let (fresh, began) = (shared.flooded.load(Relaxed), Stopwatch::now());
            let mut at_ns = shared.at_ns.load(Relaxed);
            for _ in 0..ROUND {
                at_ns += 1000;
                wrong += u64::from(asker.ask(at_ns, dice.below(KNOWN)) != expected);
            }
            shared.at_ns.store(at_ns, Relaxed);
            let elapsed = began.elapsed();
            took[with].push(elapsed.as_secs_f64() * 1e9 / f64::from(ROUND));
            if with == 1 {
                flooded.0 += shared.flooded.load(Relaxed) - fresh;
                flooded.1 += elapsed;
            }
        }
        shared.task.store(2, Relaxed);
    });
    let [alone, within] = took.map(quiet);
    let rate = flooded.0 as f64 / flooded.1.as_secs_f64();
    println!("| {name} | {alone:.0} | {within:.0} | {:.2} | {rate:.0} |", within / alone);
    let (_, table) = ledger.tables().next().expect("there is one");
    println!("{wrong} of the known keys' decisions were wrong; {table:?}");
}

fn flood(ledger: &Arc<Ledger>, shared: &Shared) {
    let mut worker = Worker::new(ledger, "fresh", "rate = \"1/h\"");
    let mut next = 1 << 24;
    loop {
        let (began, mut done) = (Stopwatch::now(), 0);
        while shared.task.load(Relaxed) == 1 {
            // No faster than asked for, and what was missed is not made up for.
            let due = began.elapsed().as_nanos() * u128::from(FRESH_PER_SECOND) / 1_000_000_000;
            if u128::from(done) > due {
                std::hint::spin_loop();
                continue;
            }
            let at_ns = shared.at_ns.load(Relaxed);
            for _ in 0..BURST {
                next += 1;
                worker.ask(at_ns, next);
            }
            done += BURST;
            shared.flooded.fetch_add(BURST, Relaxed);
        }
        if shared.task.load(Relaxed) == 2 {
            return;
        }
        thread::yield_now();
    }
}

/// The median of the quarter that was disturbed least.
fn quiet(mut took: Vec<f64>) -> f64 {
    took.sort_unstable_by(f64::total_cmp);
    took[took.len() / 8]
}
