//! Those who wait for a store of shared counts. Workers kick the control thread when a request
//! waits, and it rings them when the store has answered.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};

use tokio::sync::Notify;

/// What workers and the control thread share for it.
#[derive(Debug, Default)]
pub(crate) struct Wake {
    kick: Notify,
    /// Requests that wait, over all workers.
    waiting: AtomicUsize,
    /// By worker. Only the control thread locks them.
    bells: Mutex<BTreeMap<usize, UnixStream>>,
}

/// One worker's requests that wait.
#[derive(Debug)]
pub(crate) struct Waiting {
    wake: Arc<Wake>,
    wakers: RefCell<Vec<Waker>>,
    here: Cell<usize>,
    round: Cell<u64>,
}

/// One of them; gone when dropped.
#[derive(Debug)]
struct Place<'w>(&'w Waiting);

impl Wake {
    /// A request waits.
    pub(crate) fn kick(&self) {
        self.kick.notify_one();
    }

    pub(crate) async fn kicked(&self) {
        self.kick.notified().await;
    }

    /// This worker's bell, instead of its predecessor's.
    pub(crate) fn hang(&self, worker: usize, bell: UnixStream) {
        self.bells.lock().unwrap_or_else(PoisonError::into_inner).insert(worker, bell);
    }

    /// The store has answered, or is lost: who waits is to look. Costs nothing when nobody does.
    pub(crate) fn ring(&self) {
        if self.waiting.load(SeqCst) == 0 {
            return;
        }
        for mut bell in self.bells.lock().unwrap_or_else(PoisonError::into_inner).values() {
            // Full means: it was rung already and has not looked yet.
            let _ = bell.write(&[1]);
        }
    }
}

impl Waiting {
    pub(crate) fn new(wake: Arc<Wake>) -> Self {
        Self { wake, wakers: RefCell::default(), here: Cell::new(0), round: Cell::new(0) }
    }

    pub(crate) fn kick(&self) {
        self.wake.kick();
    }

    /// Until the bell is rung.
    pub(crate) async fn wait(&self) {
        let _place = Place::take(self);
        let (round, mut told) = (self.round.get(), false);
        poll_fn(|cx| {
            if self.round.get() != round {
                return Poll::Ready(());
            }
            if !std::mem::replace(&mut told, true) {
                self.wakers.borrow_mut().push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }

    /// The bell was rung.
    pub(crate) fn go_on(&self) {
        self.round.set(self.round.get().wrapping_add(1));
        for waker in self.wakers.take() {
            waker.wake();
        }
    }
}

impl<'w> Place<'w> {
    fn take(waiting: &'w Waiting) -> Self {
        waiting.here.set(waiting.here.get() + 1);
        waiting.wake.waiting.fetch_add(1, SeqCst);
        Self(waiting)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let Self(waiting) = self;
        waiting.wake.waiting.fetch_sub(1, SeqCst);
        let here = waiting.here.get() - 1;
        waiting.here.set(here);
        if here == 0 {
            // Of those who have left meanwhile.
            waiting.wakers.take();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::pin::pin;
    use std::task::Context;

    use super::*;

    #[test]
    fn the_bell_is_rung_only_where_somebody_waits_and_all_of_them_go_on() {
        let wake = Arc::new(Wake::default());
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        wake.hang(0, ours);
        let mut rung = || theirs.read(&mut [0; 8]).unwrap_or(0);
        let waiting = Waiting::new(Arc::clone(&wake));
        let mut cx = Context::from_waker(Waker::noop());
        wake.ring();
        assert_eq!(rung(), 0);
        {
            let (mut first, mut second) = (pin!(waiting.wait()), pin!(waiting.wait()));
            assert!(first.as_mut().poll(&mut cx).is_pending());
            assert!(second.as_mut().poll(&mut cx).is_pending());
            wake.ring();
            assert_eq!(rung(), 1);
            waiting.go_on();
            assert!(first.as_mut().poll(&mut cx).is_ready());
            assert!(second.as_mut().poll(&mut cx).is_ready());
        }
        {
            let mut third = pin!(waiting.wait());
            assert!(third.as_mut().poll(&mut cx).is_pending(), "that was for those before");
        }
        wake.ring();
        assert_eq!(rung(), 0, "who has left does not wait");
        assert!(waiting.wakers.borrow().is_empty());
    }
}
