//! Where a message body ends: by length, by chunks, or with the connection. Bytes are dropped.

use super::Malformed;

/// How the end of a body is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    Length(u64),
    Chunked,
    UntilClose,
}

/// Walks over a body without keeping it.
#[derive(Debug)]
pub struct Body {
    state: State,
    bytes: u64,
}

/// Chunked, RFC 9112 section 7.1:
///
/// ```text
/// Size ─(;)→ Extension ─┐               ┌──────(0x)──────┐
///   └──────(CR)──────→ SizeLf ─(n > 0)→ Data → DataCr → DataLf → Size
///                         └──(n = 0)→ LineStart ⇄ Line, LineLf     (trailers)
///                                        └(CR)→ LastLf → Done
/// ```
#[derive(Debug, PartialEq, Eq)]
enum State {
    Length(u64),
    UntilClose,
    Size { value: u64, digits: u8 },
    Extension { value: u64, seen: u16 },
    SizeLf { value: u64 },
    Data(u64),
    DataCr,
    DataLf,
    LineStart { seen: u16 },
    Line { seen: u16 },
    LineLf { seen: u16 },
    LastLf,
    Done,
}

impl Body {
    pub fn new(framing: Framing) -> Self {
        let state = match framing {
            Framing::Length(0) => State::Done,
            Framing::Length(left) => State::Length(left),
            Framing::Chunked => SIZE,
            Framing::UntilClose => State::UntilClose,
        };
        Self { state, bytes: 0 }
    }

    /// Takes what belongs to the body and says how many bytes that was.
    pub fn feed(&mut self, input: &[u8]) -> Result<usize, Malformed> {
        let mut at = 0;
        while at < input.len() && self.state != State::Done {
            at += match self.state {
                State::Length(left) => {
                    self.skip(left, input.len() - at, State::Done, State::Length)
                }
                State::Data(left) => self.skip(left, input.len() - at, State::DataCr, State::Data),
                State::UntilClose => {
                    self.skip(u64::MAX, input.len() - at, State::Done, |_| State::UntilClose)
                }
                State::Done => 0,
                State::Size { .. }
                | State::Extension { .. }
                | State::SizeLf { .. }
                | State::DataCr
                | State::DataLf
                | State::LineStart { .. }
                | State::Line { .. }
                | State::LineLf { .. }
                | State::LastLf => {
                    self.state = self.step(input[at])?;
                    1
                }
            };
        }
        Ok(at)
    }

    /// The connection ended; whether that is where the body ends too.
    pub fn ends_here(&self) -> bool {
        matches!(self.state, State::Done | State::UntilClose)
    }

    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Content bytes so far, without chunk framing.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn skip(&mut self, left: u64, here: usize, after: State, rest: fn(u64) -> State) -> usize {
        let taken = usize::try_from(left).unwrap_or(usize::MAX).min(here);
        let left = left - taken as u64;
        self.bytes += taken as u64;
        self.state = if left == 0 { after } else { rest(left) };
        taken
    }

    fn step(&self, byte: u8) -> Result<State, Malformed> {
        Ok(match (&self.state, byte) {
            (State::Size { value, digits }, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => {
                if *digits == CHUNK_DIGITS_MAX {
                    return Err(Malformed("a chunk size too large"));
                }
                State::Size { value: value << 4 | hex(byte), digits: digits + 1 }
            }
            (State::Size { digits: 0, .. }, _) => return Err(Malformed("a chunk without a size")),
            (State::Size { value, .. }, b'\r') => State::SizeLf { value: *value },
            (State::Size { value, .. }, b';') => State::Extension { value: *value, seen: 0 },
            (State::Extension { value, .. }, b'\r') => State::SizeLf { value: *value },
            (State::Extension { value, seen }, b' '..=b'~' | b'\t') if *seen < EXTRA_BYTES_MAX => {
                State::Extension { value: *value, seen: seen + 1 }
            }
            (State::SizeLf { value: 0 }, b'\n') => State::LineStart { seen: 0 },
            (State::SizeLf { value }, b'\n') => State::Data(*value),
            (State::DataCr, b'\r') => State::DataLf,
            (State::DataLf, b'\n') => SIZE,
            (State::LineStart { .. }, b'\r') => State::LastLf,
            (State::Line { seen }, b'\r') => State::LineLf { seen: *seen },
            (State::LineStart { seen } | State::Line { seen }, b'\t' | b' '..=b'~' | 0x80..)
                if *seen < EXTRA_BYTES_MAX =>
            {
                State::Line { seen: seen + 1 }
            }
            (State::LineLf { seen }, b'\n') => State::LineStart { seen: *seen },
            (State::LastLf, b'\n') => State::Done,
            _ => return Err(Malformed("broken chunk framing")),
        })
    }
}

fn hex(digit: u8) -> u64 {
    u64::from(match digit {
        b'0'..=b'9' => digit - b'0',
        _ => (digit | 0x20) - b'a' + 10,
    })
}

const SIZE: State = State::Size { value: 0, digits: 0 };
/// Sixteen hex digits fill a u64; leading zeros beyond that are a trick, not a size.
const CHUNK_DIGITS_MAX: u8 = 16;
/// Chunk extensions and trailers are skipped, but not for ever.
const EXTRA_BYTES_MAX: u16 = 16 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_ends_where_its_framing_says() {
        let cases: &[(Framing, &[u8], usize, bool, u64)] = &[
            (Framing::Length(0), b"next", 0, true, 0),
            (Framing::Length(3), b"abcnext", 3, true, 3),
            (Framing::Length(9), b"abc", 3, false, 3),
            (Framing::UntilClose, b"anything", 8, false, 8),
            (Framing::Chunked, b"3\r\nabc\r\n0\r\n\r\nnext", 13, true, 3),
            (Framing::Chunked, b"A;name=value\r\n0123456789\r\n0\r\nx: y\r\n\r\n", 37, true, 10),
            (Framing::Chunked, b"0003\r\nabc\r\n", 11, false, 3),
        ];
        for (framing, input, consumed, done, bytes) in cases {
            let mut body = Body::new(*framing);
            let found = body.feed(input);
            assert_eq!(found, Ok(*consumed), "{framing:?} {}", input.escape_ascii());
            assert_eq!((body.is_done(), body.bytes()), (*done, *bytes), "{}", input.escape_ascii());
        }
    }

    #[test]
    fn broken_chunks_are_refused() {
        let cases: &[&[u8]] = &[
            b"\r\n",
            b"g\r\n",
            b"3\nabc",
            b"3\r\nabcd",
            b"3\r\nabc\n",
            b"3\r\nabc\rx",
            b"-3\r\n",
            b"0x3\r\n",
            b" 3\r\n",
            b"00000000000000001\r\n",
            b"0\r\n\n",
            b"3;\x00\r\n",
            b"0\r\nx\ny\r\n",
        ];
        for input in cases {
            assert!(Body::new(Framing::Chunked).feed(input).is_err(), "{}", input.escape_ascii());
        }
    }

    #[test]
    fn trailers_are_bounded() {
        let input = [b"0\r\n".as_slice(), &[b'x'; 20_000]].concat();
        assert!(Body::new(Framing::Chunked).feed(&input).is_err());
    }
}
