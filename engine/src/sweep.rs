//! One coarse sweeper a worker for every deadline on a socket.
//!
//! A deadline passed shuts the socket, which makes the pending read or write return; nothing is
//! dropped half-way, and moving a deadline costs a store instead of a timer. A wheel of slots a
//! tick apart; an entry found too early is put forward to where it is due by then.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::net::Shutdown;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use sluice_policy::time::Instant;

use crate::runtime::{self, Shutter};

/// A deadline is kept to within two of these; between requests, where a worker may doze, to within
/// [`DOZE`].
pub(crate) const TICK: Duration = Duration::from_nanos(1 << TICK_BITS);

const TICK_BITS: u32 = 24;

/// The wheel spans 17 s; what is due later comes by again.
const SLOTS: usize = 1024;

/// All deadlines of one worker.
#[derive(Debug)]
pub(crate) struct Sweeper {
    wheel: RefCell<Wheel>,
    pulse: Cell<Pulse>,
    /// Ticks since a deadline was last set.
    quiet: Cell<u32>,
    dozer: RefCell<Option<Waker>>,
}

/// Whether deadlines are being set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pulse {
    /// Not since the last tick.
    Quiet,
    Busy,
    /// Not for so long that the next tick is far off.
    Dozing,
}

/// Nobody has set a deadline for so many ticks, about a second: the worker dozes.
const DOZE_AFTER: u32 = 64;

/// The ticks of a worker that dozes: sixty a second would be half a per cent of its core.
const DOZE: Duration = Duration::from_millis(250);

/// And with no deadline at all, unless somebody at rest is due before.
const SLEEP: Duration = Duration::from_secs(1);

/// One socket's deadline. Dropped: no deadline any more.
#[derive(Debug)]
pub(crate) struct Watch {
    sweeper: Rc<Sweeper>,
    index: u32,
}

/// What the socket waits for, and so what passing the deadline does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Until {
    /// Between requests: shut both ways. A drain may do so early.
    Idle,
    /// A read that is waited for: shut for reading, so that a reply can still be written.
    Read,
    /// Anything else: shut both ways.
    Both,
    /// Whether a client says anything soon: give up its read.
    Rest,
    /// Somebody who is patient so long: wake whoever waits.
    Waits,
}

#[derive(Debug)]
struct Wheel {
    entries: Vec<Entry>,
    free: Vec<u32>,
    slots: Vec<Vec<Ticket>>,
    /// Ticks up to here have been swept.
    swept: u64,
}

#[derive(Debug)]
struct Entry {
    /// Told apart from the entry that had this place before.
    generation: u32,
    /// Tick; NEVER: no deadline.
    due: u64,
    /// The tick of the ticket in the wheel; NEVER: none.
    ticket: u64,
    until: Until,
    /// The tick at which the deadline was set.
    set: u64,
    fired: bool,
    shutter: Option<Shutter>,
    waiter: Option<Waker>,
}

#[derive(Clone, Copy, Debug)]
struct Ticket {
    index: u32,
    generation: u32,
}

const NEVER: u64 = u64::MAX;

impl Sweeper {
    pub(crate) fn new(now: Instant) -> Rc<Self> {
        let wheel = Wheel {
            entries: Vec::new(),
            free: Vec::new(),
            slots: vec![Vec::new(); SLOTS],
            swept: tick(now),
        };
        Rc::new(Self {
            wheel: RefCell::new(wheel),
            pulse: Cell::new(Pulse::Quiet),
            quiet: Cell::new(0),
            dozer: RefCell::default(),
        })
    }

    /// Wait for the next tick, and say how far off it was to be. A worker whose ticks are far apart
    /// wakes at once when it is roused. `serves`: requests are in progress, whose deadlines are not
    /// to be missed however long ago they were set. `rest`: for so long nobody at rest is due.
    pub(crate) async fn next_tick(&self, serves: bool, rest: Duration) -> Duration {
        let quiet = match self.pulse.replace(Pulse::Quiet) {
            Pulse::Quiet | Pulse::Dozing if !serves => self.quiet.get().saturating_add(1),
            Pulse::Quiet | Pulse::Dozing | Pulse::Busy => 0,
        };
        self.quiet.set(quiet);
        if quiet < DOZE_AFTER {
            runtime::sleep(TICK).await;
            return TICK;
        }
        self.pulse.set(Pulse::Dozing);
        let span = if self.wheel.borrow().is_empty() { SLEEP } else { DOZE };
        let span = rest.clamp(TICK, span);
        let mut timer = runtime::sleep(span);
        poll_fn(|cx| {
            if self.pulse.get() != Pulse::Dozing {
                return Poll::Ready(());
            }
            self.dozer.replace(Some(cx.waker().clone()));
            timer.as_mut().poll(cx)
        })
        .await;
        span
    }

    /// Something begins whose time is measured.
    pub(crate) fn rouse(&self) {
        if self.pulse.replace(Pulse::Busy) == Pulse::Dozing
            && let Some(dozer) = self.dozer.take()
        {
            dozer.wake();
        }
    }

    pub(crate) fn watch(self: &Rc<Self>, shutter: Shutter) -> Watch {
        let mut wheel = self.wheel.borrow_mut();
        let index = match wheel.free.pop() {
            Some(index) => {
                wheel.entries[index as usize].shutter = Some(shutter);
                index
            }
            None => {
                let index = u32::try_from(wheel.entries.len()).unwrap_or(u32::MAX);
                wheel.entries.push(Entry {
                    generation: 0,
                    due: NEVER,
                    ticket: NEVER,
                    until: Until::Both,
                    set: 0,
                    fired: false,
                    shutter: Some(shutter),
                    waiter: None,
                });
                index
            }
        };
        drop(wheel);
        Watch { sweeper: Rc::clone(self), index }
    }

    /// Shut every socket whose deadline has passed.
    pub(crate) fn sweep(&self, now: Instant) {
        let mut wheel = self.wheel.borrow_mut();
        let now = tick(now);
        // After a long stall one turn of the wheel visits every slot.
        let from = (wheel.swept + 1).max(now.saturating_sub(SLOTS as u64 - 1));
        for tick in from..=now {
            let mut tickets = std::mem::take(&mut wheel.slots[slot(tick)]);
            for ticket in tickets.drain(..) {
                wheel.visit(ticket, now);
            }
            // Keeps the slot's memory for the next turn, unless the slot was filled meanwhile.
            if wheel.slots[slot(tick)].is_empty() {
                wheel.slots[slot(tick)] = tickets;
            }
        }
        wheel.swept = wheel.swept.max(now);
    }

    /// Shut every socket that has been idle for `span`: a drain.
    pub(crate) fn sweep_idle(&self, now: Instant, span: Duration) {
        let span = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX) >> TICK_BITS;
        for entry in &mut self.wheel.borrow_mut().entries {
            let idle = entry.until == Until::Idle && entry.due != NEVER;
            if idle && entry.set.saturating_add(span) <= tick(now) {
                entry.fire();
            }
        }
    }
}

impl Wheel {
    /// Whether there is no deadline; one that was cleared is there until its tick has passed.
    fn is_empty(&self) -> bool {
        self.slots.iter().all(Vec::is_empty)
    }

    fn visit(&mut self, ticket: Ticket, now: u64) {
        let entry = &mut self.entries[ticket.index as usize];
        if entry.generation != ticket.generation {
            return;
        }
        entry.ticket = NEVER;
        if entry.due <= now {
            entry.fire();
        } else if entry.due != NEVER {
            self.put(ticket.index, now);
        }
    }

    fn put(&mut self, index: u32, now: u64) {
        let entry = &mut self.entries[index as usize];
        let at = entry.due.clamp(now + 1, now + SLOTS as u64 - 1);
        entry.ticket = at;
        let ticket = Ticket { index, generation: entry.generation };
        self.slots[slot(at)].push(ticket);
    }
}

impl Entry {
    fn fire(&mut self) {
        self.fired = true;
        self.due = NEVER;
        let Some(shutter) = &self.shutter else { return };
        match self.until {
            Until::Read => shutter.shut(Shutdown::Read),
            Until::Idle | Until::Both => shutter.shut(Shutdown::Both),
            Until::Rest => shutter.give_up_read(),
            Until::Waits => self.waiter.take().into_iter().for_each(Waker::wake),
        }
    }
}

impl Watch {
    /// Replace the deadline: `span` from `now`.
    pub(crate) fn set(&self, now: Instant, span: Duration, until: Until) {
        self.sweeper.rouse();
        let mut wheel = self.sweeper.wheel.borrow_mut();
        let entry = &mut wheel.entries[self.index as usize];
        // One up: a deadline never fires early.
        entry.due = tick(now + span) + 1;
        entry.until = until;
        entry.set = tick(now);
        entry.fired = false;
        if entry.due < entry.ticket {
            // An earlier ticket takes over; the later one finds a new generation and is void.
            entry.generation = entry.generation.wrapping_add(1);
            let swept = wheel.swept;
            wheel.put(self.index, swept.max(tick(now)));
        }
    }

    /// Ready when `span` has passed since this was first asked, and no deadline was set meanwhile.
    pub(crate) fn poll_waited(&self, now: Instant, span: Duration, cx: &Context<'_>) -> Poll<()> {
        let mut wheel = self.sweeper.wheel.borrow_mut();
        let entry = &wheel.entries[self.index as usize];
        let waits = entry.until == Until::Waits;
        if waits && entry.fired {
            return Poll::Ready(());
        }
        if !waits || entry.due == NEVER {
            drop(wheel);
            self.set(now, span, Until::Waits);
            wheel = self.sweeper.wheel.borrow_mut();
        }
        let waiter = wheel.entries[self.index as usize].waiter.replace(cx.waker().clone());
        drop(wheel);
        drop(waiter);
        Poll::Pending
    }

    /// No deadline.
    pub(crate) fn clear(&self) {
        self.sweeper.wheel.borrow_mut().entries[self.index as usize].due = NEVER;
    }

    /// Whether the last deadline set has passed and the socket was shut for it.
    pub(crate) fn fired(&self) -> bool {
        self.sweeper.wheel.borrow().entries[self.index as usize].fired
    }

    /// End the connection now.
    pub(crate) fn shut(&self) {
        let wheel = self.sweeper.wheel.borrow();
        if let Some(shutter) = &wheel.entries[self.index as usize].shutter {
            shutter.shut(Shutdown::Both);
        }
    }

    /// Whether the peer has sent nothing that is still to be read, its end included.
    pub(crate) fn is_silent(&self) -> bool {
        let wheel = self.sweeper.wheel.borrow();
        wheel.entries[self.index as usize].shutter.as_ref().is_some_and(Shutter::is_silent)
    }

    /// Whether the peer has sent something that is still to be read. Its end is nothing.
    pub(crate) fn has_unread(&self) -> bool {
        let wheel = self.sweeper.wheel.borrow();
        wheel.entries[self.index as usize].shutter.as_ref().is_some_and(Shutter::has_unread)
    }

    /// End the connection now, and let the peer know that it is no orderly end.
    pub(crate) fn reset(&self) {
        let wheel = self.sweeper.wheel.borrow();
        if let Some(shutter) = &wheel.entries[self.index as usize].shutter {
            shutter.reset();
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut wheel = self.sweeper.wheel.borrow_mut();
        let entry = &mut wheel.entries[self.index as usize];
        entry.generation = entry.generation.wrapping_add(1);
        entry.due = NEVER;
        entry.ticket = NEVER;
        entry.fired = false;
        let held = (entry.shutter.take(), entry.waiter.take());
        wheel.free.push(self.index);
        drop(wheel);
        drop(held);
    }
}

const fn tick(at: Instant) -> u64 {
    at.as_nanos() >> TICK_BITS
}

const fn slot(tick: u64) -> usize {
    #[expect(clippy::cast_possible_truncation, reason = "the remainder fits")]
    let slot = (tick % SLOTS as u64) as usize;
    slot
}

#[cfg(test)]
mod tests;
