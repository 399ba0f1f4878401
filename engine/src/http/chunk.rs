//! The chunked transfer coding (RFC 9112 section 7.1), read a byte at a time in any split.
//!
//! Strict: CRLF and nothing else ends a line, sizes are hexadecimal digits at once followed by an
//! extension or CRLF, extensions and trailers are bounded.

/// Where the reader is in the coding.
///
/// ```text
/// Size ─hex─► Digits ─;─► Extension ─CR─► SizeLf ─LF─► Data ─► DataCr ─► DataLf ─► Size
///                └──────────CR──────────────┘ └─(size 0)─► Trailer ⇄ TrailerLine ─► EndLf ─► End
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Size,
    Digits(u64),
    Extension(u64),
    SizeLf(u64),
    Data(u64),
    DataCr,
    DataLf,
    /// At the start of a trailer line, or of the empty line that ends it all.
    Trailer,
    TrailerLine,
    TrailerLf,
    EndLf,
    End,
}

/// Reads one chunked body.
#[derive(Debug)]
pub(crate) struct Chunks {
    state: State,
    /// Bytes of size lines since the last data byte, to bound extensions.
    line_bytes: u32,
    trailers: Vec<u8>,
}

/// The bytes are not a chunked body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadChunk;

/// What became of some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Decoded {
    /// Payload, moved to the front.
    pub(crate) payload: usize,
    /// Bytes that belonged to this body.
    pub(crate) consumed: usize,
    pub(crate) done: bool,
}

/// A size line may be this long, its extension included.
const LINE_BYTES_MAX: u32 = 1024;

/// All trailers together.
const TRAILER_BYTES_MAX: usize = 8192;

/// 2^60 bytes: larger sizes are an attack on somebody's arithmetic.
const SIZE_MAX: u64 = 1 << 60;

impl Chunks {
    pub(crate) fn new() -> Self {
        Self { state: State::Size, line_bytes: 0, trailers: Vec::new() }
    }

    /// The trailer section as received: whole lines. Complete once done.
    pub(crate) fn trailers(&self) -> &[u8] {
        &self.trailers
    }

    /// Decode in place: the payload among `bytes` is moved to their front. Everything is consumed
    /// unless the body ends before.
    pub(crate) fn decode(&mut self, bytes: &mut [u8]) -> Result<Decoded, BadChunk> {
        let mut payload = 0;
        let mut at = 0;
        while at < bytes.len() && self.state != State::End {
            if let State::Data(left) = self.state {
                let here = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len() - at);
                bytes.copy_within(at..at + here, payload);
                payload += here;
                at += here;
                let left = left - here as u64;
                self.state = if left == 0 { State::DataCr } else { State::Data(left) };
                self.line_bytes = 0;
            } else {
                self.state = self.step(bytes[at])?;
                at += 1;
            }
        }
        Ok(Decoded { payload, consumed: at, done: self.state == State::End })
    }

    fn step(&mut self, byte: u8) -> Result<State, BadChunk> {
        let framing = !matches!(self.state, State::Trailer | State::TrailerLine);
        self.line_bytes += u32::from(framing);
        if self.line_bytes > LINE_BYTES_MAX {
            return Err(BadChunk);
        }
        match (self.state, byte) {
            (State::Size, _) => Ok(State::Digits(digit(byte)?)),
            (State::Digits(size), b'\r') => Ok(State::SizeLf(size)),
            (State::Digits(size), b';') => Ok(State::Extension(size)),
            (State::Digits(size), _) => {
                let size = if size < SIZE_MAX >> 4 { size << 4 } else { return Err(BadChunk) };
                Ok(State::Digits(size | digit(byte)?))
            }
            (State::Extension(size), b'\r') => Ok(State::SizeLf(size)),
            (State::Extension(size), b'\t' | b' '..=b'~' | 0x80..) => Ok(State::Extension(size)),
            (State::SizeLf(0), b'\n') => Ok(State::Trailer),
            (State::SizeLf(size), b'\n') => Ok(State::Data(size)),
            (State::DataCr, b'\r') => Ok(State::DataLf),
            (State::DataLf, b'\n') => Ok(State::Size),
            (State::Trailer, b'\r') => Ok(State::EndLf),
            (State::TrailerLine, b'\r') => self.keep(byte, State::TrailerLf),
            (State::Trailer | State::TrailerLine, b'\t' | b' '..=b'~' | 0x80..) => {
                self.keep(byte, State::TrailerLine)
            }
            (State::TrailerLf, b'\n') => self.keep(byte, State::Trailer),
            (State::EndLf, b'\n') => self.end(),
            (
                State::Extension(_)
                | State::SizeLf(_)
                | State::DataCr
                | State::DataLf
                | State::Trailer
                | State::TrailerLine
                | State::TrailerLf
                | State::EndLf
                | State::Data(_)
                | State::End,
                _,
            ) => Err(BadChunk),
        }
    }

    fn keep(&mut self, byte: u8, next: State) -> Result<State, BadChunk> {
        if self.trailers.len() == TRAILER_BYTES_MAX {
            return Err(BadChunk);
        }
        self.trailers.push(byte);
        Ok(next)
    }

    /// Only whole, well-formed fields may follow a body.
    fn end(&self) -> Result<State, BadChunk> {
        if self.trailers.is_empty() {
            return Ok(State::End);
        }
        let mut fields = [httparse::EMPTY_HEADER; TRAILERS_MAX];
        let section = [&self.trailers[..], b"\r\n"].concat();
        match httparse::parse_headers(&section, &mut fields) {
            Ok(httparse::Status::Complete(_)) => Ok(State::End),
            Ok(httparse::Status::Partial) | Err(_) => Err(BadChunk),
        }
    }
}

/// Fields in a trailer section.
pub(crate) const TRAILERS_MAX: usize = 64;

fn digit(byte: u8) -> Result<u64, BadChunk> {
    char::from(byte).to_digit(16).map(u64::from).ok_or(BadChunk)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decode in pieces of `step` bytes: payload, bytes left over, trailers.
    type Whole = (Vec<u8>, usize, Vec<u8>);

    fn decode(body: &[u8], step: usize) -> Result<Whole, BadChunk> {
        let (mut chunks, mut payload, mut at) = (Chunks::new(), Vec::new(), 0);
        while at < body.len() {
            let mut piece = body[at..body.len().min(at + step)].to_vec();
            let decoded = chunks.decode(&mut piece)?;
            payload.extend_from_slice(&piece[..decoded.payload]);
            at += decoded.consumed;
            if decoded.done {
                return Ok((payload, body.len() - at, chunks.trailers().to_vec()));
            }
        }
        Err(BadChunk)
    }

    #[test]
    fn bodies_read_the_same_in_every_split() {
        // (body, payload, bytes left over, trailers)
        type Case = (&'static [u8], &'static [u8], usize, &'static [u8]);
        let table: [Case; 6] = [
            (b"0\r\n\r\n", b"", 0, b""),
            (b"5\r\nhello\r\n0\r\n\r\n", b"hello", 0, b""),
            (b"5;a=b;c=\"d\"\r\nhello\r\n000\r\n\r\nGET /", b"hello", 5, b""),
            (b"1\r\na\r\nA\r\n0123456789\r\n0\r\n\r\n", b"a0123456789", 0, b""),
            (b"0\r\nX-Sum: 1\r\nY: 2\r\n\r\n", b"", 0, b"X-Sum: 1\r\nY: 2\r\n"),
            (b"2\r\n\r\n\r\n0\r\n\r\n", b"\r\n", 0, b""),
        ];
        for (body, payload, left, trailers) in table {
            for step in 1..=body.len() {
                let got = decode(body, step);
                let expected = Ok((payload.to_vec(), left, trailers.to_vec()));
                assert_eq!(got, expected, "{:?} by {step}", String::from_utf8_lossy(body));
            }
        }
    }

    #[test]
    fn what_is_not_quite_a_chunked_body_is_refused() {
        let table: [&[u8]; 19] = [
            b"\r\n\r\n",
            b"5\nhello\r\n0\r\n\r\n",
            b"5\r\nhello\n0\r\n\r\n",
            b"5\r\nhelloX\r\n0\r\n\r\n",
            b" 5\r\nhello\r\n0\r\n\r\n",
            b"5 \r\nhello\r\n0\r\n\r\n",
            b"+5\r\nhello\r\n0\r\n\r\n",
            b"0x5\r\nhello\r\n0\r\n\r\n",
            b"-1\r\n",
            b"g\r\n",
            b"5;\rx\r\nhello\r\n0\r\n\r\n",
            b"5;a\nx\r\nhello\r\n0\r\n\r\n",
            b"5;\0\r\nhello\r\n0\r\n\r\n",
            b"fffffffffffffffff\r\n",
            b"1000000000000001\r\n",
            b"10000000000000005\r\nhello\r\n0\r\n\r\n",
            b"0\r\nno colon\r\n\r\n",
            b"0\r\nX : 1\r\n\r\n",
            b"0\r\n X: 1\r\n\r\n",
        ];
        for body in table {
            assert_eq!(decode(body, 1), Err(BadChunk), "{:?}", String::from_utf8_lossy(body));
            assert_eq!(decode(body, 99), Err(BadChunk), "{:?}", String::from_utf8_lossy(body));
        }
    }

    #[test]
    fn extensions_and_trailers_are_bounded() {
        let mut long = b"5;".to_vec();
        long.resize(LINE_BYTES_MAX as usize + 1, b'a');
        assert_eq!(Chunks::new().decode(&mut long), Err(BadChunk));
        let mut long = b"0\r\nX: ".to_vec();
        long.resize(TRAILER_BYTES_MAX + 32, b'a');
        assert_eq!(Chunks::new().decode(&mut long), Err(BadChunk));
    }

    proptest::proptest! {
        #[test]
        fn any_payload_in_any_chunks_and_any_split_comes_back(
            chunks in proptest::collection::vec(proptest::collection::vec(0_u8.., 1..40), 0..6),
            step in 1_usize..32,
        ) {
            let mut body = Vec::new();
            for chunk in &chunks {
                body.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
                body.extend_from_slice(chunk);
                body.extend_from_slice(b"\r\n");
            }
            body.extend_from_slice(b"0\r\n\r\nrest");
            let (payload, left, _) = decode(&body, step).unwrap();
            proptest::prop_assert_eq!((payload, left), (chunks.concat(), 4));
        }

        #[test]
        fn arbitrary_bytes_never_panic(body in proptest::collection::vec(0_u8.., 0..200)) {
            let _ = decode(&body, 7);
        }
    }
}
