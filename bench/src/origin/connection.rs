//! One client of the origin: requests in order, pipelined or not, each answered before the next.

use std::io::{self, Read, Write};
use std::time::Duration;

use mio::net::TcpStream;

use crate::http::Malformed;
use crate::http::body::Body;
use crate::http::request::{self, Asked, Wish};

/// ```text
/// Head → (Continue) → Upload → Hold → Reply → Head …
///                                       └→ closed: asked for, broken, or the client left
/// ```
#[derive(Debug)]
enum Stage {
    /// Waits for a whole head.
    Head,
    /// Drops the upload; the answer waits until it is in.
    Upload(Asked, Body),
    /// Nothing is read or written until the delay is over.
    Hold(Asked),
    Reply(Reply),
}

/// Bytes on their way out: a head and the first filler, then more filler.
#[derive(Debug)]
struct Reply {
    sent: usize,
    filler_left: u64,
    then_close: bool,
}

/// What the connection needs from its owner.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// An event of its socket.
    Rest,
    /// [`Connection::release`] after so long.
    Hold(Duration),
    Close,
}

#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    serial: u64,
    stage: Stage,
    /// Read and not yet understood; bounded because reading stops while an answer is under way.
    input: Vec<u8>,
    output: Vec<u8>,
    /// The socket may have more; edge-triggered events say so only once.
    readable: bool,
    /// The client has sent its end: only a read of 0 empties the socket now.
    ending: bool,
    ended: bool,
}

impl Connection {
    pub(super) fn new(stream: TcpStream, serial: u64) -> Self {
        Self {
            stream,
            serial,
            stage: Stage::Head,
            input: Vec::new(),
            output: Vec::new(),
            readable: true,
            ending: false,
            ended: false,
        }
    }

    /// Tells this connection from an earlier one under the same token.
    pub(super) fn serial(&self) -> u64 {
        self.serial
    }

    pub(super) fn mark_readable(&mut self, ending: bool) {
        self.readable = true;
        self.ending |= ending;
    }

    /// The delay is over.
    pub(super) fn release(&mut self) {
        if let Stage::Hold(asked) = self.stage {
            self.reply(&asked);
        }
    }

    /// Goes on until the socket or a delay stops it. `adjust` sees every wish once.
    pub(super) fn advance(
        &mut self,
        buffer: &mut [u8],
        default: Wish,
        adjust: &mut dyn FnMut(Wish) -> Wish,
    ) -> Next {
        loop {
            if let Stage::Reply(_) = self.stage {
                match self.write() {
                    Ok(Some(close)) if close => return Next::Close,
                    Ok(Some(_)) => self.stage = Stage::Head,
                    Ok(None) => return Next::Rest,
                    Err(_) => return Next::Close,
                }
            }
            match self.understand(default, adjust) {
                Ok(Some(next)) => return next,
                Ok(None) => {}
                Err(Malformed(why)) => self.refuse(why),
            }
            if let Stage::Reply(_) = self.stage {
                continue;
            }
            if self.ended {
                return Next::Close;
            }
            if !self.readable {
                return Next::Rest;
            }
            if self.read(buffer).is_err() {
                return Next::Close;
            }
        }
    }

    /// Takes what it can from the input. `Some` when the owner must wait before going on.
    fn understand(
        &mut self,
        default: Wish,
        adjust: &mut dyn FnMut(Wish) -> Wish,
    ) -> Result<Option<Next>, Malformed> {
        if let Stage::Head = self.stage {
            let Some((mut asked, length)) = request::parse(&self.input, default)? else {
                return Ok(None);
            };
            self.input.drain(..length);
            asked.wish = adjust(asked.wish);
            let upload = Body::new(asked.upload);
            if asked.expects_continue && !upload.is_done() {
                self.interim();
            }
            self.stage = Stage::Upload(asked, upload);
        }
        if let Stage::Upload(asked, upload) = &mut self.stage {
            let taken = upload.feed(&self.input)?;
            self.input.drain(..taken);
            if upload.is_done() {
                let asked = *asked;
                if asked.wish.delay.is_zero() || asked.wish.servers.is_some() {
                    self.reply(&asked);
                } else {
                    self.stage = Stage::Hold(asked);
                    return Ok(Some(Next::Hold(asked.wish.delay)));
                }
            }
        }
        // A hold that was woken by its socket: the timer alone ends it.
        Ok(if let Stage::Hold(_) = self.stage { Some(Next::Rest) } else { None })
    }

    fn reply(&mut self, asked: &Asked) {
        let Wish { status, body_bytes, .. } = asked.wish;
        let bodiless = matches!(status, 204 | 304);
        let filler = if bodiless || asked.is_head { 0 } else { body_bytes };
        let first = filler.min(FILLER.len() as u64);
        self.output.clear();
        // Writing to a Vec cannot fail.
        let _ = write!(self.output, "HTTP/1.1 {status} {}\r\n", reason(status));
        if !bodiless {
            let _ = write!(
                self.output,
                "Content-Type: application/octet-stream\r\nContent-Length: {body_bytes}\r\n"
            );
        }
        let close: &[u8] = if asked.keep_alive { b"\r\n" } else { b"Connection: close\r\n\r\n" };
        self.output.extend_from_slice(close);
        self.output.extend_from_slice(filler_of(first));
        self.stage = Stage::Reply(Reply {
            sent: 0,
            filler_left: filler - first,
            then_close: !asked.keep_alive,
        });
    }

    fn refuse(&mut self, why: &str) {
        self.output.clear();
        let length = why.len();
        let _ = write!(
            self.output,
            "HTTP/1.1 400 Bad Request\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{why}"
        );
        self.stage = Stage::Reply(Reply { sent: 0, filler_left: 0, then_close: true });
    }

    /// A lost interim response is no harm: clients send the body after a pause anyway.
    fn interim(&mut self) {
        let _ = self.stream.write(b"HTTP/1.1 100 Continue\r\n\r\n");
    }

    /// `Some(close)` when everything is out, `None` when the socket is full.
    fn write(&mut self) -> io::Result<Option<bool>> {
        let Stage::Reply(reply) = &mut self.stage else { return Ok(Some(false)) };
        loop {
            let rest = match &self.output[reply.sent..] {
                [] if reply.filler_left == 0 => return Ok(Some(reply.then_close)),
                [] => filler_of(reply.filler_left),
                head => head,
            };
            match self.stream.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) if reply.sent < self.output.len() => reply.sent += written,
                Ok(written) => reply.filler_left -= written as u64,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        match self.stream.read(buffer) {
            Ok(0) => self.ended = true,
            Ok(length) => {
                // A short read has emptied the socket: what comes next brings a new event.
                self.readable = length == buffer.len() || self.ending;
                self.input.extend_from_slice(&buffer[..length]);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.readable = false,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

fn filler_of(bytes: u64) -> &'static [u8] {
    let length = usize::try_from(bytes).unwrap_or(usize::MAX).min(FILLER.len());
    &FILLER[..length]
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        201 => "Created",
        204 => "No Content",
        304 => "Not Modified",
        404 => "Not Found",
        429 => "Too Many Requests",
        500 => "Internal Server Error",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        _ => "Asked For",
    }
}

static FILLER: [u8; 64 * 1024] = [b'x'; 64 * 1024];
