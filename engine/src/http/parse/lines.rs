//! A head's lines, split and held to the bytes that RFC 9110 section 5 and RFC 9112 sections 2.3, 3
//! and 4 let stand in them. What the lines mean is judged elsewhere.

use sluice_policy::facts::Field;

use super::bytes::{Control, Space, Unusual, alphanumeric_or, find};
use super::offset;
use crate::http::head::{Span, Version};

/// Reads a whole head, line by line: first the one it starts with, then its fields.
#[derive(Clone, Debug)]
pub(crate) struct Lines<'a> {
    text: &'a [u8],
    at: usize,
}

/// A line that is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BadLine {
    Malformed,
    /// It names a version of HTTP that is not ours.
    Version,
}

/// A request line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestLine<'a> {
    pub(crate) method: &'a str,
    /// Where it begins, and the line.
    pub(crate) method_at: usize,
    /// As received, with nothing in it that would end it.
    pub(crate) target: &'a str,
    /// Where the target begins.
    pub(crate) target_at: usize,
    pub(crate) version: Version,
}

/// A status line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StatusLine {
    pub(crate) version: Version,
    /// Three digits.
    pub(crate) status: u16,
    /// ASCII, or empty.
    pub(crate) reason: Span,
    /// Where the line begins.
    pub(crate) at: usize,
}

impl<'a> Lines<'a> {
    /// The head in `text` that begins at `at`. Empty lines before it are skipped.
    pub(crate) fn new(text: &'a [u8], mut at: usize) -> Self {
        while text.get(at..).is_some_and(|rest| rest.starts_with(b"\r\n")) {
            at += 2;
        }
        Self { text, at }
    }

    /// `method SP request-target SP HTTP-version CRLF`
    pub(crate) fn request_line(&mut self) -> Result<RequestLine<'a>, BadLine> {
        let method_at = self.at;
        let method_end = token_end(self.text, method_at);
        let target_at = method_end + 1;
        let target_end = find::<Space>(self.text, target_at);
        let spaced = self.text.get(method_end) == Some(&b' ')
            && self.text.get(target_end) == Some(&b' ')
            && method_end > method_at
            && target_end > target_at;
        let line = self.text.get(method_at..target_end).filter(|_| spaced);
        let line = line.and_then(|line| str::from_utf8(line).ok()).ok_or(BadLine::Malformed)?;
        let (method, target) = line.split_at(method_end - method_at);
        self.at = target_end + 1;
        let rest = self.text.get(self.at..).unwrap_or_default();
        let [b'H', b'T', b'T', b'P', b'/', b'1', b'.', minor @ (b'0' | b'1'), b'\r', b'\n', ..] =
            rest
        else {
            return Err(not_ours(rest));
        };
        self.at += b"HTTP/1.1\r\n".len();
        let version = if *minor == b'1' { Version::Http11 } else { Version::Http10 };
        Ok(RequestLine { method, method_at, target: &target[1..], target_at, version })
    }

    /// `HTTP-version SP status-code [ SP [ reason-phrase ] ] CRLF`
    pub(crate) fn status_line(&mut self) -> Result<StatusLine, BadLine> {
        let rest = self.text.get(self.at..).unwrap_or_default();
        let [b'H', b'T', b'T', b'P', b'/', b'1', b'.', minor @ (b'0' | b'1'), b' ', code @ ..] =
            rest
        else {
            return Err(BadLine::Malformed);
        };
        let [a @ b'0'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9', ..] = code else {
            return Err(BadLine::Malformed);
        };
        let digit = |b: &u8| u16::from(b - b'0');
        let status = 100 * digit(a) + 10 * digit(b) + digit(c);
        let line_at = self.at;
        let code_end = line_at + b"HTTP/1.1 200".len();
        let spaced = self.text.get(code_end) == Some(&b' ');
        let from = code_end + usize::from(spaced);
        let to = if spaced { value_end(self.text, from) } else { from };
        self.end_of_line(to)?;
        let ascii = self.text.get(from..to).is_some_and(<[u8]>::is_ascii);
        let reason = if ascii && to > from { (offset(from), offset(to)) } else { (0, 0) };
        let version = if *minor == b'1' { Version::Http11 } else { Version::Http10 };
        Ok(StatusLine { version, status, reason, at: line_at })
    }

    /// `field-name ":" OWS field-value OWS CRLF`; None at the empty line that ends the head.
    pub(crate) fn field(&mut self) -> Result<Option<Field>, BadLine> {
        let name_at = self.at;
        let name_end = token_end(self.text, name_at);
        if name_end == name_at {
            self.end_of_line(name_at)?;
            return Ok(None);
        }
        if self.text.get(name_end) != Some(&b':') {
            return Err(BadLine::Malformed);
        }
        let is_space = |at: usize| matches!(self.text.get(at), Some(b' ' | b'\t'));
        let mut from = name_end + 1;
        while is_space(from) {
            from += 1;
        }
        let line_end = value_end(self.text, from);
        let mut to = line_end;
        while to > from && is_space(to - 1) {
            to -= 1;
        }
        self.end_of_line(line_end)?;
        let value = if to > from { (offset(from), offset(to)) } else { (0, 0) };
        Ok(Some(Field { name: (offset(name_at), offset(name_end)), value }))
    }

    /// Where the next line begins.
    pub(crate) const fn at(&self) -> usize {
        self.at
    }

    fn end_of_line(&mut self, at: usize) -> Result<(), BadLine> {
        self.at = at + 2;
        match self.text.get(at..at + 2) {
            Some(b"\r\n") => Ok(()),
            _ => Err(BadLine::Malformed),
        }
    }
}

/// A version that looks like one of HTTP deserves to be told so.
fn not_ours(version: &[u8]) -> BadLine {
    let end = version.iter().position(|b| *b == b'\r').unwrap_or(version.len());
    match &version[..end] {
        b"HTTP/1.0" | b"HTTP/1.1" => BadLine::Malformed,
        [b'H', b'T', b'T', b'P', b'/', number @ ..] => match number {
            [major] if major.is_ascii_digit() => BadLine::Version,
            [major, b'.', minor] if major.is_ascii_digit() && minor.is_ascii_digit() => {
                BadLine::Version
            }
            _ => BadLine::Malformed,
        },
        _ => BadLine::Malformed,
    }
}

/// `tchar` of RFC 9110 section 5.6.2.
const IN_TOKENS: [bool; 256] = alphanumeric_or(b"!#$%&'*+-.^_`|~");

fn token_end(text: &[u8], at: usize) -> usize {
    let mut at = find::<Unusual>(text, at);
    while let Some(b) = text.get(at)
        && IN_TOKENS[usize::from(*b)]
    {
        at += 1;
    }
    at
}

/// The first control character but for tabs.
fn value_end(text: &[u8], mut at: usize) -> usize {
    loop {
        at = find::<Control>(text, at);
        if text.get(at) != Some(&b'\t') {
            return at;
        }
        at += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_split_where_their_parts_are() {
        let text =
            b"\r\n\r\nPUT /a?b=\xc3\xa9 HTTP/1.0\r\nA: b c \t\r\nEmpty:\r\nt:\ta\tb\r\n\r\nrest";
        let mut lines = Lines::new(text, 0);
        let line = lines.request_line().unwrap();
        assert_eq!((line.method, line.target, line.target_at), ("PUT", "/a?b=é", 8));
        assert_eq!(line.version, Version::Http10);
        let mut fields = Vec::new();
        while let Some(field) = lines.field().unwrap() {
            let part =
                |(from, to): Span| str::from_utf8(&text[from as usize..to as usize]).unwrap();
            fields.push((part(field.name), part(field.value)));
        }
        assert_eq!(fields, [("A", "b c"), ("Empty", ""), ("t", "a\tb")]);
        assert_eq!(&text[lines.at()..], b"rest");
    }

    #[test]
    fn a_request_line_has_three_parts_with_one_space_between() {
        let table: [(&[u8], BadLine); 9] = [
            (b"GET  HTTP/1.1\r\n", BadLine::Malformed),
            (b" / HTTP/1.1\r\n", BadLine::Malformed),
            (b"GET\t/ HTTP/1.1\r\n", BadLine::Malformed),
            (b"GET / HTTP/1.1 \r\n", BadLine::Malformed),
            (b"GET / HTTP/1.1\r", BadLine::Malformed),
            (b"GET /\x7f HTTP/1.1\r\n", BadLine::Malformed),
            (b"GET /\xff HTTP/1.1\r\n", BadLine::Malformed),
            (b"GET /", BadLine::Malformed),
            (b"GET / HTTP/1.2\r\n", BadLine::Version),
        ];
        for (text, expected) in table {
            assert_eq!(Lines::new(text, 0).request_line(), Err(expected), "{text:?}");
        }
    }

    #[test]
    fn a_status_line_may_have_no_reason() {
        type Expected = Option<(u16, &'static [u8])>;
        let table: [(&[u8], Expected); 10] = [
            (b"HTTP/1.1 200 OK\r\n", Some((200, b"OK"))),
            (b"HTTP/1.0 404 Not\tFound \r\n", Some((404, b"Not\tFound "))),
            (b"HTTP/1.1 204 \r\n", Some((204, b""))),
            (b"HTTP/1.1 204\r\n", Some((204, b""))),
            (b"HTTP/1.1 200 gr\xc3\xbcn\r\n", Some((200, b""))),
            (b"HTTP/1.1 2000\r\n", None),
            (b"HTTP/1.1 20 OK\r\n", None),
            (b"HTTP/1.1  200 OK\r\n", None),
            (b"HTTP/1.2 200 OK\r\n", None),
            (b"HTTP/1.1 200 O\x00K\r\n", None),
        ];
        for (text, expected) in table {
            let got = Lines::new(text, 0).status_line().ok();
            let got = got.map(|line| {
                let (from, to) = line.reason;
                (line.status, &text[from as usize..to as usize])
            });
            assert_eq!(got, expected, "{text:?}");
        }
    }
}
