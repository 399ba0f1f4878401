//! The script in Redis against its model: the same messages, the same answers, on a real server.

#![expect(clippy::unwrap_used, reason = "a test may")]

use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

use redis::{Commands as _, Connection};
use sluice_policy::mechanism::dice::Dice;
use sluice_policy::mechanism::lease::{Class, Count, Message, Reply, Terms};
use sluice_policy::sim::reserve::Store;

const SCRIPT: &str = include_str!("../src/store/reserve.lua");
const SEC: u64 = 1_000_000;
const EPOCH: u64 = 1_000_000_000_000;

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// None, and a line that says so, where Redis is not installed.
fn server() -> Option<(Server, Connection)> {
    let port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).unwrap().port();
    let child = Command::new("redis-server")
        .args(["--bind", "127.0.0.1", "--port", &port.to_string()])
        .args(["--save", "", "--appendonly", "no"])
        .stdout(Stdio::piped())
        .spawn();
    let Ok(child) = child else {
        assert!(std::env::var_os("CI").is_none(), "redis-server is not installed");
        eprintln!("skipped: redis-server is not installed");
        return None;
    };
    let mut server = Server(child);
    let mut lines = BufReader::new(server.0.stdout.take().unwrap()).lines();
    let ready = |line: &std::io::Result<String>| {
        line.as_ref().is_ok_and(|line| line.contains("Ready to accept connections"))
    };
    assert!(lines.any(|line| ready(&line)), "it did not start");
    let client = redis::Client::open(format!("redis://127.0.0.1:{port}")).unwrap();
    let connection = client.get_connection().unwrap();
    Some((server, connection))
}

struct Both {
    connection: Connection,
    script: redis::Script,
    model: Store,
}

impl Both {
    fn reset(&mut self, warm: bool) {
        let () = redis::cmd("FLUSHALL").query(&mut self.connection).unwrap();
        self.model = Store::default();
        if warm {
            self.model.warm("r1");
            let fields = [("run", "r1"), ("fence", "0")];
            let () = self.connection.hset_multiple("{s}", &fields).unwrap();
        }
    }

    fn call(&mut self, now: u64, run: &str, node: &str, key: &str, m: &Message) -> [Reply; 2] {
        let modelled = self.model.call(i64::try_from(now).unwrap(), run, node, key, m);
        let mut call = self.script.prepare_invoke();
        call.key("{s}").key(format!("{{s}}{key}")).arg(run).arg(node).arg(now);
        call.arg(m.terms.kind());
        for n in [m.terms.units, m.terms.refill, m.terms.capacity.into(), m.lease_us] {
            call.arg(n);
        }
        for n in [m.seq, m.born, m.spent, m.held, m.want, m.demand, m.elapsed_us, m.since_seq] {
            call.arg(n);
        }
        let told: Vec<u64> = call.invoke(&mut self.connection).unwrap();
        let [granted, left, wait_us, fair, flags] = told.try_into().unwrap();
        [Reply { granted, left, wait_us, fair, flags }, modelled]
    }
}

fn held(terms: &Terms) -> bool {
    terms.class == Class::Lease || terms.count == Count::Places
}

/// A node that behaves, mostly.
#[derive(Default)]
struct Node {
    seq: u64,
    born: u64,
    spent: u64,
    held: u64,
    last: Option<(u64, u64)>,
}

fn message(dice: &mut Dice, node: &mut Node, terms: Terms, now: u64) -> Message {
    let used = dice.below(node.held + 1);
    (node.held, node.spent) = (node.held - used, node.spent + used);
    if terms.count == Count::Places {
        // Some that were in use are free again.
        let freed = dice.below(node.spent + 1);
        (node.held, node.spent) = (node.held + freed, node.spent - freed);
    }
    match dice.below(20) {
        // Spent while it could ask nobody.
        0 => node.spent += dice.below(20),
        // Its lease is over and it knows.
        1 => node.held = 0,
        // It has forgotten the key.
        2 => *node = Node { seq: node.seq, born: node.seq + 1, ..Node::default() },
        // It holds what it was not given.
        3 => node.held += 3,
        _ => {}
    }
    node.seq += 1;
    // One that was overtaken, or comes again.
    let seq =
        if dice.below(15) == 0 { node.seq.saturating_sub(dice.below(3)).max(1) } else { node.seq };
    let (elapsed_us, since_seq) = node.last.map_or((0, 0), |(at, seq)| (now - at, seq));
    let (held, demand) =
        if held(&terms) { (node.held, dice.below(5) * 150_000) } else { (0, dice.below(4)) };
    Message {
        terms,
        lease_us: SEC,
        seq,
        born: node.born,
        spent: node.spent,
        held,
        want: dice.below(60),
        demand,
        elapsed_us,
        since_seq,
    }
}

/// Of any kind.
fn terms(dice: &mut Dice) -> Terms {
    let pick = |dice: &mut Dice, n: u64| usize::try_from(dice.below(n)).unwrap();
    let class = if dice.below(3) == 0 { Class::Direct } else { Class::Lease };
    let count = [Count::Bucket, Count::Window, Count::Places][pick(dice, 3)];
    let (units, refill) = match count {
        Count::Bucket => [(1000, 1), (100_000, 7), (7, 3), (60_000_000, 1)][pick(dice, 4)],
        // A log, parts, edges, months.
        Count::Window => [(1, 3 * SEC), (50_000, 5 * SEC), (2 * SEC, 0), (0, 0)][pick(dice, 4)],
        Count::Places => (1, 0),
    };
    let capacity = [1, 10, 100, 1000][pick(dice, 4)];
    let strict = dice.below(3) == 0;
    Terms { count, class, strict, units, refill, capacity, cost: 1 }
}

fn run(both: &mut Both, seed: u64) {
    let mut dice = Dice::new(seed);
    let mut terms = terms(&mut dice);
    let (capacity, units) = (terms.capacity, terms.units);
    both.reset(dice.below(4) > 0);
    let mut nodes: Vec<Node> = (0..4).map(|_| Node::default()).collect();
    let (mut now, mut run, mut skew) = (EPOCH, 1, 0);
    for step in 0..150 {
        now += [200, 5_000, 100_000, 900_000][usize::try_from(dice.below(4)).unwrap()];
        let mut name = None;
        match dice.below(60) {
            0 => run += 1,
            // To another server: by a move, or so it is said.
            3 => {
                run += 1;
                name = Some(format!("r{run}<r{}", run - 1 - dice.below(2)));
            }
            1 => skew = dice.below(20) * SEC,
            // A new configuration: other units, another capacity.
            2 => {
                let units = units * (1 + dice.below(3));
                terms = Terms { units, capacity: capacity + 5, ..terms };
            }
            _ => {}
        }
        let i = usize::try_from(dice.below(4)).unwrap();
        let m = message(&mut dice, &mut nodes[i], terms, now);
        let server = name.unwrap_or_else(|| format!("r{run}"));
        let [real, modelled] = both.call(now + skew, &server, &format!("n{i}"), "k", &m);
        assert_eq!(real, modelled, "seed {seed} step {step} {m:?}");
        let node = &mut nodes[i];
        if m.seq == node.seq {
            node.last = Some((now, m.seq));
        }
        if real.flags & Reply::VOID != 0 {
            node.held = 0;
        }
        // One in ten answers is lost.
        if held(&terms) && m.seq == node.seq && dice.below(10) > 0 {
            node.held += real.granted;
        }
        if terms.count == Count::Bucket {
            let (level, out) = both.model.bucket("k").unwrap();
            let units = i64::try_from(terms.units).unwrap();
            let full = i64::from(terms.capacity) * units;
            let fits = level + out * units <= full || terms.capacity != capacity;
            assert!(fits, "seed {seed}: {level} {out}");
        }
    }
}

#[test]
fn the_script_and_its_model_agree() {
    let Some((_server, connection)) = server() else { return };
    let script = redis::Script::new(SCRIPT);
    let mut both = Both { connection, script, model: Store::default() };
    for seed in 0..256 {
        run(&mut both, seed);
    }
}
