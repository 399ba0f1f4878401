//! The control loop: hears the workers, the signals and the admin API, and does what they call
//! for.

use std::convert::Infallible;
use std::future::pending;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use metrics::{counter, gauge};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::Sleep;

use super::banner::{self, banner};
use super::desk::{Ask, Desk, Phase};
use super::ears::{Ears, Sign};
use super::fleet::State;
use super::notify;
use super::reload::{Reloads, obstacle};
use super::socket::SocketFile;
use super::source::{Loaded, Source};
use crate::clock;
use crate::event::event;
use crate::exit::{Exit, Failure, reason};
use crate::observe::exposition::{CONFIG_CURRENT, RELOADS, WORKER_RESTARTS};
use crate::observe::writer::{Pen, Sink};
use crate::store::Setting;
use crate::worker::{Generation, News};

/// What the loop listens to.
#[derive(Debug)]
pub(crate) struct Inputs {
    pub(crate) ears: Ears,
    /// Both ends: a worker that can't be replaced now is announced as dead again later.
    pub(crate) news: Channel<News>,
    pub(crate) asked: mpsc::UnboundedReceiver<Ask>,
}

/// Unbounded, because what comes through is bounded: a few messages a worker, one reload.
type Channel<T> = (mpsc::UnboundedSender<T>, mpsc::UnboundedReceiver<T>);

type Told = oneshot::Sender<Result<u64, Failure>>;

#[derive(Debug)]
pub(crate) struct Steward {
    desk: Arc<Desk>,
    inputs: Inputs,
    pen: Pen,
    source: Source,
    file: SocketFile,
    /// Said once, before `ready`.
    notes: String,
    reloads: Reloads<Told>,
    /// From the task that reads the configuration to the loop.
    loads: Channel<Result<Loaded, Failure>>,
    /// Set while draining.
    deadline: Option<Pin<Box<Sleep>>>,
    /// Drained; what is held of shared counts is on its way back.
    parting: Option<JoinHandle<()>>,
}

/// How long the last log lines may take to be written.
const FLUSH: Duration = Duration::from_secs(5);

/// Before a worker that could not be replaced is tried again.
const REPLACE_AGAIN: Duration = Duration::from_secs(1);

impl Steward {
    pub(crate) fn new(
        desk: Arc<Desk>,
        inputs: Inputs,
        pen: Pen,
        source: Source,
        file: SocketFile,
        notes: String,
    ) -> Self {
        let (reloads, loads) = (Reloads::new(), mpsc::unbounded_channel());
        Self {
            desk,
            inputs,
            pen,
            source,
            file,
            notes,
            reloads,
            loads,
            deadline: None,
            parting: None,
        }
    }

    /// Until the process ends.
    pub(crate) async fn serve(mut self) -> Infallible {
        loop {
            tokio::select! {
                Some(news) = self.inputs.news.1.recv() => self.hear(news),
                sign = self.inputs.ears.next() => self.heed(sign),
                Some(Ask::Reload(tell)) = self.inputs.asked.recv() => self.reload(Some(tell)),
                Some(loaded) = self.loads.1.recv() => self.take_up(loaded),
                () = over(&mut self.deadline) => self.cut_short(),
                () = parted(&mut self.parting) => self.leave(Exit::Done),
            }
        }
    }

    fn phase(&self) -> Phase {
        self.desk.standing().phase
    }

    fn hear(&mut self, news: News) {
        match news {
            News::Started { worker, driver, fallen } => {
                if self.phase() != Phase::Starting {
                    event!("worker_replaced", worker = worker, driver = driver.name());
                }
                self.settle(worker, State::Running { driver, fallen });
            }
            News::Refused { worker, why } => match self.phase() {
                Phase::Starting => {
                    eprintln!("error: worker {worker} could not start: {why}");
                    self.leave(Exit::Failed);
                }
                Phase::Serving | Phase::Draining => self.replace(worker, &why),
            },
            News::Ended { worker } => self.settle(worker, State::Ended),
            News::Died { worker, why } => self.replace(worker, &why),
        }
    }

    fn settle(&mut self, index: usize, state: State) {
        let (all_running, all_ended) = {
            let mut fleet = self.desk.fleet();
            if let Some(worker) = fleet.workers.get_mut(index) {
                worker.state = state;
            }
            (fleet.all_running(), fleet.all_ended())
        };
        match self.phase() {
            Phase::Starting if all_running => self.open(),
            Phase::Draining if all_ended => {
                event!("drained");
                self.parting = Some(tokio::spawn(self.desk.store.clone().farewell()));
            }
            Phase::Starting | Phase::Serving | Phase::Draining => {}
        }
    }

    /// Every worker runs.
    fn open(&mut self) {
        let text = {
            let fleet = self.desk.fleet();
            let mut standing = self.desk.standing();
            standing.phase = Phase::Serving;
            let facts = banner::Facts {
                source: &standing.source,
                number: fleet.generation().number,
                listeners: fleet.addresses(),
                admin: standing.admin,
                control: self.file.path(),
            };
            banner(&facts, &fleet)
        };
        gauge!(CONFIG_CURRENT).set(1);
        eprintln!("{text}{}ready", std::mem::take(&mut self.notes));
        notify::ready();
    }

    fn replace(&mut self, index: usize, why: &str) {
        event!("worker_died", worker = index, why = why);
        self.desk.fleet().bury(index);
        if self.phase() == Phase::Draining {
            return self.settle(index, State::Ended);
        }
        self.desk.standing().restarts += 1;
        counter!(WORKER_RESTARTS).increment(1);
        let replaced = self.desk.fleet().replace(index, self.desk.clock.at());
        match replaced {
            Ok(true) => {}
            Ok(false) => {
                event!("workers_die_too_often");
                self.leave(Exit::Failed);
            }
            Err(e) => {
                let news = self.inputs.news.0.clone();
                let why = format!("no successor: {}", reason(&e));
                tokio::spawn(async move {
                    tokio::time::sleep(REPLACE_AGAIN).await;
                    let _ = news.send(News::Died { worker: index, why });
                });
            }
        }
    }

    fn heed(&mut self, sign: Sign) {
        match sign {
            Sign::Stop => self.stop(),
            Sign::Reload => self.reload(None),
            Sign::ReopenLogs => self.pen.reopen(),
            Sign::Upgrade => event!("upgrade_refused", why = "this version has none"),
        }
    }

    fn stop(&mut self) {
        let (connections, in_flight, drain) = {
            let fleet = self.desk.fleet();
            (fleet.connections(), fleet.in_flight(), fleet.generation().config.server.drain)
        };
        if self.phase() == Phase::Draining {
            event!("stopped", connections = connections, in_flight = in_flight);
            self.leave(if in_flight > 0 { Exit::Failed } else { Exit::Done });
        }
        event!("draining", connections = connections, in_flight = in_flight);
        self.desk.standing().phase = Phase::Draining;
        notify::stopping();
        self.deadline = Some(Box::pin(tokio::time::sleep(drain)));
        self.desk.fleet().drain();
    }

    /// The drain took too long.
    fn cut_short(&mut self) {
        let fleet = self.desk.fleet();
        let (connections, in_flight) = (fleet.connections(), fleet.in_flight());
        event!("drain_timed_out", connections = connections, in_flight = in_flight);
        drop(fleet);
        self.leave(Exit::Done);
    }

    fn reload(&mut self, tell: Option<Told>) {
        let phase = self.phase();
        if phase == Phase::Serving {
            if self.reloads.ask(tell) {
                self.load();
            }
            return;
        }
        let text = format!("no reload while {}", phase.name());
        event!("reload_refused", why = text);
        if let Some(tell) = tell {
            let _ = tell.send(Err(Failure::new(Exit::Failed, text)));
        }
    }

    fn load(&self) {
        notify::reloading();
        let (source, loads) = (self.source.clone(), self.loads.0.clone());
        tokio::spawn(async move {
            let _ = loads.send(source.load(false).await);
        });
    }

    /// A reload has been read: adopt it whole, or not at all.
    fn take_up(&mut self, loaded: Result<Loaded, Failure>) {
        let outcome = loaded.and_then(|loaded| self.adopt(loaded));
        match &outcome {
            Ok(number) => event!("reloaded", version = number),
            Err(failure) => event!("reload_refused", why = failure.text),
        }
        let result = if outcome.is_ok() { "adopted" } else { "refused" };
        counter!(RELOADS, "result" => result).increment(1);
        gauge!(CONFIG_CURRENT).set(u8::from(outcome.is_ok()));
        self.desk.standing().refused =
            outcome.as_ref().err().map(|failure| (clock::since_1970(), failure.text.clone()));
        if self.phase() == Phase::Serving {
            notify::ready();
        }
        let settled = self.reloads.settle();
        for tell in settled.tell {
            let _ = tell.send(outcome.clone());
        }
        if settled.again {
            self.load();
        }
    }

    fn adopt(&mut self, loaded: Loaded) -> Result<u64, Failure> {
        let current = Arc::clone(self.desk.fleet().generation());
        if let Some(failure) = obstacle(&current.config, &loaded.config) {
            return Err(failure);
        }
        let to = &loaded.config.log.access.to;
        if self.pen.differs(to) {
            let sink = Sink::open(to).map_err(|e| Failure::io("access log", &e))?;
            self.pen.turn(to, sink);
        }
        if !loaded.warnings.is_empty() {
            event!("config_warnings", warnings = loaded.warnings);
        }
        let number = current.number + 1;
        let plan = Arc::clone(&loaded.config.plan);
        self.desk.store.adopt(Setting { plan, client: loaded.store });
        let generation = Generation { number, config: loaded.config, addresses: loaded.addresses };
        self.desk.adopt(Arc::new(generation));
        let mut standing = self.desk.standing();
        standing.token = loaded.token;
        standing.adopted = clock::since_1970();
        Ok(number)
    }

    /// End the process. The workers' runtimes are not dropped: whatever the kernel still does for
    /// them would be waited for, or lose its buffers.
    fn leave(&self, exit: Exit) -> ! {
        self.pen.finish(FLUSH);
        self.file.remove();
        std::process::exit(i32::from(exit.code()))
    }
}

async fn over(deadline: &mut Option<Pin<Box<Sleep>>>) {
    match deadline {
        Some(deadline) => deadline.await,
        None => pending().await,
    }
}

async fn parted(parting: &mut Option<JoinHandle<()>>) {
    match parting {
        // However it ended: there is nothing left to wait for.
        Some(parting) => drop(parting.await),
        None => pending().await,
    }
}

#[cfg(test)]
mod tests {
    use metrics_exporter_prometheus::PrometheusBuilder;
    use sluice_config::LogTarget;

    use super::super::fixture::{desk, fleet, two_die};
    use super::super::socket::{self, Place};
    use super::*;
    use crate::observe::journal::journal;

    #[tokio::test]
    async fn workers_that_die_are_replaced_and_counted() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let figures = recorder.handle();
        let _counted_here = metrics::set_default_local_recorder(&recorder);
        let (fleet, heard) = fleet(2, two_die).await;
        let news = fleet.news();
        let (desk, asked) = desk(fleet);
        let desk = Arc::new(desk);
        let (inputs, dir) = (
            Inputs { ears: Ears::open().unwrap(), news: (news, heard), asked },
            std::env::temp_dir().join(format!("sluice-steward-{}", std::process::id())),
        );
        let place = Place { path: dir.join("control.sock"), yields: false };
        let (_door, file) = socket::bind(&place).unwrap();
        let off = Sink::open(&LogTarget::Off).unwrap();
        let pen = Pen::start(journal().1, &LogTarget::Off, off).unwrap();
        let source = Source::Text { name: "test", text: String::new() };
        let steward = Steward::new(Arc::clone(&desk), inputs, pen, source, file, String::new());
        let serving = async {
            while desk.standing().phase != Phase::Serving {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            never = steward.serve() => match never {},
            served = tokio::time::timeout(Duration::from_secs(10), serving) => served.unwrap(),
        }
        std::fs::remove_dir_all(dir).unwrap();
        assert!(desk.fleet().all_running(), "each successor serves in its place");
        assert_eq!(desk.standing().restarts, 2);
        let text = figures.render();
        assert!(text.contains(&format!("{WORKER_RESTARTS} 2")), "{text}");
    }
}
