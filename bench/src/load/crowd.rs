//! Many connections that say something once and then stay: at rest, or with half a head sent.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};

use crate::clock;
use crate::http::response::Reader;

/// Closed when dropped.
#[derive(Debug)]
pub struct Crowd {
    members: Vec<Member>,
}

#[derive(Debug)]
struct Member {
    stream: TcpStream,
    /// When it had said what it had to say.
    spoke_ns: u64,
}

/// How the other side ended one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Farewell {
    /// Since it last said something.
    pub after: Duration,
    /// Of the answer that came before the end.
    pub status: Option<u16>,
}

impl Crowd {
    /// Opens `count`, a few at a time, each of which says `text` and, when `answered`, has its
    /// answer.
    ///
    /// # Errors
    /// When one can't be opened, or is not answered with 200.
    pub fn gather(address: SocketAddr, count: u32, text: &str, answered: bool) -> io::Result<Self> {
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let mut members = Vec::with_capacity(count);
        while members.len() < count {
            let first = members.len();
            for _ in 0..STEP.min(count - first) {
                let mut stream = TcpStream::connect(address)?;
                stream.write_all(text.as_bytes())?;
                members.push(Member { stream, spoke_ns: clock::now_ns() });
            }
            for member in members[first..].iter_mut().filter(|_| answered) {
                member.hear()?;
            }
        }
        Ok(Self { members })
    }

    /// How many are still there; one that was closed or spoken to is not.
    pub fn present(&self) -> usize {
        let is_open = |member: &&Member| {
            let stream = &member.stream;
            let quiet = stream.set_nonblocking(true).and_then(|()| stream.peek(&mut [0]));
            quiet.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
        };
        self.members.iter().filter(is_open).count()
    }

    /// Waits until the other side has ended them all, and so long at the most; those that it has
    /// not ended are missing from the answer.
    ///
    /// # Errors
    /// When they can't be watched.
    pub fn see_off(&self, patience: Duration, stop: &AtomicBool) -> io::Result<Vec<Farewell>> {
        let mut poll = Poll::new()?;
        for (index, Member { stream, .. }) in self.members.iter().enumerate() {
            stream.set_nonblocking(true)?;
            let descriptor = stream.as_raw_fd();
            let mut source = SourceFd(&descriptor);
            poll.registry().register(&mut source, Token(index), Interest::READABLE)?;
        }
        let mut events = Events::with_capacity(EVENTS);
        let mut statuses = vec![None; self.members.len()];
        let mut farewells = Vec::with_capacity(self.members.len());
        let late = clock::now_ns() + crate::unit::nanoseconds(patience);
        while farewells.len() < self.members.len()
            && clock::now_ns() < late
            && !stop.load(Ordering::Relaxed)
        {
            match poll.poll(&mut events, Some(TICK)) {
                Err(error) if error.kind() != ErrorKind::Interrupted => return Err(error),
                Ok(()) | Err(_) => {}
            }
            for index in events.iter().map(|event| event.token().0) {
                let member = &self.members[index];
                if member.is_ended(&mut statuses[index]) {
                    let after = clock::now_ns().saturating_sub(member.spoke_ns);
                    let (after, status) = (Duration::from_nanos(after), statuses[index]);
                    farewells.push(Farewell { after, status });
                    // It would be an event again and again.
                    poll.registry().deregister(&mut SourceFd(&member.stream.as_raw_fd()))?;
                }
            }
        }
        Ok(farewells)
    }
}

impl Member {
    fn hear(&mut self) -> io::Result<()> {
        self.stream.set_read_timeout(Some(ANSWER_WITHIN))?;
        let (mut reader, mut buffer) = (Reader::new(false), [0; 4096]);
        loop {
            let length = self.stream.read(&mut buffer)?;
            match reader.feed(&buffer[..length]) {
                Ok(Some((answer, _))) if answer.status == 200 => return Ok(()),
                Ok(None) if length > 0 => {}
                Ok(_) | Err(_) => return Err(io::Error::other("a connection had no good answer")),
            }
        }
    }

    /// Reads what there is; an answer's status, if one begins here, is kept.
    fn is_ended(&self, status: &mut Option<u16>) -> bool {
        let mut buffer = [0; 4096];
        loop {
            match (&self.stream).read(&mut buffer) {
                Ok(0) => return true,
                Ok(length) => *status = status.or_else(|| status_of(&buffer[..length])),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return true,
            }
        }
    }
}

fn status_of(answer: &[u8]) -> Option<u16> {
    std::str::from_utf8(answer.strip_prefix(b"HTTP/1.1 ")?.get(..3)?).ok()?.parse().ok()
}

/// Enough at a time to be quick, few enough for any backlog.
const STEP: usize = 64;
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
const TICK: Duration = Duration::from_millis(100);
const EVENTS: usize = 1024;
