//! The same on epoll: by copies through a buffer, or by splice(2) through a pipe.

use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use slab::Slab;

use super::Means;

/// One socket of a pair, and what was read from it and not yet written to the other.
#[derive(Debug)]
struct Side {
    stream: TcpStream,
    peer: usize,
    held: Held,
}

#[derive(Debug)]
enum Held {
    /// From `at` on.
    Copy {
        bytes: Vec<u8>,
        at: usize,
    },
    Pipe {
        read: OwnedFd,
        write: OwnedFd,
        bytes: usize,
    },
}

/// Serves until `stop`.
pub(super) fn run(
    listener: std::net::TcpListener,
    upstream: SocketAddr,
    means: Means,
    stop: &AtomicBool,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let (mut poll, mut listener) = (Poll::new()?, TcpListener::from_std(listener));
    poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
    let (mut events, mut sides) = (Events::with_capacity(EVENTS), Slab::new());
    let mut buffer = vec![0; READ_BYTES];
    while !stop.load(Ordering::Relaxed) {
        match poll.poll(&mut events, Some(STOP_CHECK)) {
            Err(error) if error.kind() != ErrorKind::Interrupted => return Err(error),
            Ok(()) | Err(_) => {}
        }
        for event in &events {
            if event.token() == LISTENER {
                while let Ok((client, _)) = listener.accept() {
                    welcome(client, upstream, means, &poll, &mut sides)?;
                }
                continue;
            }
            let index = event.token().0;
            let Some(peer) = sides.get(index).map(|side: &Side| side.peer) else { continue };
            let mut lives = Ok(true);
            if event.is_writable() && !sides[peer].held.is_empty() {
                lives = pump(&mut sides, peer, &mut buffer, true);
            }
            if event.is_readable() && matches!(lives, Ok(true)) {
                lives = pump(&mut sides, index, &mut buffer, event.is_read_closed());
            }
            if !matches!(lives, Ok(true)) {
                sides.remove(index);
                sides.remove(peer);
            }
        }
    }
    Ok(())
}

fn welcome(
    client: TcpStream,
    upstream: SocketAddr,
    means: Means,
    poll: &Poll,
    sides: &mut Slab<Side>,
) -> io::Result<()> {
    // On this machine it is there at once, or never.
    let Ok(upstream) = std::net::TcpStream::connect(upstream) else { return Ok(()) };
    upstream.set_nonblocking(true)?;
    let first = sides.vacant_key();
    for (stream, other) in [(client, None), (TcpStream::from_std(upstream), Some(first))] {
        stream.set_nodelay(true)?;
        let peer = other.unwrap_or_default();
        let side = sides.insert(Side { stream, peer, held: Held::nothing(means)? });
        sides[first].peer = side;
        let both = Interest::READABLE | Interest::WRITABLE;
        poll.registry().register(&mut sides[side].stream, Token(side), both)?;
    }
    Ok(())
}

/// From one side to its peer until one of them has no more or takes no more; false at the end.
/// `ending`: the end waits behind what there is.
fn pump(sides: &mut Slab<Side>, index: usize, buffer: &mut [u8], ending: bool) -> io::Result<bool> {
    let peer = sides[index].peer;
    let Some((from, to)) = sides.get2_mut(index, peer) else { return Ok(false) };
    loop {
        if !from.held.flush(&to.stream)? {
            return Ok(true);
        }
        match from.held.fill(&from.stream, &to.stream, buffer) {
            Ok(0) => return Ok(false),
            // A short read has emptied the socket.
            Ok(length) if from.held.is_copied() && length < buffer.len() && !ending => {
                return Ok(true);
            }
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
            Err(error) => return Err(error),
        }
    }
}

impl Held {
    fn nothing(means: Means) -> io::Result<Self> {
        if means == Means::Copy {
            return Ok(Self::Copy { bytes: Vec::new(), at: 0 });
        }
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // Refused where pipes are bounded: then it is as large as the kernel likes.
        let _ = fcntl_setpipe_size(&write, PIPE_BYTES);
        Ok(Self::Pipe { read, write, bytes: 0 })
    }

    fn is_copied(&self) -> bool {
        matches!(self, Self::Copy { .. })
    }

    fn is_empty(&self) -> bool {
        match self {
            Self::Copy { bytes, at } => *at == bytes.len(),
            Self::Pipe { bytes, .. } => *bytes == 0,
        }
    }

    /// Reads once; what is copied and goes out at once is not held. Says how much was read.
    fn fill(&mut self, from: &TcpStream, to: &TcpStream, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Copy { bytes, at } => {
                let length = (&*from).read(buffer)?;
                let sent = match (&*to).write(&buffer[..length]) {
                    Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
                    sent => sent?,
                };
                (*bytes, *at) = (buffer[sent..length].to_vec(), 0);
                Ok(length)
            }
            Self::Pipe { write, bytes, .. } => {
                *bytes = splice(from, None, &*write, None, PIPE_BYTES, SPLICE)?;
                Ok(*bytes)
            }
        }
    }

    /// True when nothing is held any more.
    fn flush(&mut self, to: &TcpStream) -> io::Result<bool> {
        while !self.is_empty() {
            let sent = match self {
                Self::Copy { bytes, at } => (&*to).write(&bytes[*at..]),
                Self::Pipe { read, bytes, .. } => {
                    splice(&*read, None, to, None, *bytes, SPLICE).map_err(io::Error::from)
                }
            };
            let sent = match sent {
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                sent => sent?,
            };
            match self {
                Self::Copy { at, .. } => *at += sent,
                Self::Pipe { bytes, .. } => *bytes -= sent,
            }
        }
        Ok(true)
    }
}

const SPLICE: SpliceFlags = SpliceFlags::MOVE.union(SpliceFlags::NONBLOCK);
const LISTENER: Token = Token(usize::MAX);
const EVENTS: usize = 1024;
const READ_BYTES: usize = 64 * 1024;
const PIPE_BYTES: usize = 1 << 20;
const STOP_CHECK: Duration = Duration::from_millis(100);
