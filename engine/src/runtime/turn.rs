//! Letting others have their turn.
//!
//! A task that always finds its sockets ready never waits, and so never lets the driver look after
//! anybody else. Waking itself would not do: a worker with a task to run does not ask the driver,
//! and its timers stand still. So who has had enough rings a bell of the worker's own and waits
//! until the driver has heard it, behind everything else that it has heard.

use std::cell::{Cell, OnceCell, RefCell};
use std::future::poll_fn;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::task::{Poll, Waker};

use super::{Bell, Driver};

/// So many bytes are enough for one turn: what a worker moves in some 15 µs, which is what each of
/// the others then waits for. Larger turns move bytes for no less (docs/performance.md).
pub(super) const BURST: u64 = 64 * 1024;

/// What one task has had since it last gave way.
#[derive(Debug, Default)]
pub(crate) struct Share {
    bytes: u64,
}

impl Share {
    /// It has moved so much, and gives way when that was enough.
    pub(crate) async fn spend(&mut self, turns: &Turns, bytes: u64) {
        self.bytes += bytes;
        if self.bytes >= BURST {
            self.bytes = 0;
            turns.pass().await;
        }
    }
}

/// One worker's queue of those who wait for their next turn.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    bell: OnceCell<UnixStream>,
    waiting: RefCell<Vec<Waker>>,
    round: Cell<u64>,
}

impl Turns {
    /// Begin. Whoever calls has to [`Self::go_round`] each time the bell is rung.
    ///
    /// # Errors
    /// When there are no descriptors.
    pub(crate) fn start(&self, driver: Driver) -> io::Result<Bell> {
        let (here, there) = UnixStream::pair()?;
        there.set_nonblocking(true)?;
        let bell = Bell::new(here, driver)?;
        let _ = self.bell.set(there);
        Ok(bell)
    }

    /// Those who wait go on.
    pub(crate) fn go_round(&self) {
        self.round.set(self.round.get().wrapping_add(1));
        for waker in self.waiting.take() {
            waker.wake();
        }
    }

    /// Wait until everything that is ready now has been looked at.
    pub(crate) async fn pass(&self) {
        let round = self.round.get();
        poll_fn(|cx| {
            if self.round.get() != round || !self.ring() {
                return Poll::Ready(());
            }
            self.waiting.borrow_mut().push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// False: nobody would hear it.
    fn ring(&self) -> bool {
        let Some(mut bell) = self.bell.get() else { return false };
        !self.waiting.borrow().is_empty() || bell.write(&[1]).is_ok()
    }
}
