//! Gateways, their workers, and one store, on a clock that moves only when told: messages are late,
//! lost and overtake each other; nodes crash and are cut off; the store stops and its clock jumps.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sluice_policy::Policy;
use sluice_policy::decision::{Decision, Event};
use sluice_policy::flight::{Ending, Finish, Flight, Step};
use sluice_policy::keeper::{ALL, Batch, Keeper};
use sluice_policy::ledger::Ledger;
use sluice_policy::mechanism::dice::Dice;
use sluice_policy::mechanism::lease::Reply;
use sluice_policy::plan::Plan;
use sluice_policy::sim::facts;
use sluice_policy::sim::reserve::Store;
use sluice_policy::time::{Instant, Now, Wall};

pub(crate) const MS: u64 = 1_000;
pub(crate) const SEC: u64 = 1_000_000;
/// The store's clock reads this at the beginning.
const EPOCH: i64 = 1_000_000_000_000;

/// Something that is to happen. Times are true microseconds.
enum Todo {
    Request {
        node: usize,
        worker: usize,
    },
    Woke {
        node: usize,
        id: u64,
    },
    Tick {
        node: usize,
    },
    Kick {
        node: usize,
    },
    /// A batch has reached the store.
    Arrived {
        node: usize,
        life: u64,
        batch: Batch,
    },
    Answered {
        node: usize,
        life: u64,
        batch: u64,
        replies: Vec<Reply>,
    },
    /// A request that was admitted is over.
    Ended {
        node: usize,
        worker: usize,
        flight: Box<Flight>,
    },
    Link {
        node: usize,
    },
    Event(Upset),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Upset {
    /// For good.
    Crash(usize),
    Cut(usize),
    Mend(usize),
    StoreStops,
    StoreGoesOn,
    /// It comes back without its data, as another run.
    StoreRestarts,
    ClockJumps(i64),
    /// From here on, what a replica has not got yet.
    ReplicaLags,
    /// The replica takes over, as another run.
    FailsOver,
}

pub(crate) struct Network {
    /// One way, in microseconds.
    pub(crate) delay: (u64, u64),
    /// Of a thousand messages, so many never arrive, either way.
    pub(crate) loss: u64,
}

struct Node {
    keeper: Keeper,
    workers: Vec<Policy>,
    /// None: crashed.
    alive: bool,
    linked: bool,
    life: u64,
    /// Its clock, against the true one.
    ahead: u64,
    kicked: bool,
    admitted: u64,
    statuses: BTreeMap<u16, u64>,
    slowest: u64,
    /// Requests in progress.
    inside: u64,
    shadowed: u64,
    /// Those that wait, and on which worker.
    waiting: BTreeMap<u64, (usize, Flight)>,
}

pub(crate) struct World {
    pub(crate) now: u64,
    dice: Dice,
    todo: BTreeMap<(u64, u64), Todo>,
    count: u64,
    nodes: Vec<Node>,
    pub(crate) store: Store,
    run: u64,
    up: bool,
    cut: BTreeSet<usize>,
    clock: i64,
    network: Network,
    /// When requests were admitted.
    pub(crate) admitted: Vec<u64>,
    pub(crate) commands: u64,
    pub(crate) requests: u64,
    replica: Option<Store>,
    /// How long what was admitted takes.
    pub(crate) takes: u64,
    /// The most that were in progress at once.
    pub(crate) peak: u64,
}

impl World {
    pub(crate) fn new(
        plan: &Arc<Plan>,
        seed: u64,
        nodes: usize,
        workers: u64,
        network: Network,
    ) -> Self {
        let mut world = Self {
            now: SEC,
            dice: Dice::new(seed),
            todo: BTreeMap::new(),
            count: 0,
            nodes: Vec::new(),
            store: Store::default(),
            run: 1,
            up: true,
            cut: BTreeSet::new(),
            clock: EPOCH,
            network,
            admitted: Vec::new(),
            commands: 0,
            requests: 0,
            replica: None,
            takes: 0,
            peak: 0,
        };
        world.store.warm("1");
        for node in 0..nodes {
            let ledger = Arc::new(Ledger::new(1024, [u8::try_from(node).unwrap_or(0); 16]));
            let mut keeper = Keeper::new(Arc::clone(&ledger));
            keeper.adopt(plan);
            let policy = |seed| Policy::new(Arc::clone(plan), Arc::clone(&ledger), seed);
            world.nodes.push(Node {
                workers: (0..workers).map(policy).collect(),
                keeper,
                alive: true,
                linked: false,
                life: 0,
                ahead: world.dice.below(50 * MS),
                kicked: false,
                admitted: 0,
                statuses: BTreeMap::new(),
                slowest: 0,
                inside: 0,
                shadowed: 0,
                waiting: BTreeMap::new(),
            });
            let first = world.now + world.dice.below(5 * MS);
            world.at(first, Todo::Tick { node });
            world.at(world.now, Todo::Link { node });
        }
        world
    }

    pub(crate) fn request(&mut self, at: u64, node: usize) {
        let workers = self.nodes[node].workers.len() as u64;
        let worker = usize::try_from(self.dice.below(workers)).unwrap_or(0);
        self.requests += 1;
        self.at(at, Todo::Request { node, worker });
    }

    pub(crate) fn upset(&mut self, at: u64, upset: Upset) {
        self.at(at, Todo::Event(upset));
    }

    pub(crate) fn run_until(&mut self, end: u64) {
        while let Some(entry) = self.todo.first_entry() {
            let at = entry.key().0;
            if at > end {
                break;
            }
            let todo = entry.remove();
            self.now = at;
            self.happen(todo);
        }
        self.now = end;
    }

    pub(crate) fn admitted_by(&self, node: usize) -> u64 {
        self.nodes[node].admitted
    }

    pub(crate) fn statuses(&self) -> BTreeMap<u16, u64> {
        let mut all = BTreeMap::new();
        for (status, n) in self.nodes.iter().flat_map(|node| &node.statuses) {
            *all.entry(*status).or_default() += n;
        }
        all
    }

    /// The longest that a request had to wait for its decision.
    pub(crate) fn slowest(&self) -> u64 {
        self.nodes.iter().map(|node| node.slowest).max().unwrap_or(0)
    }

    /// These keys have numbers of their own, on every node.
    pub(crate) fn override_with(&mut self, plan: &Plan, written: &[(&str, &str)]) {
        for node in &mut self.nodes {
            let own = written.iter().map(|(field, value)| plan.override_of(field, value).unwrap());
            node.keeper.override_with(own);
        }
    }

    /// Requests that a shadow would have admitted.
    pub(crate) fn shadowed(&self) -> u64 {
        self.nodes.iter().map(|node| node.shadowed).sum()
    }

    /// Requests that had to wait for the store.
    pub(crate) fn parked(&self) -> u64 {
        self.nodes.iter().map(|node| node.keeper.figures(node.now(self.now)).parked).sum()
    }

    pub(crate) fn held(&self) -> u64 {
        self.nodes.iter().map(|node| node.keeper.figures(node.now(self.now)).held).sum()
    }

    fn at(&mut self, at: u64, todo: Todo) {
        self.count += 1;
        self.todo.insert((at.max(self.now), self.count), todo);
    }

    fn happen(&mut self, todo: Todo) {
        match todo {
            Todo::Request { node, worker } => self.arrive(node, worker),
            Todo::Woke { node, id } => {
                // Unless something else has woken it before.
                if let Some((worker, flight)) = self.nodes[node].waiting.remove(&id) {
                    self.judge(node, worker, flight, Event::Woke);
                }
            }
            Todo::Tick { node } => self.tick(node),
            Todo::Kick { node } => {
                let (now, it) = (self.now, &mut self.nodes[node]);
                it.kicked = false;
                if it.alive {
                    let batches = it.keeper.kicked(it.now(now));
                    self.send(node, batches);
                }
            }
            Todo::Arrived { node, life, batch } => self.serve(node, life, &batch),
            Todo::Answered { node, life, batch, replies } => {
                let (now, it) = (self.now, &mut self.nodes[node]);
                if it.alive && it.linked && it.life == life {
                    it.keeper.answered(it.now(now), batch, &replies);
                    self.ring(node);
                }
            }
            Todo::Ended { node, worker, flight } => {
                let it = &mut self.nodes[node];
                if it.alive {
                    it.inside -= 1;
                    it.end(self.now, worker, *flight, 200);
                }
            }
            Todo::Link { node } => self.link(node),
            Todo::Event(upset) => self.upset_now(upset),
        }
    }

    fn upset_now(&mut self, upset: Upset) {
        match upset {
            Upset::Crash(node) => self.nodes[node].alive = false,
            Upset::Cut(node) => drop(self.cut.insert(node)),
            Upset::Mend(node) => drop(self.cut.remove(&node)),
            Upset::StoreStops => self.up = false,
            Upset::StoreGoesOn => self.up = true,
            Upset::StoreRestarts => {
                self.up = true;
                self.run += 1;
                self.store.flush();
                for node in 0..self.nodes.len() {
                    self.unlink(node);
                }
            }
            Upset::ClockJumps(us) => self.clock += us,
            Upset::ReplicaLags => self.replica = Some(self.store.clone()),
            Upset::FailsOver => {
                self.store = self.replica.take().unwrap_or_else(|| self.store.clone());
                (self.up, self.run) = (true, self.run + 1);
                for node in 0..self.nodes.len() {
                    self.unlink(node);
                }
            }
        }
    }

    fn arrive(&mut self, node: usize, worker: usize) {
        let it = &mut self.nodes[node];
        if it.alive {
            let now = it.now2(self.now);
            let flight = it.workers[worker].begin(now, &facts("/"));
            self.judge(node, worker, flight, Event::Arrived);
        }
    }

    fn judge(&mut self, node: usize, worker: usize, mut flight: Flight, event: Event) {
        let it = &mut self.nodes[node];
        let now = it.now2(self.now);
        let policy = &mut it.workers[worker];
        let decision = policy.decide(now, &facts("/"), &mut flight, event);
        if policy.poll(now).is_some() && !it.kicked {
            it.kicked = true;
            let soon = self.now + 200;
            self.at(soon, Todo::Kick { node });
        }
        match decision {
            // A worker is late, too.
            Decision::Wait(until) => {
                let late = self.dice.below(2 * MS);
                let woke = until.as_nanos() / 1_000 - self.nodes[node].ahead + late;
                self.at(woke, Todo::Woke { node, id: self.count });
                self.nodes[node].waiting.insert(self.count - 1, (worker, flight));
            }
            Decision::Answer(answer) => {
                let it = &mut self.nodes[node];
                *it.statuses.entry(answer.status).or_default() += 1;
                if answer.status == 200 {
                    it.admitted += 1;
                    self.admitted.push(self.now);
                }
                if answer.status == 200 && self.takes > 0 {
                    it.inside += 1;
                    let (end, flight) = (self.now + self.takes, Box::new(flight));
                    let alive = self.nodes.iter().filter(|node| node.alive);
                    self.peak = self.peak.max(alive.map(|node| node.inside).sum());
                    self.at(end, Todo::Ended { node, worker, flight });
                } else {
                    it.end(self.now, worker, flight, answer.status);
                }
            }
            other => panic!("{other:?}"),
        }
    }

    /// Who waits for the store looks, soon. Now and then the bell is not heard.
    fn ring(&mut self, node: usize) {
        let ids: Vec<u64> = self.nodes[node].waiting.keys().copied().collect();
        if self.dice.below(8) > 0 {
            for id in ids {
                let soon = self.now + self.dice.below(100);
                self.at(soon, Todo::Woke { node, id });
            }
        }
    }

    fn tick(&mut self, node: usize) {
        let next = self.now + 5 * MS;
        let (now, it) = (self.now, &mut self.nodes[node]);
        if !it.alive {
            return;
        }
        if it.keeper.stuck(it.now(now)) != 0 {
            self.unlink(node);
        }
        let it = &mut self.nodes[node];
        let batches = it.keeper.tick(it.now(now));
        self.send(node, batches);
        self.at(next, Todo::Tick { node });
    }

    fn unlink(&mut self, node: usize) {
        let it = &mut self.nodes[node];
        it.linked = false;
        it.keeper.unlinked(it.now(self.now), ALL);
        self.at(self.now + 50 * MS, Todo::Link { node });
    }

    fn link(&mut self, node: usize) {
        let reachable = self.up && !self.cut.contains(&node);
        let it = &mut self.nodes[node];
        if it.linked || !it.alive {
            return;
        }
        if reachable {
            (it.linked, it.life) = (true, it.life + 1);
            it.keeper.linked(it.now(self.now), ALL);
        } else {
            self.at(self.now + 50 * MS, Todo::Link { node });
        }
    }

    fn send(&mut self, node: usize, batches: Vec<Batch>) {
        for batch in batches {
            if self.lost() {
                continue;
            }
            let (at, life) = (self.now + self.delay(), self.nodes[node].life);
            self.at(at, Todo::Arrived { node, life, batch });
        }
    }

    /// The store answers whatever reaches it, also what comes of a connection that is gone.
    fn serve(&mut self, node: usize, life: u64, batch: &Batch) {
        if !self.up || self.cut.contains(&node) {
            return;
        }
        self.commands += 1;
        let (run, name) = (self.run.to_string(), node.to_string());
        let clock = self.clock + i64::try_from(self.now).unwrap_or(0);
        let call = |(key, message): &(String, _)| self.store.call(clock, &run, &name, key, message);
        let replies = batch.keys.iter().map(call).collect();
        if !self.lost() {
            let at = self.now + self.delay();
            self.at(at, Todo::Answered { node, life, batch: batch.id, replies });
        }
    }

    fn delay(&mut self) -> u64 {
        let (from, to) = self.network.delay;
        from + self.dice.below(to - from + 1)
    }

    fn lost(&mut self) -> bool {
        self.dice.below(1000) < self.network.loss
    }
}

impl Node {
    fn end(&mut self, at: u64, worker: usize, flight: Flight, status: u16) {
        let ending =
            Ending { status: Some(status), bytes_in: 0, bytes_out: 0, finish: Finish::Whole };
        let now = self.now2(at);
        let record = self.workers[worker].end(now, flight, ending);
        let would = |step: &&Step| step.filter == "shadow" && step.passed;
        self.shadowed += record.trail.steps().filter(would).count() as u64;
        let took = u64::try_from(record.took.as_micros()).unwrap_or(u64::MAX);
        self.slowest = self.slowest.max(took);
    }

    fn now(&self, at: u64) -> Instant {
        Instant::from_nanos((at + self.ahead) * 1_000)
    }

    fn now2(&self, at: u64) -> Now {
        Now { at: self.now(at), wall: Wall(0) }
    }
}

/// How many more than `capacity + rate x time` were ever admitted, over every window at once: a
/// queue that every admission fills and time empties.
pub(crate) fn excess(admitted: &[u64], units: u64, refill: u64, capacity: u64) -> u64 {
    let (mut level, mut last, mut worst) = (0_u64, 0, 0);
    for &at in admitted {
        level = level.saturating_sub((at - last) * refill) + units;
        last = at;
        worst = worst.max(level.saturating_sub(capacity * units));
    }
    worst.div_ceil(units)
}
