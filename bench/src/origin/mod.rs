//! The origin: one epoll thread that answers HTTP/1.1 with the size, delay and status asked for.

mod connection;
mod servers;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::mem;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mio::net::TcpListener;
use mio::{Events, Interest, Poll, Token};
use slab::Slab;

use self::connection::{Connection, Next};
use self::servers::Servers;
use crate::alarm::Alarm;
use crate::clock;
use crate::http::request::Wish;
use crate::unit::nanoseconds;

/// How the origin answers when the request does not say otherwise.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    pub wish: Wish,
    /// Every so many requests one waits for `stall` more; 0 is never.
    pub stall_every: u64,
    pub stall: Duration,
    /// Requests that are worked on at once, each for its delay; the rest waits in one queue. None:
    /// all of them.
    pub servers: Option<NonZeroU32>,
    /// Connections that are held at once; more wait with the kernel.
    pub connections: usize,
}

/// A bound origin; [`Origin::run`] serves.
#[derive(Debug)]
pub struct Origin {
    poll: Poll,
    listener: TcpListener,
    address: SocketAddr,
    settings: Settings,
    connections: Slab<Connection>,
    servers: Servers<Client>,
    /// Answers that are being worked on, by when they are due.
    waiting: BinaryHeap<Reverse<(u64, Client)>>,
    alarm: Alarm,
    events: Events,
    buffer: Vec<u8>,
    served: u64,
    accepted: u64,
    /// Somebody may wait with the kernel; edge-triggered events say so only once.
    crowded: bool,
}

/// Its token, and its serial since tokens are reused.
type Client = (usize, u64);

impl Default for Settings {
    /// 128 bytes at once, to whoever asks.
    fn default() -> Self {
        let wish = Wish { body_bytes: 128, delay: Duration::ZERO, status: 200, servers: None };
        Self { wish, stall_every: 0, stall: Duration::ZERO, servers: None, connections: 16_384 }
    }
}

impl Settings {
    /// The wish of the `nth` request (from 1) with its stall added.
    fn stalled(&self, wish: Wish, nth: u64) -> Wish {
        let stalls = self.stall_every > 0 && nth.is_multiple_of(self.stall_every);
        let stall = if stalls { self.stall } else { Duration::ZERO };
        Wish { delay: wish.delay + stall, ..wish }
    }
}

impl Origin {
    pub fn bind(address: SocketAddr, settings: Settings) -> io::Result<Self> {
        let poll = Poll::new()?;
        let mut listener = TcpListener::bind(address)?;
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        let address = listener.local_addr()?;
        let alarm = Alarm::new(poll.registry(), ALARM)?;
        let count = settings.servers.and_then(|count| usize::try_from(count.get()).ok());
        Ok(Self {
            poll,
            listener,
            address,
            settings,
            connections: Slab::new(),
            servers: Servers::new(count),
            waiting: BinaryHeap::new(),
            alarm,
            events: Events::with_capacity(EVENTS),
            buffer: vec![0; READ_BYTES],
            served: 0,
            accepted: 0,
            crowded: false,
        })
    }

    /// Where it listens; tells the port when 0 was asked for.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop` is set, noticed within a tenth of a second. Says how many it has answered.
    pub fn run(&mut self, stop: &AtomicBool) -> io::Result<u64> {
        while !stop.load(Ordering::Relaxed) {
            if let Some(Reverse((due, _))) = self.waiting.peek() {
                self.alarm.set(*due)?;
            }
            self.turn(STOP_CHECK)?;
        }
        Ok(self.served)
    }

    /// Waits so long for something to come, and serves what has; false: nothing had.
    pub(crate) fn turn(&mut self, patience: Duration) -> io::Result<bool> {
        let mut events = mem::replace(&mut self.events, Events::with_capacity(0));
        let mut buffer = mem::take(&mut self.buffer);
        let found = self.serve(&mut events, &mut buffer, patience);
        (self.events, self.buffer) = (events, buffer);
        found
    }

    fn serve(
        &mut self,
        events: &mut Events,
        buffer: &mut [u8],
        patience: Duration,
    ) -> io::Result<bool> {
        match self.poll.poll(events, Some(patience)) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            Ok(()) | Err(_) => {}
        }
        for event in &*events {
            if event.token() == LISTENER {
                self.accept()?;
            } else if event.token() != ALARM {
                if let Some(connection) = self.connections.get_mut(event.token().0)
                    && (event.is_readable() || event.is_error())
                {
                    connection.mark_readable(event.is_read_closed() || event.is_error());
                }
                self.drive(event.token().0, buffer);
            }
        }
        let woke = self.wake(buffer);
        if self.crowded {
            self.accept()?;
        }
        Ok(woke || !events.is_empty())
    }

    fn accept(&mut self) -> io::Result<()> {
        loop {
            self.crowded = self.connections.len() >= self.settings.connections;
            if self.crowded {
                return Ok(());
            }
            let mut stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                // The client has gone, or descriptors ran out: the next event tries again.
                Err(_) => return Ok(()),
            };
            if stream.set_nodelay(true).is_err() {
                continue;
            }
            let entry = self.connections.vacant_entry();
            let token = Token(entry.key());
            self.poll.registry().register(
                &mut stream,
                token,
                Interest::READABLE | Interest::WRITABLE,
            )?;
            self.accepted += 1;
            entry.insert(Connection::new(stream, self.accepted));
        }
    }

    /// Answers that are due, and whose turn it is then; false: none is.
    fn wake(&mut self, buffer: &mut [u8]) -> bool {
        let (now, mut woke) = (clock::now_ns(), false);
        while let Some(&Reverse((due, (token, serial)))) = self.waiting.peek() {
            if due > now {
                break;
            }
            woke = true;
            self.waiting.pop();
            self.waiting.extend(self.servers.done(due).map(Reverse));
            let waiting = self.connections.get_mut(token).filter(|found| found.serial() == serial);
            if let Some(connection) = waiting {
                connection.release();
                self.drive(token, buffer);
            }
        }
        woke
    }

    fn drive(&mut self, token: usize, buffer: &mut [u8]) {
        let Some(connection) = self.connections.get_mut(token) else { return };
        let (settings, served, mut count) = (&self.settings, &mut self.served, None);
        let mut adjust = |wish: Wish| {
            *served += 1;
            count = wish.servers.or(count);
            settings.stalled(wish, *served)
        };
        match connection.advance(buffer, settings.wish, &mut adjust) {
            Next::Rest => {}
            Next::Hold(delay) => {
                let client = (token, connection.serial());
                let begun = self.servers.arrive(clock::now_ns(), client, nanoseconds(delay));
                self.waiting.extend(begun.map(Reverse));
            }
            Next::Close => {
                self.connections.remove(token);
            }
        }
        if let Some(count) = count {
            self.resize(count);
        }
    }

    fn resize(&mut self, count: u32) {
        self.servers.resize(usize::try_from(count).unwrap_or(usize::MAX));
        let now = clock::now_ns();
        while let Some(begun) = self.servers.next(now) {
            self.waiting.push(Reverse(begun));
        }
    }
}

const LISTENER: Token = Token(usize::MAX);
const ALARM: Token = Token(usize::MAX - 1);
const EVENTS: usize = 1024;
const READ_BYTES: usize = 64 * 1024;
const STOP_CHECK: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_nth_request_stalls() {
        let delay = Duration::from_millis(5);
        let wish = Wish { body_bytes: 1, delay, status: 200, servers: None };
        let stall = Duration::from_millis(100);
        let settings =
            |stall_every| Settings { wish, stall_every, stall, servers: None, connections: 1 };
        for (every, nth, expected_ms) in
            [(0, 1, 5), (0, 100, 5), (3, 2, 5), (3, 3, 105), (3, 6, 105), (1, 1, 105)]
        {
            let found = settings(every).stalled(wish, nth);
            assert_eq!(
                found.delay,
                Duration::from_millis(expected_ms),
                "every {every}, request {nth}"
            );
        }
    }
}
