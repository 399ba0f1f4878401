//! Sockets of a worker on epoll: it is kept here whether each is ready, and calls are made directly.
//!
//! The driver forgets that a socket was ready only when a call says so, and so tries each read
//! before anything can be there. Here a read that brings less than it had room for says so too.
//! Events are taken between tasks only, and each tells of a change: what comes after a read is told
//! after it, so nothing is forgotten that has not been seen.

use std::cell::RefCell;
use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};

use super::readiness::Instance;
use super::socket::{Received, receive};

/// All sockets of one worker.
#[derive(Debug)]
pub(super) struct Polls {
    instance: Instance,
    places: RefCell<Places>,
}

#[derive(Debug, Default)]
struct Places {
    taken: Vec<Watched>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Watched {
    /// Told apart from the socket that had this place before: an event taken together with what
    /// ended that one may come too late.
    generation: u32,
    state: u8,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

const READABLE: u8 = 1;
const WRITABLE: u8 = 1 << 1;
/// Its end, an error or an urgent mark: what stands behind one is read only by the next call, and
/// no event will tell of it again.
const MARKED: u8 = 1 << 2;
const GIVEN_UP: u8 = 1 << 3;

/// One socket. Dropped: closed.
#[derive(Debug)]
pub(super) struct Polled {
    // Left before the descriptor is closed.
    place: Place,
    fd: OwnedFd,
}

/// The right to be told of.
#[derive(Debug)]
struct Place {
    polls: Rc<Polls>,
    index: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Read,
    Write,
}

/// Looked at in one go.
const EVENTS: usize = 256;

thread_local! {
    static HERE: RefCell<Option<Rc<Polls>>> = const { RefCell::new(None) };
}

/// While it lives, the sockets of this thread are polled.
#[derive(Debug)]
pub(super) struct Reign(());

impl Polls {
    /// # Errors
    /// When there are no descriptors.
    pub(super) fn new() -> io::Result<Rc<Self>> {
        Ok(Rc::new(Self { instance: Instance::new()?, places: RefCell::default() }))
    }

    /// Those of this thread; None on a driver that does without.
    pub(super) fn here() -> Option<Rc<Self>> {
        HERE.with_borrow(Clone::clone)
    }

    pub(super) fn reign(self: &Rc<Self>) -> Reign {
        HERE.set(Some(Rc::clone(self)));
        Reign(())
    }

    /// Tell sockets what happens to them, for good.
    pub(super) async fn run(&self) {
        loop {
            self.look();
            self.instance.wakes().await;
        }
    }

    fn look(&self) {
        let mut events = [const { MaybeUninit::uninit() }; EVENTS];
        for event in self.instance.now(&mut events) {
            self.tell(event);
        }
    }

    fn tell(&self, event: &Event) {
        let (flags, token) = (event.flags, event.data.u64());
        let mut places = self.places.borrow_mut();
        let Some(watched) = places.of(token) else { return };
        let (mut reader, mut writer) = (None, None);
        if flags.intersects(INCOMING) {
            watched.state |= READABLE;
            reader = watched.reader.take();
        }
        if flags.intersects(MARKS) {
            watched.state |= MARKED;
        }
        if flags.intersects(OUTGOING) {
            watched.state |= WRITABLE;
            writer = watched.writer.take();
        }
        // Whom it wakes may be gone, and its sockets go with it.
        drop(places);
        for waker in [reader, writer].into_iter().flatten() {
            waker.wake();
        }
    }
}

const MARKS: EventFlags =
    EventFlags::RDHUP.union(EventFlags::HUP).union(EventFlags::ERR).union(EventFlags::PRI);
const INCOMING: EventFlags = EventFlags::IN.union(MARKS);
const OUTGOING: EventFlags = EventFlags::OUT.union(EventFlags::HUP).union(EventFlags::ERR);
const INTEREST: EventFlags = EventFlags::IN
    .union(EventFlags::OUT)
    .union(EventFlags::RDHUP)
    .union(EventFlags::PRI)
    .union(EventFlags::ET);

impl Places {
    fn of(&mut self, token: u64) -> Option<&mut Watched> {
        let index = usize::try_from(token & u64::from(u32::MAX)).ok()?;
        let watched = self.taken.get_mut(index)?;
        (u64::from(watched.generation) == token >> 32).then_some(watched)
    }

    /// Its index and token.
    fn take(&mut self) -> (u32, u64) {
        let index = self.free.pop().unwrap_or_else(|| {
            self.taken.push(Watched { generation: 0, state: 0, reader: None, writer: None });
            u32::try_from(self.taken.len() - 1).unwrap_or(u32::MAX)
        });
        let watched = &mut self.taken[index as usize];
        watched.state = 0;
        (index, u64::from(watched.generation) << 32 | u64::from(index))
    }
}

impl Drop for Reign {
    fn drop(&mut self) {
        HERE.set(None);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut places = self.polls.places.borrow_mut();
        let watched = &mut places.taken[self.index as usize];
        watched.generation = watched.generation.wrapping_add(1);
        let left = (watched.reader.take(), watched.writer.take());
        places.free.push(self.index);
        // With its last waker a task goes, and its sockets.
        drop(places);
        drop(left);
    }
}

impl Polled {
    /// A socket that does not block, and of which no more is known than that.
    ///
    /// # Errors
    /// When the kernel has no memory for it, or the user watches too many.
    pub(super) fn new(polls: Rc<Polls>, fd: OwnedFd) -> io::Result<Self> {
        let (index, token) = polls.places.borrow_mut().take();
        let place = Place { polls, index };
        let data = EventData::new_u64(token);
        epoll::add(place.polls.instance.descriptor(), &fd, data, INTEREST)?;
        Ok(Self { place, fd })
    }

    /// # Errors
    /// What the kernel says.
    pub(super) async fn connect(polls: Rc<Polls>, address: SocketAddr) -> io::Result<Self> {
        let family = match address {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let fd = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
        match rustix::net::connect(&fd, &address) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(e) => return Err(e.into()),
        }
        let polled = Self::new(polls, fd)?;
        std::future::poll_fn(|cx| polled.poll_ready(Direction::Write, cx)).await;
        rustix::net::sockopt::socket_error(&polled.fd)??;
        Ok(polled)
    }

    /// The next connection to this listening socket; as the kernel keeps it, not yet watched.
    pub(super) fn poll_accept(
        &self,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<(OwnedFd, Option<rustix::net::SocketAddrAny>)>> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        self.poll_call(Direction::Read, cx, || rustix::net::acceptfrom_with(&self.fd, flags))
    }

    /// Read behind what `buffer` holds, and leave [`SPARE`] bytes free.
    pub(super) fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        buffer: &mut Vec<u8>,
    ) -> Poll<io::Result<usize>> {
        let received =
            self.poll_call(Direction::Read, cx, || receive(&self.fd, buffer, RecvFlags::empty()));
        let Received { bytes, full } = ready!(received)?;
        if !full {
            self.forget_unless_marked();
        }
        Poll::Ready(Ok(bytes))
    }

    /// Wait until a call is worth it.
    pub(super) fn poll_ready(&self, direction: Direction, cx: &mut Context<'_>) -> Poll<()> {
        self.poll_turn(direction, cx).map(drop)
    }

    /// As [`Self::poll_ready`]. True: a read that finds nothing is not to wait any longer.
    fn poll_turn(&self, direction: Direction, cx: &mut Context<'_>) -> Poll<bool> {
        let mut places = self.place.polls.places.borrow_mut();
        let watched = &mut places.taken[self.place.index as usize];
        let (bits, waiter) = match direction {
            Direction::Read => (READABLE | GIVEN_UP, &mut watched.reader),
            Direction::Write => (WRITABLE, &mut watched.writer),
        };
        let found = watched.state & bits;
        if found != 0 {
            watched.state &= !(found & GIVEN_UP);
            return Poll::Ready(found & GIVEN_UP != 0);
        }
        if waiter.as_ref().is_some_and(|waiter| waiter.will_wake(cx.waker())) {
            return Poll::Pending;
        }
        let before = waiter.replace(cx.waker().clone());
        // With its last waker a task goes, and its sockets.
        drop(places);
        drop(before);
        Poll::Pending
    }

    /// A call has said that it is not ready.
    pub(super) fn forget(&self, direction: Direction) {
        self.change(|watched| match direction {
            // With nothing to be read there is no end either.
            Direction::Read => watched.state &= !(READABLE | MARKED | GIVEN_UP),
            Direction::Write => watched.state &= !WRITABLE,
        });
    }

    fn forget_unless_marked(&self) {
        self.change(|watched| {
            if watched.state & MARKED == 0 {
                watched.state &= !READABLE;
            }
        });
    }

    /// Have the read that waits, if any, fail with `ECANCELED` unless something has come.
    pub(super) fn give_up_read(&self) {
        let waiter = self.change(|watched| {
            let waiter = watched.reader.take();
            if waiter.is_some() {
                watched.state |= GIVEN_UP;
            }
            waiter
        });
        if let Some(waiter) = waiter {
            waiter.wake();
        }
    }

    /// Let go of the descriptor.
    pub(super) fn into_descriptor(self) -> OwnedFd {
        let Self { place, fd } = self;
        // Not there any more: then nothing will be told.
        let _ = epoll::delete(place.polls.instance.descriptor(), &fd);
        fd
    }

    fn poll_call<T>(
        &self,
        direction: Direction,
        cx: &mut Context<'_>,
        mut call: impl FnMut() -> Result<T, Errno>,
    ) -> Poll<io::Result<T>> {
        loop {
            let last = ready!(self.poll_turn(direction, cx));
            match call() {
                Ok(done) => return Poll::Ready(Ok(done)),
                Err(Errno::AGAIN) => self.forget(direction),
                Err(Errno::INTR) => {}
                Err(e) => return Poll::Ready(Err(e.into())),
            }
            if last {
                return Poll::Ready(Err(Errno::CANCELED.into()));
            }
        }
    }

    fn change<T>(&self, change: impl FnOnce(&mut Watched) -> T) -> T {
        change(&mut self.place.polls.places.borrow_mut().taken[self.place.index as usize])
    }
}

impl AsFd for Polled {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests;
