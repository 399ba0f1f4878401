//! Limits that depend on what else comes: while another route is busy, for the heaviest keys only.

mod written;

use std::sync::Arc;

use sluice_policy::Policy;
use sluice_policy::decision::{Decision, Event};
use sluice_policy::facts::Facts;
use sluice_policy::flight::{Ending, Finish};
use sluice_policy::ledger::Ledger;
use sluice_policy::sim::{Head, facts};
use sluice_policy::time::{Instant, Now, Wall};
use sluice_policy::world::Signal;

const ROUTES: &str = r#"
    [route.pay]
    match = "/pay"
    respond = { body = "paid" }
    limits = []
    [route.reports]
    match = "/{*rest}"
    respond = { body = "ok" }
    limits = ["l"]
"#;

struct Node {
    workers: Vec<Policy>,
    ledger: Arc<Ledger>,
    ms: u64,
}

impl Node {
    fn new(limit: &str, workers: u64) -> Self {
        let plan = written::plan(&format!("[limit.l]\n{limit}\n{ROUTES}"));
        let ledger = Arc::new(Ledger::new(1024, [5; 16]));
        let worker = |seed| Policy::new(Arc::clone(&plan), Arc::clone(&ledger), seed);
        Self { workers: (0..workers).map(worker).collect(), ledger, ms: 10_000 }
    }

    fn now(&self) -> Now {
        Now { at: Instant::from_nanos(self.ms * 1_000_000), wall: Wall(self.ms / 1000) }
    }

    fn status(&mut self, worker: usize, facts: &Facts<'_>) -> u16 {
        let now = self.now();
        let policy = &mut self.workers[worker];
        let mut flight = policy.begin(now, facts);
        let decision = policy.decide(now, facts, &mut flight, Event::Arrived);
        let ending = Ending { status: None, bytes_in: 0, bytes_out: 0, finish: Finish::Whole };
        policy.end(now, flight, ending);
        match decision {
            Decision::Answer(answer) => answer.status,
            other => panic!("{other:?}"),
        }
    }

    fn pass(&mut self, ms: u64) {
        self.ms += ms;
        let now = self.now();
        self.workers.iter_mut().for_each(|worker| worker.signal(now, Signal::Tick));
    }
}

#[test]
fn a_route_is_limited_only_while_another_is_busy() {
    let limit = "key = [\"route\"]\nrate = \"1/h\"\nwhile = { route = \"pay\", above = \"10/s\" }";
    let mut node = Node::new(limit, 2);
    let quiet: Vec<_> = (0..20).map(|_| node.status(0, &facts("/r"))).collect();
    assert_eq!(quiet, [200; 20], "nobody pays: nothing is limited");
    // On both workers, and no more than is allowed.
    (0..10).for_each(|i| assert_eq!(node.status(i % 2, &facts("/pay")), 200));
    assert_eq!(node.status(0, &facts("/r")), 200, "10 a second are not above 10");
    assert_eq!(node.status(1, &facts("/pay")), 200);
    assert_eq!([0, 1, 0].map(|i| node.status(i, &facts("/r"))), [200, 429, 429]);
    assert_eq!(node.status(0, &facts("/pay")), 200, "the busy route itself goes on");
    node.pass(2_000);
    assert_eq!([0, 1, 0].map(|i| node.status(i, &facts("/r"))), [200; 3], "no longer");
}

#[test]
fn only_the_heaviest_keys_are_limited_and_by_the_whole_node() {
    let limit = "key = [\"header:x-item\"]\nrate = \"10/s\"\nburst = 10\nheaviest = 2";
    let mut node = Node::new(limit, 4);
    // 100 items, of which two come 40 times as often; each of them to all workers alike.
    let mut refused = [0; 100];
    for turn in 0..400_usize {
        let item = |node: &mut Node, n: usize| {
            let name = format!("item-{n}");
            let head = Head::new(&[("X-Item", &name)]);
            let worker = (turn + n) % 4;
            node.status(worker, &Facts { headers: head.headers(), ..facts("/r") })
        };
        for n in [7, 61, turn % 100] {
            if item(&mut node, n) == 429 {
                refused[n] += 1;
            }
        }
        node.pass(10);
    }
    // 100 a second come of each, 10 are let through; over four seconds, less what it took to see.
    for n in [7, 61] {
        assert!((300..400).contains(&refused[n]), "{n}: {}", refused[n]);
    }
    let others: usize = refused.iter().sum::<usize>() - refused[7] - refused[61];
    assert_eq!(others, 0);
    for worker in &node.workers {
        let top = worker.inspect(node.now()).top;
        let written: Vec<_> = top.iter().map(|key| (&*key.limit, &*key.written)).collect();
        assert_eq!(written.len(), 2, "{top:?}");
        for item in ["x-item=item-7", "x-item=item-61"] {
            assert!(written.contains(&("l", item)), "{written:?}");
        }
    }
}

#[test]
fn what_was_heavy_is_forgotten_when_it_comes_no_more() {
    let mut node = Node::new("key = [\"path\"]\nrate = \"1/h\"\nheaviest = 1", 1);
    (0..100).for_each(|_| assert_eq!(node.status(0, &facts("/a")), 200));
    node.pass(100);
    assert_eq!([(); 2].map(|()| node.status(0, &facts("/a"))), [200, 429]);
    assert_eq!(node.status(0, &facts("/b")), 200);
    for _ in 0..30 {
        (0..5).for_each(|_| assert!(node.status(0, &facts("/b")) > 0));
        node.pass(500);
    }
    assert_eq!(node.status(0, &facts("/b")), 429, "now it is the heaviest");
    assert_eq!(node.status(0, &facts("/a")), 200, "and no other is counted");
}

#[test]
fn secrets_are_shown_as_fingerprints_and_long_values_cut() {
    let key = "key = [\"api_key\", \"header:authorization\", \"header:cookie\", \"ip\", \"path\"]";
    let mut node = Node::new(&format!("{key}\nrate = \"1000/s\"\ntop = 5"), 1);
    let fields = [("X-Api-Key", "k-Hidden-1"), ("Authorization", "Bearer Hidden-2")];
    let (head, path) = (Head::new(&fields), format!("/{}", "a".repeat(100)));
    let facts = Facts { headers: head.headers(), ..facts(&path) };
    for _ in 0..3 {
        assert_eq!(node.status(0, &facts), 200);
        node.pass(200);
    }
    let top = node.workers[0].inspect(node.now()).top;
    let [key] = &top[..] else { panic!("{top:?}") };
    assert!(!key.written.contains("Hidden"), "{key:?}");
    let parts: Vec<_> = key.written.split(' ').collect();
    assert!(parts[0].starts_with("x-api-key=#") && parts[0].len() == 19, "{parts:?}");
    assert!(parts[1].starts_with("authorization=#") && parts[2] == "cookie=-", "{parts:?}");
    assert!(parts[3].starts_with("ip=") && parts[4].ends_with("aaa..."), "{parts:?}");
    assert_eq!(key.recent, 3);
}

#[test]
fn what_a_worker_had_in_progress_leaves_the_node_with_it() {
    let mut node = Node::new("rate = \"1/s\"", 2);
    let flights: Vec<_> = (0..2_usize)
        .flat_map(|worker| (0..3).map(move |_| worker))
        .map(|worker| {
            let now = node.now();
            node.workers[worker].begin(now, &facts("/r"))
        })
        .collect();
    node.pass(20);
    assert_eq!(node.ledger.in_flight(), 6);
    drop(flights);
    node.workers[0].retire();
    assert_eq!(node.ledger.in_flight(), 3, "it said that it is dead");
    node.workers[0].retire();
    assert_eq!(node.ledger.in_flight(), 3, "once");
    node.workers.clear();
    assert_eq!(node.ledger.in_flight(), 0, "it unwound");
}
