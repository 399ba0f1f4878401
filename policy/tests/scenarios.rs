//! Stories in `scenarios/*.toml`: plans, events at their times, and the decisions that are right.
//!
//! An event is one of:
//! - a request that arrives: `id`, `path`, and what differs from a plain GET by 10.0.0.1;
//! - what happened to it next: `id` and `then`;
//! - many requests at once that are answered at once: `times`, and how many `passed`;
//! - a reload: `adopt`, the name of a plan. The plan called `first` is in force from the start.
//!
//! A decision is written `call`, `call other`, `call same`, `call same fresh`, `relay`,
//! `answer 404 route.none`, `answer 429 limit.exceeded after 60s`.

#![expect(clippy::unwrap_used, reason = "a test may")]

#[expect(dead_code, reason = "plans are tables already, not texts")]
mod written;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use serde::Deserialize;
use sluice_policy::Policy;
use sluice_policy::decision::{Answer, Decision, Event, Failure};
use sluice_policy::facts::{Body, Facts};
use sluice_policy::flight::{Ending, Finish, Flight, Record};
use sluice_policy::ledger::Ledger;
use sluice_policy::plan::{EndpointKey, Plan};
use sluice_policy::sim::{Head, facts};
use sluice_policy::time::{Instant, Now, Wall};
use sluice_policy::unit::Span;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Story {
    /// What it shows.
    about: String,
    #[serde(default = "one")]
    workers: usize,
    plan: BTreeMap<String, toml::Table>,
    event: Vec<Happening>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Happening {
    /// Since the start.
    at: Span,
    /// One nanosecond before `at`.
    #[serde(default)]
    just_before: bool,
    #[serde(default)]
    worker: usize,
    adopt: Option<String>,
    id: Option<String>,
    path: Option<String>,
    method: Option<String>,
    host: Option<String>,
    client: Option<IpAddr>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    /// Bytes; -1 for a body of unknown length.
    body: Option<i64>,
    then: Option<String>,
    times: Option<usize>,
    passed: Option<usize>,
    /// The decision.
    expect: Option<String>,
    /// Of the tightest limit, after the decision.
    left: Option<u32>,
    /// The steps of the trail, at the end: `addresses+ limits:fair-`.
    trail: Option<String>,
    /// The time left for the response's head.
    first_byte: Option<Span>,
}

fn one() -> usize {
    1
}

/// A request on its way, with what it was and where it was sent.
struct Sent {
    flight: Flight,
    worker: usize,
    path: String,
    method: String,
    host: String,
    client: IpAddr,
    head: Head,
    body: Body,
    called: Vec<EndpointKey>,
}

impl Sent {
    fn facts(&self) -> Facts<'_> {
        let Self { path, method, host, client, head, body, .. } = self;
        let (client, body) = (*client, *body);
        Facts { peer: client, client, method, host, body, headers: head.headers(), ..facts(path) }
    }
}

struct Stage {
    plans: BTreeMap<String, Arc<Plan>>,
    workers: Vec<Policy>,
    sent: BTreeMap<String, Sent>,
}

impl Stage {
    fn new(story: &Story) -> Self {
        let plans: BTreeMap<_, _> = story
            .plan
            .iter()
            .map(|(name, table)| (name.clone(), written::compile(table.clone()).expect("a plan")))
            .collect();
        let ledger = Arc::new(Ledger::new(1024, [5; 16]));
        let first = plans.get("first").expect("a plan called first");
        let worker = |seed| Policy::new(Arc::clone(first), Arc::clone(&ledger), seed);
        let workers = (0..story.workers as u64).map(worker).collect();
        Self { plans, workers, sent: BTreeMap::new() }
    }

    fn play(&mut self, happening: &Happening) {
        let now = now(happening);
        if let Some(plan) = &happening.adopt {
            let plan = self.plans.get(plan).expect("a plan of that name");
            self.workers.iter_mut().for_each(|worker| worker.adopt(Arc::clone(plan)));
        } else if let Some(times) = happening.times {
            let passed = (0..times).filter(|_| {
                let (mut sent, decision) = self.arrive(now, happening);
                let (text, _) = render(&mut sent.called, decision);
                self.end(now, sent);
                !text.starts_with("answer 4")
            });
            assert_eq!(Some(passed.count()), happening.passed, "passed");
        } else {
            let id = happening.id.clone().expect("id, times or adopt");
            let (mut sent, decision) = match &happening.then {
                None => self.arrive(now, happening),
                Some(then) => {
                    let mut sent = self.sent.remove(&id).expect("a request of that id");
                    if then == "end" {
                        let trail = trail(&self.end(now, sent));
                        assert!(happening.trail.as_ref().is_none_or(|t| *t == trail), "{trail}");
                        return;
                    }
                    let mut flight = sent.flight;
                    let worker = &mut self.workers[sent.worker];
                    sent.flight = worker.begin(now, &facts("/"));
                    let decision = worker.decide(now, &sent.facts(), &mut flight, event(then));
                    let spare = core::mem::replace(&mut sent.flight, flight);
                    let _ = worker.end(now, spare, ending());
                    (sent, decision)
                }
            };
            self.check(happening, &mut sent, decision);
            self.sent.insert(id, sent);
        }
    }

    fn check(&self, happening: &Happening, sent: &mut Sent, decision: Decision) {
        let (decided, other) = render(&mut sent.called, decision);
        let expected = happening.expect.as_deref().expect("what is expected");
        assert!(decided == expected || other == expected, "{decided} ({other}), not {expected}");
        if let Some(left) = happening.left {
            assert_eq!(sent.flight.limit().map(|l| l.left), Some(left), "left");
        }
        if let (Some(span), Decision::Call(call)) = (happening.first_byte, decision) {
            assert_eq!(call.first_byte, span.0, "first_byte");
        }
    }

    fn arrive(&mut self, now: Now, happening: &Happening) -> (Sent, Decision) {
        let worker = happening.worker;
        let text = |text: &Option<String>, default: &str| text.as_deref().unwrap_or(default).into();
        let headers: Vec<_> =
            happening.headers.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        let mut sent = Sent {
            flight: self.workers[worker].begin(now, &facts("/")),
            worker,
            path: text(&happening.path, "/"),
            method: text(&happening.method, "GET"),
            host: text(&happening.host, "example.test"),
            client: happening.client.unwrap_or_else(|| "10.0.0.1".parse().unwrap()),
            head: Head::new(&headers),
            body: match happening.body {
                None => Body::Empty,
                Some(bytes) => u64::try_from(bytes).map_or(Body::Unknown, Body::Length),
            },
            called: Vec::new(),
        };
        let policy = &mut self.workers[worker];
        let mut flight = policy.begin(now, &sent.facts());
        let decision = policy.decide(now, &sent.facts(), &mut flight, Event::Arrived);
        let _ = policy.end(now, core::mem::replace(&mut sent.flight, flight), ending());
        (sent, decision)
    }

    fn end(&mut self, now: Now, sent: Sent) -> Record {
        self.workers[sent.worker].end(now, sent.flight, ending())
    }
}

fn now(happening: &Happening) -> Now {
    let ns = u64::try_from(happening.at.0.as_nanos()).unwrap() + 1_000_000_000;
    Now { at: Instant::from_nanos(ns - u64::from(happening.just_before)), wall: Wall(0) }
}

fn ending() -> Ending {
    Ending { status: None, bytes_in: 0, bytes_out: 0, finish: Finish::Whole }
}

fn event(text: &str) -> Event {
    let words: Vec<_> = text.split(' ').collect();
    let failed = |failure| Event::Failed { failure, replayable: words.contains(&"replayable") };
    match words[0] {
        "responded" => Event::Responded { status: words[1].parse().unwrap() },
        "pool_full" => failed(Failure::PoolFull),
        "connect" => failed(Failure::Connect),
        "connect_timeout" => failed(Failure::ConnectTimeout),
        "stale" => failed(Failure::Stale),
        "broken" => failed(Failure::Broken),
        "malformed" => failed(Failure::Malformed),
        "timed_out" => failed(Failure::TimedOut),
        "learned" => Event::Learned,
        "woke" => Event::Woke,
        other => panic!("no event is called {other}"),
    }
}

/// The decision in full, and in fewer words.
fn render(called: &mut Vec<EndpointKey>, decision: Decision) -> (String, String) {
    match decision {
        Decision::Call(call) => {
            let to = match called.last() {
                None => "",
                Some(last) if *last == call.endpoint => " same",
                Some(_) if called.contains(&call.endpoint) => " again",
                Some(_) => " other",
            };
            called.push(call.endpoint);
            let fresh = if call.fresh { " fresh" } else { "" };
            (format!("call{to}{fresh}"), "call".to_owned())
        }
        Decision::Relay => ("relay".to_owned(), String::new()),
        Decision::Answer(Answer { status, code, retry_after, .. }) => {
            let short = format!("answer {status} {code}");
            let after = retry_after.map(|wait| format!(" after {wait:?}")).unwrap_or_default();
            (format!("{short}{after}"), short)
        }
        other => panic!("{other:?}"),
    }
}

fn trail(record: &Record) -> String {
    let steps = record.trail.steps().map(|step| {
        let rule = step.rule.map(|r| format!(":{}", record.plan().limit_name(r)));
        let mark = if step.passed { '+' } else { '-' };
        format!("{}{}{mark}", step.filter, rule.unwrap_or_default())
    });
    steps.collect::<Vec<_>>().join(" ")
}

#[test]
fn stories_go_as_they_are_told() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/scenarios");
    let mut files: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 10, "{files:?}");
    for file in files {
        let name = file.file_name().unwrap().to_str().unwrap().to_owned();
        let text = std::fs::read_to_string(&file).unwrap();
        let story: Story = toml::from_str(&text).unwrap_or_else(|e| panic!("{name}: {e}"));
        let mut stage = Stage::new(&story);
        for (i, happening) in story.event.iter().enumerate() {
            let play = std::panic::AssertUnwindSafe(|| stage.play(happening));
            if let Err(cause) = std::panic::catch_unwind(play) {
                eprintln!("{name} ({}), event {i}", story.about);
                std::panic::resume_unwind(cause);
            }
        }
    }
}
