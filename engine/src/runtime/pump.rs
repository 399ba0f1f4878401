//! Reads of the driver's streams. A read, once begun, is never dropped: it lives in its [`Pump`].

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use monoio::buf::IoBufMut;
use monoio::io::{AsyncReadRent, CancelHandle, CancelableAsyncReadRent, Canceller};
use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::SPARE;
use super::late;
use super::socket::receive;

/// One box for the life of the connection instead of one for each read.
pub(super) struct Pump {
    slot: Rc<Slot>,
}

/// Where a reader and what reads for it meet.
pub(super) struct Slot {
    /// Not another's for as long as a late read is listed.
    fd: RawFd,
    /// Makes the reads. Held here, and by nobody else, so that a read which is late can be handed in
    /// without its task; it holds this slot, and so must be taken out in the end.
    future: RefCell<Option<Pin<Box<dyn Future<Output = ()>>>>>,
    /// To be read into this.
    wanted: Cell<Option<Vec<u8>>>,
    /// What came of it.
    done: Cell<Option<(io::Result<usize>, Vec<u8>)>>,
    armed: Cell<bool>,
    lateness: Cell<Lateness>,
    /// Who waits for a read that is late.
    waiter: Cell<Option<Waker>>,
    /// The right to have the pending read given up.
    giving_up: RefCell<Option<Canceller>>,
}

/// Whether a read has yet to be handed in ([`late`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Lateness {
    #[default]
    Not,
    /// It is to be, and nobody has waited for it yet.
    Wanted,
    Listed,
}

impl Pump {
    /// Reads `half`, of this descriptor.
    pub(super) fn new<H: AsyncReadRent + 'static>(fd: RawFd, half: H) -> Self {
        let slot = Rc::new(Slot::new(fd));
        slot.future.replace(Some(Box::pin(pump(half, Rc::clone(&slot)))));
        Self { slot }
    }

    /// One whose reads can be given up, at the price of keeping a list of them.
    pub(super) fn giving_up<H: CancelableAsyncReadRent + 'static>(fd: RawFd, half: H) -> Self {
        let slot = Rc::new(Slot::new(fd));
        slot.giving_up.replace(Some(Canceller::new()));
        slot.future.replace(Some(Box::pin(pump_given_up(half, Rc::clone(&slot)))));
        Self { slot }
    }

    pub(super) fn slot(&self) -> Rc<Slot> {
        Rc::clone(&self.slot)
    }

    pub(super) fn arm(&self, buffer: Vec<u8>) {
        self.slot.armed.set(true);
        self.slot.wanted.set(Some(buffer));
    }

    /// As [`Self::arm`]; a busy worker hands it in a few turns later, if it has to.
    pub(super) fn arm_late(&self, buffer: Vec<u8>) {
        self.arm(buffer);
        self.slot.lateness.set(Lateness::Wanted);
    }

    pub(super) fn armed(&self) -> bool {
        self.slot.armed.get()
    }

    /// The armed read.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<(io::Result<usize>, Vec<u8>)> {
        if self.slot.lateness.get() != Lateness::Not && self.is_late(cx) {
            return Poll::Pending;
        }
        // What was received directly.
        if let Some(done) = self.slot.done() {
            return Poll::Ready(done);
        }
        self.slot.hand_in(cx);
        self.slot.done().map_or(Poll::Pending, Poll::Ready)
    }

    fn is_late(&self, cx: &mut Context<'_>) -> bool {
        if self.slot.lateness.get() == Lateness::Wanted {
            if !late::list(&self.slot) {
                self.slot.lateness.set(Lateness::Not);
                return false;
            }
            self.slot.lateness.set(Lateness::Listed);
        }
        let waiter = self.slot.waiter.take().filter(|waiter| waiter.will_wake(cx.waker()));
        self.slot.waiter.set(waiter.or_else(|| Some(cx.waker().clone())));
        true
    }
}

impl Drop for Pump {
    fn drop(&mut self) {
        // The descriptor may be another's from here on.
        self.slot.lateness.set(Lateness::Not);
        let future = self.slot.future.take();
        drop(future);
    }
}

impl Slot {
    fn new(fd: RawFd) -> Self {
        Self {
            fd,
            future: RefCell::default(),
            wanted: Cell::default(),
            done: Cell::default(),
            armed: Cell::default(),
            lateness: Cell::default(),
            waiter: Cell::default(),
            giving_up: RefCell::default(),
        }
    }

    /// Receive what this late read waits for. False: nothing was there.
    pub(super) fn look(&self) -> bool {
        if self.lateness.get() != Lateness::Listed {
            return true;
        }
        let Some(mut buffer) = self.wanted.take() else { return true };
        // SAFETY: a reader holds on to its socket, and takes the read off the list when it goes.
        let socket = unsafe { BorrowedFd::borrow_raw(self.fd) };
        match receive(socket, &mut buffer, RecvFlags::DONTWAIT) {
            Err(Errno::AGAIN | Errno::INTR) => {
                self.wanted.set(Some(buffer));
                false
            }
            received => {
                self.end_late(received.map(|it| it.bytes).map_err(Into::into), buffer);
                true
            }
        }
    }

    /// Leave this late read to the driver.
    pub(super) fn be_late_no_more(&self) {
        if self.lateness.replace(Lateness::Not) == Lateness::Listed
            && let Some(waiter) = self.waiter.take()
        {
            self.hand_in(&mut Context::from_waker(&waiter));
        }
    }

    fn end_late(&self, result: io::Result<usize>, buffer: Vec<u8>) {
        self.lateness.set(Lateness::Not);
        self.done.set(Some((result, buffer)));
        if let Some(waiter) = self.waiter.take() {
            waiter.wake();
        }
    }

    fn hand_in(&self, cx: &mut Context<'_>) {
        if let Some(future) = &mut *self.future.borrow_mut()
            && future.as_mut().poll(cx).is_ready()
        {
            debug_assert!(false, "the pump never ends");
        }
    }

    fn done(&self) -> Option<(io::Result<usize>, Vec<u8>)> {
        let done = self.done.take();
        if done.is_some() {
            self.armed.set(false);
        }
        done
    }
}

async fn pump<H: AsyncReadRent>(mut half: H, slot: Rc<Slot>) {
    loop {
        let buffer = slot.wanted().await;
        let (from, to) = (buffer.len(), buffer.capacity().saturating_sub(SPARE));
        let (result, part) = half.read(buffer.slice_mut(from..to)).await;
        slot.done.set(Some((result, part.into_inner())));
    }
}

/// As [`pump`], for reads that can be given up.
async fn pump_given_up<H: CancelableAsyncReadRent>(mut half: H, slot: Rc<Slot>) {
    loop {
        let buffer = slot.wanted().await;
        let Some(handle) = slot.handle() else { return };
        let (from, to) = (buffer.len(), buffer.capacity().saturating_sub(SPARE));
        let (result, part) = half.cancelable_read(buffer.slice_mut(from..to), handle).await;
        slot.done.set(Some((result, part.into_inner())));
    }
}

impl Slot {
    async fn wanted(&self) -> Vec<u8> {
        poll_fn(|_| match self.wanted.take() {
            Some(buffer) => Poll::Ready(buffer),
            // Nobody waits here: whoever arms also polls.
            None => Poll::Pending,
        })
        .await
    }

    fn handle(&self) -> Option<CancelHandle> {
        self.giving_up.borrow().as_ref().map(Canceller::handle)
    }

    pub(super) fn give_up(&self) {
        if self.lateness.get() == Lateness::Listed {
            // It has not begun.
            if let Some(buffer) = self.wanted.take() {
                self.end_late(Err(Errno::CANCELED.into()), buffer);
            }
            return;
        }
        let mut giving_up = self.giving_up.borrow_mut();
        if let Some(canceller) = giving_up.take() {
            *giving_up = Some(canceller.cancel());
        }
    }
}

impl fmt::Debug for Pump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pump").field("slot", &self.slot).finish_non_exhaustive()
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot").field("armed", &self.armed).finish_non_exhaustive()
    }
}
