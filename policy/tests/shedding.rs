//! What is shed: how clients are told, what counts towards a bound, and whose requests go first.

#![expect(clippy::unwrap_used, reason = "a test may")]

mod written;

use std::sync::Arc;
use std::time::Duration;

use sluice_policy::Policy;
use sluice_policy::decision::{Answer, Decision, Event};
use sluice_policy::facts::{Facts, Identity};
use sluice_policy::flight::{Ending, Finish, Flight};
use sluice_policy::ledger::Ledger;
use sluice_policy::plan::Plan;
use sluice_policy::shed::gates;
use sluice_policy::sim::facts;
use sluice_policy::time::{Instant, Now, Wall};
use sluice_policy::world::Signal;

/// One worker of a node, by the clock.
struct Node {
    policy: Policy,
    ledger: Arc<Ledger>,
    ms: u64,
}

impl Node {
    fn new(plan: &Arc<Plan>) -> Self {
        let ledger = Arc::new(Ledger::new(16, [7; 16]));
        let policy = Policy::new(Arc::clone(plan), Arc::clone(&ledger), 1);
        Self { policy, ledger, ms: 0 }
    }

    fn now(&self) -> Now {
        Now { at: Instant::from_nanos(1_000_000_000 + self.ms * 1_000_000), wall: Wall(1) }
    }

    fn tick(&mut self, ms: u64) {
        self.ms += ms;
        self.policy.signal(self.now(), Signal::Tick);
    }

    /// A request of that tenant: it is under way, or this is its answer.
    fn ask(&mut self, tenant: Option<&str>) -> Result<Flight, Answer> {
        let identity = Identity { tenant, ..Identity::default() };
        let facts = Facts { identity: Some(&identity), ..facts("/") };
        let mut flight = self.policy.begin(self.now(), &facts);
        match self.policy.decide(self.now(), &facts, &mut flight, Event::Arrived) {
            Decision::Call(_) => Ok(flight),
            Decision::Answer(answer) => {
                self.end(flight);
                Err(answer)
            }
            other => panic!("{other:?}"),
        }
    }

    fn hold(&mut self, n: usize, tenant: &str) -> Vec<Flight> {
        (0..n).map(|_| self.ask(Some(tenant)).unwrap()).collect()
    }

    fn respond(&mut self, mut flight: Flight) {
        let event = Event::Responded { status: 200 };
        let decision = self.policy.decide(self.now(), &facts("/"), &mut flight, event);
        assert_eq!(decision, Decision::Relay);
        self.end(flight);
    }

    fn end(&mut self, flight: Flight) {
        let (bytes_in, bytes_out, finish) = (0, 0, Finish::Whole);
        let ending = Ending { status: Some(200), bytes_in, bytes_out, finish };
        self.policy.end(self.now(), flight, ending);
    }

    /// What comes of one request of that tenant, that is over at once if it goes through.
    fn code(&mut self, tenant: &str) -> &'static str {
        match self.ask(Some(tenant)) {
            Ok(flight) => {
                self.end(flight);
                "through"
            }
            Err(answer) => answer.code,
        }
    }
}

fn plan(shed: &str, upstream: &str) -> Arc<Plan> {
    written::plan(&format!(
        "[shed]\n{shed}\n[upstream.a]\nservers = [\"a:1\"]\n{upstream}\n\
         [route.r]\nmatch = \"/\"\nto = \"a\"\nretries = 0\n"
    ))
}

#[test]
fn whatever_sheds_a_request_says_when_to_come_again() {
    for (shed, upstream, code) in [
        ("", "adaptive = { min = 1, max = 1 }", "upstream.shed"),
        ("in_flight = 1", "", "shed.in_flight"),
        ("lag = \"100ms\"", "", "shed.lag"),
        ("cpu = \"50%\"", "", "shed.cpu"),
        ("load = 4", "", "shed.load"),
    ] {
        let mut node = Node::new(&plan(shed, upstream));
        let held = node.ask(None);
        if code == "shed.lag" {
            for _ in 0..20 {
                let lag = Duration::from_secs(1);
                node.policy.signal(node.now(), Signal::Pressure { lag });
                node.tick(20);
            }
        }
        if matches!(code, "shed.cpu" | "shed.load") {
            node.ledger.weigh(1_000, 8_000);
            (0..100).for_each(|_| node.tick(20));
        }
        let answer = node.ask(None).expect_err(code);
        assert_eq!((answer.status, answer.code), (503, code));
        assert_eq!(answer.retry_after, Some(Duration::from_secs(1)), "{code}");
        held.into_iter().for_each(|flight| node.end(flight));
    }
}

#[test]
fn a_worker_that_judges_no_more_takes_back_what_it_has_told() {
    for retires in [true, false] {
        let plan = plan("in_flight = 4", "");
        let mut node = Node::new(&plan);
        let mut other = Policy::new(Arc::clone(&plan), Arc::clone(&node.ledger), 2);
        let held: Vec<_> = (0..3).map(|_| node.ask(None).unwrap()).collect();
        node.tick(20);
        other.signal(node.now(), Signal::Tick);
        assert_eq!(node.ledger.in_flight(), 3);
        let gone = std::mem::replace(&mut node.policy, other);
        if retires {
            let mut gone = gone;
            gone.retire();
            assert_eq!(node.ledger.in_flight(), 0, "as soon as it is told");
            gone.retire();
        } else {
            drop(gone);
        }
        assert_eq!(node.ledger.in_flight(), 0, "and once only");
        let all: Vec<_> = (0..3).map(|_| node.ask(None)).collect();
        assert!(all.iter().all(Result::is_ok), "there is room again");
        drop(held);
    }
}

#[test]
fn a_reload_forgets_neither_who_is_under_way_nor_what_was_measured() {
    let plan = |more: &str| plan("lag = \"off\"", &format!("adaptive = {{ max = 40 }}{more}"));
    let before = plan("");
    let mut node = Node::new(&before);
    node.tick(0);
    node.tick(110);
    let first: Vec<_> = (0..36).map(|_| node.ask(None).unwrap()).collect();
    assert_eq!(node.ask(None).unwrap_err().code, "upstream.shed", "nine tenths of forty");
    node.ms += 7;
    let mut held = first.into_iter();
    held.by_ref().take(30).for_each(|flight| node.respond(flight));
    let after = plan("\nconnections = 99");
    node.policy.adopt(Arc::clone(&after));
    let view = |node: &Node| gates(&after, &node.ledger).next().unwrap().1;
    assert_eq!((view(&node).busy, view(&node).lately), (6, Duration::ZERO));
    node.tick(110);
    assert_eq!(view(&node).lately, Duration::from_millis(7), "measured before, and learnt after");
    let more: Vec<_> = (0..30).map(|_| node.ask(None).unwrap()).collect();
    assert_eq!(node.ask(None).unwrap_err().code, "upstream.shed", "six were here before");
    held.chain(more).for_each(|flight| node.end(flight));
    assert_eq!(view(&node).busy, 0);
}

#[test]
fn who_has_far_more_in_progress_than_others_goes_one_class_lower_until_it_has_less() {
    // Nine tenths of a bound are for what is normal, eight for what is low.
    for (plan, code) in [
        (plan("in_flight = 100\nlag = \"off\"", ""), "shed.in_flight"),
        (plan("lag = \"off\"", "adaptive = { min = 100, max = 100 }"), "upstream.shed"),
    ] {
        let mut node = Node::new(&plan);
        let big = node.hold(60, "big");
        let small: Vec<_> = ["a", "b", "c"].iter().flat_map(|name| node.hold(8, name)).collect();
        assert_eq!(node.code("a"), "through", "{code}");
        assert_eq!(node.code("big"), code, "84 are more than eight tenths");
        assert_eq!(node.code("big"), code, "what was shed is not in progress either");
        let mut big = big.into_iter();
        big.by_ref().take(50).for_each(|flight| node.end(flight));
        let others = node.hold(46, "d");
        assert_eq!(node.code("d"), code, "now it is another");
        assert_eq!(node.code("big"), "through", "who has left is not counted");
        big.chain(small).chain(others).for_each(|flight| node.end(flight));
        assert_eq!(node.hold(80, "big").len(), 80);
        assert_eq!(node.code("big"), "through", "alone it takes from nobody");
    }
}
