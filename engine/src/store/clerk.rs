//! The clerk: carries the keeper's batches to Redis and its answers back, keeps a connection, and
//! says so when there is none.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use metrics::counter;
use sluice_policy::keeper::{Batch, Keeper, TICK};
use sluice_policy::plan::Plan;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{Interval, MissedTickBehavior};

use super::link::{Link, Outcome, node};
use super::overrides::{Written, meant};
use super::{Client, Order, Report, Setting, State, locked};
use crate::clock::Clock;
use crate::event::event;
use crate::observe::exposition::{STORE_COMMANDS, STORE_LOSSES};

/// Between two tries to connect: twice as long after each, up to a bound.
const AGAIN_MIN: Duration = Duration::from_millis(50);
const AGAIN_MAX: Duration = Duration::from_millis(500);

/// Kicks that come sooner after one another than this are taken together.
const KICKS: Duration = Duration::from_micros(200);

/// How often to look for numbers of single keys.
const POLL: Duration = Duration::from_millis(900);

#[derive(Debug)]
pub(super) struct Clerk {
    keeper: Keeper,
    clock: Clock,
    kick: Arc<Notify>,
    report: Arc<Mutex<Report>>,
    plan: Arc<Plan>,
    /// Keys that have numbers of their own. Kept while the store is away.
    written: Written,
    client: Option<Client>,
    link: Option<Link>,
    node: String,
    /// Counts connections: what comes of an older one is not heard.
    life: u64,
    again: Duration,
    ticks: Interval,
    polls: Interval,
    kicked: sluice_policy::time::Instant,
    happened: (mpsc::UnboundedSender<Happened>, mpsc::UnboundedReceiver<Happened>),
    parting: Option<oneshot::Sender<()>>,
}

#[derive(Debug)]
enum Happened {
    Linked { life: u64, made: Result<(Link, Written), String> },
    Read { life: u64, written: Result<Written, String> },
    Carried { life: u64, batch: u64, outcome: Outcome },
}

impl Clerk {
    pub(super) fn new(
        keeper: Keeper,
        clock: Clock,
        kick: Arc<Notify>,
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
            kick,
            report,
            client: None,
            link: None,
            node: node(),
            life: 0,
            again: AGAIN_MIN,
            ticks,
            kicked: clock.at(),
            happened: mpsc::unbounded_channel(),
            parting: None,
        };
        clerk.adopt(setting);
        clerk
    }

    /// For as long as the process.
    pub(super) async fn work(mut self, mut orders: mpsc::UnboundedReceiver<Order>) {
        let kick = Arc::clone(&self.kick);
        loop {
            let busy = self.keeper.is_busy();
            tokio::select! {
                () = kick.notified() => self.kicked().await,
                _ = self.ticks.tick(), if busy => self.tick(),
                _ = self.polls.tick(), if self.link.is_some() => self.poll(),
                Some(happened) = self.happened.1.recv() => self.hear(happened),
                order = orders.recv() => match order {
                    Some(Order::Adopt(setting)) => self.adopt(setting),
                    Some(Order::Farewell(tell)) => self.part(tell),
                    Some(Order::Override { field, value, tell }) => {
                        self.set_override(field, value, tell);
                    }
                    None => return,
                },
            }
        }
    }

    async fn kicked(&mut self) {
        let since = self.clock.at().since(self.kicked);
        if since < KICKS {
            tokio::time::sleep(KICKS.saturating_sub(since)).await;
        }
        self.kicked = self.clock.at();
        let batches = self.keeper.kicked(self.kicked);
        self.send(batches);
    }

    fn tick(&mut self) {
        let now = self.clock.at();
        if self.keeper.is_stuck(now) {
            self.lose("no answer within 100 ms");
        }
        let batches = self.keeper.tick(now);
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
        if client.as_ref().map(|c| &c.url) == self.client.as_ref().map(|c| &c.url) {
            return;
        }
        // What is held goes back before the connection does.
        if client.is_none() && self.keeper.is_busy() {
            return;
        }
        self.client = client;
        (self.life, self.again) = (self.life + 1, AGAIN_MIN);
        // Before the first connection nothing is lost yet: requests wait a moment for it.
        if self.link.take().is_some() {
            self.keeper.unlinked(self.clock.at());
        }
        let state = if self.client.is_some() { State::Connecting } else { State::Off };
        let server =
            self.client.as_ref().map(|c| c.client.get_connection_info().addr().to_string());
        {
            let mut report = locked(&self.report);
            (report.state, report.server) = (state, server);
        }
        self.connect(Duration::ZERO);
    }

    fn part(&mut self, tell: oneshot::Sender<()>) {
        self.parting = Some(tell);
        self.keeper.farewell();
        self.tick();
    }

    fn hear(&mut self, happened: Happened) {
        match happened {
            Happened::Linked { life, made } if life == self.life => match made {
                Ok((link, written)) => {
                    self.read(written);
                    self.linked(link);
                }
                Err(why) => self.lose(&why),
            },
            Happened::Carried { life, batch, outcome } if life == self.life => match outcome {
                Outcome::Answered(replies) => {
                    self.keeper.answered(self.clock.at(), batch, &replies);
                }
                Outcome::Again => self.keeper.failed(batch),
                Outcome::Broken(why) => self.lose(&why),
            },
            Happened::Read { life, written } if life == self.life => {
                // A store that fails is noticed by its counts.
                if let Ok(written) = written {
                    self.read(written);
                }
            }
            // Of a connection that was given up.
            Happened::Linked { .. } | Happened::Carried { .. } | Happened::Read { .. } => {}
        }
    }

    fn linked(&mut self, link: Link) {
        self.again = AGAIN_MIN;
        self.keeper.linked(self.clock.at());
        let was = {
            let mut report = locked(&self.report);
            report.why = None;
            std::mem::replace(&mut report.state, State::Up)
        };
        match was {
            State::Lost => event!("store_back", run = link.run),
            State::Off | State::Connecting | State::Up => event!("store_connected", run = link.run),
        }
        self.link = Some(link);
        self.tick();
    }

    /// There is no connection, or none that is of use: make another.
    fn lose(&mut self, why: &str) {
        self.link = None;
        self.life += 1;
        self.keeper.unlinked(self.clock.at());
        let first = {
            let mut report = locked(&self.report);
            let first = report.state != State::Lost;
            report.state = State::Lost;
            report.why = Some(why.to_owned());
            report.losses += u64::from(first);
            first
        };
        // Once for each time, not for each try.
        if first {
            event!("store_lost", why = why);
            counter!(STORE_LOSSES).increment(1);
        }
        let wait = self.again;
        self.again = (2 * wait).min(AGAIN_MAX);
        self.connect(wait);
    }

    fn connect(&self, wait: Duration) {
        let Some(client) = self.client.clone() else { return };
        let (life, node, tell) = (self.life, self.node.clone(), self.happened.0.clone());
        tokio::spawn(async move {
            tokio::time::sleep(wait).await;
            let made = match Link::make(client, node).await {
                Ok(link) => link.clone().overrides().await.map(|written| (link, written)),
                Err(why) => Err(why),
            };
            let _ = tell.send(Happened::Linked { life, made });
        });
    }

    fn poll(&self) {
        let Some(link) = self.link.clone() else { return };
        let (life, tell) = (self.life, self.happened.0.clone());
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
        let Some(link) = self.link.clone() else {
            let _ = tell.send(Err("the store is away".to_owned()));
            return;
        };
        let (life, happened) = (self.life, self.happened.0.clone());
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

    /// All at once: the connection writes them one after the other without waiting for answers.
    fn send(&mut self, batches: Vec<Batch>) {
        let Some(link) = &self.link else { return };
        counter!(STORE_COMMANDS).increment(batches.len() as u64);
        for batch in batches {
            let (life, link, tell) = (self.life, link.clone(), self.happened.0.clone());
            tokio::spawn(async move {
                let id = batch.id;
                let outcome = link.carry(batch).await;
                let _ = tell.send(Happened::Carried { life, batch: id, outcome });
            });
        }
    }
}
