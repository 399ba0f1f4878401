//! One connection of the load: at most one request at a time, written and read without blocking.

use std::io::{self, Read, Write};
use std::net::SocketAddr;

use mio::net::TcpStream;
use mio::{Interest, Registry, Token};

use super::request::Payload;
use super::tally::Failure;
use crate::http::response::{Answer, Reader};

/// ```text
/// Closed ─begin→ Connecting ─writable→ Busy ─answer→ Idle ─begin→ Busy …
///    ↑               └──────error────────┴── end, error, not reusable ┐
///    └────────────────────────────────────────────────────────────────┘
/// ```
#[derive(Debug)]
enum Stage {
    Closed,
    Connecting(TcpStream),
    Idle(TcpStream),
    Busy(TcpStream),
}

/// What an event led to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Happened {
    Nothing,
    Answered(Answer),
    Failed(Failure),
}

#[derive(Debug)]
pub(super) struct Connection {
    stage: Stage,
    reader: Reader,
    written: u64,
    /// Bytes that it ever sent and received.
    pub(super) moved: u64,
    /// When the request was due, and when we set out to send it.
    pub(super) due_ns: u64,
    pub(super) sent_ns: u64,
}

impl Connection {
    pub(super) fn new(to_head: bool) -> Self {
        Self {
            stage: Stage::Closed,
            reader: Reader::new(to_head),
            written: 0,
            moved: 0,
            due_ns: 0,
            sent_ns: 0,
        }
    }

    /// A request is under way.
    pub(super) fn is_busy(&self) -> bool {
        matches!(self.stage, Stage::Connecting(_) | Stage::Busy(_))
    }

    /// Sends a request, connecting first when there is no connection.
    pub(super) fn begin(
        &mut self,
        address: SocketAddr,
        registry: &Registry,
        token: Token,
        payload: &Payload,
    ) -> Happened {
        self.written = 0;
        match std::mem::replace(&mut self.stage, Stage::Closed) {
            Stage::Idle(stream) => {
                self.stage = Stage::Busy(stream);
                self.write(payload)
            }
            Stage::Closed | Stage::Connecting(_) | Stage::Busy(_) => {
                self.reader = Reader::new(payload.is_head);
                match connect(address, registry, token) {
                    Ok(stream) => {
                        self.stage = Stage::Connecting(stream);
                        Happened::Nothing
                    }
                    Err(_) => Happened::Failed(Failure::Connect),
                }
            }
        }
    }

    /// The socket has news. `ends`: the peer has closed its side.
    pub(super) fn ready(
        &mut self,
        writable: bool,
        readable: bool,
        ends: bool,
        payload: &Payload,
        buffer: &mut [u8],
    ) -> Happened {
        if let Stage::Connecting(stream) = &self.stage {
            match stream.take_error() {
                Ok(None) if writable => {}
                Ok(None) => return Happened::Nothing,
                Ok(Some(_)) | Err(_) => return self.fail(Failure::Connect),
            }
            if let Stage::Connecting(stream) = std::mem::replace(&mut self.stage, Stage::Closed) {
                self.stage = Stage::Busy(stream);
            }
        }
        if writable && let Happened::Failed(failure) = self.write(payload) {
            return Happened::Failed(failure);
        }
        if readable || ends { self.read(ends, payload, buffer) } else { Happened::Nothing }
    }

    /// Gives the request up.
    pub(super) fn fail(&mut self, failure: Failure) -> Happened {
        self.stage = Stage::Closed;
        Happened::Failed(failure)
    }

    fn write(&mut self, payload: &Payload) -> Happened {
        let Stage::Busy(stream) = &mut self.stage else { return Happened::Nothing };
        loop {
            let rest = payload.rest(self.written);
            if rest.is_empty() {
                return Happened::Nothing;
            }
            match stream.write(rest) {
                Ok(written) => {
                    self.written += written as u64;
                    self.moved += written as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Happened::Nothing;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // An early refusal (413) may be waiting to be read; the read tells.
                Err(_) if self.written > 0 => return Happened::Nothing,
                Err(_) => return self.fail(Failure::Reset),
            }
        }
    }

    fn read(&mut self, ends: bool, payload: &Payload, buffer: &mut [u8]) -> Happened {
        loop {
            let (stream, idle) = match &mut self.stage {
                Stage::Busy(stream) => (stream, false),
                Stage::Idle(stream) => (stream, true),
                Stage::Closed | Stage::Connecting(_) => return Happened::Nothing,
            };
            let length = match stream.read(buffer) {
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Happened::Nothing;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) if !idle => return self.fail(Failure::Reset),
                Err(_) => 0,
            };
            self.moved += length as u64;
            if idle {
                // Closed or spoken to between requests: no request failed, the next one reconnects.
                self.stage = Stage::Closed;
                return Happened::Nothing;
            }
            if length == 0 {
                return self.end();
            }
            match self.reader.feed(&buffer[..length]) {
                Err(_) => return self.fail(Failure::Malformed),
                Ok(Some((_, taken))) if taken < length => return self.fail(Failure::Malformed),
                Ok(Some((answer, _))) => return self.answered(answer, ends, payload),
                // A short read has emptied the socket, unless its end is waiting behind.
                Ok(None) if length < buffer.len() && !ends => return Happened::Nothing,
                Ok(None) => {}
            }
        }
    }

    fn answered(&mut self, answer: Answer, ends: bool, payload: &Payload) -> Happened {
        let keep = answer.reusable && !ends && payload.is_whole(self.written);
        self.stage = match std::mem::replace(&mut self.stage, Stage::Closed) {
            Stage::Busy(stream) if keep => Stage::Idle(stream),
            Stage::Busy(_) | Stage::Idle(_) | Stage::Connecting(_) | Stage::Closed => Stage::Closed,
        };
        Happened::Answered(answer)
    }

    fn end(&mut self) -> Happened {
        self.stage = Stage::Closed;
        match self.reader.end() {
            Ok(Some(answer)) => Happened::Answered(answer),
            Ok(None) | Err(_) => Happened::Failed(Failure::Closed),
        }
    }
}

fn connect(address: SocketAddr, registry: &Registry, token: Token) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    registry.register(&mut stream, token, Interest::READABLE | Interest::WRITABLE)?;
    Ok(stream)
}
