//! Reads of the driver's streams. A read, once begun, is never dropped: it lives in its [`Pump`].

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use monoio::buf::IoBufMut;
use monoio::io::{AsyncReadRent, CancelHandle, CancelableAsyncReadRent, Canceller};

use super::SPARE;

/// One box for the life of the connection instead of one for each read.
pub(super) struct Pump {
    future: Pin<Box<dyn Future<Output = ()>>>,
    slot: Rc<Slot>,
}

/// Where a reader and its pump meet.
#[derive(Default)]
pub(super) struct Slot {
    /// Handed to the pump: read into this.
    wanted: Cell<Option<Vec<u8>>>,
    /// Handed back by the pump.
    done: Cell<Option<(io::Result<usize>, Vec<u8>)>>,
    armed: Cell<bool>,
    /// The right to have the pending read given up.
    giving_up: RefCell<Option<Canceller>>,
}

impl Pump {
    pub(super) fn new<H: AsyncReadRent + 'static>(half: H) -> Self {
        let slot = Rc::new(Slot::default());
        Self { future: Box::pin(pump(half, Rc::clone(&slot))), slot }
    }

    /// One whose reads can be given up, at the price of keeping a list of them.
    pub(super) fn giving_up<H: CancelableAsyncReadRent + 'static>(half: H) -> Self {
        let slot = Rc::new(Slot::default());
        slot.giving_up.replace(Some(Canceller::new()));
        Self { future: Box::pin(pump_given_up(half, Rc::clone(&slot))), slot }
    }

    pub(super) fn slot(&self) -> Rc<Slot> {
        Rc::clone(&self.slot)
    }

    pub(super) fn arm(&self, buffer: Vec<u8>) {
        self.slot.armed.set(true);
        self.slot.wanted.set(Some(buffer));
    }

    pub(super) fn armed(&self) -> bool {
        self.slot.armed.get()
    }

    /// The armed read.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<(io::Result<usize>, Vec<u8>)> {
        if self.future.as_mut().poll(cx).is_ready() {
            debug_assert!(false, "the pump never ends");
        }
        match self.slot.done.take() {
            Some(done) => {
                self.slot.armed.set(false);
                Poll::Ready(done)
            }
            None => Poll::Pending,
        }
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
