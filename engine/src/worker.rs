//! One core, one runtime, one `Policy`, one set of pools: what a worker is given, what it is told,
//! and its life.

pub(crate) mod descriptors;
mod state;
mod vigil;
mod wake;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crossbeam::channel::{Receiver, Sender};
use sluice_config::Config;
use sluice_policy::degrade::Switches;
use sluice_policy::ledger::Ledger;
use sluice_policy::plan::{EndpointKey, RouteKey};
use sluice_policy::world::Snapshot;

use crate::accept;
use crate::clock::Clock;
use crate::observe::cells::Cells;
use crate::observe::journal::JournalSender;
use crate::runtime::{self, Awake, Bell, Chime, Driver, Fallen, Listener, Readiness, Wanted};

use descriptors::Share;
pub(crate) use state::{Current, Worker};
pub(crate) use wake::Wake;

/// One version of the configuration, with what only the control thread can find out.
#[derive(Debug)]
pub(crate) struct Generation {
    /// Counts reloads; the first is 1.
    pub(crate) number: u64,
    pub(crate) config: Arc<Config>,
    /// Where each endpoint is, in the order to be tried.
    pub(crate) addresses: BTreeMap<EndpointKey, Vec<SocketAddr>>,
}

/// What a worker is given at its start.
#[derive(Debug)]
pub(crate) struct Seat {
    pub(crate) index: usize,
    /// The core to stay on; None: wherever the kernel likes.
    pub(crate) core: Option<core_affinity::CoreId>,
    pub(crate) wanted: Wanted,
    /// This worker's own listening sockets (SO_REUSEPORT).
    pub(crate) listeners: Vec<std::net::TcpListener>,
    pub(crate) generation: Arc<Generation>,
    pub(crate) share: Share,
    pub(crate) ledger: Arc<Ledger>,
    /// Rung when a request waits for the store of shared counts.
    pub(crate) wake: Arc<Wake>,
    pub(crate) clock: Clock,
    pub(crate) cells: Arc<Cells>,
    pub(crate) journal: JournalSender,
    pub(crate) inbox: Inbox,
    pub(crate) news: tokio::sync::mpsc::UnboundedSender<News>,
}

/// From the control thread to a worker.
#[derive(Debug)]
pub(crate) enum Message {
    /// Judge new requests by this.
    Adopt(Arc<Generation>),
    /// These endpoints, and no others, are out by their health.
    Vitals(Arc<[EndpointKey]>),
    /// This, and nothing else, is switched by hand.
    Switches(Arc<Switches>),
    /// Forget what was kept of that route's responses, or of all routes'.
    Purge(Option<RouteKey>),
    /// Accept no more; end when the last connection has ended.
    Drain,
    /// Tell what you know.
    Inspect(tokio::sync::oneshot::Sender<Snapshot>),
}

/// From a worker to the control thread.
#[derive(Debug)]
pub(crate) enum News {
    /// It runs, on this driver; these were not to be had.
    Started { worker: usize, driver: Driver, fallen: Vec<Fallen> },
    /// It could not start.
    Refused { worker: usize, why: String },
    /// Drained: its last connection has ended. Its thread sleeps until the process ends.
    Ended { worker: usize },
    /// It panicked. Its thread sleeps until the process ends; start another in its place.
    Died { worker: usize, why: String },
}

/// The control thread's way to a worker.
#[derive(Debug)]
pub(crate) struct Mailbox {
    messages: Sender<Message>,
    bell: UnixStream,
}

/// The worker's end of its mailbox.
#[derive(Debug)]
pub(crate) struct Inbox {
    pub(crate) messages: Receiver<Message>,
    pub(crate) bell: UnixStream,
}

impl Mailbox {
    /// # Errors
    /// When no descriptors are left.
    pub(crate) fn new() -> std::io::Result<(Self, Inbox)> {
        let (sender, receiver) = crossbeam::channel::unbounded();
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        Ok((Self { messages: sender, bell: ours }, Inbox { messages: receiver, bell: theirs }))
    }

    /// For somebody else who rings it.
    ///
    /// # Errors
    /// When no descriptors are left.
    pub(crate) fn bell(&self) -> std::io::Result<UnixStream> {
        self.bell.try_clone()
    }

    pub(crate) fn send(&self, message: Message) {
        // A dead worker takes no messages; its successor has a mailbox of its own.
        if self.messages.send(message).is_ok() {
            // Full means: it was rung already and has not looked yet.
            let _ = std::io::Write::write(&mut &self.bell, &[1]);
        }
    }
}

/// While draining, a connection that has been idle this long is closed. Any request that comes
/// before is answered, and told that it was the last.
const DRAIN_IDLE: Duration = Duration::from_secs(1);

/// Run a worker on the calling thread, for good: when it has ended, its thread sleeps until the
/// process does, because a runtime must not go while the kernel may still write to its buffers.
pub(crate) fn run(seat: Seat) -> ! {
    if let Some(core) = seat.core {
        core_affinity::set_for_current(core);
    }
    let (news, index, wanted) = (seat.news.clone(), seat.index, seat.wanted);
    let ran = runtime::block_on(wanted, |driver, fallen| live(seat, driver, fallen));
    if let Err(fallen) = ran {
        let why: Vec<_> =
            fallen.iter().map(|f| format!("{}: {}", f.driver.name(), f.why)).collect();
        tell(&news, News::Refused { worker: index, why: why.join("; ") });
    }
    loop {
        std::thread::park();
    }
}

async fn live(seat: Seat, driver: Driver, fallen: Vec<Fallen>) {
    let (news, index) = (seat.news.clone(), seat.index);
    let died = |why: String| News::Died { worker: index, why };
    let end = match begin(seat, driver) {
        Ok((worker, errands)) => {
            tell(&news, News::Started { worker: index, driver, fallen });
            match runtime::first(errands).await {
                Ok(()) => News::Ended { worker: index },
                Err(panic) => {
                    // Its connections go on as they can; new ones are its successor's.
                    worker.stop.stop();
                    worker.retire();
                    died(panic)
                }
            }
        }
        Err(e) => News::Refused { worker: index, why: e.to_string() },
    };
    tell(&news, end);
    // Connections that were cut short by the end stay where they are until the process ends.
    std::future::pending().await
}

fn tell(news: &tokio::sync::mpsc::UnboundedSender<News>, item: News) {
    // The control thread outlives its workers; without it there is nobody to tell.
    let _ = news.send(item);
}

/// Start everything that a worker does beside serving connections.
fn begin(seat: Seat, driver: Driver) -> std::io::Result<(Rc<Worker>, Vec<Errand>)> {
    let Seat { listeners, inbox, .. } = &seat;
    let mut bell = Bell::new(inbox.bell.try_clone()?, driver)?;
    let messages = inbox.messages.clone();
    let listeners: Vec<_> = listeners
        .iter()
        .map(|listener| Listener::new(listener.try_clone()?, driver))
        .collect::<Result<_, _>>()?;
    let worker = Worker::new(seat);
    let mut errands = Vec::new();
    for listener in listeners.into_iter().map(Rc::new) {
        for _ in 0..listener.accepts() {
            // An accept loop that has stopped is no end: connections go on.
            let accepting = accept::accept(Rc::clone(&worker), Rc::clone(&listener));
            errands.push(runtime::supervised(async move {
                accepting.await;
                std::future::pending().await
            }));
        }
    }
    let ready = Rc::new(Readiness::new()?);
    worker.resting.start(&ready);
    let resting = Rc::clone(&worker);
    errands.push(runtime::supervised(async move {
        let mut tokens = Vec::new();
        loop {
            ready.some(&mut tokens).await;
            resting.resting.wake(&resting, &mut tokens);
        }
    }));
    let chime = Chime::new(driver)?;
    let turning = Rc::clone(&worker);
    errands.push(runtime::supervised(async move {
        turning.turns.run(chime).await;
        std::future::pending().await
    }));
    let awake = Awake::new(driver)?;
    let watching = Rc::clone(&worker);
    errands.push(runtime::supervised(async move {
        watching.keep_vigil(awake).await;
        std::future::pending().await
    }));
    let told = Rc::clone(&worker);
    errands.push(runtime::supervised(async move {
        while bell.rung().await {
            for message in messages.try_iter() {
                told.told(message);
            }
            told.waiting.go_on();
        }
        std::future::pending().await
    }));
    let ticked = Rc::clone(&worker);
    errands.push(runtime::supervised(async move {
        loop {
            let span = ticked.next_tick().await;
            if ticked.tick(span) {
                return;
            }
        }
    }));
    Ok((worker, errands))
}

/// A task that a worker can't do without.
type Errand = runtime::Task<Result<(), String>>;
