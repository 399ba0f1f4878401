//! What a flood of fresh keys does to others: `cargo bench -p sluice-policy --bench flood`.
//!
//! One worker asks for 1,000 keys that the table knows, another brings fresh keys, up to a million
//! a second. With the flood and without take turns, round by round, so that the machine's mood does
//! the same to both, and of those with it only such count in which it came at four fifths of its
//! rate or more. Fresh keys owe for an hour. In a table with room each of them finds a place; in a
//! full one none does.

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
const ROUNDS: usize = 400;
/// What the flood may do between two looks at the clock.
const BURST: u64 = 100;

/// What each fresh key owes for an hour.
const FRESH: &str = "rate = \"1/h\"";
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
        for (table, places) in [("room", 1 << 22), ("full", 1 << 16)] {
            measure(&format!("{name}, {table}"), limit, expected, places);
        }
    }
}

fn measure(name: &str, limit: &str, expected: u16, places: usize) {
    let ledger = Arc::new(Ledger::new(places, [3; 16]));
    let mut asker = Worker::new(&ledger, "known", limit);
    let shared = Shared { at_ns: AtomicU64::new(1_000_000_000), ..Shared::default() };
    for client in 0..KNOWN {
        asker.ask(shared.at_ns.load(Relaxed), client);
    }
    if places < 1 << 20 {
        let mut filler = Worker::new(&ledger, "fresh", FRESH);
        (1 << 23..(1 << 23) + 4 * places as u64).for_each(|client| {
            filler.ask(1_000_000_000, client);
        });
    }
    let (mut dice, mut wrong) = (Dice::new(7), 0_u64);
    let mut took = [const { Vec::new() }; 2];
    let (mut fresh, mut time) = (0, Duration::ZERO);
    thread::scope(|scope| {
        scope.spawn(|| flood(&ledger, &shared));
        for turn in 0..2 * ROUNDS {
            let with = turn % 2;
            shared.task.store(with as u64, Relaxed);
            let (before, began) = (shared.flooded.load(Relaxed), Stopwatch::now());
            let mut at_ns = shared.at_ns.load(Relaxed);
            for _ in 0..ROUND {
                at_ns += 1000;
                wrong += u64::from(asker.ask(at_ns, dice.below(KNOWN)) != expected);
            }
            shared.at_ns.store(at_ns, Relaxed);
            let elapsed = began.elapsed();
            let came = shared.flooded.load(Relaxed) - before;
            let due = elapsed.as_secs_f64() * FRESH_PER_SECOND as f64;
            if with == 0 || came as f64 >= 0.8 * due {
                took[with].push(elapsed.as_secs_f64() * 1e9 / f64::from(ROUND));
                (fresh, time) =
                    (fresh + came * with as u64, time + elapsed * u32::from(turn % 2 == 1));
            }
        }
        shared.task.store(2, Relaxed);
    });
    let (_, table) = ledger.tables().next().expect("there is one");
    let (rounds, rate) = (took[1].len(), fresh as f64 / time.as_secs_f64());
    let [alone, within] = took.map(quiet);
    println!("| {name} | {alone:.0} | {within:.0} | {:.2} | {rate:.0} |", within / alone);
    eprintln!("{rounds} rounds with the flood; {wrong} decisions were wrong; {table:?}");
}

fn flood(ledger: &Arc<Ledger>, shared: &Shared) {
    let mut worker = Worker::new(ledger, "fresh", FRESH);
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
    took.get(took.len() / 8).copied().unwrap_or(f64::NAN)
}
