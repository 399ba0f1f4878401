//! The origin: one epoll thread that answers HTTP/1.1 with the size, delay and status asked for.

mod connection;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mio::net::TcpListener;
use mio::{Events, Interest, Poll, Token};
use slab::Slab;

use self::connection::{Connection, Next};
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
}

/// A bound origin; [`Origin::run`] serves.
#[derive(Debug)]
pub struct Origin {
    poll: Poll,
    listener: TcpListener,
    address: SocketAddr,
    settings: Settings,
    connections: Slab<Connection>,
    /// Answers that wait: due time, token, and the connection's serial since tokens are reused.
    waiting: BinaryHeap<Reverse<(u64, usize, u64)>>,
    served: u64,
    accepted: u64,
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
        Ok(Self {
            poll,
            listener,
            address,
            settings,
            connections: Slab::new(),
            waiting: BinaryHeap::new(),
            served: 0,
            accepted: 0,
        })
    }

    /// Where it listens; tells the port when 0 was asked for.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop` is set, noticed within a tenth of a second. Says how many it answered.
    pub fn run(mut self, stop: &AtomicBool) -> io::Result<u64> {
        let mut events = Events::with_capacity(EVENTS);
        let mut buffer = vec![0; READ_BYTES];
        while !stop.load(Ordering::Relaxed) {
            match self.poll.poll(&mut events, Some(self.patience())) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                Ok(()) | Err(_) => {}
            }
            for event in &events {
                if event.token() == LISTENER {
                    self.accept()?;
                } else {
                    if let Some(connection) = self.connections.get_mut(event.token().0)
                        && (event.is_readable() || event.is_error())
                    {
                        connection.mark_readable(event.is_read_closed() || event.is_error());
                    }
                    self.drive(event.token().0, &mut buffer);
                }
            }
            self.wake(&mut buffer);
        }
        Ok(self.served)
    }

    fn patience(&self) -> Duration {
        let now = clock::now_ns();
        let due = self.waiting.peek().map(|Reverse((due, ..))| due.saturating_sub(now));
        due.map_or(STOP_CHECK, |left| Duration::from_nanos(left).min(STOP_CHECK))
    }

    fn accept(&mut self) -> io::Result<()> {
        loop {
            let mut stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                // The client has gone, or descriptors ran out: the next event tries again.
                Err(_) => return Ok(()),
            };
            if self.connections.len() >= CONNECTIONS_MAX || stream.set_nodelay(true).is_err() {
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

    /// Answers that have waited long enough.
    fn wake(&mut self, buffer: &mut [u8]) {
        let now = clock::now_ns();
        while let Some(&Reverse((due, token, serial))) = self.waiting.peek() {
            if due > now {
                break;
            }
            self.waiting.pop();
            let waiting = self.connections.get_mut(token).filter(|found| found.serial() == serial);
            if let Some(connection) = waiting {
                connection.release();
                self.drive(token, buffer);
            }
        }
    }

    fn drive(&mut self, token: usize, buffer: &mut [u8]) {
        let Some(connection) = self.connections.get_mut(token) else { return };
        let (settings, served) = (&self.settings, &mut self.served);
        let mut adjust = |wish: Wish| {
            *served += 1;
            settings.stalled(wish, *served)
        };
        match connection.advance(buffer, settings.wish, &mut adjust) {
            Next::Rest => {}
            Next::Hold(delay) => {
                let due = clock::now_ns().saturating_add(nanoseconds(delay));
                self.waiting.push(Reverse((due, token, connection.serial())));
            }
            Next::Close => {
                self.connections.remove(token);
            }
        }
    }
}

const LISTENER: Token = Token(usize::MAX);
const EVENTS: usize = 1024;
const READ_BYTES: usize = 64 * 1024;
/// Far more than a load opens; keeps a mistake from eating every descriptor.
const CONNECTIONS_MAX: usize = 16_384;
const STOP_CHECK: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_nth_request_stalls() {
        let wish = Wish { body_bytes: 1, delay: Duration::from_millis(5), status: 200 };
        let settings =
            |stall_every| Settings { wish, stall_every, stall: Duration::from_millis(100) };
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
