//! One core, one runtime, one `Policy`, one set of pools.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use crossbeam::channel::{Receiver, Sender};
use sluice_config::Config;
use sluice_policy::ledger::Ledger;
use sluice_policy::plan::EndpointKey;
use sluice_policy::world::Snapshot;

use crate::clock::Clock;
use crate::observe::cells::Cells;
use crate::observe::journal::JournalSender;
use crate::runtime::{Driver, Fallen, Wanted};

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
    pub(crate) ledger: Arc<Ledger>,
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

    pub(crate) fn send(&self, message: Message) {
        // A dead worker takes no messages; its successor has a mailbox of its own.
        if self.messages.send(message).is_ok() {
            // Full means: it was rung already and has not looked yet.
            let _ = std::io::Write::write(&mut &self.bell, &[1]);
        }
    }
}

/// Run a worker to its end, on the calling thread. Does not return.
pub(crate) fn run(seat: Seat) -> ! {
    drop(seat);
    todo!()
}
