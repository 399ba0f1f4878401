//! Wakes a poll at an exact time: epoll's own timeout counts in milliseconds, and a millisecond
//! late is a millisecond of false latency.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use crate::clock;

/// A timer that is an event of its poll.
#[derive(Debug)]
pub(crate) struct Alarm {
    timer: OwnedFd,
    set_ns: u64,
}

impl Alarm {
    pub(crate) fn new(registry: &Registry, token: Token) -> io::Result<Self> {
        let timer = timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC,
        )?;
        registry.register(&mut SourceFd(&timer.as_raw_fd()), token, Interest::READABLE)?;
        Ok(Self { timer, set_ns: 0 })
    }

    /// From now on it goes off then, on the clock of [`clock::now_ns`], and not when it was set to
    /// before. A time that has passed is now.
    pub(crate) fn set(&mut self, at_ns: u64) -> io::Result<()> {
        if at_ns == self.set_ns {
            return Ok(());
        }
        self.set_ns = at_ns;
        // All zeros would disarm it.
        let value = clock::timespec(at_ns.max(1));
        let once = Itimerspec { it_interval: clock::timespec(0), it_value: value };
        timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &once)?;
        Ok(())
    }
}
