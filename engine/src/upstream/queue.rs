//! Requests that wait for a connection of a full pool: first come, first served, and not for long.
//!
//! What becomes free is handed to whoever waits longest, so nobody who comes later overtakes. A
//! waiter that leaves passes on what it was handed meanwhile.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use sluice_policy::time::Instant;

use super::connection::Connection;
use super::pool::{Place, Pool};
use crate::runtime;
use crate::worker::Worker;

/// Who waits at one pool.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    waiting: RefCell<VecDeque<Rc<Slot>>>,
    /// The most that may wait.
    pub(super) max: Cell<u32>,
}

/// What became free.
#[derive(Debug)]
pub(super) enum Given {
    /// A connection that has just served another request, and when that ended.
    Connection(Box<Connection>, Instant),
    /// Room for a new one.
    Place(Place),
}

/// Where a waiter is handed what became free.
#[derive(Debug, Default)]
struct Slot {
    given: RefCell<Option<Given>>,
    waker: RefCell<Option<Waker>>,
}

/// A place in the queue; left when dropped.
#[derive(Debug)]
struct Turn<'p> {
    pool: &'p Rc<Pool>,
    slot: Rc<Slot>,
}

/// Wait at a full pool. None: too many wait already, or nothing became free in time.
pub(super) async fn wait(worker: &Worker, pool: &Rc<Pool>, span: Duration) -> Option<Given> {
    if span.is_zero() {
        return None;
    }
    let mut turn = Turn::take(pool)?;
    worker.cells.pool_waits.add(1);
    let given = runtime::within(span, poll_fn(|cx| turn.poll(cx))).await;
    if given.is_none() {
        worker.cells.pool_waits_timed_out.add(1);
    }
    given
}

impl Queue {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.borrow().is_empty()
    }

    /// Hand this to whoever waits longest; it comes back when nobody waits.
    pub(super) fn offer(
        &self,
        connection: Box<Connection>,
        now: Instant,
    ) -> Option<Box<Connection>> {
        match self.longest() {
            Some(slot) => slot.give(Given::Connection(connection, now)),
            None => return Some(connection),
        }
        None
    }

    /// As [`Self::offer`]; when nobody waits it is given up.
    pub(super) fn offer_place(&self, place: Place) {
        if let Some(slot) = self.longest() {
            slot.give(Given::Place(place));
        }
    }

    fn longest(&self) -> Option<Rc<Slot>> {
        self.waiting.borrow_mut().pop_front()
    }
}

impl Slot {
    fn give(&self, given: Given) {
        self.given.replace(Some(given));
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl<'p> Turn<'p> {
    fn take(pool: &'p Rc<Pool>) -> Option<Self> {
        let mut waiting = pool.queue.waiting.borrow_mut();
        if waiting.len() >= pool.queue.max.get() as usize {
            return None;
        }
        let slot = Rc::new(Slot::default());
        waiting.push_back(Rc::clone(&slot));
        drop(waiting);
        pool.cells.pool_waiting.add(1);
        Some(Self { pool, slot })
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Given> {
        match self.slot.given.take() {
            Some(given) => Poll::Ready(given),
            None => {
                self.slot.waker.replace(Some(cx.waker().clone()));
                Poll::Pending
            }
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.pool.cells.pool_waiting.sub(1);
        self.pool.queue.waiting.borrow_mut().retain(|slot| !Rc::ptr_eq(slot, &self.slot));
        match self.slot.given.take() {
            Some(Given::Connection(connection, since)) => self.pool.give_back(connection, since),
            // Dropped, it goes to the next.
            Some(Given::Place(_)) | None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn poll(turn: &mut Turn<'_>) -> Option<Given> {
        match turn.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(given) => Some(given),
            Poll::Pending => None,
        }
    }

    #[test]
    fn who_waits_longest_is_served_first_and_nobody_overtakes() {
        let pool = Pool::of_size(1);
        pool.queue.max.set(2);
        let held = pool.place().expect("room for one");
        let (mut first, mut second) = (Turn::take(&pool).unwrap(), Turn::take(&pool).unwrap());
        assert!(Turn::take(&pool).is_none(), "two wait at the most");
        assert!(poll(&mut first).is_none() && poll(&mut second).is_none());
        drop(held);
        assert!(pool.place().is_none(), "it is the first one's already");
        assert!(poll(&mut second).is_none());
        let given = poll(&mut first).expect("its turn");
        drop(first);
        drop(given);
        assert!(poll(&mut second).is_some());
        drop(second);
        assert_eq!(pool.cells.pool_waiting.value(), 0);
        assert!(pool.place().is_some());
    }

    #[test]
    fn who_leaves_is_passed_over_and_passes_on_what_it_was_given() {
        let pool = Pool::of_size(1);
        pool.queue.max.set(3);
        let held = pool.place().expect("room for one");
        let [early, late, mut last] = [(); 3].map(|()| Turn::take(&pool).unwrap());
        drop(early);
        drop(held);
        // Given, and not looked at.
        drop(late);
        assert!(poll(&mut last).is_some());
    }
}
