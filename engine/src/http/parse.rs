//! HTTP/1 heads, read strictly: what two parsers could read in two ways is refused (RFC 9112
//! sections 2.2, 3.2, 5, 6.3).

use sluice_config::EncodedSlashes;
use sluice_policy::facts::Field;

use super::fields::{self, Kind};
use super::head::Span;
use bytes::{Class, LineFeed};

mod bytes;
pub(crate) mod lines;
mod request;
mod response;

pub(crate) use request::request;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use response::RESPONSE_FIELDS_MAX;
pub(crate) use response::{ResponseHead, response};

/// Looks for the end of a head while its bytes arrive, each byte once. Most heads come whole: they are
/// read at once, and only when that fails this tells one that is malformed from one that goes on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Scan {
    /// Bytes looked at.
    at: usize,
    /// Start of the current line.
    line: usize,
    /// Behind the empty lines that come before the first line.
    start: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scanned {
    More,
    /// The head ends before this offset.
    Head(usize),
    /// A line feed without its carriage return.
    BareLf,
}

/// Why a head is refused: a status, and a code that is stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadHead {
    pub(crate) status: u16,
    pub(crate) code: &'static str,
}

/// How a message's body ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Framing {
    #[default]
    None,
    Length(u64),
    Chunked,
    /// With the connection (responses only).
    Close,
}

/// What the operator bounds or chooses about heads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeadRules {
    pub(crate) fields_max: usize,
    pub(crate) slashes: EncodedSlashes,
}

impl Scan {
    /// Nothing has been looked at yet.
    pub(crate) const fn is_fresh(&self) -> bool {
        self.at == 0
    }

    /// Look at what has come since the last call.
    pub(crate) fn run(&mut self, text: &[u8]) -> Scanned {
        while let Some(bytes) = text.get(self.at..).and_then(<[u8]>::first_chunk) {
            let mut marks = LineFeed::marks(bytes);
            while marks != 0 {
                if let Some(found) = self.line_feed(text, self.at + marks.trailing_zeros() as usize)
                {
                    return found;
                }
                marks &= marks - 1;
            }
            self.at += bytes.len();
        }
        while self.at < text.len() {
            let lf = bytes::find::<LineFeed>(text, self.at);
            if lf < text.len()
                && let Some(found) = self.line_feed(text, lf)
            {
                return found;
            }
            self.at = text.len().min(lf + 1);
        }
        Scanned::More
    }

    /// What a line feed at `lf` ends. None: a line with more to follow.
    fn line_feed(&mut self, text: &[u8], lf: usize) -> Option<Scanned> {
        if lf == 0 || text[lf - 1] != b'\r' {
            return Some(Scanned::BareLf);
        }
        if lf - 1 == self.line {
            if self.line > self.start {
                return Some(Scanned::Head(lf + 1));
            }
            // Empty lines before a request line are skipped (RFC 9112 section 2.2).
            self.start = lf + 1;
        }
        self.line = lf + 1;
        None
    }
}

const fn bad(status: u16, code: &'static str) -> BadHead {
    BadHead { status, code }
}

/// What the fields of one head say that bears on framing and routing.
#[derive(Debug, Default)]
struct Notes {
    length: Option<u64>,
    codings: Codings,
    close: bool,
    keep_alive: bool,
    expects: bool,
    /// There is a `Connection` field.
    nominates: bool,
}

/// The transfer codings of one message so far.
#[derive(Clone, Copy, Debug, Default)]
struct Codings {
    chunked: bool,
    unknown: bool,
}

fn note_connection(notes: &mut Notes, value: &[u8]) {
    notes.nominates = true;
    for option in fields::list(value) {
        notes.close |= option.eq_ignore_ascii_case(b"close");
        notes.keep_alive |= option.eq_ignore_ascii_case(b"keep-alive");
    }
}

/// Only "chunked", once. A coding that we don't know is not implemented (501) when the body's end
/// can be told all the same; otherwise, and when "chunked" comes twice, it is refused.
fn transfer_encoding(value: &[u8], codings: &mut Codings) -> Result<(), BadHead> {
    for coding in value.split(|b| *b == b',').map(<[u8]>::trim_ascii) {
        if codings.chunked || !fields::is_token(coding) {
            return Err(bad(400, "request.coding"));
        }
        codings.chunked = coding.eq_ignore_ascii_case(b"chunked");
        codings.unknown |= !codings.chunked;
    }
    Ok(())
}

impl Codings {
    /// Whether the body is chunked.
    const fn judge(self) -> Result<bool, BadHead> {
        match (self.chunked, self.unknown) {
            (true, true) => Err(bad(501, "request.coding")),
            (false, true) => Err(bad(400, "request.coding")),
            (chunked, false) => Ok(chunked),
        }
    }
}

/// Digits and nothing else.
fn content_length(value: &[u8]) -> Option<u64> {
    let (first, more) = value.split_first()?;
    more.iter().try_fold(digit(*first)?, |n, b| n.checked_mul(10)?.checked_add(digit(*b)?))
}

fn digit(b: u8) -> Option<u64> {
    b.is_ascii_digit().then(|| u64::from(b - b'0'))
}

/// Fields that `Connection` names are between neighbours too. Framing and routing are not to be
/// had that way: those we write ourselves.
fn drop_nominated(fields: &[Field], kinds: &mut [Kind], text: &[u8]) {
    for connection in fields {
        if !text[range(connection.name)].eq_ignore_ascii_case(b"connection") {
            continue;
        }
        for name in fields::list(&text[range(connection.value)]) {
            let framing = name.eq_ignore_ascii_case(b"content-length");
            for (kind, field) in kinds.iter_mut().zip(fields) {
                let named = text[range(field.name)].eq_ignore_ascii_case(name);
                if named && *kind == Kind::Plain && !framing {
                    *kind = Kind::Drop;
                }
            }
        }
    }
}

/// Heads are bounded far below 4 GiB.
fn offset(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

const fn range((from, to): Span) -> std::ops::Range<usize> {
    from as usize..to as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_found_in_every_split_and_each_byte_is_looked_at_once() {
        let text = b"\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\nbody";
        let end = text.len() - 4;
        for cut in 0..end {
            let mut scan = Scan::default();
            assert_eq!(scan.run(&text[..cut]), Scanned::More, "cut at {cut}");
            assert_eq!(scan.run(text), Scanned::Head(end), "cut at {cut}");
        }
        assert_eq!(Scan::default().run(b"GET / HTTP/1.1\nHost: a\n\n"), Scanned::BareLf);
        assert_eq!(Scan::default().run(b"\nGET"), Scanned::BareLf);
    }

    #[test]
    fn empty_lines_before_a_head_cost_no_more_than_others() {
        // At a square of its length, this would take minutes.
        let mut text = b"\r\n".repeat(1 << 20);
        assert_eq!(Scan::default().run(&text), Scanned::More);
        text.extend_from_slice(b"GET / HTTP/1.1\r\n\r\n");
        assert_eq!(Scan::default().run(&text), Scanned::Head(text.len()));
    }
}
