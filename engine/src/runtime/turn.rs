//! Letting others have their turn.
//!
//! A task that always finds its sockets ready never waits, and so never lets the driver look after
//! anybody else. Waking itself would not do: a worker with a task to run does not ask the driver,
//! and its timers stand still. So who has had enough waits until a bell of the worker's own has
//! been heard, behind everything else that the driver has heard.
//!
//! On a ring the bell is rung by the ring itself, behind the read that hears it: a read that finds
//! something at once is done when it is handed in, and a worker that always has a task to run hands
//! in without ever asking what else has come.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::os::unix::net::UnixStream;
use std::task::{Poll, Waker};

use monoio::io::AsyncWriteRent;

use super::{Bell, Driver};

/// So many bytes are enough for one turn: what a worker moves in some 15 to 60 µs, which is what each
/// of the others then waits for.
const BURST: u64 = 64 * 1024;

/// Larger turns move bytes for less (docs/performance.md), and are taken when nobody who asked for
/// less than a turn was served in so many rounds.
const QUIET: u64 = 256;

/// One such turn, at the most.
const LONG: u64 = 256 * 1024;

/// And all of one round, unless it is more at [`BURST`] each: for these whoever asks then waits.
const ROUND: u64 = 1024 * 1024;

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
#[derive(Default)]
pub(crate) struct Turns {
    waiting: RefCell<Vec<Waker>>,
    round: Cell<u64>,
    /// So many had a turn in the round before.
    takers: Cell<u64>,
    /// The round in which somebody was last served who asked for less than a turn.
    served: Cell<u64>,
    /// Who rings, when nobody has asked yet.
    ringer: Cell<Option<Waker>>,
    /// Somebody does.
    rings: Cell<bool>,
}

impl fmt::Debug for Turns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turns").field("round", &self.round).finish_non_exhaustive()
    }
}

/// What a worker's rounds are told by.
#[derive(Debug)]
pub(crate) struct Chime {
    bell: Bell,
    rope: monoio::net::UnixStream,
}

impl Chime {
    /// # Errors
    /// When there are no descriptors.
    pub(crate) fn new(driver: Driver) -> io::Result<Self> {
        let (here, there) = UnixStream::pair()?;
        there.set_nonblocking(driver == Driver::Epoll)?;
        let rope = monoio::net::UnixStream::from_std(there)?;
        Ok(Self { bell: Bell::new(here, driver)?, rope })
    }
}

impl Turns {
    /// Make rounds, for as long as the bell can be rung.
    pub(crate) async fn run(&self, mut chime: Chime) {
        let _rings = Rings::of(self);
        loop {
            poll_fn(|cx| {
                // Its read is handed in first.
                chime.bell.listen(cx);
                if !self.waiting.borrow().is_empty() {
                    return Poll::Ready(());
                }
                self.ringer.set(Some(cx.waker().clone()));
                Poll::Pending
            })
            .await;
            let (rung, _) = chime.rope.write(&[1_u8][..]).await;
            if rung.is_err() || !chime.bell.rung().await {
                return;
            }
            self.go_round();
        }
    }

    /// Those who wait go on.
    fn go_round(&self) {
        self.round.set(self.round.get().wrapping_add(1));
        let waiting = self.waiting.take();
        self.takers.set(waiting.len() as u64);
        for waker in waiting {
            waker.wake();
        }
    }

    /// A request is over that moved so many bytes in all.
    pub(crate) fn served(&self, bytes: u64) {
        if bytes < BURST {
            self.served.set(self.round.get());
        }
    }

    /// How many bytes may be moved in one turn.
    pub(super) fn length(&self) -> u64 {
        if self.round.get().wrapping_sub(self.served.get()) < QUIET {
            return BURST;
        }
        (ROUND / self.takers.get().max(1)).clamp(BURST, LONG)
    }

    /// Wait until everything that is ready now has been looked at.
    pub(crate) async fn pass(&self) {
        let round = self.round.get();
        poll_fn(|cx| {
            if self.round.get() != round || !self.rings.get() {
                return Poll::Ready(());
            }
            self.waiting.borrow_mut().push(cx.waker().clone());
            if let Some(ringer) = self.ringer.take() {
                ringer.wake();
            }
            Poll::Pending
        })
        .await;
    }
}

/// While it lives, rounds are made; then nobody waits for one any more.
struct Rings<'t>(&'t Turns);

impl<'t> Rings<'t> {
    fn of(turns: &'t Turns) -> Self {
        turns.rings.set(true);
        Self(turns)
    }
}

impl Drop for Rings<'_> {
    fn drop(&mut self) {
        self.0.rings.set(false);
        self.0.go_round();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::rc::Rc;

    use super::*;
    use crate::runtime::{Wanted, block_on, spawn};

    /// Hands in, `steps` times, what the driver does as soon as it is handed in.
    async fn done_at_once(driver: Driver, steps: usize) {
        let (here, _there) = UnixStream::pair().unwrap();
        here.set_nonblocking(driver == Driver::Epoll).unwrap();
        let mut here = monoio::net::UnixStream::from_std(here).unwrap();
        for _ in 0..steps {
            let (written, _) = here.write(&[1_u8][..]).await;
            written.unwrap();
        }
    }

    /// On a ring whose completions run when it is asked for them, a worker that is never out of
    /// tasks hands in and does not ask. When it runs out depends on how many there are.
    #[test]
    fn who_passes_again_and_again_with_ever_new_tasks_lets_a_reader_hear() {
        let mut ran = 0;
        for driver in Driver::LADDER {
            let went = block_on(Wanted::Only(driver), |driver, _| async move {
                let turns = Rc::new(Turns::default());
                let (ringing, chime) = (Rc::clone(&turns), Chime::new(driver).unwrap());
                let rounds = spawn(async move { ringing.run(chime).await });
                let (here, mut there) = UnixStream::pair().unwrap();
                let mut bell = Bell::new(here, driver).unwrap();
                let heard = Rc::new(Cell::new(0));
                let hears = Rc::clone(&heard);
                let reading = spawn(async move {
                    while bell.rung().await {
                        hears.set(hears.get() + 1);
                    }
                });
                let passing = spawn(async move {
                    for (said, tasks) in (1..24).flat_map(|n| [(n, 1), (n, 2)]).enumerate() {
                        let mut passed = 0;
                        while heard.get() <= said {
                            for _ in 0..tasks.0 {
                                drop(spawn(done_at_once(driver, tasks.1)));
                            }
                            turns.pass().await;
                            passed += 1;
                            // Amid the turns, not before them.
                            if passed == 3 {
                                there.write_all(&[1]).unwrap();
                            }
                            assert!(passed < 20, "{driver:?}: not heard, {tasks:?}");
                        }
                    }
                    there
                });
                drop((passing.await, reading, rounds));
            });
            ran += usize::from(went.is_ok());
        }
        assert!(ran > 0, "epoll at least");
    }

    #[test]
    fn turns_are_long_where_nobody_asks_for_less() {
        let turns = Turns::default();
        let rounds = |n: u64, takers: usize| {
            for _ in 0..n {
                turns.waiting.replace(vec![Waker::noop().clone(); takers]);
                turns.go_round();
            }
            turns.length() / 1024
        };
        assert_eq!(rounds(QUIET - 1, 1), 64, "not yet");
        assert_eq!(rounds(1, 1), 256);
        // They share what a round is long.
        assert_eq!(
            [(1, 4), (1, 5), (1, 16), (1, 100)].map(|(n, t)| rounds(n, t)),
            [256, 204, 64, 64]
        );
        turns.served(BURST);
        assert_eq!(rounds(1, 2), 256, "who takes turns itself asks for no less");
        turns.served(BURST - 1);
        assert_eq!(rounds(QUIET - 1, 2), 64);
        assert_eq!(rounds(1, 2), 256);
    }

    #[test]
    fn with_nobody_to_ring_nobody_waits() {
        let ran = block_on(Wanted::Only(Driver::Epoll), |_, _| async {
            Turns::default().pass().await;
        });
        ran.unwrap();
    }
}
