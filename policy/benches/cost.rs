//! What each kind of limit adds to a decision, kinds taking turns so that the machine's mood does
//! the same to all: `cargo bench -p sluice-policy --bench cost`. The table of docs/performance.md.
//!
//! `COST='sliding of 1000/100000/50000'` does one kind only, so many keys and decisions, and
//! measures nothing: for tools that count instructions.

#![expect(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "a bench has a clock, and is told what to do by its environment"
)]

#[path = "../tests/written/mod.rs"]
mod written;

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Instant as Stopwatch;

use sluice_policy::Policy;
use sluice_policy::decision::Event;
use sluice_policy::facts::Facts;
use sluice_policy::flight::{Ending, Finish};
use sluice_policy::ledger::Ledger;
use sluice_policy::mechanism::dice::Dice;
use sluice_policy::sim::facts;
use sluice_policy::time::{Instant, Now, Wall};

const ROUTE: &str = "[route.r]\nmatch = \"/{*rest}\"\nrespond = { body = \"ok\" }\n";

/// The first is what they are compared with.
const KINDS: [(&str, &str); 8] = [
    ("no limit", ""),
    ("bucket", "rate = \"1000000/s\""),
    ("leaky", "kind = \"leaky\"\nrate = \"1000000/s\"\nmax_wait = \"1s\""),
    ("fixed", "kind = \"fixed\"\nrate = \"1000000/s\""),
    ("quota", "kind = \"quota\"\nrate = \"1000000000/day\""),
    ("log of 10", "kind = \"sliding\"\nrate = \"10/s\""),
    ("sliding of 1000", "kind = \"sliding\"\nrate = \"1000/s\""),
    ("concurrency", CONCURRENCY),
];
/// Of the route, not a limit.
const CONCURRENCY: &str = "concurrency = { max = 1000, key = [\"ip\"] }\n";
/// Twice as many as there are keys. Sliding windows and concurrency have an eighth as many.
const PLACES: [usize; 2] = [1 << 21, 1 << 24];
const KEYS: [u64; 3] = [1_000, 100_000, 1_000_000];
/// Short enough that some rounds have the core to themselves.
const ROUND: u32 = 10_000;
const ROUNDS: usize = 100;

/// A worker under one limit, and the crowd that asks it.
struct Work {
    policy: Policy,
    dice: Dice,
    at_ns: u64,
    keys: u64,
}

impl Work {
    fn new(kind: &str, keys: u64) -> Self {
        let text = match kind {
            "" => ROUTE.to_owned(),
            CONCURRENCY => format!("{ROUTE}{CONCURRENCY}"),
            kind => format!("[limit.l]\n{kind}\n{ROUTE}limits = [\"l\"]\n"),
        };
        let eighth = kind == CONCURRENCY || kind.contains("sliding");
        let places = PLACES[usize::from(eighth && keys > 100_000)];
        let ledger = Arc::new(Ledger::new(places, [3; 16]));
        let policy = Policy::new(written::plan(&text), ledger, 1);
        Self { policy, dice: Dice::new(7), at_ns: 1_000_000_000, keys }
    }

    fn ask(&mut self, client: u64) {
        self.at_ns += 1000;
        let now = Now { at: Instant::from_nanos(self.at_ns), wall: Wall(1) };
        let client = IpAddr::V4(Ipv4Addr::from_bits(u32::try_from(client).unwrap_or(0)));
        let facts = Facts { client, ..facts("/") };
        let mut flight = self.policy.begin(now, &facts);
        let _ = black_box(self.policy.decide(now, &facts, &mut flight, Event::Arrived));
        let ending = Ending { status: Some(200), bytes_in: 0, bytes_out: 0, finish: Finish::Whole };
        black_box(self.policy.end(now, flight, ending));
    }

    fn round(&mut self, decisions: u32) {
        for _ in 0..decisions {
            let client = self.dice.below(self.keys);
            self.ask(client);
        }
    }
}

fn main() {
    match std::env::var("COST") {
        Ok(one) => {
            let mut parts = one.split('/');
            let name = parts.next().unwrap_or_default();
            let [keys, decisions] = core::array::from_fn(|_| {
                parts.next().and_then(|n| n.parse::<u32>().ok()).expect("KIND/KEYS/DECISIONS")
            });
            let (_, kind) = KINDS.iter().find(|(kind, _)| *kind == name).expect("a kind");
            Work::new(kind, keys.into()).round(decisions);
        }
        Err(_) => table(),
    }
}

fn table() {
    println!("nanoseconds that a limit adds, by keys; the quietest quarter of {ROUNDS} rounds");
    println!("| kind | {} | {} | {} |\n|---|---:|---:|---:|", KEYS[0], KEYS[1], KEYS[2]);
    for (name, kind) in &KINDS[1..] {
        let added = KEYS.map(|keys| {
            let [without, with] = pair(kind, keys);
            with - without
        });
        println!("| {name} | {:.0} | {:.0} | {:.0} |", added[0], added[1], added[2]);
    }
}

/// What a decision takes without a limit and with this one, by turns. Only one kind at a time, so
/// that the caches hold the keys of one.
fn pair(kind: &str, keys: u64) -> [f64; 2] {
    let mut works = [KINDS[0].1, kind].map(|kind| Work::new(kind, keys));
    for work in &mut works {
        (0..keys).for_each(|client| work.ask(client));
    }
    let mut took = [const { Vec::new() }; 2];
    for _ in 0..ROUNDS {
        for (work, took) in works.iter_mut().zip(&mut took) {
            let began = Stopwatch::now();
            work.round(ROUND);
            took.push(began.elapsed().as_secs_f64() * 1e9 / f64::from(ROUND));
        }
    }
    took.map(quiet)
}

/// The median of the quarter that was disturbed least.
fn quiet(mut took: Vec<f64>) -> f64 {
    took.sort_unstable_by(f64::total_cmp);
    took[took.len() / 8]
}
