//! Response heads: the status line and the body's framing.

use sluice_policy::facts::Field;

use super::lines::{BadLine, Lines};
use super::{
    Framing, Notes, content_length, drop_nominated, note_connection, offset, range,
    transfer_encoding,
};
use crate::http::fields::{self, Kind, Known};
use crate::http::head::{Span, Version};

/// A response's head: where things lie in the buffer it was read into.
#[derive(Debug, Default)]
pub(crate) struct ResponseHead {
    pub(crate) status: u16,
    pub(crate) reason: Span,
    pub(crate) fields: Vec<Field>,
    pub(crate) kinds: Vec<Kind>,
    pub(crate) framing: Framing,
    /// The upstream takes another request on this connection after this body.
    pub(crate) keep_alive: bool,
    pub(crate) has_date: bool,
    /// Where the status line begins, when it can be passed on as it came.
    pub(crate) line_at: Option<u32>,
    /// Where the last field's line ends.
    pub(crate) fields_end: u32,
}

/// The upstream's bytes are not HTTP/1 as we understand it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadResponse;

impl From<BadLine> for BadResponse {
    fn from(_: BadLine) -> Self {
        Self
    }
}

/// More fields than any response has.
pub(crate) const RESPONSE_FIELDS_MAX: usize = 256;

/// Read the response head at `from` of `buffer`, into `head`: where it ends. Offsets count from the
/// buffer's start. What has not all come is refused, too. `to_head`: the request was HEAD.
pub(crate) fn response(
    head: &mut ResponseHead,
    buffer: &[u8],
    from: usize,
    to_head: bool,
) -> Result<usize, BadResponse> {
    head.fields.clear();
    head.kinds.clear();
    let mut lines = Lines::new(buffer, from);
    let line = lines.status_line()?;
    if !(100..600).contains(&line.status) {
        return Err(BadResponse);
    }
    head.status = line.status;
    head.reason = line.reason;
    let whole = line.version == Version::Http11 && line.reason.1 > 0;
    head.line_at = whole.then(|| offset(line.at));
    head.has_date = false;
    let mut notes = Notes::default();
    while let Some(field) = lines.field()? {
        if head.fields.len() == RESPONSE_FIELDS_MAX {
            return Err(BadResponse);
        }
        let kind = note_response_field(&mut notes, buffer, field)?;
        head.has_date |= kind == Kind::Date;
        head.kinds.push(kind);
        head.fields.push(field);
    }
    let end = lines.at();
    head.fields_end = offset(end.saturating_sub(2));
    if notes.nominates {
        drop_nominated(&head.fields, &mut head.kinds, buffer);
    }
    if matches!(head.status, 100..=199 | 204) {
        // A client might wait for what never comes (RFC 9110 section 8.6).
        drop_length(head, buffer);
    }
    head.framing = response_framing(head.status, &notes, line.version, to_head)?;
    head.keep_alive = head.framing != Framing::Close
        && match line.version {
            Version::Http11 => !notes.close,
            Version::Http10 => notes.keep_alive && !notes.close,
        };
    Ok(end)
}

fn drop_length(head: &mut ResponseHead, buffer: &[u8]) {
    for (kind, field) in head.kinds.iter_mut().zip(&head.fields) {
        if buffer[range(field.name)].eq_ignore_ascii_case(b"content-length") {
            *kind = Kind::Drop;
        }
    }
}

fn note_response_field(
    notes: &mut Notes,
    buffer: &[u8],
    field: Field,
) -> Result<Kind, BadResponse> {
    let (name, value) = (&buffer[range(field.name)], || &buffer[range(field.value)]);
    match fields::known(name) {
        Known::Connection => {
            note_connection(notes, value());
            Ok(Kind::Drop)
        }
        Known::ContentLength => {
            let length = content_length(value()).ok_or(BadResponse)?;
            match notes.length.replace(length) {
                Some(_) => Err(BadResponse),
                None => Ok(Kind::Plain),
            }
        }
        Known::TransferEncoding => {
            transfer_encoding(value(), &mut notes.codings).map_err(|_| BadResponse)?;
            Ok(Kind::Drop)
        }
        Known::Other(kind @ (Kind::Drop | Kind::RequestId | Kind::Date)) => {
            // Identity is stripped from clients, not from answers.
            let identity = name.first().is_some_and(|b| b | 0x20 == b'x');
            Ok(if identity && kind == Kind::Drop { Kind::Plain } else { kind })
        }
        Known::Expect
        | Known::UserAgent
        | Known::Other(
            Kind::Plain
            | Kind::Host
            | Kind::ForwardedFor
            | Kind::ForwardedProto
            | Kind::ForwardedHost
            | Kind::Forwarded
            | Kind::TraceParent,
        ) => Ok(Kind::Plain),
    }
}

/// RFC 9112 section 6.3.
fn response_framing(
    status: u16,
    notes: &Notes,
    version: Version,
    to_head: bool,
) -> Result<Framing, BadResponse> {
    if to_head || matches!(status, 100..=199 | 204 | 304) {
        return Ok(Framing::None);
    }
    match (notes.codings.judge().map_err(|_| BadResponse)?, notes.length) {
        (true, Some(_)) => Err(BadResponse),
        (true, None) if version == Version::Http10 => Err(BadResponse),
        (true, None) => Ok(Framing::Chunked),
        (false, Some(0)) => Ok(Framing::None),
        (false, Some(n)) => Ok(Framing::Length(n)),
        (false, None) => Ok(Framing::Close),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_are_framed_as_rfc_9112_says() {
        let ok = |f, k| Some((f, k));
        // (head, to HEAD, framing and keep-alive)
        let table = [
            ("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n", false, ok(Framing::Length(3), true)),
            ("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n", true, ok(Framing::None, true)),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n", true, ok(Framing::None, true)),
            ("HTTP/1.1 304 Not Modified\r\nContent-Length: 3\r\n", false, ok(Framing::None, true)),
            ("HTTP/1.1 204 No Content\r\n", false, ok(Framing::None, true)),
            ("HTTP/1.1 200\r\nTransfer-Encoding: chunked\r\n", false, ok(Framing::Chunked, true)),
            ("HTTP/1.1 200 OK\r\n", false, ok(Framing::Close, false)),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n",
                false,
                ok(Framing::None, false),
            ),
            ("HTTP/1.0 200 OK\r\nContent-Length: 1\r\n", false, ok(Framing::Length(1), false)),
            (
                "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 1\r\n",
                false,
                ok(Framing::Length(1), true),
            ),
            ("HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n", false, None),
            ("HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n", false, None),
            ("HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 3\r\n", false, None),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n", false, None),
            ("HTTP/1.1 20 OK\r\n", false, None),
            ("SSH-2.0-OpenSSH\r\n", false, None),
        ];
        for (text, to_head, expected) in table {
            let text = format!("xx{text}\r\n");
            let mut head = ResponseHead::default();
            let got = response(&mut head, text.as_bytes(), 2, to_head);
            assert_eq!(got.ok().map(|_| (head.framing, head.keep_alive)), expected, "{text:?}");
        }
    }

    #[test]
    fn a_head_ends_where_its_lines_do_and_is_none_before() {
        let text = "in front\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n\r\n";
        let (from, end) = ("in front".len(), text.len() - 2);
        for came in from..=text.len() {
            let mut head = ResponseHead::default();
            let read = response(&mut head, &text.as_bytes()[..came], from, false).ok();
            assert_eq!(read, (came >= end).then_some(end), "{came}");
        }
    }

    #[test]
    fn a_length_is_dropped_where_there_can_be_no_body() {
        let table = [
            ("204 No Content", Kind::Drop),
            ("103 Early Hints", Kind::Drop),
            ("304 Not Modified", Kind::Plain),
            ("200 OK", Kind::Plain),
        ];
        for (status, expected) in table {
            let text = format!("HTTP/1.1 {status}\r\nContent-length: 5\r\n\r\n");
            let mut head = ResponseHead::default();
            response(&mut head, text.as_bytes(), 0, false).unwrap();
            assert_eq!(head.kinds, [expected], "{status}");
        }
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(text in proptest::collection::vec(0_u8.., 0..300)) {
            let _ = response(&mut ResponseHead::default(), &text, 0, false);
        }
    }
}
