//! HTTP/1.1 read the slow and plain way, shared by both ends of the gateway.
//!
//! Independent of the gateway's own codec on purpose: a mistake shared by both would be invisible.
//! It keeps spelling, order and every byte.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use crate::wait::LIMIT;

/// Silence that counts as being held back; a loopback peer that reads at all takes far less.
const MOMENT: Duration = Duration::from_millis(500);

/// One connection: a socket, what was received and not yet taken, and what was taken.
#[derive(Debug)]
pub struct Wire {
    stream: TcpStream,
    ahead: Vec<u8>,
    taken: Vec<u8>,
}

/// A start line and its fields, in the order and spelling they arrived in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Head {
    pub line: String,
    pub fields: Vec<(String, String)>,
}

/// How far a body reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    Fixed(u64),
    /// Bytes left of the current chunk; `None` before the first and after the last byte of one.
    Chunked(Option<u64>),
    UntilClose,
    Over,
}

impl Wire {
    /// # Errors
    /// When the socket refuses its options.
    pub fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.set_write_timeout(Some(LIMIT))?;
        Ok(Self { stream, ahead: Vec::new(), taken: Vec::new() })
    }

    #[must_use]
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Every byte taken since the last call.
    pub fn take_record(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.taken)
    }

    /// # Errors
    /// When the peer is gone or takes nothing for too long.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Writes until the peer takes nothing more for a moment, or `most` bytes are out; how many are.
    ///
    /// # Errors
    /// When the peer is gone.
    pub fn write_until_blocked(&mut self, most: u64) -> io::Result<u64> {
        let piece = [b'a'; 64 * 1024];
        let mut written = 0;
        self.stream.set_write_timeout(Some(MOMENT))?;
        while written < most {
            let left = usize::try_from(most - written).unwrap_or(usize::MAX);
            match self.stream.write(&piece[..piece.len().min(left)]) {
                Ok(count) => written += count as u64,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        self.stream.set_write_timeout(Some(LIMIT))?;
        Ok(written)
    }

    /// # Errors
    /// When the socket is gone already.
    pub fn half_close(&self) -> io::Result<()> {
        self.stream.shutdown(Shutdown::Write)
    }

    /// # Errors
    /// When the connection ends before the head does, or the head is no head.
    pub fn read_head(&mut self) -> io::Result<Head> {
        let line = self.read_line()?;
        Ok(Head { line, fields: self.read_fields()? })
    }

    /// Field lines up to and with the empty line: the rest of a head, or trailers.
    ///
    /// # Errors
    /// As [`Wire::read_head`].
    pub fn read_fields(&mut self) -> io::Result<Vec<(String, String)>> {
        let mut fields = Vec::new();
        loop {
            let line = self.read_line()?;
            if line.is_empty() {
                return Ok(fields);
            }
            let (name, value) = line.split_once(':').ok_or_else(|| broken("field", &line))?;
            fields.push((name.to_owned(), value.trim_matches([' ', '\t']).to_owned()));
        }
    }

    /// The next piece of a body, as soon as there is one; `None` at its end. Chunk framing is
    /// removed; the trailers are left to be read with [`Wire::read_fields`].
    ///
    /// # Errors
    /// When the connection ends before the body does, or a chunk is malformed.
    pub fn read_piece(&mut self, length: &mut Length) -> io::Result<Option<Vec<u8>>> {
        match *length {
            Length::Over => Ok(None),
            Length::Fixed(0) => {
                *length = Length::Over;
                Ok(None)
            }
            Length::Fixed(left) => {
                let piece = self.read_up_to(left)?;
                *length = Length::Fixed(left - piece.len() as u64);
                Ok(Some(piece))
            }
            Length::UntilClose => {
                if self.ahead.is_empty() && self.fill()? == 0 {
                    *length = Length::Over;
                    return Ok(None);
                }
                self.read_up_to(u64::MAX).map(Some)
            }
            Length::Chunked(None) => {
                let line = self.read_line()?;
                let digits = line.split(';').next().unwrap_or_default().trim();
                let size = u64::from_str_radix(digits, 16).map_err(|_| broken("chunk", &line))?;
                if size == 0 {
                    *length = Length::Over;
                    return Ok(None);
                }
                *length = Length::Chunked(Some(size));
                self.read_piece(length)
            }
            Length::Chunked(Some(left)) => {
                let piece = self.read_up_to(left)?;
                let left = left - piece.len() as u64;
                *length = Length::Chunked((left > 0).then_some(left));
                if left == 0 {
                    let end = self.read_line()?;
                    if !end.is_empty() {
                        return Err(broken("end of chunk", &end));
                    }
                }
                Ok(Some(piece))
            }
        }
    }

    /// As [`Wire::read_piece`], keeping nothing: how long the piece was, 0 at the end.
    ///
    /// # Errors
    /// As [`Wire::read_piece`].
    pub fn skip_piece(&mut self, length: &mut Length) -> io::Result<u64> {
        if let Length::Fixed(left @ 1..) = *length
            && self.ahead.is_empty()
        {
            // Gigabytes come this way: read in place, copied nowhere.
            let mut space = [0; 64 * 1024];
            let most = usize::try_from(left).unwrap_or(usize::MAX).min(space.len());
            let count = self.read(&mut space[..most])? as u64;
            if count == 0 {
                return Err(io::Error::new(ErrorKind::UnexpectedEof, "closed inside a body"));
            }
            *length = Length::Fixed(left - count);
            return Ok(count);
        }
        let piece = self.read_piece(length)?;
        self.taken.clear();
        Ok(piece.map_or(0, |piece| piece.len() as u64))
    }

    /// A whole body and the trailers after it.
    ///
    /// # Errors
    /// As [`Wire::read_piece`].
    pub fn read_body(&mut self, mut length: Length) -> io::Result<(Vec<u8>, Fields)> {
        let chunked = matches!(length, Length::Chunked(_));
        let mut body = Vec::new();
        while let Some(piece) = self.read_piece(&mut length)? {
            body.extend_from_slice(&piece);
        }
        Ok((body, if chunked { self.read_fields()? } else { Vec::new() }))
    }

    /// Everything until the peer closes. A reset counts as closed: what matters is what came.
    ///
    /// # Errors
    /// When the peer neither closes nor sends for too long.
    pub fn read_to_close(&mut self) -> io::Result<Vec<u8>> {
        loop {
            match self.fill() {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::ConnectionReset => break,
                Err(error) => return Err(error),
            }
        }
        let count = self.ahead.len();
        Ok(self.take(count))
    }

    /// Waits until at least one byte is there; `false` when the peer closed instead.
    ///
    /// # Errors
    /// When the socket fails or nothing happens for too long.
    pub fn readable(&mut self) -> io::Result<bool> {
        Ok(!self.ahead.is_empty() || self.fill()? > 0)
    }

    fn read_up_to(&mut self, most: u64) -> io::Result<Vec<u8>> {
        if self.ahead.is_empty() && self.fill()? == 0 {
            return Err(io::Error::new(ErrorKind::UnexpectedEof, "closed inside a body"));
        }
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        Ok(self.take(most.min(self.ahead.len())))
    }

    fn read_line(&mut self) -> io::Result<String> {
        loop {
            if let Some(end) = self.ahead.windows(2).position(|pair| pair == b"\r\n") {
                let line = self.take(end + 2);
                return Ok(String::from_utf8_lossy(&line[..end]).into_owned());
            }
            if self.fill()? == 0 {
                let seen = String::from_utf8_lossy(&self.ahead).into_owned();
                return Err(io::Error::new(
                    ErrorKind::UnexpectedEof,
                    format!("closed inside a line, after {seen:?}"),
                ));
            }
        }
    }

    fn fill(&mut self) -> io::Result<usize> {
        let mut space = [0; 64 * 1024];
        let count = self.read(&mut space)?;
        self.ahead.extend_from_slice(&space[..count]);
        Ok(count)
    }

    fn read(&mut self, space: &mut [u8]) -> io::Result<usize> {
        self.stream.read(space).map_err(|error| match error.kind() {
            ErrorKind::WouldBlock => {
                let seen = String::from_utf8_lossy(&self.ahead).into_owned();
                io::Error::new(ErrorKind::TimedOut, format!("silence after {seen:?}"))
            }
            _ => error,
        })
    }

    fn take(&mut self, count: usize) -> Vec<u8> {
        let piece: Vec<u8> = self.ahead.drain(..count).collect();
        self.taken.extend_from_slice(&piece);
        piece
    }
}

pub type Fields = Vec<(String, String)>;

impl Head {
    /// The first value of a field, by name in any case.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&str> {
        self.all(name).first().copied()
    }

    /// Every value of a field, in order.
    #[must_use]
    pub fn all(&self, name: &str) -> Vec<&str> {
        let same = |field: &&(String, String)| field.0.eq_ignore_ascii_case(name);
        self.fields.iter().filter(same).map(|(_, value)| value.as_str()).collect()
    }

    /// Whether a name occurs spelled exactly so.
    #[must_use]
    pub fn spells(&self, name: &str) -> bool {
        self.fields.iter().any(|(given, _)| given == name)
    }

    /// The length the fields state, if they state one.
    #[must_use]
    pub fn stated_length(&self) -> Option<Length> {
        if self.field("transfer-encoding").is_some_and(|coding| coding.ends_with("chunked")) {
            return Some(Length::Chunked(None));
        }
        self.field("content-length").and_then(|count| count.parse().ok()).map(Length::Fixed)
    }
}

fn broken(what: &str, line: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("malformed {what}: {line:?}"))
}
