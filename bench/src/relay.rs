//! The floor: a relay that moves bytes and knows no HTTP, one upstream connection for each of its
//! clients. What it takes is what the kernel charges for the work of a proxy.
//!
//! On a ring: accepts and receives that stay armed, into a small ring of buffers that stays in the
//! cache, and one send under way a socket. Or on epoll, see [`epoll`].

use std::collections::VecDeque;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use slab::Slab;

use buffers::Buffers;

mod buffers;
mod epoll;

/// Listens; run it to serve.
#[derive(Debug)]
pub struct Relay {
    listener: TcpListener,
    upstream: SocketAddr,
}

/// How bytes are moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Means {
    /// By `io_uring`
    Ring,
    /// On epoll, through a buffer
    Copy,
    /// On epoll, through pipes
    Splice,
}

/// One socket of a pair.
#[derive(Debug)]
struct Side {
    socket: TcpStream,
    peer: usize,
    /// What is to be sent to it: a buffer, and how much of it. The first is on its way.
    queue: VecDeque<(u16, u32)>,
    receiving: bool,
    shut: bool,
}

struct Loop<'r> {
    ring: &'r mut IoUring,
    buffers: &'r mut Buffers,
    sides: Slab<Side>,
}

/// What a completion is of, in the upper half of its number.
const ACCEPT: u64 = 1 << 32;
const RECEIVE: u64 = 2 << 32;
const SEND: u64 = 3 << 32;
const INDEX: u64 = u32::MAX as u64;

const ENTRIES: u32 = 4096;

impl Relay {
    /// # Errors
    /// When nothing can listen there.
    pub fn bind(listen: SocketAddr, upstream: SocketAddr) -> io::Result<Self> {
        Ok(Self { listener: TcpListener::bind(listen)?, upstream })
    }

    /// # Errors
    /// When the address can't be told.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serve until `stop`.
    ///
    /// # Errors
    /// When the kernel has no such rings (6.1 has), or no epoll for us.
    pub fn run(self, means: Means, stop: &AtomicBool) -> io::Result<()> {
        match means {
            Means::Ring => self.run_on_ring(stop),
            Means::Copy | Means::Splice => epoll::run(self.listener, self.upstream, means, stop),
        }
    }

    fn run_on_ring(self, stop: &AtomicBool) -> io::Result<()> {
        let mut ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_coop_taskrun()
            .setup_cqsize(8 * ENTRIES)
            .build(ENTRIES)?;
        let mut buffers = Buffers::register(&ring)?;
        let mut it = Loop { ring: &mut ring, buffers: &mut buffers, sides: Slab::new() };
        let accept = opcode::AcceptMulti::new(types::Fd(self.listener.as_raw_fd())).build();
        it.push(accept.user_data(ACCEPT))?;
        let patience = types::Timespec::from(Duration::from_millis(100));
        let wait = types::SubmitArgs::new().timespec(&patience);
        let mut done: Vec<(u64, i32, u32)> = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            match it.ring.submitter().submit_with_args(1, &wait) {
                Ok(_) => {}
                Err(e) if matches!(e.raw_os_error(), Some(ETIME | EINTR)) => {}
                Err(e) => return Err(e),
            }
            let all = it.ring.completion().map(|c| (c.user_data(), c.result(), c.flags()));
            done.extend(all);
            for (about, result, flags) in done.drain(..) {
                let index = usize::try_from(about & INDEX).unwrap_or_default();
                match about & !INDEX {
                    ACCEPT if result >= 0 => it.welcome(result, self.upstream)?,
                    ACCEPT => {}
                    RECEIVE => it.received(index, result, flags)?,
                    _ => it.sent(index, result)?,
                }
            }
        }
        Ok(())
    }
}

const EINTR: i32 = 4;
const ETIME: i32 = 62;
const ENOBUFS: i32 = 105;

impl Side {
    fn close(&self) {
        // It may be closed by the other end already.
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

impl Loop<'_> {
    fn push(&mut self, entry: squeue::Entry) -> io::Result<()> {
        // SAFETY: what an entry points to outlives it: sockets are closed, and buffers given back,
        // only when nothing of theirs is under way.
        while unsafe { self.ring.submission().push(&entry) }.is_err() {
            self.ring.submit()?;
        }
        Ok(())
    }

    fn welcome(&mut self, descriptor: i32, upstream: SocketAddr) -> io::Result<()> {
        // SAFETY: the kernel has just handed it out, to nobody else.
        let client = unsafe { TcpStream::from_raw_fd(descriptor) };
        // On this machine it is there at once, or never.
        let Ok(upstream) = TcpStream::connect(upstream) else { return Ok(()) };
        client.set_nodelay(true)?;
        upstream.set_nodelay(true)?;
        let side = |socket, peer| Side {
            socket,
            peer,
            queue: VecDeque::with_capacity(4),
            receiving: false,
            shut: false,
        };
        let first = self.sides.insert(side(client, 0));
        let second = self.sides.insert(side(upstream, first));
        self.sides[first].peer = second;
        self.receive(first)?;
        self.receive(second)
    }

    fn receive(&mut self, index: usize) -> io::Result<()> {
        let Some(side) = self.sides.get_mut(index) else { return Ok(()) };
        side.receiving = true;
        let socket = types::Fd(side.socket.as_raw_fd());
        let entry = opcode::RecvMulti::new(socket, Buffers::GROUP).build();
        self.push(entry.user_data(RECEIVE | index as u64))
    }

    fn received(&mut self, index: usize, result: i32, flags: u32) -> io::Result<()> {
        let Some(side) = self.sides.get_mut(index) else { return Ok(()) };
        side.receiving = cqueue::more(flags);
        let (peer, shut, receiving) = (side.peer, side.shut, side.receiving);
        let buffer = cqueue::buffer_select(flags);
        match (u32::try_from(result), buffer) {
            (Ok(bytes @ 1..), Some(buffer)) if !shut => {
                let to = &mut self.sides[peer];
                to.queue.push_back((buffer, bytes));
                if to.queue.len() == 1 {
                    self.send(peer)?;
                }
            }
            (_, Some(buffer)) => self.buffers.give(buffer),
            _ if result == -ENOBUFS => {}
            _ => self.shut(index),
        }
        if !receiving && !self.sides[index].shut {
            self.receive(index)?;
        }
        self.reap(index);
        Ok(())
    }

    fn send(&mut self, index: usize) -> io::Result<()> {
        let side = &self.sides[index];
        let Some((buffer, bytes)) = side.queue.front().copied() else { return Ok(()) };
        let socket = types::Fd(side.socket.as_raw_fd());
        let flags = (rustix::net::SendFlags::NOSIGNAL.bits() | MSG_WAITALL).cast_signed();
        let entry = opcode::Send::new(socket, self.buffers.at(buffer), bytes).flags(flags).build();
        self.push(entry.user_data(SEND | index as u64))
    }

    fn sent(&mut self, index: usize, result: i32) -> io::Result<()> {
        let side = &mut self.sides[index];
        let Some((buffer, bytes)) = side.queue.pop_front() else { return Ok(()) };
        self.buffers.give(buffer);
        if u32::try_from(result) != Ok(bytes) {
            for (buffer, _) in std::mem::take(&mut side.queue) {
                self.buffers.give(buffer);
            }
            self.shut(index);
        } else if side.shut && side.queue.is_empty() {
            side.close();
        }
        self.send(index)?;
        self.reap(index);
        Ok(())
    }

    /// Whoever ends takes the other along, once what is on its way to that one is out.
    fn shut(&mut self, index: usize) {
        let peer = self.sides[index].peer;
        for index in [index, peer] {
            let side = &mut self.sides[index];
            side.shut = true;
            if side.queue.is_empty() {
                side.close();
            }
        }
    }

    /// Close both when nothing of theirs is under way.
    fn reap(&mut self, index: usize) {
        let peer = self.sides[index].peer;
        let over = |side: &Side| side.shut && !side.receiving && side.queue.is_empty();
        if [index, peer].iter().all(|index| over(&self.sides[*index])) {
            self.sides.remove(index);
            self.sides.remove(peer);
        }
    }
}

/// Of `sys/socket.h`: the ring goes on until all is sent.
const MSG_WAITALL: u32 = 0x100;
