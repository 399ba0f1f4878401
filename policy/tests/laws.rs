//! The laws that every traffic must obey, tried over many seeds.
//!
//! A failure prints its seed; `POLICY_SEED=<n> cargo test --test laws` runs that one alone.

#![expect(clippy::unwrap_used, reason = "a test may")]

mod written;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use sluice_policy::facts::Body;
use sluice_policy::ledger::Ledger;
use sluice_policy::mechanism::dice::Dice;
use sluice_policy::plan::Plan;
use sluice_policy::sim::{Done, Judged, Request, World};

const PLAN: &str = r#"
    [upstream.a]
    servers = ["10.0.0.1:80", "10.0.0.2:80", { addr = "10.0.0.3:80", weight = 2 }]
    balance = "BALANCE"

    [limit.each]
    key = ["ip"]
    rate = "20/s"
    burst = 5

    [limit.all]
    key = ["route"]
    rate = "100/s"
    burst = 30

    [route.a]
    match = "/a/{*rest}"
    to = "a"
    timeout = "2s"
    retries = { max = 2, on = [], hedge = true }
    limits = ["each", "all"]
    concurrency = { max = 12 }
    size = { body = "1KiB" }

    [route.b]
    match = "GET,PUT /b"
    to = "a"
    retries = { on = ["reset", "timeout"] }
    limits = ["each"]
    concurrency = { max = 2, key = ["ip"] }
    addresses = { deny = ["10.1.0.7"] }
"#;

/// Tokens a second and burst of the limits of `PLAN`.
const EACH: (u64, u64) = (20, 5);
const ALL: (u64, u64) = (100, 30);

fn plan(balance: &str) -> Arc<Plan> {
    written::plan(&PLAN.replace("BALANCE", balance))
}

fn client(n: u64) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from_bits(0x0a01_0000 + u32::try_from(n).unwrap()))
}

fn request(dice: &mut Dice, crowd: u64) -> Request {
    let method = ["GET", "PUT", "POST", "DELETE"][usize::try_from(dice.below(4)).unwrap()];
    let path = ["/a", "/a/x/y", "/b", "/c", "*"][usize::try_from(dice.below(5)).unwrap()];
    let body = [Body::Empty, Body::Length(100), Body::Length(2000), Body::Unknown];
    let body = body[usize::try_from(dice.below(4)).unwrap()];
    Request { method, body, ..Request::get(client(dice.below(crowd)), path) }
}

/// An exact meter of what was admitted under one key: a leak in units of tokens x seconds^-1 x ns,
/// written from the definition and not from the code under test.
#[derive(Default)]
struct Meter {
    level: u128,
    at_ns: u64,
}

impl Meter {
    fn admit(&mut self, at_ns: u64, (rate, burst): (u64, u64), slack: Duration) -> bool {
        const TOKEN: u128 = 1_000_000_000;
        let passed = at_ns.saturating_sub(self.at_ns);
        self.level = self.level.saturating_sub(u128::from(passed) * u128::from(rate)) + TOKEN;
        self.at_ns = self.at_ns.max(at_ns);
        self.level <= u128::from(burst) * TOKEN + slack.as_nanos() * u128::from(rate)
    }
}

struct Run {
    world: World,
    seed: u64,
    crowd: u64,
    /// How far the clock may jump back. Zero for most seeds.
    back_ns: u64,
    /// What passed a limit: when, and the client's address for `each`, None for `all`.
    passed: Vec<(Judged, Option<u64>)>,
    lines: Vec<String>,
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let balance = ["round_robin", "p2c", "weighted"][usize::try_from(dice.below(3)).unwrap()];
        let keys_max = [8, 512][usize::try_from(dice.below(2)).unwrap()];
        let workers = usize::try_from(1 + dice.below(4)).unwrap();
        let ledger = Arc::new(Ledger::new(keys_max, [7; 16]));
        let mut world = World::new(&plan(balance), ledger, workers, seed);
        (world.failing, world.leaving) = (dice.below(101), dice.below(20));
        world.cutting = dice.below(101);
        let crowd = [3, 300][usize::try_from(dice.below(2)).unwrap()];
        let back_ns = [0, 0, 0, 3_000_000_000][usize::try_from(dice.below(4)).unwrap()];
        let (passed, lines) = (Vec::new(), Vec::new());
        Self { world, seed, crowd, back_ns, passed, lines }
    }

    fn tick(&mut self) {
        let gap = self.world.dice.below(4_000_000);
        self.world.pass(Duration::from_nanos(gap));
        if self.back_ns > 0 && self.world.dice.below(50) == 0 {
            let back = self.world.dice.below(self.back_ns);
            self.world.at_ns = self.world.at_ns.saturating_sub(back);
        }
    }

    fn step(&mut self) {
        if let Some(done) = self.world.step() {
            self.judge(&done);
            self.lines.push(done.line());
        }
        let seed = self.seed;
        let in_flight: u32 =
            self.world.workers.iter().map(|w| w.inspect(self.world.now()).in_flight).sum();
        assert_eq!(in_flight as usize, self.world.open(), "seed {seed}: flights are counted");
    }

    fn judge(&mut self, done: &Done) {
        let (record, seed) = (&done.record, self.seed);
        assert!(record.attempts <= 5, "seed {seed}: {} calls", record.attempts);
        assert_eq!(record.cut, done.held, "seed {seed}: what broke off is counted");
        // What `concurrency` refuses, limits have taken back.
        let counts = record.trail.steps().all(|s| s.filter != "concurrency" || s.passed);
        let passed = |filter: &str, passed| filter == "limits" && passed && counts;
        for step in record.trail.steps().filter(|s| passed(s.filter, s.passed)) {
            let each = record.plan().limit_name(step.rule.unwrap()) == "each";
            self.passed.push((done.judged, each.then(|| address(done.request.client))));
        }
    }

    /// Conservation: nothing that counts was ever admitted above its bound, by the latest time
    /// that any clock has shown.
    fn conserves(&mut self) {
        // Among workers whose clocks disagree, the node's clock is what was noted last, at most
        // 100 ms before the last look at a limit; one worker alone knows its own.
        let apart = self.back_ns > 0 && self.world.workers.len() > 1;
        let slack = Duration::from_millis(if apart { 200 } else { 0 });
        let mut meters: BTreeMap<_, Meter> = BTreeMap::new();
        self.passed.sort_unstable();
        for (judged, key) in &self.passed {
            let bound = if key.is_some() { EACH } else { ALL };
            let meter = meters.entry(key).or_default();
            let fits = meter.admit(judged.at.as_nanos(), bound, slack);
            assert!(fits, "seed {}: {key:?} was admitted above {bound:?}", self.seed);
        }
    }
}

fn address(client: IpAddr) -> u64 {
    match client {
        IpAddr::V4(a) => a.to_bits().into(),
        IpAddr::V6(_) => unreachable!("clients are IPv4 here"),
    }
}

fn run(seed: u64) -> Vec<String> {
    let mut run = Run::new(seed);
    let plans = [plan("round_robin"), plan("p2c")];
    for _ in 0..1500 {
        run.tick();
        if run.world.dice.below(400) == 0 {
            assert!(
                run.world.ledger.keys() <= run.world.ledger.capacity() as u64,
                "seed {seed}: bounded"
            );
            let which = usize::try_from(run.world.dice.below(2)).unwrap();
            for worker in &mut run.world.workers {
                worker.adopt(Arc::clone(&plans[which]));
            }
        }
        if run.world.open() < 30 && run.world.dice.below(2) == 0 {
            let request = request(&mut run.world.dice, run.crowd);
            run.world.arrive(request);
        }
        run.step();
        // 12 on route a; 2 for each of its clients on route b.
        assert!(run.world.ledger.permits() <= run.world.open() as u64, "seed {seed}: permits");
    }
    // Every flight ends, in a bounded number of events.
    let mut left = 8 * run.world.open();
    while run.world.open() > 0 {
        run.step();
        left = left.checked_sub(1).unwrap_or_else(|| panic!("seed {seed}: a flight does not end"));
    }
    assert_eq!(run.world.ledger.permits(), 0, "seed {seed}: permits go back");
    for worker in &run.world.workers {
        let seats = worker.inspect(run.world.now()).endpoints;
        assert!(seats.iter().all(|(_, taken)| *taken == 0), "seed {seed}: seats go back");
        assert!(seats.len() <= 3, "seed {seed}: endpoints that are gone are forgotten");
    }
    run.conserves();
    recovers(&mut run.world, seed);
    run.lines
}

/// Liveness: whatever happened, once the world is well, everything is served again.
fn recovers(world: &mut World, seed: u64) {
    (world.failing, world.cutting, world.leaving) = (0, 0, 0);
    world.pass(Duration::from_secs(60));
    world.called.clear();
    for _ in 0..64 {
        world.pass(Duration::from_secs(1));
        let done = world.serve(Request::get(client(1), "/a"));
        assert_eq!(done.record.ending.status, Some(200), "seed {seed}: {:?}", done.record.answer);
    }
    assert_eq!(world.called.len(), 3, "seed {seed}: an endpoint is never used");
}

fn seeds() -> std::ops::Range<u64> {
    match std::env::var_os("POLICY_SEED") {
        Some(one) => {
            let one = one.to_str().and_then(|s| s.parse().ok()).expect("a number");
            one..one + 1
        }
        None => 0..256,
    }
}

#[test]
fn laws_hold_over_seeds() {
    for seed in seeds() {
        assert_eq!(run(seed), run(seed), "seed {seed}: same seed, same run");
    }
}

#[test]
fn the_bound_is_also_reached() {
    let ledger = Arc::new(Ledger::new(64, [1; 16]));
    let mut world = World::new(&plan("round_robin"), ledger, 3, 1);
    let mut served = 0;
    for _ in 0..1000 {
        world.pass(Duration::from_millis(1));
        served += u64::from(world.serve(Request::get(client(1), "/a")).record.answer.is_none());
    }
    // Five at once, and twenty a second after.
    assert_eq!(served, 5 + 19);
}

#[test]
fn workers_share_one_count_in_any_interleaving() {
    let text = r#"
        [limit.slow]
        rate = "1/min"
        [route.r]
        match = "/{*rest}"
        limits = ["slow"]
        respond = { body = "ok" }
    "#;
    for seed in 0..256 {
        let ledger = Arc::new(Ledger::new(64, [1; 16]));
        let mut world = World::new(&written::plan(text), ledger, 16, seed);
        let mut passed = Vec::new();
        for _ in 0..200 {
            world.pass(Duration::from_millis(1));
            world.arrive(Request::get(client(1), "/"));
        }
        while world.open() > 0 {
            passed.extend(world.step().filter(|done| done.record.ending.status == Some(200)));
        }
        assert_eq!(passed.len(), 1, "seed {seed}");
        // And again exactly one, exactly a minute later.
        let again = passed[0].record.arrived;
        world.at_ns = world.at_ns.max(again.as_nanos()) + 60_000_000_000;
        let more: Vec<_> = (0..16)
            .map(|_| world.serve(Request::get(client(1), "/")).record.ending.status)
            .collect();
        assert_eq!(more.iter().filter(|s| **s == Some(200)).count(), 1, "seed {seed}");
    }
}
