//! Turns in which a worker asks its driver what has come, and does not sleep when nothing has.

use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use sluice_policy::time::Instant;

use super::{Driver, Sleep, sleep, spawn};

/// The right to take such turns.
pub(crate) struct Awake(How);

enum How {
    Ring(Ready),
    /// A worker with a task to run looks for events as well, but not after its timers: who waits for
    /// one, and since when.
    Epoll(Option<(Instant, Sleep)>),
}

/// The timers' grain.
const GRAIN: Duration = Duration::from_millis(1);

impl Awake {
    /// # Errors
    /// When there are no descriptors.
    pub(crate) fn new(driver: Driver) -> io::Result<Self> {
        Ok(Self(match driver {
            Driver::UringDefer | Driver::UringCoop | Driver::UringPlain => How::Ring(Ready::new()?),
            Driver::Epoll => How::Epoll(None),
        }))
    }

    /// One turn, behind everybody who has something to do. `now` is what the clock says.
    pub(crate) async fn turn(&mut self, now: Instant) {
        match &mut self.0 {
            How::Ring(ready) => ready.turn().await,
            How::Epoll(timer) => {
                let (since, due) = timer.get_or_insert_with(|| (now, sleep(GRAIN)));
                if now.since(*since) < 2 * GRAIN {
                    give_way().await;
                } else {
                    // It is due, however it was rounded, and so nobody sleeps over it.
                    due.as_mut().await;
                    *timer = None;
                }
            }
        }
    }

    /// No more turns for now: its timer would wake the worker in vain.
    pub(crate) fn rest(&mut self) {
        if let How::Epoll(timer) = &mut self.0 {
            *timer = None;
        }
    }
}

/// Let everybody else who has something to do go first. A task that wakes itself is the next to run;
/// one that another wakes is the last.
async fn give_way() {
    spawn(async {}).await;
}

/// What is always ready. On a ring a task that waits for it has its turn behind what the ring has
/// heard until then; one that woke itself would keep the worker from asking.
#[derive(Debug)]
pub(super) struct Ready {
    stream: monoio::net::UnixStream,
    _byte: UnixStream,
}

impl Ready {
    /// # Errors
    /// When there are no descriptors.
    pub(super) fn new() -> io::Result<Self> {
        let (stream, mut byte) = UnixStream::pair()?;
        byte.write_all(&[0])?;
        Ok(Self { stream: monoio::net::UnixStream::from_std(stream)?, _byte: byte })
    }

    /// Done as soon as it is handed in: a turn in which nobody sleeps.
    pub(super) async fn turn(&self) {
        let _ = self.stream.readable(false).await;
    }
}

impl std::fmt::Debug for Awake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Awake").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::os::unix::net::UnixStream;
    use std::rc::Rc;

    use super::*;
    use crate::clock::Clock;
    use crate::runtime::{Bell, Wanted, block_on};

    /// Turns until `done`, `most` at the most.
    async fn turns(driver: Driver, done: Rc<Cell<bool>>, most: u32) {
        let (clock, mut awake) = (Clock::start(), Awake::new(driver).unwrap());
        let mut count = 0;
        while !done.get() {
            awake.turn(clock.at()).await;
            count += 1;
            assert!(count < most, "{driver:?}: not done in {most} turns");
        }
        awake.rest();
    }

    /// On every driver of this machine, `errand` is done while somebody else takes `most` turns.
    fn done_meanwhile<F>(most: u32, errand: impl Fn(Driver) -> F)
    where
        F: Future<Output = ()> + 'static,
    {
        for driver in Driver::LADDER {
            // Not to be had on every machine.
            let _ = block_on(Wanted::Only(driver), |driver, _| {
                let (errand, done) = (errand(driver), Rc::new(Cell::new(false)));
                let told = Rc::clone(&done);
                let errand = spawn(async move {
                    errand.await;
                    told.set(true);
                });
                async move {
                    spawn(turns(driver, done, most)).await;
                    errand.await;
                }
            });
        }
    }

    #[test]
    fn tasks_that_wake_one_another_go_on_meanwhile() {
        done_meanwhile(400, |_| async {
            for _ in 0..100 {
                spawn(async { spawn(async {}).await }).await;
            }
        });
    }

    #[test]
    fn timers_go_off_meanwhile() {
        done_meanwhile(3_000_000, |_| async {
            for _ in 0..3 {
                sleep(5 * GRAIN).await;
            }
        });
    }

    #[test]
    fn what_comes_is_heard_meanwhile() {
        done_meanwhile(100, |driver| {
            let (mut there, here) = UnixStream::pair().unwrap();
            let mut bell = Bell::new(here, driver).unwrap();
            async move {
                for _ in 0..3 {
                    there.write_all(b"a").unwrap();
                    assert!(bell.rung().await);
                }
            }
        });
    }
}
