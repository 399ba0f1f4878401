//! Reads of what will be there in a moment.
//!
//! A read that is handed in before its bytes have come costs twice: the kernel tries, finds nothing,
//! registers, is woken and tries again. A worker with much to do comes back a turn later, when most
//! of what it waits for has come, and receives it by a direct call, which is less than any operation
//! of a ring. What is not there after a few looks is handed in after all. A worker with little to do,
//! or one that waits for who takes longer, hands in at once.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Poll, Waker};

use super::awake::Ready;
use super::pump::Slot;

/// The reads of one worker that are late.
#[derive(Debug)]
pub(super) struct Late {
    list: RefCell<List>,
    ready: Ready,
}

#[derive(Debug, Default)]
struct List {
    waiting: Vec<Entry>,
    gate: Gate,
    /// Who looks after them, when there were none.
    idle: Option<Waker>,
}

/// A read, and how often nothing was there.
type Entry = (Rc<Slot>, u8);

/// What was not there so many times is handed in.
const LOOKS: u8 = 3;

/// Whether reads are late.
#[derive(Debug)]
struct Gate {
    open: bool,
    /// Reads that could be late, in this turn.
    asked: usize,
    /// So many turns with few of them have gone by.
    calm: u8,
    /// So many more looks may be in vain.
    patience: u16,
    /// So many more reads are handed in before one tells whether the worker is busy.
    until_told: u16,
}

/// A worker with so many reads in one turn is busy,
const CROWD: usize = 4;

/// and is not any more after so many turns with fewer.
const CALM: u8 = 8;

/// While nothing is late, one read of so many tells how many there are in its turn;
const TELLS: u16 = 16;

/// and of so many, when too many looks were in vain: whom the worker waits for takes longer.
const TELLS_RARELY: u16 = 1000;

const PATIENCE: u16 = 64;

/// A look that finds something makes up for so many in vain: it saves four times what one costs.
const FOUND: u16 = 3;

impl Default for Gate {
    fn default() -> Self {
        Self { open: false, asked: 0, calm: 0, patience: PATIENCE, until_told: 0 }
    }
}

impl Gate {
    /// Whether this read is to be late.
    fn ask(&mut self) -> bool {
        self.asked += 1;
        if self.open {
            return true;
        }
        let tells = self.until_told == 0;
        if tells {
            // It counts those of its turn that come behind it.
            (self.asked, self.until_told) = (1, TELLS);
        }
        self.until_told -= 1;
        tells
    }

    /// A turn with late reads is over. Whether they are looked after in the next one.
    fn turn(&mut self) -> bool {
        let few = std::mem::take(&mut self.asked) < CROWD;
        self.calm = if few { self.calm.saturating_add(1) } else { 0 };
        // One that was closed opens for a crowd alone.
        let busy = if self.open { self.calm < CALM } else { !few };
        if self.patience == 0 {
            (self.patience, self.until_told) = (PATIENCE, TELLS_RARELY);
            self.open = false;
        } else {
            self.open = busy;
        }
        self.open
    }

    const fn looked(&mut self, found: bool) {
        self.patience = match found {
            true if self.patience + FOUND < PATIENCE => self.patience + FOUND,
            true => PATIENCE,
            false => self.patience.saturating_sub(1),
        };
    }
}

thread_local! {
    static HERE: RefCell<Option<Rc<Late>>> = const { RefCell::new(None) };
}

/// While it lives, reads of this thread may be late.
#[derive(Debug)]
pub(super) struct Reign(());

impl Late {
    /// # Errors
    /// When there are no descriptors.
    pub(super) fn new() -> io::Result<Rc<Self>> {
        Ok(Rc::new(Self { list: RefCell::default(), ready: Ready::new()? }))
    }

    pub(super) fn reign(self: &Rc<Self>) -> Reign {
        HERE.set(Some(Rc::clone(self)));
        Reign(())
    }

    /// Look after late reads, for good.
    pub(super) async fn run(&self) {
        let mut turn = Vec::new();
        loop {
            self.some().await;
            let open = self.list.borrow_mut().gate.turn();
            if open {
                self.ready.turn().await;
            }
            std::mem::swap(&mut self.list.borrow_mut().waiting, &mut turn);
            for (slot, missed) in turn.drain(..) {
                match open {
                    true => self.look(slot, missed),
                    false => slot.be_late_no_more(),
                }
            }
        }
    }

    /// Wait until there are some.
    async fn some(&self) {
        poll_fn(|cx| {
            let mut list = self.list.borrow_mut();
            if !list.waiting.is_empty() {
                return Poll::Ready(());
            }
            list.idle = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    fn look(&self, slot: Rc<Slot>, missed: u8) {
        let found = slot.look();
        let mut list = self.list.borrow_mut();
        list.gate.looked(found);
        match missed + 1 {
            _ if found => {}
            missed @ ..LOOKS => list.waiting.push((slot, missed)),
            LOOKS.. => {
                drop(list);
                slot.be_late_no_more();
            }
        }
    }

    fn list(&self, slot: &Rc<Slot>) -> bool {
        let mut list = self.list.borrow_mut();
        if !list.gate.ask() {
            return false;
        }
        list.waiting.push((Rc::clone(slot), 0));
        let idle = list.idle.take();
        drop(list);
        if let Some(idle) = idle {
            idle.wake();
        }
        true
    }
}

/// Let this read be late. False: it is to be handed in at once.
pub(super) fn list(slot: &Rc<Slot>) -> bool {
    HERE.with_borrow(|here| here.as_ref().is_some_and(|late| late.list(slot)))
}

impl Drop for Reign {
    fn drop(&mut self) {
        HERE.set(None);
    }
}

#[cfg(test)]
mod tests;
