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

/// The ticks of a worker that dozes: sixty a second would be a third of a per cent of its core.
pub(crate) const DOZE: Duration = Duration::from_millis(250);

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
    /// to be missed however long ago they were set.
    pub(crate) async fn next_tick(&self, serves: bool) -> Duration {
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
        let mut timer = runtime::sleep(DOZE);
        poll_fn(|cx| {
            if self.pulse.get() != Pulse::Dozing {
                return Poll::Ready(());
            }
            self.dozer.replace(Some(cx.waker().clone()));
            timer.as_mut().poll(cx)
        })
        .await;
        DOZE
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
mod tests {
    use std::future::Future;
    use std::io::Read;

    use super::*;
    use crate::runtime::{Driver, Listener, Socket, Stop, Wanted, block_on};

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn with_socket<F: Future<Output = ()>>(test: impl FnOnce(std::net::TcpStream, Socket) -> F) {
        let ran = block_on(Wanted::Only(Driver::Epoll), |driver, _| async move {
            let std = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let address = std.local_addr().unwrap();
            let listener = Listener::new(std, driver).unwrap();
            let client = std::net::TcpStream::connect(address).unwrap();
            let (socket, _) = listener.accept(&Stop::default()).await.unwrap().unwrap();
            test(client, socket).await;
        });
        ran.unwrap();
    }

    #[test]
    fn a_deadline_fires_once_it_has_passed_and_not_before() {
        with_socket(|mut client, socket| async move {
            let sweeper = Sweeper::new(at(1000));
            let watch = sweeper.watch(socket.shutter.clone());
            // (now ms, set to ms from now, fired after the sweep)
            let table = [
                (1000, Some(100), false),
                (1090, Some(100), false), // moved on
                (1180, None, false),
                (1189, None, false),
                (1240, None, true),
            ];
            for (now, set, fired) in table {
                sweeper.sweep(at(now));
                if let Some(ms) = set {
                    watch.set(at(now), Duration::from_millis(ms), Until::Both);
                }
                assert_eq!(watch.fired(), fired, "at {now} ms");
            }
            assert_eq!(client.read(&mut [0]).unwrap(), 0, "the socket was shut");
        });
    }

    #[test]
    fn a_worker_that_nobody_asks_dozes_until_a_deadline_is_set() {
        with_socket(|_client, socket| async move {
            let sweeper = Sweeper::new(at(0));
            let watch = sweeper.watch(socket.shutter.clone());
            for _ in 0..DOZE_AFTER {
                watch.set(at(0), Duration::from_secs(1), Until::Both);
                assert_eq!(sweeper.next_tick(false).await, TICK, "it is asked");
            }
            for _ in 1..DOZE_AFTER {
                assert_eq!(sweeper.next_tick(false).await, TICK, "not for long enough yet");
            }
            assert_eq!(sweeper.next_tick(false).await, DOZE);
            // Asked amid its doze, it wakes then and not at the doze's end.
            let ran = runtime::first(vec![
                runtime::spawn({
                    let sweeper = Rc::clone(&sweeper);
                    async move { sweeper.next_tick(false).await }
                }),
                runtime::spawn(async move {
                    runtime::sleep(Duration::from_millis(1)).await;
                    watch.set(at(0), Duration::from_secs(1), Until::Both);
                    runtime::sleep(DOZE / 2).await;
                    TICK
                }),
            ]);
            assert_eq!(ran.await, DOZE, "the tick came before half of the doze was over");
            for _ in 0..=DOZE_AFTER {
                assert_eq!(sweeper.next_tick(true).await, TICK, "a request is waited for");
            }
        });
    }

    #[test]
    fn deadlines_beyond_the_wheel_and_sooner_ones_after_later_ones_are_kept() {
        with_socket(|_client, socket| async move {
            let sweeper = Sweeper::new(at(0));
            let watch = sweeper.watch(socket.shutter.clone());
            watch.set(at(0), Duration::from_secs(90), Until::Idle);
            for ms in (0..89_900).step_by(50) {
                sweeper.sweep(at(ms));
            }
            assert!(!watch.fired());
            watch.set(at(89_900), Duration::from_millis(50), Until::Read);
            sweeper.sweep(at(90_000));
            assert!(watch.fired(), "the sooner one counts");
            watch.set(at(90_000), Duration::from_secs(30), Until::Both);
            sweeper.sweep(at(110_000));
            assert!(!watch.fired(), "setting anew forgets the last");
            sweeper.sweep(at(180_000));
            assert!(watch.fired(), "a stalled sweeper catches up");
        });
    }

    #[test]
    fn who_waits_is_woken_once_it_has_waited_and_the_socket_stays() {
        with_socket(|client, socket| async move {
            let sweeper = Sweeper::new(at(0));
            let watch = Rc::new(sweeper.watch(socket.shutter.clone()));
            let waits = {
                let watch = Rc::clone(&watch);
                poll_fn(move |cx| watch.poll_waited(at(0), Duration::from_millis(20), cx))
            };
            let waits = runtime::spawn(waits);
            // Lets it begin to wait.
            runtime::sleep(Duration::from_millis(1)).await;
            sweeper.sweep(at(19));
            assert!(!watch.fired());
            sweeper.sweep(at(60));
            waits.await;
            client.set_nonblocking(true).unwrap();
            let open = (&client).read(&mut [0]).unwrap_err();
            assert_eq!(open.kind(), std::io::ErrorKind::WouldBlock);
            // Another deadline in between, and the wait begins anew.
            watch.set(at(60), Duration::from_secs(1), Until::Read);
            let nobody = Context::from_waker(Waker::noop());
            let again = || watch.poll_waited(at(70), Duration::from_millis(20), &nobody);
            assert!(again().is_pending());
            sweeper.sweep(at(140));
            assert!(again().is_ready());
        });
    }

    #[test]
    fn a_drain_shuts_only_what_has_been_idle() {
        with_socket(|_client, socket| async move {
            let sweeper = Sweeper::new(at(0));
            let (busy, idle) =
                (sweeper.watch(socket.shutter.clone()), sweeper.watch(socket.shutter.clone()));
            busy.set(at(0), Duration::from_secs(10), Until::Read);
            idle.set(at(500), Duration::from_secs(10), Until::Idle);
            sweeper.sweep_idle(at(1200), Duration::from_secs(1));
            assert!(!busy.fired() && !idle.fired());
            sweeper.sweep_idle(at(1600), Duration::from_secs(1));
            assert!(!busy.fired() && idle.fired());
        });
    }

    #[test]
    fn a_place_given_back_is_not_fired_for_its_predecessor() {
        with_socket(|_client, socket| async move {
            let sweeper = Sweeper::new(at(0));
            let first = sweeper.watch(socket.shutter.clone());
            first.set(at(0), Duration::from_millis(20), Until::Both);
            drop(first);
            let second = sweeper.watch(socket.shutter.clone());
            sweeper.sweep(at(1000));
            assert!(!second.fired());
        });
    }
}
