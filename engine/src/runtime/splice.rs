//! Bytes from one socket to another without a copy through this process: splice(2) over a pipe.
//!
//! Called directly, never blocking; the driver is asked only for readiness. (Handed to a ring, a
//! splice that has to wait takes a kernel thread for as long.)

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};

use super::polled::Direction;
use super::socket::Stream;
use super::turn::Turns;

/// What a pipe is asked to hold; the kernel may grant less.
const PIPE_BYTES: usize = 256 * 1024;

/// Spare pipes kept for the next taker; each is two descriptors.
const SPARES_MAX: usize = 16;

/// One worker's spare pipes, all of them empty.
#[derive(Debug, Default)]
pub(crate) struct Pipes {
    spare: RefCell<Vec<Pipe>>,
    most: Cell<u32>,
    /// Held by every pipe that there is.
    alive: Rc<()>,
}

#[derive(Debug)]
struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
    capacity: usize,
    _alive: Rc<()>,
}

/// A known number of bytes on their way from one socket to another. Nothing else may read from the
/// one or write to the other meanwhile.
#[derive(Debug)]
pub(crate) struct Duct {
    from: Stream,
    to: Stream,
    pipe: Pipe,
    /// Still to be taken from `from`.
    left: u64,
    /// In the pipe.
    held: usize,
    /// Given to `to`.
    pub(crate) moved: u64,
}

/// Which socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    From,
    To,
}

/// How far it went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// Until this end is [`Duct::ready`].
    Waits(End),
    /// Others are to have their turn.
    Burst,
    Done,
}

impl Pipes {
    /// So many pipes at the most, two descriptors each.
    pub(crate) fn bound(&self, most: u32) {
        self.most.set(most);
    }

    /// None when there are no descriptors for it: then bytes are to be copied.
    pub(super) fn duct(&self, from: Stream, to: Stream, left: u64) -> Option<Duct> {
        let pipe = match self.spare.borrow_mut().pop() {
            Some(pipe) => pipe,
            None if Rc::strong_count(&self.alive) > self.most.get() as usize => return None,
            None => Pipe::new(Rc::clone(&self.alive)).ok()?,
        };
        // Rings leave it off; their sends and receives take no notice of it. Without it a splice
        // blocks the whole worker.
        for stream in [&from, &to].into_iter().filter(|s| matches!(s, Stream::Driver(_))) {
            fcntl_setfl(stream, OFlags::RDWR | OFlags::NONBLOCK).ok()?;
        }
        Some(Duct { from, to, pipe, left, held: 0, moved: 0 })
    }

    /// A pipe that still holds something is closed with it.
    pub(crate) fn give(&self, duct: Duct) {
        let mut spare = self.spare.borrow_mut();
        if duct.held == 0 && spare.len() < SPARES_MAX {
            spare.push(duct.pipe);
        }
    }
}

impl Pipe {
    fn new(alive: Rc<()>) -> io::Result<Self> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // Refused where a user's pipes are bounded: then it is as large as the kernel likes.
        let _ = fcntl_setpipe_size(&write, PIPE_BYTES);
        let capacity = rustix::pipe::fcntl_getpipe_size(&write)?;
        Ok(Self { read, write, capacity, _alive: alive })
    }
}

impl Duct {
    /// Move what can be moved now, a turn's length at the most.
    ///
    /// # Errors
    /// Which end broke, and how; an early end of `from` is `UnexpectedEof`.
    pub(crate) fn run(&mut self, turns: &Turns) -> Result<Flow, (End, io::Error)> {
        let turn = turns.length();
        let target = self.moved + turn;
        let mut ended = false;
        loop {
            let mut empty = ended;
            if !ended && self.left > 0 && self.held < self.pipe.capacity {
                match self.fill(turn) {
                    Ok(0) => (ended, empty) = (true, true),
                    Ok(_) => {}
                    // No bytes, or no room: what is held tells.
                    Err(Errno::AGAIN) => empty = true,
                    Err(Errno::INTR) => continue,
                    Err(e) => return Err((End::From, e.into())),
                }
            }
            if self.held == 0 {
                return match (self.left, ended, empty) {
                    (0, ..) => Ok(Flow::Done),
                    (_, true, _) => Err((End::From, io::ErrorKind::UnexpectedEof.into())),
                    (_, false, true) => {
                        self.from.waits(Direction::Read);
                        Ok(Flow::Waits(End::From))
                    }
                    (_, false, false) => continue,
                };
            }
            match self.drain() {
                Ok(_) if self.moved >= target && self.left > 0 => return Ok(Flow::Burst),
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    self.to.waits(Direction::Write);
                    return Ok(Flow::Waits(End::To));
                }
                Err(e) => return Err((End::To, e.into())),
            }
        }
    }

    /// Wait until this end can go on. May be dropped: it holds nothing but the wait.
    pub(crate) async fn ready(&self, end: End) {
        match end {
            End::From => self.from.ready(Direction::Read).await,
            End::To => self.to.ready(Direction::Write).await,
        }
    }

    fn fill(&mut self, turn: u64) -> Result<usize, Errno> {
        let room = (self.pipe.capacity - self.held) as u64;
        // A fuller pipe would be a longer turn.
        let wanted = usize::try_from(self.left.min(room).min(turn)).unwrap_or(usize::MAX);
        let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
        let n = splice(&self.from, None, &self.pipe.write, None, wanted, flags)?;
        self.left -= n as u64;
        self.held += n;
        Ok(n)
    }

    fn drain(&mut self) -> Result<usize, Errno> {
        let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
        let n = splice(&self.pipe.read, None, &self.to, None, self.held, flags)?;
        self.held -= n;
        self.moved += n as u64;
        Ok(n)
    }
}
