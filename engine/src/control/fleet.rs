//! The workers as the control thread sees them: starts them, hands them messages, replaces those
//! that died.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use core_affinity::CoreId;
use sluice_policy::degrade::Switches;
use sluice_policy::ledger::Ledger;
use sluice_policy::plan::{EndpointKey, RouteKey};
use sluice_policy::time::Instant;
use sluice_policy::world::Snapshot;
use tokio::sync::{mpsc, oneshot};

use super::bind;
use crate::clock::Clock;
use crate::event::event;
use crate::exit::Failure;
use crate::observe::cells::Cells;
use crate::observe::journal::JournalSender;
use crate::runtime::{Driver, Fallen, Wanted};
use crate::worker::descriptors::Share;
use crate::worker::{Generation, Mailbox, Message, News, Seat, Wake};

/// What every worker is given alike.
#[derive(Debug)]
pub(crate) struct Supply {
    pub(crate) wanted: Wanted,
    /// With real ports.
    pub(crate) addresses: Vec<SocketAddr>,
    /// What each worker may open.
    pub(crate) share: Share,
    pub(crate) ledger: Arc<Ledger>,
    /// Wakes whoever asks the store of shared counts.
    pub(crate) wake: Arc<Wake>,
    pub(crate) clock: Clock,
    pub(crate) journal: JournalSender,
    pub(crate) news: mpsc::UnboundedSender<News>,
    /// What a worker's thread runs.
    pub(crate) body: fn(Seat),
}

#[derive(Debug)]
pub(crate) struct Fleet {
    supply: Supply,
    generation: Arc<Generation>,
    /// What workers were told last, for those that come later.
    vitals: Arc<[EndpointKey]>,
    switches: Arc<Switches>,
    pub(crate) workers: Vec<Worker>,
    /// When workers were replaced, during the last minute.
    replaced: VecDeque<Instant>,
    /// The figures of workers that died. What they counted stays counted.
    graves: Vec<Arc<Cells>>,
}

#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) core: Option<CoreId>,
    pub(crate) state: State,
    /// Outlive the worker. One writer each: a successor has its own.
    pub(crate) cells: Arc<Cells>,
    mailbox: Mailbox,
    /// The same sockets as the worker's, to close them should it die.
    listeners: Vec<TcpListener>,
}

/// `Starting -Started-> Running -Drain-> Draining -Ended-> Ended`; `-Died->` from anywhere leads
/// to a successor that is Starting, or to Ended when the process is about to end.
#[derive(Clone, Debug)]
pub(crate) enum State {
    Starting,
    Running { driver: Driver, fallen: Vec<Fallen> },
    Draining,
    Ended,
}

/// Crashes that one minute may hold; one more, and the process ends: whoever runs it will see,
/// and may start it with a back-off of its own.
pub(crate) const REPLACEMENTS_MAX: usize = 10;

const MINUTE: Duration = Duration::from_secs(60);

impl State {
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Running { .. } => "running",
            Self::Draining => "draining",
            Self::Ended => "ended",
        }
    }
}

impl Fleet {
    /// One worker for each entry of `cores`, on that core.
    ///
    /// # Errors
    /// When a listener can't be bound or a thread can't be had.
    pub(crate) fn start(
        supply: Supply,
        generation: Arc<Generation>,
        cores: &[Option<CoreId>],
    ) -> Result<Self, Failure> {
        let mut fleet = Self {
            supply,
            generation,
            vitals: Arc::default(),
            switches: Arc::default(),
            workers: Vec::new(),
            replaced: VecDeque::new(),
            graves: Vec::new(),
        };
        for (index, core) in cores.iter().enumerate() {
            let cells = Arc::new(Cells::default());
            let worker = fleet.hire(index, *core, cells).map_err(|e| {
                Failure::io(format_args!("worker {index} could not be started"), &e)
            })?;
            fleet.workers.push(worker);
        }
        fleet.tell_connections();
        Ok(fleet)
    }

    fn hire(&self, index: usize, core: Option<CoreId>, cells: Arc<Cells>) -> io::Result<Worker> {
        let supply = &self.supply;
        let listeners =
            supply.addresses.iter().map(|a| bind::share(*a)).collect::<io::Result<Vec<_>>>()?;
        let copies = listeners.iter().map(TcpListener::try_clone).collect::<io::Result<_>>()?;
        let (mailbox, inbox) = Mailbox::new()?;
        supply.wake.hang(index, mailbox.bell()?);
        mailbox.send(Message::Vitals(Arc::clone(&self.vitals)));
        mailbox.send(Message::Switches(Arc::clone(&self.switches)));
        let seat = Seat {
            index,
            core,
            wanted: supply.wanted,
            listeners,
            generation: Arc::clone(&self.generation),
            share: supply.share,
            ledger: Arc::clone(&supply.ledger),
            wake: Arc::clone(&supply.wake),
            clock: supply.clock,
            cells: Arc::clone(&cells),
            journal: supply.journal.clone(),
            inbox,
            news: supply.news.clone(),
        };
        let body = supply.body;
        let alarm = Alarm { worker: index, news: supply.news.clone() };
        std::thread::Builder::new().name(format!("worker-{index}")).spawn(move || {
            // Dropped only if the body lets a panic through.
            let _alarm = alarm;
            body(seat);
        })?;
        Ok(Worker { core, state: State::Starting, cells, mailbox, listeners: copies })
    }

    pub(crate) fn generation(&self) -> &Arc<Generation> {
        &self.generation
    }

    #[cfg(test)]
    pub(crate) fn news(&self) -> mpsc::UnboundedSender<News> {
        self.supply.news.clone()
    }

    pub(crate) fn wanted(&self) -> Wanted {
        self.supply.wanted
    }

    pub(crate) fn addresses(&self) -> &[SocketAddr] {
        &self.supply.addresses
    }

    pub(crate) fn adopt(&mut self, generation: Arc<Generation>) {
        for worker in &self.workers {
            worker.mailbox.send(Message::Adopt(Arc::clone(&generation)));
        }
        self.generation = generation;
        self.tell_connections();
    }

    /// These endpoints, and no others, are out.
    pub(crate) fn tell_vitals(&mut self, out: Arc<[EndpointKey]>) {
        for worker in &self.workers {
            worker.mailbox.send(Message::Vitals(Arc::clone(&out)));
        }
        self.vitals = out;
    }

    /// This, and nothing else, is switched by hand.
    pub(crate) fn tell_switches(&mut self, switches: Arc<Switches>) {
        for worker in &self.workers {
            worker.mailbox.send(Message::Switches(Arc::clone(&switches)));
        }
        self.switches = switches;
    }

    /// Every worker forgets what it kept of that route's responses, or of all routes'.
    pub(crate) fn purge(&self, route: Option<RouteKey>) {
        for worker in &self.workers {
            worker.mailbox.send(Message::Purge(route));
        }
    }

    pub(crate) fn drain(&mut self) {
        for worker in &mut self.workers {
            // The worker's own socket is then the last one: when it closes that, new clients are
            // refused.
            worker.listeners.clear();
            worker.mailbox.send(Message::Drain);
            if !matches!(worker.state, State::Ended) {
                worker.state = State::Draining;
            }
        }
    }

    /// What all workers share.
    pub(crate) fn ledger(&self) -> &Ledger {
        &self.supply.ledger
    }

    /// One answer per worker that still answers.
    pub(crate) fn inspect(&self) -> Vec<(usize, oneshot::Receiver<Snapshot>)> {
        let running =
            |worker: &&Worker| matches!(worker.state, State::Running { .. } | State::Draining);
        let ask = |worker: &Worker| {
            let (tell, told) = oneshot::channel();
            worker.mailbox.send(Message::Inspect(tell));
            told
        };
        let indexed = self.workers.iter().enumerate();
        indexed.filter(|(_, worker)| running(worker)).map(|(i, worker)| (i, ask(worker))).collect()
    }

    pub(crate) fn cells(&self) -> Vec<Arc<Cells>> {
        let workers = self.workers.iter().map(|worker| &worker.cells);
        workers.chain(&self.graves).cloned().collect()
    }

    /// Connections open now, over all workers.
    pub(crate) fn connections(&self) -> u64 {
        self.workers.iter().map(|worker| worker.cells.connections_open.value()).sum()
    }

    /// Client connections that may be open, over all workers.
    pub(crate) fn connections_max(&self) -> u64 {
        u64::from(self.share_of_clients()) * self.workers.len() as u64
    }

    fn share_of_clients(&self) -> u32 {
        let config = &self.generation.config;
        self.supply.share.split(config.server.connections, &config.plan).clients
    }

    /// Fewer than were asked for: said once, because who is refused later can't be told why.
    fn tell_connections(&self) {
        let (asked, may) = (self.generation.config.server.connections, self.share_of_clients());
        if may < asked {
            event!("connections_bounded", by = "RLIMIT_NOFILE", worker = may, asked = asked);
        }
    }

    pub(crate) fn in_flight(&self) -> u64 {
        self.workers.iter().map(|worker| worker.cells.in_flight.value()).sum()
    }

    pub(crate) fn all_running(&self) -> bool {
        self.workers.iter().all(|worker| matches!(worker.state, State::Running { .. }))
    }

    pub(crate) fn all_ended(&self) -> bool {
        self.workers.iter().all(|worker| matches!(worker.state, State::Ended))
    }

    /// A worker died: it takes no more connections. Those it has go on as they can, and it goes on
    /// counting them.
    pub(crate) fn bury(&mut self, index: usize) {
        let Some(worker) = self.workers.get_mut(index) else { return };
        worker.listeners.iter().for_each(bind::close);
        worker.state = State::Ended;
    }

    /// Start a successor for a buried worker. Ok(false): too many died lately.
    ///
    /// # Errors
    /// When its sockets or its thread can't be had.
    pub(crate) fn replace(&mut self, index: usize, now: Instant) -> io::Result<bool> {
        let Some(worker) = self.workers.get(index) else { return Ok(true) };
        let core = worker.core;
        while self.replaced.front().is_some_and(|then| now.since(*then) >= MINUTE) {
            self.replaced.pop_front();
        }
        if self.replaced.len() >= REPLACEMENTS_MAX {
            return Ok(false);
        }
        self.replaced.push_back(now);
        // Figures of its own: cells have one writer.
        let successor = self.hire(index, core, Arc::default())?;
        let dead = std::mem::replace(&mut self.workers[index], successor);
        self.graves.push(dead.cells);
        Ok(true)
    }
}

/// Tells of a worker whose thread unwound without a word.
struct Alarm {
    worker: usize,
    news: mpsc::UnboundedSender<News>,
}

impl Drop for Alarm {
    fn drop(&mut self) {
        let why = "its thread ended".to_owned();
        let _ = self.news.send(News::Died { worker: self.worker, why });
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{fleet, mortal, obedient};
    use super::*;

    #[tokio::test]
    async fn workers_start_adopt_answer_and_drain() {
        let (mut fleet, mut heard) = fleet(2, obedient).await;
        assert!(!fleet.all_running());
        for _ in 0..2 {
            let Some(News::Started { worker, driver, fallen }) = heard.recv().await else {
                panic!("both start")
            };
            fleet.workers[worker].state = State::Running { driver, fallen };
        }
        assert!(fleet.all_running());
        let old = fleet.generation();
        let (config, addresses) = (Arc::clone(&old.config), old.addresses.clone());
        fleet.adopt(Arc::new(Generation { number: 2, config, addresses }));
        for (_, answer) in fleet.inspect() {
            assert_eq!(answer.await.unwrap().in_flight, 7, "messages are taken in their order");
        }
        let adopted = |cells: &Arc<Cells>| cells.routes()[0].0 == "adopted-2";
        assert!(fleet.cells().iter().all(adopted));
        fleet.drain();
        for _ in 0..2 {
            let Some(News::Ended { worker }) = heard.recv().await else { panic!("both end") };
            fleet.workers[worker].state = State::Ended;
        }
        assert!(fleet.all_ended());
    }

    #[tokio::test]
    async fn what_a_dead_worker_counted_stays_counted() {
        let (mut fleet, mut heard) = fleet(1, mortal).await;
        for lives in 1..=2 {
            let news = heard.recv().await;
            assert!(matches!(news, Some(News::Died { worker: 0, .. })), "{news:?}");
            fleet.bury(0);
            let total: u64 = fleet.cells().iter().map(|c| c.connections_total.value()).sum();
            assert_eq!(total, 3 * lives);
            assert!(fleet.replace(0, Instant::from_nanos(lives)).unwrap());
        }
    }

    #[tokio::test]
    async fn workers_that_die_too_often_are_not_replaced() {
        let (mut fleet, _heard) = fleet(1, obedient).await;
        let second = |n: u64| Instant::from_nanos(n * 1_000_000_000);
        for n in 0..REPLACEMENTS_MAX as u64 {
            fleet.bury(0);
            assert!(fleet.replace(0, second(n)).unwrap());
        }
        assert!(!fleet.replace(0, second(59)).unwrap(), "the eleventh within a minute");
        assert!(fleet.replace(0, second(60)).unwrap(), "the first is a minute ago");
    }
}
