//! Reads responses, however the bytes are cut, and says what each one was.

use super::body::{Body, Framing};
use super::{HEAD_BYTES_MAX, HEADERS_MAX, Malformed, Said};

/// A response that was read to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    pub body_bytes: u64,
    /// The connection may carry another request.
    pub reusable: bool,
}

/// Reads one response after another from one connection.
#[derive(Debug)]
pub struct Reader {
    to_head: bool,
    /// A head that came in pieces; empty otherwise.
    partial: Vec<u8>,
    current: Option<(Head, Body)>,
}

#[derive(Clone, Copy, Debug)]
struct Head {
    status: u16,
    reusable: bool,
    framing: Framing,
}

impl Reader {
    /// `to_head`: the requests are HEAD, so responses have no body whatever they say.
    pub fn new(to_head: bool) -> Self {
        Self { to_head, partial: Vec::new(), current: None }
    }

    /// Takes bytes; at the end of a response says what it was and how many bytes belonged to it.
    /// The reader is then ready for the next one.
    pub fn feed(&mut self, input: &[u8]) -> Result<Option<(Answer, usize)>, Malformed> {
        let mut at = 0;
        loop {
            if let Some((head, body)) = &mut self.current {
                at += body.feed(&input[at..])?;
                if !body.is_done() {
                    return Ok(None);
                }
                let answer = head.answer(body);
                self.current = None;
                return Ok(Some((answer, at)));
            }
            let Some((head, taken)) = self.head(&input[at..])? else { return Ok(None) };
            at += taken;
            if !is_interim(head.status) {
                self.current = Some((head, Body::new(head.framing)));
            }
        }
    }

    /// The connection ended. `Ok(None)`: between responses, which is nobody's fault.
    pub fn end(&mut self) -> Result<Option<Answer>, Malformed> {
        match self.current.take() {
            Some((head, body)) if body.ends_here() => Ok(Some(head.answer(&body))),
            Some(_) => Err(Malformed("the connection ended inside a body")),
            None if self.partial.is_empty() => Ok(None),
            None => Err(Malformed("the connection ended inside a head")),
        }
    }

    /// Whether any byte of the current response has been seen.
    pub fn has_begun(&self) -> bool {
        self.current.is_some() || !self.partial.is_empty()
    }

    fn head(&mut self, input: &[u8]) -> Result<Option<(Head, usize)>, Malformed> {
        if self.partial.is_empty() {
            let found = parse(input, self.to_head)?;
            if found.is_none() {
                self.partial.extend_from_slice(input);
            }
            return bounded(found, input.len());
        }
        let before = self.partial.len();
        self.partial.extend_from_slice(input);
        let found = parse(&self.partial, self.to_head)?;
        let found = bounded(found, self.partial.len())?;
        Ok(found.map(|(head, length)| {
            self.partial.clear();
            (head, length - before)
        }))
    }
}

impl Head {
    fn answer(self, body: &Body) -> Answer {
        let reusable = self.reusable && body.is_done();
        Answer { status: self.status, body_bytes: body.bytes(), reusable }
    }
}

fn bounded<T>(found: Option<T>, bytes: usize) -> Result<Option<T>, Malformed> {
    if found.is_none() && bytes > HEAD_BYTES_MAX {
        return Err(Malformed("a head without an end"));
    }
    Ok(found)
}

fn parse(bytes: &[u8], to_head: bool) -> Result<Option<(Head, usize)>, Malformed> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut response = httparse::Response::new(&mut headers);
    let length = match response.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(_) => return Err(Malformed("not a response head")),
    };
    let (Some(status), Some(minor)) = (response.code, response.version) else {
        return Err(Malformed("not a response head"));
    };
    if !(100..600).contains(&status) {
        return Err(Malformed("a status outside 100 to 599"));
    }
    let said = Said::read(response.headers)?;
    let bodiless = to_head || is_interim(status) || matches!(status, 101 | 204 | 304);
    let framing = if bodiless { Framing::Length(0) } else { said.framing(Framing::UntilClose) };
    let reusable = said.persists(minor) && framing != Framing::UntilClose && status != 101;
    Ok(Some((Head { status, reusable, framing }, length)))
}

/// 1xx announces another response; 101 is the last one of its connection.
fn is_interim(status: u16) -> bool {
    status < 200 && status != 101
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GOOD: &[(&str, u16, u64, bool)] = &[
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", 200, 5, true),
        ("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", 200, 0, true),
        ("HTTP/1.1 204 No Content\r\n\r\n", 204, 0, true),
        ("HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", 304, 0, true),
        ("HTTP/1.1 503 \r\nContent-Length: 1\r\nConnection: close\r\n\r\nx", 503, 1, false),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\na: b\r\n\r\n",
            200,
            5,
            true,
        ),
        ("HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi", 200, 2, false),
        ("HTTP/1.0 200 OK\r\nContent-Length: 2\r\nConnection: Keep-Alive\r\n\r\nhi", 200, 2, true),
        (
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </>\r\n\r\nHTTP/1.1 201 Created\r\nContent-Length: 1\r\n\r\nx",
            201,
            1,
            true,
        ),
        ("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n", 101, 0, false),
    ];

    #[test]
    fn every_framing_is_read_to_its_end() {
        for (text, status, body_bytes, reusable) in GOOD {
            let (status, body_bytes, reusable) = (*status, *body_bytes, *reusable);
            let found = Reader::new(false).feed(text.as_bytes());
            assert_eq!(
                found,
                Ok(Some((Answer { status, body_bytes, reusable }, text.len()))),
                "{text}"
            );
        }
    }

    #[test]
    fn what_is_ambiguous_or_broken_is_refused() {
        let cases = [
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\nhello",
            "HTTP/1.1 200 OK\r\nContent-Length: \r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            "HTTP/1.1 777 OK\r\n\r\n",
            "HTTP/2 200\r\n\r\n",
            "ICY 200 OK\r\n\r\n",
        ];
        for text in cases {
            assert!(Reader::new(false).feed(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn a_close_ends_only_a_body_without_a_length() {
        let cases = [
            (
                "HTTP/1.1 200 OK\r\n\r\nabc",
                Ok(Some(Answer { status: 200, body_bytes: 3, reusable: false })),
            ),
            ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc", Err(())),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", Err(())),
            ("HTTP/1.1 200 O", Err(())),
            ("", Ok(None)),
        ];
        for (text, expected) in cases {
            let mut reader = Reader::new(false);
            assert_eq!(reader.feed(text.as_bytes()), Ok(None), "{text}");
            assert_eq!(reader.end().map_err(|_| ()), expected, "{text}");
        }
    }

    #[test]
    fn a_response_to_head_has_no_body() {
        let text = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n";
        let answer = Answer { status: 200, body_bytes: 0, reusable: true };
        assert_eq!(Reader::new(true).feed(text.as_bytes()), Ok(Some((answer, text.len()))));
    }

    #[test]
    fn a_head_without_an_end_is_refused() {
        let mut reader = Reader::new(false);
        assert_eq!(reader.feed(b"HTTP/1.1 200 OK\r\nx: "), Ok(None));
        assert!(reader.feed(&[b'y'; HEAD_BYTES_MAX + 1]).is_err());
    }

    #[test]
    fn bytes_after_a_response_are_not_taken() {
        let text = b"HTTP/1.1 204 No Content\r\n\r\nHTTP/1.1 200 OK\r\n";
        let found = Reader::new(false).feed(text).unwrap().unwrap();
        assert_eq!(found.1, 27);
    }

    proptest! {
        #[test]
        fn cuts_at_any_byte_change_nothing(
            which in prop::collection::vec(0..GOOD.len(), 1..4),
            cuts in prop::collection::vec(1usize..40, 1..60),
        ) {
            let text: String = which.iter().map(|index| GOOD[*index].0).collect();
            let mut reader = Reader::new(false);
            let (mut rest, mut found, mut cuts) = (text.as_bytes(), Vec::new(), cuts.into_iter().cycle());
            while !rest.is_empty() {
                let (mut piece, after) = rest.split_at(cuts.next().unwrap_or(1).min(rest.len()));
                while !piece.is_empty() {
                    let Some((answer, taken)) = reader.feed(piece).unwrap() else { break };
                    found.push((answer.status, answer.body_bytes, answer.reusable));
                    piece = &piece[taken..];
                }
                rest = after;
            }
            let expected: Vec<_> = which.iter().map(|index| (GOOD[*index].1, GOOD[*index].2, GOOD[*index].3)).collect();
            prop_assert_eq!(found, expected);
            prop_assert_eq!(reader.end(), Ok(None));
        }
    }
}
