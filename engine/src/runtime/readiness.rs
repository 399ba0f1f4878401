//! Many descriptors that nobody reads from, watched by one wait.

use std::future::{Future, poll_fn};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::pin::pin;
use std::task::Poll;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::time::Timespec;

/// An epoll instance of our own, beside the worker's driver and watched through it. A descriptor in
/// it costs this process no memory.
#[derive(Debug)]
pub(crate) struct Readiness {
    instance: Instance,
}

/// Looked at in one go.
const EVENTS: usize = 128;

impl Readiness {
    /// # Errors
    /// When there are no descriptors.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { instance: Instance::new()? })
    }

    /// Tell once when `descriptor` has something to be read, or has ended. A closed descriptor is
    /// forgotten.
    ///
    /// # Errors
    /// When the kernel has no memory for it, or the user watches too many.
    pub(crate) fn watch(&self, descriptor: &OwnedFd, token: u64) -> io::Result<()> {
        let flags = EventFlags::IN | EventFlags::RDHUP | EventFlags::ONESHOT;
        let data = EventData::new_u64(token);
        match epoll::add(self.instance.descriptor(), descriptor, data, flags) {
            // It was here before, and has been told.
            Err(Errno::EXIST) => {
                epoll::modify(self.instance.descriptor(), descriptor, data, flags)?;
            }
            added => added?,
        }
        Ok(())
    }

    /// Wait for some, and add their tokens to `tokens`.
    pub(crate) async fn some(&self, tokens: &mut Vec<u64>) {
        let mut events = [const { MaybeUninit::uninit() }; EVENTS];
        loop {
            tokens.extend(self.instance.now(&mut events).iter().map(|event| event.data.u64()));
            if !tokens.is_empty() {
                return;
            }
            self.instance.stirs().await;
        }
    }
}

/// An epoll instance that the worker's driver waits for.
#[derive(Debug)]
pub(super) struct Instance {
    /// In the only clothes in which the driver waits for anything's readiness.
    epoll: monoio::net::UnixStream,
}

impl Instance {
    /// # Errors
    /// When there are no descriptors.
    pub(super) fn new() -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        Ok(Self { epoll: monoio::net::UnixStream::from_std(UnixStream::from(epoll))? })
    }

    /// What has happened; an error (a signal) leaves it for the next look.
    pub(super) fn now<'a>(&self, events: &'a mut [MaybeUninit<Event>]) -> &'a [Event] {
        let now = Some(&Timespec { tv_sec: 0, tv_nsec: 0 });
        epoll::wait(self.descriptor(), events, now).map_or(&[], |(events, _)| events)
    }

    /// Wait until something may have happened.
    pub(super) async fn stirs(&self) {
        let _ = self.epoll.readable(false).await;
    }

    /// As [`Self::stirs`], for a task that nothing else wakes: once woken it does not ask the kernel
    /// whether it was, because it looks for itself.
    pub(super) async fn wakes(&self) {
        let mut readable = pin!(self.epoll.readable(false));
        let mut asked = false;
        poll_fn(|cx| match std::mem::replace(&mut asked, true) {
            true => Poll::Ready(()),
            false => readable.as_mut().poll(cx).map(drop),
        })
        .await;
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the instance is open for as long as it is borrowed.
        unsafe { BorrowedFd::borrow_raw(self.epoll.as_raw_fd()) }
    }
}
