//! A night: workers that share a ledger, endpoints that take time and fail as the test says, by
//! the clock. Every event happens at its instant, so what is slow is slow.

use core::cmp::Reverse;
use core::net::{IpAddr, Ipv4Addr};
use core::time::Duration;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

use crate::Policy;
use crate::decision::{Decision, Event};
use crate::flight::{Ending, Finish, Flight, Record};
use crate::ledger::Ledger;
use crate::mechanism::dice::Dice;
use crate::plan::{EndpointKey, Plan};
use crate::sim::facts;
use crate::time::{Instant, Now, Wall, nanos};
use crate::world::Signal;

/// What an endpoint does with a call: how long it takes, and what comes of it. None: nothing does,
/// the client leaves.
pub type Reaction = (Duration, Option<Event>);

/// A call that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    pub at: Instant,
    pub request: u64,
    pub endpoint: EndpointKey,
    /// Not the request's first.
    pub again: bool,
    /// Beside another that takes long.
    pub hedge: bool,
}

/// A decision that has just been taken, for laws to look at.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    pub now: Now,
    pub ledger: &'a Ledger,
    pub decision: Decision,
}

#[derive(Debug)]
pub struct Night {
    pub workers: Vec<Policy>,
    pub ledger: Arc<Ledger>,
    pub dice: Dice,
    pub method: &'static str,
    pub calls: Vec<Call>,
    pub done: Vec<Record>,
    at_ns: u64,
    ticked_ns: u64,
    arrivals: u64,
    flights: BTreeMap<u64, Open>,
    queue: BinaryHeap<Reverse<(u64, u64, u64)>>,
    errands: u64,
}

#[derive(Debug)]
struct Open {
    worker: usize,
    flight: Flight,
    calls: u32,
    /// What is under way, by number: the call, its timer, the hedge. What is not here any more has
    /// been ended.
    errands: Vec<(u64, Errand)>,
}

#[derive(Clone, Copy, Debug)]
enum Errand {
    /// An event to come; None: the client leaves.
    Event(Option<Event>),
    /// What the first of two calls, or the only one, will bring.
    Call(Option<Event>),
    Timer,
    Hedge(Option<Event>),
}

impl Night {
    pub fn new(plan: &Arc<Plan>, workers: u64, seed: u64) -> Self {
        let ledger = Arc::new(Ledger::new(1024, [9; 16]));
        let mut dice = Dice::new(seed);
        let worker = |_| Policy::new(Arc::clone(plan), Arc::clone(&ledger), dice.roll());
        let workers = (0..workers).map(worker).collect();
        let (calls, done, flights, queue) = Default::default();
        let (at_ns, ticked_ns, arrivals, method) = (1_000_000_000, 0, 0, "GET");
        Self {
            workers,
            ledger,
            dice,
            method,
            calls,
            done,
            at_ns,
            ticked_ns,
            arrivals,
            flights,
            queue,
            errands: 0,
        }
    }

    pub fn now(&self) -> Now {
        Now { at: Instant::from_nanos(self.at_ns), wall: Wall(self.at_ns / 1_000_000_000) }
    }

    pub fn requests(&self) -> u64 {
        self.arrivals
    }

    /// Lets that much time pass with so many requests a second; `react` is what endpoints do, and
    /// `look` sees every decision. None leaves nothing under way: `rest` does.
    pub fn pass(
        &mut self,
        time: Duration,
        rate: u64,
        react: &mut dyn FnMut(EndpointKey, Instant, &mut Dice) -> Reaction,
        look: &mut dyn FnMut(Seen<'_>),
    ) {
        let until = self.at_ns + nanos(time);
        let gap = 1_000_000_000_u64.checked_div(rate);
        let mut arrival = gap.map(|gap| self.at_ns + self.dice.below(2 * gap));
        loop {
            let event = self.queue.peek().map(|Reverse((at, ..))| *at);
            let tick = Some(self.ticked_ns + TICK_NS);
            let next = [event, arrival, tick].into_iter().flatten().min().unwrap_or(until);
            if next > until {
                break;
            }
            self.at_ns = self.at_ns.max(next);
            if Some(next) == event {
                if let Some(Reverse((_, request, errand))) = self.queue.pop() {
                    self.step(request, errand, react, look);
                }
            } else if Some(next) == arrival {
                self.arrive(react, look);
                arrival = gap.map(|gap| next + 1 + self.dice.below(2 * gap));
            } else {
                self.ticked_ns = next;
                let now = self.now();
                self.workers.iter_mut().for_each(|worker| worker.signal(now, Signal::Tick));
            }
        }
        self.at_ns = until;
    }

    pub fn under_way(&self) -> usize {
        self.flights.len()
    }

    fn arrive(
        &mut self,
        react: &mut dyn FnMut(EndpointKey, Instant, &mut Dice) -> Reaction,
        look: &mut dyn FnMut(Seen<'_>),
    ) {
        let request = self.arrivals;
        self.arrivals += 1;
        let worker = usize::try_from(self.dice.below(self.workers.len() as u64)).unwrap_or(0);
        let now = self.now();
        let flight = self.workers[worker].begin(now, &asked(request, self.method));
        let (errand, arrived) = (self.errands, Errand::Event(Some(Event::Arrived)));
        self.errands += 1;
        let errands = vec![(errand, arrived)];
        self.flights.insert(request, Open { worker, flight, calls: 0, errands });
        self.step(request, errand, react, look);
    }

    /// The engine's loop, a turn of it.
    fn step(
        &mut self,
        request: u64,
        errand: u64,
        react: &mut dyn FnMut(EndpointKey, Instant, &mut Dice) -> Reaction,
        look: &mut dyn FnMut(Seen<'_>),
    ) {
        let now = self.now();
        let Some(mut open) = self.flights.remove(&request) else { return };
        let Some(at) = open.errands.iter().position(|(number, _)| *number == errand) else {
            self.flights.insert(request, open);
            return;
        };
        let event = open.brings(at);
        let worker = &mut self.workers[open.worker];
        let Some(event) = event else {
            let ending = Ending { status: None, ..ending(Finish::ClientGone) };
            self.done.push(worker.end(now, open.flight, ending));
            return;
        };
        let facts = asked(request, self.method);
        let decision = worker.decide(now, &facts, &mut open.flight, event);
        look(Seen { now, ledger: &self.ledger, decision });
        match decision {
            Decision::Call(call) | Decision::Hedge(call) => {
                let hedge = matches!(decision, Decision::Hedge(_));
                let (endpoint, again) = (call.endpoint, open.calls > 0);
                open.calls += 1;
                self.calls.push(Call { at: now.at, request, endpoint, again, hedge });
                let (took, event) = react(endpoint, now.at, &mut self.dice);
                let what = if hedge { Errand::Hedge(event) } else { Errand::Call(event) };
                self.send(&mut open, request, now.at + took, what);
                if let Some(after) = call.hedge.filter(|after| *after < took) {
                    self.send(&mut open, request, now.at + after, Errand::Timer);
                }
            }
            Decision::Await => {}
            Decision::Wait(until) => {
                self.send(&mut open, request, until, Errand::Event(Some(Event::Woke)));
            }
            Decision::Learn(_) | Decision::Serve(_) => {
                let learnt = matches!(decision, Decision::Learn(_));
                let event = if learnt { Event::Learned } else { Event::Missed };
                self.send(&mut open, request, now.at, Errand::Event(Some(event)));
            }
            Decision::Relay | Decision::Answer(_) => {
                let status = match (decision, event) {
                    (Decision::Answer(answer), _) => answer.status,
                    (_, Event::Responded { status } | Event::Overtaken { status }) => status,
                    _ => 0,
                };
                let ending = Ending { status: Some(status), ..ending(Finish::Whole) };
                self.done.push(worker.end(now, open.flight, ending));
                return;
            }
        }
        self.flights.insert(request, open);
    }

    fn send(&mut self, open: &mut Open, request: u64, at: Instant, what: Errand) {
        open.errands.push((self.errands, what));
        self.queue.push(Reverse((at.as_nanos(), request, self.errands)));
        self.errands += 1;
    }
}

impl Open {
    /// The event that this errand brings, now that it is done.
    fn brings(&mut self, at: usize) -> Option<Event> {
        let (_, done) = self.errands.remove(at);
        let hedged = |errand: &(u64, Errand)| matches!(errand.1, Errand::Hedge(_));
        let raced = self.errands.iter().any(hedged) || matches!(done, Errand::Hedge(_));
        match done {
            Errand::Event(event) => event,
            Errand::Timer => Some(Event::Slow),
            Errand::Call(Some(Event::Failed { failure, .. })) if raced => {
                // The hedge is the call from here on.
                for (_, errand) in &mut self.errands {
                    if let Errand::Hedge(event) = errand {
                        *errand = Errand::Call(*event);
                    }
                }
                Some(Event::Fell { second: false, failure })
            }
            Errand::Hedge(Some(Event::Failed { failure, .. })) => {
                Some(Event::Fell { second: true, failure })
            }
            Errand::Hedge(Some(Event::Responded { status })) => {
                self.errands.clear();
                Some(Event::Overtaken { status })
            }
            Errand::Call(event) | Errand::Hedge(event) => {
                self.errands.clear();
                event
            }
        }
    }
}

fn ending(finish: Finish) -> Ending {
    Ending { status: None, bytes_in: 0, bytes_out: 0, finish }
}

fn asked(request: u64, method: &'static str) -> crate::facts::Facts<'static> {
    let client = IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 + (request % 1000) as u32));
    crate::facts::Facts { client, method, ..facts("/") }
}

/// How often a worker keeps house.
const TICK_NS: u64 = 17_000_000;
