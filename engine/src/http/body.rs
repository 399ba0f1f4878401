//! Bodies in pieces, whatever framed them on the way in and frames them on the way out.
//!
//! A piece is payload in an owned buffer with room in front, so that passing it on in chunks
//! needs neither a copy nor a second write.

use super::chunk::{BadChunk, Chunks, Decoded};
use super::fields;
use super::parse::Framing;
use crate::buffer::HEADROOM;

/// The way in: what of the bytes that come is payload, and where the body ends.
#[derive(Debug)]
pub(crate) enum Decoder {
    Length(u64),
    Chunked(Chunks),
    /// Until the connection ends.
    Close,
}

/// The way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoder {
    /// As it is: the length was announced, or the connection ends the body.
    Plain,
    Chunked,
}

impl Decoder {
    pub(crate) fn new(framing: Framing) -> Self {
        match framing {
            Framing::None => Self::Length(0),
            Framing::Length(n) => Self::Length(n),
            Framing::Chunked => Self::Chunked(Chunks::new()),
            Framing::Close => Self::Close,
        }
    }

    /// Decode in place: payload is moved to the front of `bytes`.
    pub(crate) fn decode(&mut self, bytes: &mut [u8]) -> Result<Decoded, BadChunk> {
        match self {
            Self::Length(left) => {
                let here = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                *left -= here as u64;
                Ok(Decoded { payload: here, consumed: here, done: *left == 0 })
            }
            Self::Chunked(chunks) => chunks.decode(bytes),
            Self::Close => Ok(Decoded { payload: bytes.len(), consumed: bytes.len(), done: false }),
        }
    }

    /// How much is still to come, where every byte of it is payload.
    pub(crate) const fn plain(&self) -> Option<u64> {
        match self {
            Self::Length(left) => Some(*left),
            Self::Chunked(_) | Self::Close => None,
        }
    }

    /// So much payload went by unseen. Whether that was all.
    pub(crate) const fn skip(&mut self, bytes: u64) -> bool {
        match self {
            Self::Length(left) => {
                *left = left.saturating_sub(bytes);
                *left == 0
            }
            Self::Chunked(_) | Self::Close => false,
        }
    }

    /// Whether the body may end where the connection did.
    pub(crate) const fn ends_with_connection(&self) -> bool {
        matches!(self, Self::Close)
    }

    /// Trailer lines, complete once the body is done.
    pub(crate) fn trailers(&self) -> &[u8] {
        match self {
            Self::Chunked(chunks) => chunks.trailers(),
            Self::Length(_) | Self::Close => &[],
        }
    }
}

/// What is left of a body is spliced from this on: below it, a pipe costs more than a copy.
pub(crate) const SPLICE_MIN: u64 = 32 * 1024;

impl Encoder {
    /// Frame the payload at `from..` of `buffer`, in place; returns where the bytes to send
    /// start. There must be [`HEADROOM`] in front of `from`. `last`: the trailers, when the body
    /// ends here.
    pub(crate) fn frame(self, buffer: &mut Vec<u8>, from: usize, last: Option<&[u8]>) -> usize {
        match self {
            Self::Plain => from,
            Self::Chunked => {
                let from = size_line(buffer, from);
                if let Some(trailers) = last {
                    end_chunks(buffer, trailers);
                }
                from
            }
        }
    }
}

/// Put the chunk's size line in front and its CRLF behind. An empty payload makes no chunk.
fn size_line(buffer: &mut Vec<u8>, from: usize) -> usize {
    let mut left = buffer.len() - from;
    if left == 0 {
        return from;
    }
    debug_assert!(from >= HEADROOM);
    buffer.extend_from_slice(b"\r\n");
    let mut at = from - 2;
    buffer[at..from].copy_from_slice(b"\r\n");
    while left > 0 {
        at -= 1;
        buffer[at] = b"0123456789abcdef"[left & 15];
        left >>= 4;
    }
    at
}

/// Append the payload `from..to` of `source` as one chunk.
pub(crate) fn append_chunk(out: &mut Vec<u8>, payload: &[u8]) {
    if payload.is_empty() {
        return;
    }
    let mut room = [0; HEADROOM].to_vec();
    room.extend_from_slice(payload);
    let from = size_line(&mut room, HEADROOM);
    out.extend_from_slice(&room[from..]);
}

/// Append the last chunk with those trailers that may travel.
pub(crate) fn end_chunks(out: &mut Vec<u8>, trailers: &[u8]) {
    out.extend_from_slice(b"0\r\n");
    for line in trailers.split_inclusive(|b| *b == b'\n') {
        let name = line.split(|b| *b == b':').next().unwrap_or_default();
        if may_trail(name) {
            out.extend_from_slice(line);
        }
    }
    out.extend_from_slice(b"\r\n");
}

/// RFC 9110 section 6.5.1: not what frames, routes, authenticates or modifies the request.
fn may_trail(name: &[u8]) -> bool {
    const NEVER: [&[u8]; 12] = [
        b"authorization",
        b"cache-control",
        b"content-encoding",
        b"content-range",
        b"content-type",
        b"cookie",
        b"max-forwards",
        b"proxy-authorization",
        b"range",
        b"set-cookie",
        b"trailer",
        b"www-authenticate",
    ];
    fields::known(name) == fields::Known::Other(fields::Kind::Plain)
        && !NEVER.iter().any(|never| never.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_is_framed_in_place() {
        let frame = |encoder: Encoder, payload: &[u8], last: Option<&[u8]>| {
            let mut buffer = vec![b'-'; HEADROOM];
            buffer.extend_from_slice(payload);
            let from = encoder.frame(&mut buffer, HEADROOM, last);
            String::from_utf8(buffer.split_off(from)).unwrap()
        };
        type Case = (Encoder, &'static [u8], Option<&'static [u8]>, &'static str);
        let table: [Case; 6] = [
            (Encoder::Plain, b"hello", None, "hello"),
            (Encoder::Plain, b"hello", Some(b""), "hello"),
            (Encoder::Chunked, b"hello", None, "5\r\nhello\r\n"),
            (Encoder::Chunked, b"0123456789abcdef", None, "10\r\n0123456789abcdef\r\n"),
            (Encoder::Chunked, b"", Some(b""), "0\r\n\r\n"),
            (Encoder::Chunked, b"a", Some(b"X-Sum: 1\r\n"), "1\r\na\r\n0\r\nX-Sum: 1\r\n\r\n"),
        ];
        for (encoder, payload, last, expected) in table {
            assert_eq!(frame(encoder, payload, last), expected);
        }
    }

    #[test]
    fn trailers_that_would_change_the_message_do_not_travel() {
        let mut out = Vec::new();
        end_chunks(
            &mut out,
            b"Content-Length: 9\r\nX-A: 1\r\nHost: x\r\nAuthorization: y\r\nX-User-Id: z\r\n",
        );
        assert_eq!(out, b"0\r\nX-A: 1\r\n\r\n");
    }

    #[test]
    fn a_length_takes_no_more_than_its_own() {
        let mut decoder = Decoder::new(Framing::Length(3));
        let mut bytes = *b"abcdef";
        let decoded = decoder.decode(&mut bytes).unwrap();
        assert_eq!(decoded, Decoded { payload: 3, consumed: 3, done: true });
    }
}
