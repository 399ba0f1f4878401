//! Workers, their requests, and everything around them, by dice.

use core::net::IpAddr;
use core::time::Duration;
use std::collections::BTreeSet;
use std::sync::Arc;

use crate::Policy;
use crate::decision::{Decision, Event, Failure};
use crate::facts::{Body, Facts};
use crate::flight::{Ending, Finish, Flight, Record};
use crate::ledger::Ledger;
use crate::mechanism::dice::Dice;
use crate::plan::{EndpointKey, Plan};
use crate::sim::facts;
use crate::time::{Instant, Now, Wall};

/// One request as a client sends it.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    pub client: IpAddr,
    pub method: &'static str,
    pub host: &'static str,
    pub path: &'static str,
    pub body: Body,
}

impl Request {
    pub fn get(client: IpAddr, path: &'static str) -> Self {
        Self { client, method: "GET", host: "example.test", path, body: Body::Empty }
    }

    fn facts(&self) -> Facts<'static> {
        let Self { client, method, host, path, body } = *self;
        Facts { peer: client, client, method, host, body, ..facts(path) }
    }
}

/// A request in progress at one worker, with the event that comes to it next.
#[derive(Debug)]
struct Open {
    worker: usize,
    request: Request,
    flight: Flight,
    event: Event,
    judged: Judged,
    held: u8,
    /// The response that has come will break off.
    breaks: bool,
}

/// When the filters were asked: which in the order of the world, and at what time, by the latest
/// that its clock has ever shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Judged {
    pub turn: u64,
    pub at: Instant,
}

/// A request that is over.
#[derive(Debug)]
pub struct Done {
    pub worker: usize,
    pub request: Request,
    pub judged: Judged,
    /// Attempts that ended while their response was held.
    pub held: u8,
    pub record: Record,
}

impl Done {
    /// Everything that was decided, as text: to compare two runs.
    pub fn line(&self) -> String {
        let Record { route, upstream, endpoint, attempts, arrived, took, .. } = &self.record;
        let Record { answer, limit, violated, ending, trail, .. } = &self.record;
        let went = (route, upstream, endpoint, attempts, arrived, took);
        format!("{} {went:?} {:?}", self.worker, (answer, limit, violated, ending, trail))
    }
}

/// Workers that share a ledger, and everything around them.
#[derive(Debug)]
pub struct World {
    pub workers: Vec<Policy>,
    pub ledger: Arc<Ledger>,
    pub dice: Dice,
    pub at_ns: u64,
    /// Chance, in percent, that an attempt fails.
    pub failing: u64,
    /// Chance, in percent, that a response breaks off behind its head.
    pub cutting: u64,
    /// Chance, in percent, that the client leaves between two events.
    pub leaving: u64,
    /// Endpoints that were called.
    pub called: BTreeSet<EndpointKey>,
    open: Vec<Open>,
    turn: u64,
    latest: Instant,
}

impl World {
    pub fn new(plan: &Arc<Plan>, ledger: Arc<Ledger>, workers: usize, seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let worker = |_| Policy::new(Arc::clone(plan), Arc::clone(&ledger), dice.roll());
        let workers = (0..workers.max(1)).map(worker).collect();
        Self {
            workers,
            ledger,
            dice,
            at_ns: 1_000_000_000,
            failing: 0,
            cutting: 0,
            leaving: 0,
            called: BTreeSet::new(),
            open: Vec::new(),
            turn: 0,
            latest: Instant::default(),
        }
    }

    pub fn now(&self) -> Now {
        Now { at: Instant::from_nanos(self.at_ns), wall: Wall(self.at_ns / 1_000_000_000) }
    }

    pub fn pass(&mut self, time: Duration) {
        self.at_ns = self.at_ns.saturating_add(crate::time::nanos(time));
    }

    pub fn open(&self) -> usize {
        self.open.len()
    }

    /// A request comes to a worker, picked by dice.
    pub fn arrive(&mut self, request: Request) {
        let now = self.now();
        self.latest = self.latest.max(now.at);
        let worker = self.pick(self.workers.len());
        let flight = self.workers[worker].begin(now, &request.facts());
        let (event, judged) = (Event::Arrived, Judged::default());
        self.open.push(Open { worker, request, flight, event, judged, held: 0, breaks: false });
    }

    /// Brings one open request, picked by dice, its next event. The engine's loop, with dice for
    /// everything that can happen.
    pub fn step(&mut self) -> Option<Done> {
        let pick = self.pick(self.open.len());
        let now = self.now();
        let mut open = (!self.open.is_empty()).then(|| self.open.swap_remove(pick))?;
        self.turn += 1;
        self.latest = self.latest.max(now.at);
        if open.event == Event::Arrived {
            open.judged = Judged { turn: self.turn, at: self.latest };
        }
        let left = self.dice.below(100) < self.leaving;
        let policy = &mut self.workers[open.worker];
        let decision = policy.decide(now, &open.request.facts(), &mut open.flight, open.event);
        let (status, finish) = match decision {
            _ if left => (None, Finish::ClientGone),
            Decision::Relay if open.breaks => (Some(200), Finish::UpstreamCut),
            Decision::Relay => (Some(200), Finish::Whole),
            Decision::Answer(answer) => (Some(answer.status), Finish::Whole),
            Decision::Call(_)
            | Decision::Hedge(_)
            | Decision::Await
            | Decision::Wait(_)
            | Decision::Learn(_)
            | Decision::Serve(_) => {
                open.event = self.outcome(decision);
                self.cut(&mut open);
                self.open.push(open);
                return None;
            }
        };
        let ending = Ending { status, bytes_in: 0, bytes_out: 0, finish };
        let record = self.workers[open.worker].end(now, open.flight, ending);
        let Open { worker, request, judged, held, .. } = open;
        Some(Done { worker, request, judged, held, record })
    }

    /// One request from its arrival to its end, while everything else stands still.
    pub fn serve(&mut self, request: Request) -> Done {
        debug_assert!(self.open.is_empty());
        self.arrive(request);
        loop {
            if let Some(done) = self.step() {
                return done;
            }
        }
    }

    fn outcome(&mut self, decision: Decision) -> Event {
        match decision {
            Decision::Call(call) => {
                self.called.insert(call.endpoint);
                match call.hedge.is_some() && self.dice.below(4) == 0 {
                    true => Event::Slow,
                    false => self.answer(),
                }
            }
            Decision::Await => self.answer(),
            Decision::Hedge(call) => {
                self.called.insert(call.endpoint);
                match self.dice.below(4) {
                    0 => Event::Overtaken { status: 200 },
                    1 => Event::Fell { second: true, failure: Failure::Connect },
                    2 => Event::Fell { second: false, failure: Failure::TimedOut },
                    _ => Event::Responded { status: 200 },
                }
            }
            Decision::Wait(until) => {
                self.at_ns = self.at_ns.max(until.as_nanos());
                Event::Woke
            }
            Decision::Learn(_) => Event::Learned,
            Decision::Serve(_) | Decision::Relay | Decision::Answer(_) => Event::Missed,
        }
    }

    fn answer(&mut self) -> Event {
        if self.dice.below(100) >= self.failing {
            return Event::Responded { status: 200 };
        }
        let failure = match self.dice.below(8) {
            0 => Failure::PoolFull,
            1 => Failure::Connect,
            2 => Failure::ConnectTimeout,
            3 => Failure::Stale,
            4 => Failure::Broken,
            5 => Failure::Malformed,
            6 => Failure::TimedOut,
            _ => return Event::Responded { status: 503 },
        };
        Event::Failed { failure, replayable: self.dice.below(2) == 0 }
    }

    /// A response of some length that has come may break off behind its head; while it is held, its
    /// attempt has failed.
    fn cut(&mut self, open: &mut Open) {
        let (raced, status) = match open.event {
            Event::Responded { status } => (false, status),
            Event::Overtaken { status } => (true, status),
            _ => return,
        };
        // Another one than the last that broke off.
        open.breaks = self.cutting > 0 && self.dice.below(100) < self.cutting;
        if !open.breaks {
            return;
        }
        let length = self.dice.below(24 << 10);
        let hold = open.flight.hold(&open.request.facts());
        if hold.is_some_and(|hold| hold.takes(status, length)) {
            let failure = if self.dice.below(2) == 0 { Failure::Cut } else { Failure::Stalled };
            open.event = match raced {
                true => Event::Fell { second: true, failure },
                false => Event::Failed { failure, replayable: true },
            };
            (open.held, open.breaks) = (open.held + 1, false);
        }
    }

    fn pick(&mut self, count: usize) -> usize {
        usize::try_from(self.dice.below(count as u64)).unwrap_or(0)
    }
}
