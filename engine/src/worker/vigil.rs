//! Looking for what comes next instead of sleeping (`server.busy_poll`).

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Poll, Waker};
use std::time::Duration;

use super::Worker;
use crate::runtime::Awake;

/// Who looks, while it rests.
#[derive(Debug, Default)]
pub(crate) struct Vigil {
    /// To be called by the next event.
    waits: Cell<bool>,
    keeper: RefCell<Option<Waker>>,
}

impl Vigil {
    /// Something has come.
    pub(super) fn stir(&self) {
        if self.waits.get() {
            self.call();
        }
    }

    #[cold]
    pub(super) fn call(&self) {
        self.waits.set(false);
        if let Some(keeper) = self.keeper.take() {
            keeper.wake();
        }
    }

    /// Rest until called; `by_events`: also by the next thing that comes.
    async fn rest(&self, by_events: bool) {
        let mut rested = false;
        poll_fn(|cx| {
            if std::mem::replace(&mut rested, true) {
                return Poll::Ready(());
            }
            self.waits.set(by_events);
            self.keeper.replace(Some(cx.waker().clone()));
            Poll::Pending
        })
        .await;
    }
}

impl Worker {
    /// Keep this worker awake after each event for as long as is configured, for good.
    pub(super) async fn keep_vigil(&self, mut awake: Awake) {
        let mut in_vain = Duration::ZERO;
        let whole_us = |span: Duration| u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
        let mut event = self.at();
        loop {
            let mut now = self.at();
            event = self.last_event().unwrap_or(event);
            while now.since(event) < self.busy_poll() {
                awake.turn(now).await;
                let before = std::mem::replace(&mut now, self.at());
                match self.last_event() {
                    Some(new) if new > event => event = new,
                    _ => in_vain += now.since(before),
                }
                let us = whole_us(in_vain);
                self.cells.busy_poll_us.add(us);
                in_vain -= Duration::from_micros(us);
            }
            awake.rest();
            self.vigil.rest(!self.busy_poll().is_zero()).await;
        }
    }
}
