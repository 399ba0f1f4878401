//! The clerk: carries the keeper's batches to Redis and its answers back, keeps the lines to it,
//! and says so when there is none.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use metrics::counter;
use sluice_policy::keeper::{ALL, Batch, Keeper, TICK};
use sluice_policy::plan::Plan;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Interval, MissedTickBehavior};

use super::client::{Client, Place};
use super::find::{Found, find};
use super::lines::{Lines, Way};
use super::link::{Link, Load, Outcome, node};
use super::overrides::{SHARD, Written, meant};
use super::vouch::{carried, carry_over};
use super::{Order, Report, Setting, State, Wake, locked};
use crate::clock::Clock;
use crate::event::event;
use crate::observe::exposition::{STORE_COMMANDS, STORE_LOOKS, STORE_LOSSES};

/// Between two tries to connect: twice as long after each, up to a bound.
const AGAIN_MIN: Duration = Duration::from_millis(50);
const AGAIN_MAX: Duration = Duration::from_millis(500);

/// A server that says that another has the shard is asked again no sooner than this.
const SOON: Duration = Duration::from_millis(5);

/// How often to look for numbers of single keys: a change is to hold everywhere within half a
/// second, and an answer takes some of it.
const POLL: Duration = Duration::from_millis(480);
const _: () = assert!(POLL.as_millis() <= 480, "half a second is promised");

#[derive(Debug)]
pub(super) struct Clerk {
    keeper: Keeper,
    clock: Clock,
    wake: Arc<Wake>,
    report: Arc<Mutex<Report>>,
    plan: Arc<Plan>,
    /// Keys that have numbers of their own. Kept while the store is away.
    written: Written,
    client: Option<Client>,
    lines: Lines,
    /// Shards that the keeper takes for reachable.
    up: u64,
    node: String,
    /// Counts ways in, and searches: what comes of an older one is not heard.
    search: u64,
    searching: bool,
    again: Duration,
    /// It has answered since it was there again the last time.
    answered: bool,
    /// It lets itself be connected to and does not answer: that is told once.
    flaps: bool,
    ticks: Interval,
    polls: Interval,
    /// Pipelines under way.
    carried: usize,
    /// Somebody waits, and will be asked for with the next answer.
    kicked: bool,
    happened: (mpsc::UnboundedSender<Happened>, mpsc::UnboundedReceiver<Happened>),
    parting: Option<oneshot::Sender<()>>,
}

#[derive(Debug)]
enum Happened {
    Found { search: u64, found: Result<Vec<Found>, String> },
    Made { life: u64, made: Result<Link, String> },
    Carried { life: u64, outcomes: Vec<Outcome> },
    Read { life: u64, written: Result<Option<Written>, String> },
}

impl Clerk {
    pub(super) fn new(
        keeper: Keeper,
        clock: Clock,
        wake: Arc<Wake>,
        report: Arc<Mutex<Report>>,
        setting: Setting,
    ) -> Self {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut polls = tokio::time::interval(POLL);
        polls.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut clerk = Self {
            plan: Arc::clone(&setting.plan),
            written: Written::new(),
            polls,
            keeper,
            clock,
            wake,
            report,
            client: None,
            lines: Lines::default(),
            up: 0,
            node: node(),
            search: 0,
            searching: false,
            again: AGAIN_MIN,
            answered: false,
            flaps: false,
            ticks,
            carried: 0,
            kicked: false,
            happened: mpsc::unbounded_channel(),
            parting: None,
        };
        clerk.adopt(setting);
        clerk
    }

    /// For as long as the process.
    pub(super) async fn work(mut self, mut orders: mpsc::UnboundedReceiver<Order>) {
        let wake = Arc::clone(&self.wake);
        loop {
            let busy = self.keeper.is_busy();
            tokio::select! {
                () = wake.kicked() => self.kicked(),
                _ = self.ticks.tick(), if busy => self.tick(),
                _ = self.polls.tick(), if self.lines.way_of(SHARD).is_some() => self.poll(),
                Some(happened) = self.happened.1.recv() => self.hear(happened),
                order = orders.recv() => match order {
                    Some(Order::Adopt(setting)) => self.adopt(*setting),
                    Some(Order::Farewell(tell)) => self.part(tell),
                    Some(Order::Override { field, value, tell }) => {
                        self.set_override(field, value, tell);
                    }
                    None => return,
                },
            }
        }
    }

    /// At once; but what comes while the store is being asked goes together, with the next answer
    /// or tick.
    fn kicked(&mut self) {
        self.kicked = self.carried > 0;
        if !self.kicked {
            let batches = self.keeper.kicked(self.clock.at());
            self.send(batches);
        }
    }

    fn tick(&mut self) {
        let now = self.clock.at();
        for life in self.lines.holding(self.keeper.stuck(now)) {
            self.lose(life, "no answer within 100 ms");
        }
        let batches = self.keeper.tick(now);
        self.kicked = false;
        self.send(batches);
        {
            let mut report = locked(&self.report);
            report.figures = self.keeper.figures(now);
            report.rules = self.keeper.rules();
        }
        if !self.keeper.is_busy()
            && let Some(tell) = self.parting.take()
        {
            // Whoever asked may have lost patience.
            let _ = tell.send(());
        }
    }

    fn adopt(&mut self, setting: Setting) {
        self.keeper.adopt(&setting.plan);
        self.plan = Arc::clone(&setting.plan);
        self.take_up();
        let needed = setting.plan.shared().next().is_some();
        let client = setting.client.filter(|_| needed);
        if client == self.client {
            return;
        }
        // What is held goes back before the connection does.
        if client.is_none() && self.keeper.is_busy() {
            return;
        }
        self.client = client;
        (self.again, self.flaps) = (AGAIN_MIN, false);
        self.lines.clear();
        // Before the first connection nothing is lost yet: requests wait a moment for it.
        self.settle();
        let state = if self.client.is_some() { State::Connecting } else { State::Off };
        {
            let mut report = locked(&self.report);
            (report.state, report.servers, report.why) = (state, Vec::new(), None);
        }
        self.searching = false;
        self.seek(Duration::ZERO);
    }

    fn part(&mut self, tell: oneshot::Sender<()>) {
        self.parting = Some(tell);
        self.keeper.farewell();
        self.tick();
    }

    fn hear(&mut self, happened: Happened) {
        match happened {
            Happened::Found { search, found } if search == self.search => {
                self.searching = false;
                match found {
                    Ok(found) => self.found(found),
                    Err(why) => self.trouble(&why),
                }
            }
            Happened::Made { life, made } => {
                let (link, why) = match made {
                    Ok(link) => {
                        if link.is_veiled() {
                            // Something in between: strict counts can't tell when it restarts.
                            event!("store_run_hidden", unless = "store.redis.proxied");
                        }
                        (Some(link), None)
                    }
                    Err(why) => (None, Some(why)),
                };
                if !self.lines.made(life, link) {
                    return;
                }
                self.settle();
                match why {
                    Some(why) => self.trouble(&why),
                    None => self.poll(),
                }
            }
            Happened::Carried { life, outcomes } => {
                self.carried -= 1;
                if self.lines.is_up(life) {
                    outcomes.into_iter().for_each(|outcome| self.carried(life, outcome));
                    self.wake.ring();
                }
                if self.kicked {
                    self.kicked();
                }
            }
            Happened::Read { life, written } if self.lines.is_up(life) => {
                match written {
                    Ok(Some(written)) => self.read(written),
                    Ok(None) => {}
                    // Nobody may have asked for counts for a while.
                    Err(why) => self.lose(life, &why),
                }
            }
            // Of what was given up.
            Happened::Found { .. } | Happened::Read { .. } => {}
        }
    }

    fn carried(&mut self, life: u64, outcome: Outcome) {
        match outcome {
            Outcome::Answered(batch, replies) => {
                self.keeper.answered(self.clock.at(), batch, &replies);
                self.prove();
            }
            Outcome::Again(batch) => self.keeper.failed(batch),
            Outcome::Moved(batch) => {
                self.keeper.failed(batch);
                self.seek(SOON);
            }
            Outcome::Ask(server, batch) => match (self.lines.link(life), self.lines.way_to(server))
            {
                (Some(from), Some(way)) => self.carry_after(from, way, batch),
                (None, _) | (_, None) => {
                    self.keeper.failed(batch.id);
                    self.connect();
                }
            },
            Outcome::Broken(why) => self.lose(life, &why),
        }
    }

    fn found(&mut self, found: Vec<Found>) {
        let missing = self.lines.hold(found);
        locked(&self.report).servers = self.lines.servers();
        self.connect();
        self.settle();
        if missing != 0 {
            self.trouble(&format!("nobody holds {} of 64 shards", missing.count_ones()));
        }
    }

    fn lose(&mut self, life: u64, why: &str) {
        if self.lines.fail(life) {
            self.settle();
            self.trouble(why);
        }
    }

    /// Tells the keeper what can be reached now.
    fn settle(&mut self) {
        let (reach, now) = (self.lines.reach(), self.clock.at());
        let (lost, back) = (self.up & !reach, reach & !self.up);
        self.up = reach;
        if lost != 0 {
            self.keeper.unlinked(now, lost);
            self.wake.ring();
        }
        if back != 0 {
            self.keeper.linked(now, back);
        }
        if reach != ALL {
            return;
        }
        let was = {
            let mut report = locked(&self.report);
            report.why = None;
            std::mem::replace(&mut report.state, State::Up)
        };
        if was == State::Up {
            return;
        }
        self.answered = false;
        let servers = self.servers();
        match was {
            State::Lost if !self.flaps => event!("store_back", servers = servers),
            State::Off | State::Connecting => event!("store_connected", servers = servers),
            State::Lost | State::Up => {}
        }
        self.tick();
    }

    /// It does answer, and is not just there.
    fn prove(&mut self) {
        if self.up != ALL {
            return;
        }
        (self.answered, self.again) = (true, AGAIN_MIN);
        if std::mem::take(&mut self.flaps) {
            event!("store_back", servers = self.servers());
        }
    }

    /// Some of it can't be asked: look for it again.
    fn trouble(&mut self, why: &str) {
        self.keeper.unlinked(self.clock.at(), !self.up);
        self.wake.ring();
        let was = {
            let mut report = locked(&self.report);
            report.why = Some(why.to_owned());
            std::mem::replace(&mut report.state, State::Lost)
        };
        // Once for each time, not for each try.
        if was != State::Lost && !self.flaps {
            event!("store_lost", why = why);
            counter!(STORE_LOSSES).increment(1);
            locked(&self.report).losses += 1;
        }
        self.flaps |= was == State::Up && !self.answered;
        let wait = self.again;
        self.again = (2 * wait).min(AGAIN_MAX);
        self.seek(wait);
    }

    fn seek(&mut self, wait: Duration) {
        let Some(client) = self.client.clone() else { return };
        if std::mem::replace(&mut self.searching, true) {
            return;
        }
        self.search += 1;
        let (search, tell, known) = (self.search, self.happened.0.clone(), self.lines.servers());
        let turn = usize::try_from(search).unwrap_or(0);
        let held = match client.place {
            Place::Cluster(_) => self.lines.held(),
            Place::One(_) | Place::Sentinels { .. } => Vec::new(),
        };
        let node = self.node.clone();
        tokio::spawn(async move {
            tokio::time::sleep(wait).await;
            let entry = client.entry.clone();
            let found = find(client, known, turn).await;
            if let Ok(found) = &found {
                carry_over(&entry, &node, &held, found).await;
            }
            let _ = tell.send(Happened::Found { search, found });
        });
    }

    fn connect(&mut self) {
        let Some(client) = &self.client else { return };
        for (life, server) in self.lines.make() {
            let (entry, node, tell) =
                (client.entry.clone(), self.node.clone(), self.happened.0.clone());
            tokio::spawn(async move {
                let made = Link::make(entry, server, node).await;
                let _ = tell.send(Happened::Made { life, made });
            });
        }
    }

    fn poll(&self) {
        let Some(Way { life, link }) = self.lines.way_of(SHARD) else { return };
        let tell = self.happened.0.clone();
        tokio::spawn(async move {
            let written = link.overrides().await;
            let _ = tell.send(Happened::Read { life, written });
        });
    }

    fn set_override(
        &self,
        field: String,
        value: Option<String>,
        tell: oneshot::Sender<Result<(), String>>,
    ) {
        let Some(Way { life, link }) = self.lines.way_of(SHARD) else {
            let _ = tell.send(Err("the store is away".to_owned()));
            return;
        };
        let happened = self.happened.0.clone();
        tokio::spawn(async move {
            let done = link.clone().set_override(&field, value.as_deref()).await;
            let written = link.overrides().await;
            let _ = happened.send(Happened::Read { life, written });
            let _ = tell.send(done);
        });
    }

    fn read(&mut self, written: Written) {
        if self.written != written {
            self.written = written;
            self.take_up();
        }
        counter!(STORE_LOOKS).increment(1);
    }

    /// Count by these numbers, as far as they mean something under the present plan.
    fn take_up(&mut self) {
        let (own, unread) = meant(&self.plan, &self.written);
        self.keeper.override_with(own);
        let mut report = locked(&self.report);
        for (field, why) in &unread {
            if report.unread.get(field) != Some(why) {
                event!("limit_override_unread", field = field.as_str(), why = why.as_str());
            }
        }
        (report.overrides, report.unread) = (self.written.clone(), unread);
    }

    /// What goes to one server goes in one pipeline.
    fn send(&mut self, batches: Vec<Batch>) {
        let mut ways: Vec<(Way, Vec<Load>)> = Vec::new();
        for batch in batches {
            let Some(way) = self.lines.way_of(batch.shard) else {
                self.keeper.failed(batch.id);
                continue;
            };
            let load = Load { batch, asking: false, from: None };
            match ways.iter_mut().find(|(other, _)| other.life == way.life) {
                Some((_, loads)) => loads.push(load),
                None => ways.push((way, vec![load])),
            }
        }
        ways.into_iter().for_each(|(way, loads)| self.carry(way, loads));
    }

    fn carry(&mut self, way: Way, loads: Vec<Load>) {
        self.carried += 1;
        counter!(STORE_COMMANDS).increment(loads.len() as u64);
        let tell = self.happened.0.clone();
        tokio::spawn(async move {
            let Way { life, link } = way;
            let outcomes = link.carry(loads).await;
            let _ = tell.send(Happened::Carried { life, outcomes });
        });
    }

    /// To where a shard is on its way.
    fn carry_after(&mut self, from: Link, way: Way, batch: Batch) {
        self.carried += 1;
        counter!(STORE_COMMANDS).increment(1);
        let tell = self.happened.0.clone();
        tokio::spawn(async move {
            let Way { life, link } = way;
            let from = carried(&from, &link, true).await.then_some(from.run);
            let outcomes = link.carry(vec![Load { batch, asking: true, from }]).await;
            let _ = tell.send(Happened::Carried { life, outcomes });
        });
    }

    fn servers(&self) -> Vec<String> {
        self.lines.servers().iter().map(ToString::to_string).collect()
    }
}
