//! What a worker's connections share: its policy, its pools, its figures. One thread's memory.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::descriptors::{Share, Split};
use super::vigil::Vigil;
use super::wake::Waiting;
use super::{DRAIN_IDLE, Message, Seat};
use crate::buffer::Buffers;
use crate::cache::Cache;
use crate::clock::{Clock, WallOffset};
use crate::http::head::{Head, Heads};
use crate::http::limit::Forms;
use crate::http::parse::{BadHead, HeadRules};
use crate::http::rest::Resting;
use crate::http::write::{DateLine, Passport};
use crate::ids::Ids;
use crate::observe::cells::{Cells, LimitCells, RouteCells};
use crate::observe::record::{Lines, Refusal};
use crate::runtime::{self, Pipes, Stop, Turns};
use crate::sweep::{Sweeper, TICK};
use crate::upstream::pool::Pools;
use sluice_config::Config;
use sluice_policy::Policy;
use sluice_policy::cache::Use;
use sluice_policy::decision::{Decision, Event};
use sluice_policy::facts::{Facts, Headers};
use sluice_policy::flight::{Ending, Flight, Hedge, Record};
use sluice_policy::time::{Instant, Now};
use sluice_policy::world::{Effect, Signal};

/// One worker. Borrowed for one call at a time, never across an await.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) cells: Arc<Cells>,
    pub(crate) sweeper: Rc<Sweeper>,
    pub(crate) pools: Pools,
    pub(crate) cache: Cache,
    pub(crate) buffers: Buffers,
    pub(crate) heads: Heads,
    pub(crate) pipes: Pipes,
    pub(crate) turns: Turns,
    pub(crate) resting: Resting,
    pub(super) vigil: Vigil,
    pub(crate) ids: Ids,
    pub(crate) stop: Stop,
    /// Requests that wait for a store of shared counts.
    pub(crate) waiting: Waiting,
    /// Connections by client address, where they are bounded.
    pub(crate) clients: RefCell<BTreeMap<IpAddr, u32>>,
    share: Share,
    policy: RefCell<Policy>,
    current: RefCell<Rc<Current>>,
    lines: RefCell<Lines>,
    clock: Clock,
    wall: Cell<WallOffset>,
    now: Cell<Now>,
    date: Cell<(u64, DateLine)>,
    ticks: Cell<u32>,
    ticked: Cell<Instant>,
    /// The clock as a tick read it last.
    by_tick: Cell<Instant>,
}

const NO_DATE: DateLine = *b"Date: Thu, 01 Jan 1970 00:00:00 GMT\r\n";

/// The configuration that new requests begin under, prepared for them.
#[derive(Debug)]
pub(crate) struct Current {
    pub(crate) config: Arc<Config>,
    pub(crate) head_bytes: usize,
    pub(crate) split: Split,
    pub(crate) limit_forms: Forms,
    identity: Vec<Identity>,
    routes: Vec<Arc<RouteCells>>,
    limits: Vec<Arc<LimitCells>>,
}

/// A field that clients may not send, lower case.
#[derive(Debug)]
enum Identity {
    Name(String),
    Prefix(String),
}

impl Current {
    fn new(config: &Arc<Config>, cells: &Cells, share: Share) -> Rc<Self> {
        let plan = &config.plan;
        let identity =
            config.server.identity_headers.iter().map(|name| match name.strip_suffix('*') {
                Some(prefix) => Identity::Prefix(prefix.to_owned()),
                None => Identity::Name(name.clone()),
            });
        Rc::new(Self {
            config: Arc::clone(config),
            head_bytes: config.server.header_bytes as usize,
            split: share.split(config.server.connections, plan),
            limit_forms: Forms::new(plan, config.server.limit_headers),
            identity: identity.collect(),
            routes: plan.routes().iter().map(|route| cells.route(&route.name)).collect(),
            limits: plan.limit_names().map(|name| cells.limit(name)).collect(),
        })
    }

    pub(crate) fn head_rules(&self) -> HeadRules {
        let server = &self.config.server;
        HeadRules { fields_max: usize::from(server.headers), slashes: server.encoded_slashes }
    }

    /// Drop what only the gateway may say. The built-in names were dropped by the parser.
    pub(crate) fn strip_identity(&self, head: &mut Head) {
        if self.identity.is_empty() {
            return;
        }
        head.drop_fields(|name| {
            self.identity.iter().any(|identity| match identity {
                Identity::Name(full) => full.as_bytes().eq_ignore_ascii_case(name),
                Identity::Prefix(prefix) => name
                    .get(..prefix.len())
                    .is_some_and(|start| start.eq_ignore_ascii_case(prefix.as_bytes())),
            })
        });
    }
}

impl Worker {
    pub(crate) fn new(seat: Seat) -> Rc<Self> {
        let Seat { generation, share, ledger, wake, clock, cells, journal, .. } = seat;
        let config = &generation.config;
        let pools = Pools::new(Arc::clone(&cells));
        pools.adopt(&config.plan, &generation.addresses);
        let ids = Ids::new();
        let wall = WallOffset::read(clock);
        let now = wall.now(clock.at());
        let current = Current::new(config, &cells, share);
        let pipes = Pipes::default();
        pipes.bound(current.split.pipes);
        Rc::new(Self {
            sweeper: Sweeper::new(now.at),
            pools,
            cache: Cache::new(config.server.cache_memory, Arc::clone(&cells)),
            buffers: Buffers::default(),
            heads: Heads::default(),
            pipes,
            turns: Turns::default(),
            resting: Resting::default(),
            vigil: Vigil::default(),
            stop: Stop::default(),
            waiting: Waiting::new(wake),
            clients: RefCell::default(),
            share,
            policy: RefCell::new(Policy::new(Arc::clone(&config.plan), ledger, ids.draw())),
            current: RefCell::new(current),
            lines: RefCell::new(Lines::new(journal)),
            ids,
            clock,
            wall: Cell::new(wall),
            now: Cell::new(now),
            date: Cell::new((0, NO_DATE)),
            ticks: Cell::new(0),
            ticked: Cell::new(now.at),
            by_tick: Cell::new(now.at),
            cells,
        })
    }

    /// Something has come: read the clock.
    pub(crate) fn now(&self) -> Now {
        let now = self.wall.get().now(self.clock.at());
        self.now.set(now);
        self.vigil.stir();
        now
    }

    /// Read the clock, although nothing has come.
    pub(super) fn at(&self) -> Instant {
        self.clock.at()
    }

    /// When something last came; None: nothing but a tick has since.
    pub(super) fn last_event(&self) -> Option<Instant> {
        let last = self.now_cached().at;
        (last != self.by_tick.get()).then_some(last)
    }

    pub(super) fn busy_poll(&self) -> Duration {
        self.current.borrow().config.server.busy_poll
    }

    /// The clock as last read: for deadlines that need not be exact.
    pub(crate) fn now_cached(&self) -> Now {
        self.now.get()
    }

    /// An event has come from outside: later uses of [`Self::now_cached`] are as of now.
    pub(crate) fn tick_clock(&self) {
        self.now();
    }

    pub(crate) fn current(&self) -> Rc<Current> {
        Rc::clone(&self.current.borrow())
    }

    pub(crate) fn begin(&self, facts: &Facts<'_>) -> Flight {
        self.cells.in_flight.add(1);
        // Its head has just been read, and so has the clock.
        self.policy.borrow_mut().begin(self.now_cached(), facts)
    }

    pub(crate) fn decide(&self, facts: &Facts<'_>, flight: &mut Flight, event: Event) -> Decision {
        let now = match event {
            Event::Arrived | Event::Missed => self.now_cached(),
            Event::Learned
            | Event::Responded { .. }
            | Event::Failed { .. }
            | Event::Slow
            | Event::Overtaken { .. }
            | Event::Fell { .. }
            | Event::Woke => self.now(),
        };
        let mut policy = self.policy.borrow_mut();
        let decision = policy.decide(now, facts, flight, event);
        while let Some(effect) = policy.poll(now) {
            match effect {
                Effect::Kick => self.waiting.kick(),
                // Servers are asked by the node's watch, not by a worker.
                Effect::Probe(_) => {}
            }
        }
        decision
    }

    /// Until then; of a request that waits for the store, no longer than until that has answered.
    pub(crate) async fn wait(&self, until: Instant, for_store: bool) {
        let span = until.since(self.now().at);
        if for_store {
            let _ = runtime::within(span, self.waiting.wait()).await;
        } else {
            runtime::sleep(span).await;
        }
    }

    /// Requests are in progress.
    fn serves(&self) -> bool {
        self.cells.in_flight.value() > 0
    }

    /// The next tick, and how far off it was to be.
    pub(super) async fn next_tick(&self) -> Duration {
        let rest = self.resting.rest(self.now_cached().at);
        self.sweeper.next_tick(self.serves(), rest).await
    }

    /// Keep the memory of a head whose connection is over.
    pub(crate) fn keep(&self, mut head: Head) {
        self.buffers.give(std::mem::take(&mut head.text));
        self.heads.give(head);
    }

    /// This head is passed on.
    pub(crate) fn settle(&self, facts: &Facts<'_>, flight: &mut Flight, response: Headers<'_>) {
        self.policy.borrow_mut().settle(self.now_cached(), facts, flight, response);
    }

    /// As of the clock as last read.
    pub(crate) fn end(&self, flight: &mut Flight, ending: Ending) -> Record {
        self.cells.in_flight.sub(1);
        self.turns.served(ending.bytes_in.saturating_add(ending.bytes_out));
        self.policy.borrow_mut().finish(self.now_cached(), flight, ending)
    }

    /// Count and log a request that is over.
    pub(crate) fn observe(&self, record: &Record, head: &Head, passport: &Passport) {
        let current = self.current.borrow();
        current.count(record, head.method(), &self.cells);
        let at = self.wall.get().since_1970(self.now_cached().at);
        let log = &current.config.log.access;
        let mut lines = self.lines.borrow_mut();
        lines.record(log, &self.cells, self.ids.draw(), at, record, head, passport);
    }

    /// Count and log a head that was refused before policy saw it.
    pub(crate) fn refused(
        &self,
        current: &Current,
        peer: IpAddr,
        bad: BadHead,
        request_id: &[u8],
        bytes: u64,
    ) {
        let cells = &self.cells;
        let cell = match bad.status {
            408 => &cells.refused_408,
            414 => &cells.refused_414,
            417 => &cells.refused_417,
            431 => &cells.refused_431,
            501 => &cells.refused_501,
            505 => &cells.refused_505,
            _ => &cells.refused_400,
        };
        cell.add(1);
        let at = self.wall.get().since_1970(self.now_cached().at);
        let refusal = Refusal { peer, status: bad.status, code: bad.code, request_id, bytes };
        let log = &current.config.log.access;
        self.lines.borrow_mut().refusal(log, cells, self.ids.draw(), at, &refusal);
    }

    /// For the Date field; written anew once a second.
    pub(crate) fn date(&self) -> DateLine {
        let second = self.now_cached().wall.0;
        let (of, date) = self.date.get();
        if of == second {
            return date;
        }
        let at = std::time::UNIX_EPOCH + Duration::from_secs(second);
        let text = httpdate::fmt_http_date(at);
        let date = format!("Date: {text}\r\n").as_bytes().try_into().unwrap_or(NO_DATE);
        self.date.set((second, date));
        date
    }

    pub(super) fn told(&self, message: Message) {
        match message {
            Message::Adopt(generation) => {
                let config = &generation.config;
                self.pools.adopt(&config.plan, &generation.addresses);
                self.cache.adopt(&config.plan, config.server.cache_memory);
                self.policy.borrow_mut().adopt(Arc::clone(&config.plan));
                let current = Current::new(config, &self.cells, self.share);
                self.pipes.bound(current.split.pipes);
                self.current.replace(current);
                self.vigil.call();
            }
            Message::Vitals(out) => self.signal(Signal::Vitals { out: &out }),
            Message::Switches(switches) => self.signal(Signal::Switches(&switches)),
            Message::Purge(route) => self.cache.purge(route),
            Message::Drain => {
                self.stop.stop();
                self.sweeper.rouse();
            }
            Message::Inspect(reply) => {
                let snapshot = self.policy.borrow().inspect(self.now());
                // Who asked may have lost patience.
                let _ = reply.send(snapshot);
            }
        }
    }

    fn signal(&self, signal: Signal<'_>) {
        self.policy.borrow_mut().signal(self.now(), signal);
    }

    /// It is dead: nobody keeps its part in the node's figures any more.
    pub(super) fn retire(&self) {
        // What died may have been borrowing it.
        if let Ok(mut policy) = self.policy.try_borrow_mut() {
            policy.retire();
        }
    }

    /// Housekeeping: of its deadlines, its pools, its log. `span`: how far off it was to be. True:
    /// drained, nothing is left to do.
    pub(super) fn tick(self: &Rc<Self>, span: Duration) -> bool {
        let ticks = self.ticks.get().wrapping_add(1);
        self.ticks.set(ticks);
        let dozes = span > TICK;
        if dozes || ticks.is_multiple_of(WALL_TICKS) {
            self.wall.set(WallOffset::read(self.clock));
        }
        let now = self.now();
        self.sweeper.sweep(now.at);
        self.resting.sweep(self, now.at, self.stop.stopped().then_some(DRAIN_IDLE));
        let lag = now.at.since(self.ticked.replace(now.at)).saturating_sub(span);
        self.cells.shed.lag_us.set(u64::try_from(lag.as_micros()).unwrap_or(u64::MAX));
        self.signal(Signal::Pressure { lag });
        self.signal(Signal::Tick);
        if dozes || ticks.is_multiple_of(POOL_TICKS) {
            self.pools.sweep(now.at, &self.buffers);
        }
        self.lines.borrow_mut().flush(&self.cells);
        self.by_tick.set(self.now_cached().at);
        if !self.stop.stopped() {
            return false;
        }
        self.sweeper.rouse();
        self.sweeper.sweep_idle(now.at, DRAIN_IDLE);
        self.cells.connections_open.value() == 0
    }
}

/// The wall clock is looked at about once a second.
const WALL_TICKS: u32 = 64;

/// Idle upstream connections are looked at about ten times a second.
const POOL_TICKS: u32 = 6;

impl Current {
    fn count(&self, record: &Record, method: &str, cells: &Cells) {
        let (status, took) = (record.ending.status, record.took);
        cells.all.record(took);
        cells.shed.count(record);
        cells
            .clients_gone
            .add(u64::from(record.ending.finish == sluice_policy::flight::Finish::ClientGone));
        let hedged = u64::from(record.hedge != Hedge::None);
        cells.hedges.add(hedged);
        cells.hedges_won.add(u64::from(record.hedge == Hedge::Won));
        cells.retries.add(u64::from(record.attempts.saturating_sub(1)).saturating_sub(hedged));
        if record.cut > 0 {
            cells.upstream_cut_held.add(record.cut.into());
        }
        // A request of an older plan is counted by name: ids mean nothing across plans.
        let of_this_plan = std::ptr::eq(record.plan(), &raw const *self.config.plan);
        if let Some(id) = record.route {
            match self.routes.get(id.index()).filter(|_| of_this_plan) {
                Some(route) => {
                    route.count(method, status, took);
                    route.count_degraded(record.degraded());
                    route.count_cache(record.cache.map(Use::name));
                }
                None => {
                    if let Some(route) = record.plan().route(id) {
                        let route = cells.route(&route.name);
                        route.count(method, status, took);
                        route.count_degraded(record.degraded());
                        route.count_cache(record.cache.map(Use::name));
                    }
                }
            }
        } else {
            cells.unrouted.count(method, status, took);
        }
        for step in record.trail.steps() {
            let (shadow, enforced) = (step.filter == "shadow", step.filter == "limits");
            let Some(limit) = step.rule.filter(|_| shadow || enforced) else { continue };
            let counted = |limit: &LimitCells| match (step.passed, shadow) {
                (true, _) => limit.allowed.add(1),
                (false, false) => limit.refused.add(1),
                (false, true) => limit.shadow_refused.add(1),
            };
            match self.limits.get(usize::from(limit)).filter(|_| of_this_plan) {
                Some(limit) => counted(limit),
                None => counted(&cells.limit(record.plan().limit_name(limit))),
            }
        }
    }
}
