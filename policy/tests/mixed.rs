//! One request against a limit of the node and one of the fleet: a refused request takes from
//! neither, and what it costs to ask the store is not spent on requests that are refused anyway.

use std::sync::Arc;

use sluice_policy::Policy;
use sluice_policy::decision::{Decision, Event};
use sluice_policy::flight::{Ending, Finish};
use sluice_policy::keeper::{ALL, Batch, Keeper};
use sluice_policy::ledger::Ledger;
use sluice_policy::sim::facts;
use sluice_policy::sim::reserve::Store;
use sluice_policy::time::{Instant, Now, Wall};

mod written;

const MS: u64 = 1_000_000;
const EPOCH: i64 = 1_000_000_000_000;

struct Gateway {
    policy: Policy,
    keeper: Keeper,
    store: Store,
    /// The store takes its time with answers.
    silent: bool,
    now: u64,
}

fn gateway(limits: &str, names: &str) -> Gateway {
    let plan = written::plan(&format!(
        "nodes = 1\n{limits}\n[route.r]\nmatch = \"/{{*rest}}\"\nrespond = {{ body = \"ok\" }}\n\
         limits = {names}\n"
    ));
    let ledger = Arc::new(Ledger::new(1024, [1; 16]));
    let mut keeper = Keeper::new(Arc::clone(&ledger));
    keeper.adopt(&plan);
    let mut store = Store::default();
    store.warm("1");
    let policy = Policy::new(plan, ledger, 1);
    let mut it = Gateway { policy, keeper, store, silent: false, now: 1000 * MS };
    let now = it.now().at;
    it.keeper.linked(now, ALL);
    it
}

impl Gateway {
    fn now(&self) -> Now {
        Now { at: Instant::from_nanos(self.now), wall: Wall(0) }
    }

    fn carry(&mut self, batches: Vec<Batch>) {
        let now = self.now().at;
        let clock = EPOCH + i64::try_from(self.now / 1_000).unwrap_or(0);
        for batch in batches.into_iter().filter(|_| !self.silent) {
            let call = |(key, m): &(String, _)| self.store.call(clock, "1", "n", key, m);
            let replies: Vec<_> = batch.keys.iter().map(call).collect();
            self.keeper.answered(now, batch.id, &replies);
        }
    }

    /// The status, and how often it had to wait.
    fn ask(&mut self) -> (u16, u32) {
        let (facts, mut event, mut waits) = (facts("/"), Event::Arrived, 0);
        let mut flight = self.policy.begin(self.now(), &facts);
        let status = loop {
            match self.policy.decide(self.now(), &facts, &mut flight, event) {
                Decision::Wait(until) => {
                    waits += 1;
                    let batches = self.keeper.kicked(self.now().at);
                    self.carry(batches);
                    self.now = self.now.max(until.as_nanos());
                    event = Event::Woke;
                }
                Decision::Answer(answer) => break answer.status,
                other => panic!("{other:?}"),
            }
        };
        let ending =
            Ending { status: Some(status), bytes_in: 0, bytes_out: 0, finish: Finish::Whole };
        self.policy.end(self.now(), flight, ending);
        (status, waits)
    }

    fn held(&self) -> u64 {
        self.keeper.figures(self.now().at).held
    }
}

#[test]
fn a_request_that_has_waited_in_vain_is_decided_as_if_there_were_no_store() {
    // (what to do then, the status, allowed and refused without the store)
    for (lost, status, decided) in
        [("open", 200, (1, 0)), ("closed", 429, (0, 1)), ("local", 429, (0, 1))]
    {
        for rate in ["rate = \"100/s\"\nburst = 100", "kind = \"sliding\"\nrate = \"5/h\""] {
            let fleet = format!("[limit.fleet]\n{rate}\nstore = \"redis\"\nlost = \"{lost}\"\n");
            let mut it = gateway(&fleet, "[\"fleet\"]");
            it.silent = true;
            let began = it.now;
            let (got, waits) = it.ask();
            assert_eq!((got, waits > 0), (status, true), "{lost} {rate}");
            assert_eq!(it.now - began, 20 * MS, "{lost} {rate}");
            let figures = it.keeper.figures(it.now().at);
            let without = (figures.degraded_allowed, figures.degraded_refused);
            assert_eq!(without, decided, "{lost} {rate}");
        }
    }
}

const NODE: &str = "[limit.node]\nkey = [\"route\"]\nrate = \"1/min\"\nburst = 2\n";

#[test]
fn a_request_that_the_node_refuses_takes_nothing_from_the_fleet() {
    let fleet = "[limit.fleet]\nrate = \"100/s\"\nburst = 100\nstore = \"redis\"\n";
    let mut it = gateway(&format!("{NODE}{fleet}"), "[\"fleet\", \"node\"]");
    assert_eq!(it.ask(), (200, 1), "cold: the store is asked once");
    assert_eq!(it.ask(), (200, 0), "warm: nobody is");
    let held = it.held();
    assert!(held > 0);
    for _ in 0..5 {
        assert_eq!(it.ask(), (429, 0));
    }
    assert_eq!(it.held(), held);
}

#[test]
fn nothing_is_asked_of_a_slow_limit_for_a_request_that_is_refused_anyway() {
    let fleet = "[limit.fleet]\nrate = \"5/h\"\nburst = 5\nstore = \"redis\"\n";
    let mut it = gateway(&format!("{NODE}{fleet}"), "[\"fleet\", \"node\"]");
    assert_eq!((it.ask(), it.ask()), ((200, 1), (200, 1)));
    let batches = it.keeper.figures(it.now().at).batches;
    for _ in 0..5 {
        assert_eq!(it.ask(), (429, 0));
    }
    assert_eq!(it.keeper.figures(it.now().at).batches, batches);
}

#[test]
fn a_request_that_the_fleet_refuses_takes_nothing_from_the_node() {
    let fleet = "[limit.fleet]\nrate = \"1/h\"\nburst = 1\nstore = \"redis\"\n";
    let node = NODE.replace("1/min", "1/day");
    let mut it = gateway(&format!("{node}{fleet}"), "[\"node\", \"fleet\"]");
    assert_eq!(it.ask().0, 200);
    for _ in 0..5 {
        assert_eq!(it.ask().0, 429);
    }
    it.now += 3_600_000 * MS;
    let batches = it.keeper.tick(it.now().at);
    it.carry(batches);
    assert_eq!(it.ask().0, 200, "the node's second token is still there");
}

#[test]
fn what_a_later_filter_refuses_takes_nothing_from_the_fleet() {
    let fleet = "[limit.fleet]\nrate = \"100/s\"\nburst = 100\nstore = \"redis\"\n";
    let mut it = gateway(fleet, "[\"fleet\"]\nconcurrency = { max = 1, key = [\"ip\"] }");
    assert_eq!(it.ask(), (200, 1));
    let facts = facts("/");
    let mut stays = it.policy.begin(it.now(), &facts);
    let decision = it.policy.decide(it.now(), &facts, &mut stays, Event::Arrived);
    assert!(matches!(decision, Decision::Answer(answer) if answer.status == 200), "{decision:?}");
    let held = it.held();
    assert!(held > 0);
    for _ in 0..5 {
        assert_ne!(it.ask().0, 200);
    }
    assert_eq!(it.held(), held);
    let ending = Ending { status: Some(200), bytes_in: 0, bytes_out: 0, finish: Finish::Whole };
    it.policy.end(it.now(), stays, ending);
    assert_eq!((it.ask().0, it.held()), (200, held - 1));
}

#[test]
fn part_of_a_cost_is_not_taken() {
    let fleet = "[limit.fleet]\nrate = \"1/s\"\nburst = 50\ncost = 20\nstore = \"redis\"\n";
    let mut it = gateway(fleet, "[\"fleet\"]");
    assert_eq!([it.ask().0, it.ask().0, it.ask().0], [200, 200, 429]);
    it.now += 9_900 * MS;
    assert_eq!(it.ask().0, 429, "19.9 tokens");
    it.now += 200 * MS;
    assert_eq!(it.ask().0, 200);
}

#[test]
fn retry_after_is_the_stores_wait_to_the_millisecond() {
    let fleet = "[limit.fleet]\nrate = \"1/min\"\nburst = 1\nstore = \"redis\"\n";
    let mut it = gateway(fleet, "[\"fleet\"]");
    assert_eq!(it.ask().0, 200);
    it.now += 20_000 * MS;
    let facts = facts("/");
    let mut flight = it.policy.begin(it.now(), &facts);
    let Decision::Answer(answer) = it.policy.decide(it.now(), &facts, &mut flight, Event::Arrived)
    else {
        panic!("an answer at once: the refusal is remembered")
    };
    let wait = answer.retry_after.map(|wait| wait.as_millis());
    assert!(wait.is_some_and(|ms| (39_990..=40_001).contains(&ms)), "{wait:?}");
    let ending = Ending { status: Some(429), bytes_in: 0, bytes_out: 0, finish: Finish::Whole };
    it.policy.end(it.now(), flight, ending);
    it.now += 40_001 * MS;
    assert_eq!(it.ask().0, 200, "and then it is there");
}
