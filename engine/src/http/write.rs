//! Heads on their way out. What needs no change is copied as it came, many fields at a time.

use std::net::IpAddr;
use std::time::Duration;

use sluice_config::DeadlineHeader;
use sluice_policy::facts::Field;
use sluice_policy::flight::Flight;
use sluice_policy::plan::{HeaderEdit, Rewrite};

use super::fields::Kind;
use super::forward::AddressText;
use super::head::Head;
use super::limit::Forms;
use super::parse::ResponseHead;
use super::{deadline, forward};
use crate::ids::{self, HexId, Ids, TraceLine};

/// What this gateway adds to a connection's requests, and knows of their way.
#[derive(Clone, Debug)]
pub(crate) struct Passport {
    pub(crate) peer: IpAddr,
    /// The peer's address as a hop is written.
    hop: AddressText,
    pub(crate) client: IpAddr,
    /// The peer is a trusted proxy: what it says of the way is passed on.
    pub(crate) trusted: bool,
    /// The client sent a good id of its own, which stands in the head.
    given: bool,
    made: HexId,
    pub(crate) trace: TraceLine,
}

impl Passport {
    pub(crate) fn new(peer: IpAddr) -> Self {
        Self {
            peer,
            hop: AddressText::of(peer.to_canonical()),
            client: peer,
            trusted: false,
            given: false,
            made: [b'0'; 32],
            trace: TraceLine::default(),
        }
    }

    /// Make it that of the request whose head this is. `from`: its client, and whether the peer is
    /// trusted.
    pub(crate) fn stamp(&mut self, ids: &Ids, head: &Head, from: (IpAddr, bool)) {
        (self.client, self.trusted) = from;
        let begun = self.trace.set(ids, head.traceparent.map(|at| head.bytes(at)));
        self.given = head.request_id.is_some_and(|at| ids::is_request_id(head.bytes(at)));
        if !self.given {
            // Who asks by neither is found by one and the same. A trace may be of many requests.
            self.made = if begun { *self.trace.trace_id() } else { ids.id() };
        }
    }

    pub(crate) fn request_id<'a>(&'a self, head: &'a Head) -> &'a [u8] {
        match head.request_id {
            Some(at) if self.given => head.bytes(at),
            _ => &self.made,
        }
    }
}

/// Append the request as the upstream is to see it. Its body follows as it is framed in the head:
/// by its one `Content-Length`, or in chunks. `host`: for a request that named none.
pub(crate) fn request(
    out: &mut Vec<u8>,
    head: &Head,
    passport: &Passport,
    rewrite: &Rewrite,
    host: &str,
    expect: bool,
    deadline: Option<(&DeadlineHeader, Duration)>,
) {
    let edit = &rewrite.request_headers;
    let edited = |name: &[u8]| !edit.is_empty() && edit.names(name);
    // Most often the host comes first, and then the line and all that follows go as they came.
    let as_it_came =
        head.line_stays(rewrite) && head.kinds.first() == Some(&Kind::Host) && !edited(b"host");
    let from = if as_it_came { Some(head.line_at) } else { None };
    if !as_it_came {
        write_line(out, head, rewrite);
        if !edited(b"host") {
            // First, as RFC 9110 section 7.2 asks. An absolute form's authority counts.
            let named = head.authority.or(head.host_field).map(|at| head.bytes(at));
            field(out, b"Host", named.unwrap_or(host.as_bytes()));
        }
    }
    let kept = |kind, at: &Field| match kind {
        Kind::Host => as_it_came,
        Kind::Plain | Kind::Date => !edited(slice(&head.text, at.name)),
        Kind::ForwardedProto | Kind::ForwardedHost | Kind::Forwarded => {
            passport.trusted && !edited(slice(&head.text, at.name))
        }
        Kind::Drop | Kind::ForwardedFor | Kind::RequestId | Kind::TraceParent => false,
    };
    copy_fields(out, &head.text, &head.fields, &head.kinds, from, head.fields_end(), kept);
    if head.body == sluice_policy::facts::Body::Unknown {
        out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
    }
    if expect {
        out.extend_from_slice(b"Expect: 100-continue\r\n");
    }
    write_forwarded(out, head, passport, edited);
    if !edited(b"x-request-id") {
        field(out, b"X-Request-Id", passport.request_id(head));
    }
    if !edited(b"traceparent") {
        out.extend_from_slice(passport.trace.text());
    }
    if let Some((header, left)) = deadline
        && !edited(header.name().as_bytes())
    {
        deadline::write(out, header, left);
    }
    set_fields(out, edit);
    out.extend_from_slice(b"\r\n");
}

fn write_line(out: &mut Vec<u8>, head: &Head, rewrite: &Rewrite) {
    out.extend_from_slice(head.method().as_bytes());
    out.push(b' ');
    write_target(out, head, rewrite);
    out.extend_from_slice(b" HTTP/1.1\r\n");
}

fn write_target(out: &mut Vec<u8>, head: &Head, rewrite: &Rewrite) {
    // A prefix is cut off the path that the route was found by.
    let cuts = rewrite.strip_prefix.is_some();
    let mut path = if cuts { head.path() } else { head.path_to_pass() };
    if let Some(prefix) = &rewrite.strip_prefix
        && let Some(rest) = path.strip_prefix(prefix.trim_end_matches('/'))
        && (rest.is_empty() || rest.starts_with('/'))
    {
        path = rest;
    }
    if let Some(prefix) = &rewrite.add_prefix {
        out.extend_from_slice(prefix.trim_end_matches('/').as_bytes());
    }
    if path.is_empty() {
        path = "/";
    }
    out.extend_from_slice(path.as_bytes());
    out.extend_from_slice(head.query_with_mark().as_bytes());
}

fn write_forwarded(
    out: &mut Vec<u8>,
    head: &Head,
    passport: &Passport,
    edited: impl Fn(&[u8]) -> bool,
) {
    let told = |wanted: Kind| passport.trusted && head.kinds.contains(&wanted);
    if !edited(b"x-forwarded-for") {
        out.extend_from_slice(b"X-Forwarded-For: ");
        if passport.trusted {
            forward::write_hops(out, head.headers());
        }
        out.extend_from_slice(passport.hop.bytes());
        out.extend_from_slice(b"\r\n");
    }
    if !told(Kind::ForwardedProto) && !edited(b"x-forwarded-proto") {
        out.extend_from_slice(b"X-Forwarded-Proto: http\r\n");
    }
    if !told(Kind::ForwardedHost)
        && !edited(b"x-forwarded-host")
        && let Some(host) = head.host_field
    {
        field(out, b"X-Forwarded-Host", head.bytes(host));
    }
}

/// The line of the Date field: IMF-fixdate (RFC 9110 section 5.6.7) is 29 bytes long.
pub(crate) type DateLine = [u8; 37];

/// How the response that follows is framed for the client, and what it is told besides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResponseExtras<'a> {
    /// `Transfer-Encoding: chunked` is to be announced.
    pub(crate) chunked: bool,
    /// The `Connection` option to send.
    pub(crate) connection: Option<&'static str>,
    pub(crate) request_id: &'a [u8],
    /// Whose limits the client is told, and how.
    pub(crate) limits: Option<(&'a Flight, &'a Forms)>,
    /// The line for a response that has no Date of its own.
    pub(crate) date: &'a DateLine,
    pub(crate) edit: Option<&'a HeaderEdit>,
}

impl ResponseExtras<'_> {
    /// Whether fields of that name are set or removed.
    pub(crate) fn edits(&self, name: &[u8]) -> bool {
        self.edit.is_some_and(|edit| !edit.is_empty() && edit.names(name))
    }
}

/// Append the response's head as the client is to see it. `text` is the buffer that `head` lies in.
pub(crate) fn response(
    out: &mut Vec<u8>,
    text: &[u8],
    head: &ResponseHead,
    extras: &ResponseExtras<'_>,
) {
    response_with(out, text, head, extras, |_| true, |_| {});
}

/// As [`response`], with the fields that `wanted` wants and what `more` adds.
pub(crate) fn response_with(
    out: &mut Vec<u8>,
    text: &[u8],
    head: &ResponseHead,
    extras: &ResponseExtras<'_>,
    wanted: impl Fn(&Field) -> bool,
    more: impl FnOnce(&mut Vec<u8>),
) {
    if head.line_at.is_none() {
        status_line(out, text, head);
    }
    let edit = extras.edit.filter(|edit| !edit.is_empty());
    copy_fields(
        out,
        text,
        &head.fields,
        &head.kinds,
        head.line_at,
        head.fields_end,
        |kind, field| {
            matches!(kind, Kind::Plain | Kind::Date)
                && !edit.is_some_and(|edit| edit.names(slice(text, field.name)))
                && wanted(field)
        },
    );
    more(out);
    if !head.has_date && !extras.edits(b"date") {
        out.extend_from_slice(extras.date);
    }
    if extras.chunked {
        out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
    }
    write_extras(out, extras);
    if let Some(edit) = edit {
        set_fields(out, edit);
    }
    out.extend_from_slice(b"\r\n");
}

/// The fields that every response of ours or through us ends with.
pub(crate) fn write_extras(out: &mut Vec<u8>, extras: &ResponseExtras<'_>) {
    if let Some(option) = extras.connection {
        field(out, b"Connection", option.as_bytes());
    }
    if !extras.edits(b"x-request-id") {
        field(out, b"X-Request-Id", extras.request_id);
    }
    if let Some((flight, forms)) = extras.limits {
        forms.write(out, flight);
    }
}

/// Whole seconds, never too few.
pub(crate) fn seconds_up(span: Duration) -> u64 {
    span.as_secs() + u64::from(span.subsec_nanos() > 0)
}

#[inline]
pub(crate) fn field(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Copy the lines of the fields that `keep` wants, neighbours in one go, spelling and all. The last
/// line ends at `end`; `from`: what lies from there to the first field goes along.
fn copy_fields(
    out: &mut Vec<u8>,
    text: &[u8],
    fields: &[Field],
    kinds: &[Kind],
    mut from: Option<u32>,
    end: u32,
    keep: impl Fn(Kind, &Field) -> bool,
) {
    for (field, kind) in fields.iter().zip(kinds) {
        if keep(*kind, field) {
            from = from.or(Some(field.name.0));
        } else if let Some(from) = from.take() {
            // A line ends where the next begins.
            out.extend_from_slice(slice(text, (from, field.name.0)));
        }
    }
    if let Some(from) = from {
        out.extend_from_slice(slice(text, (from, end)));
    }
}

pub(crate) fn set_fields(out: &mut Vec<u8>, edit: &HeaderEdit) {
    for (name, value) in &edit.set {
        field(out, name.as_bytes(), value.as_bytes());
    }
}

fn slice(text: &[u8], (from, to): (u32, u32)) -> &[u8] {
    text.get(from as usize..to as usize).unwrap_or_default()
}

/// Append a 1xx as it came.
pub(crate) fn interim(out: &mut Vec<u8>, text: &[u8], head: &ResponseHead) {
    status_line(out, text, head);
    copy_fields(out, text, &head.fields, &head.kinds, None, head.fields_end, |kind, _| {
        kind == Kind::Plain
    });
    out.extend_from_slice(b"\r\n");
}

fn status_line(out: &mut Vec<u8>, text: &[u8], head: &ResponseHead) {
    let mut line = *b"HTTP/1.1 000 ";
    for (digit, n) in line[9..12].iter_mut().zip([head.status / 100, head.status / 10, head.status])
    {
        *digit = b"0123456789"[usize::from(n % 10)];
    }
    out.extend_from_slice(&line);
    out.extend_from_slice(slice(text, head.reason));
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use sluice_config::EncodedSlashes;
    use sluice_policy::plan::Rewrite;

    use super::*;
    use crate::http::parse::{self, HeadRules};

    const RULES: HeadRules = HeadRules { fields_max: 100, slashes: EncodedSlashes::Reject };

    /// What of it is sent on before the fields that are ours.
    fn sent_on(text: &str, trusted: bool, rewrite: &Rewrite) -> String {
        let out = whole(text, trusted, rewrite);
        out.split("X-Forwarded-For: 127.0.0.1\r\n").next().unwrap().to_owned()
    }

    fn whole(text: &str, trusted: bool, rewrite: &Rewrite) -> String {
        let mut head = Head::default();
        head.text.extend_from_slice(text.as_bytes());
        parse::request(&mut head, RULES).unwrap();
        let peer = IpAddr::from([127, 0, 0, 1]);
        let mut passport = Passport::new(peer);
        passport.stamp(&Ids::new(), &head, (peer, trusted));
        let mut out = Vec::new();
        request(&mut out, &head, &passport, rewrite, "app:80", false, None);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_head_goes_on_as_it_came_but_for_what_is_not_to() {
        let plain = Rewrite::default();
        let prefixed = Rewrite { add_prefix: Some("/v1".to_owned()), ..Rewrite::default() };
        let edit = HeaderEdit { set: Vec::new(), remove: vec!["a".to_owned()] };
        let edited = Rewrite { request_headers: edit, ..Rewrite::default() };
        let set = vec![("host".to_owned(), "b".to_owned())];
        let edit = HeaderEdit { set, remove: Vec::new() };
        let renamed = Rewrite { request_headers: edit, ..Rewrite::default() };
        let host_first = "GET /x?y HTTP/1.1\r\nHost:  h\r\nA: 1\r\nB:2\r\n\r\n";
        let table = [
            (host_first, &plain, "GET /x?y HTTP/1.1\r\nHost:  h\r\nA: 1\r\nB:2\r\n"),
            (host_first, &edited, "GET /x?y HTTP/1.1\r\nHost:  h\r\nB:2\r\n"),
            (host_first, &renamed, "GET /x?y HTTP/1.1\r\nA: 1\r\nB:2\r\n"),
            (host_first, &prefixed, "GET /v1/x?y HTTP/1.1\r\nHost: h\r\nA: 1\r\nB:2\r\n"),
            // Empty lines in front are not passed on.
            ("\r\n\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n", &plain, "GET / HTTP/1.1\r\nHost: h\r\n"),
            // Ours come instead, or it is between neighbours only.
            (
                "GET / HTTP/1.1\r\nHost: h\r\nTE: x\r\nX-Request-Id: i\r\nA: 1\r\n\r\n",
                &plain,
                "GET / HTTP/1.1\r\nHost: h\r\nA: 1\r\n",
            ),
            // The host comes first (RFC 9110 section 7.2).
            (
                "GET / HTTP/1.1\r\nA: 1\r\nHost: h\r\nB: 2\r\n\r\n",
                &plain,
                "GET / HTTP/1.1\r\nHost: h\r\nA: 1\r\nB: 2\r\n",
            ),
            // Upstream all is HTTP/1.1 in origin form, and as it was judged.
            ("GET / HTTP/1.0\r\nHost: h\r\n\r\n", &plain, "GET / HTTP/1.1\r\nHost: h\r\n"),
            (
                "GET / HTTP/1.0\r\nA: 1\r\n\r\n",
                &plain,
                "GET / HTTP/1.1\r\nHost: app:80\r\nA: 1\r\n",
            ),
            (
                "GET http://h/a HTTP/1.1\r\nHost: h\r\n\r\n",
                &plain,
                "GET /a HTTP/1.1\r\nHost: h\r\n",
            ),
            ("GET /a/../b HTTP/1.1\r\nHost: h\r\n\r\n", &plain, "GET /b HTTP/1.1\r\nHost: h\r\n"),
            ("GET /%61 HTTP/1.1\r\nHost: h\r\n\r\n", &plain, "GET /%61 HTTP/1.1\r\nHost: h\r\n"),
        ];
        for (text, rewrite, expected) in table {
            assert_eq!(sent_on(text, false, rewrite), expected, "{text:?}");
        }
        let told = "GET / HTTP/1.1\r\nHost: h\r\nX-Forwarded-Proto: https\r\nA: 1\r\n\r\n";
        assert_eq!(sent_on(told, false, &plain), "GET / HTTP/1.1\r\nHost: h\r\nA: 1\r\n");
        assert!(sent_on(told, true, &plain).contains("X-Forwarded-Proto: https\r\n"));
    }

    #[test]
    fn a_status_line_goes_on_as_it_came_or_is_made_one_of_ours() {
        let edit = HeaderEdit { set: Vec::new(), remove: vec!["a".to_owned()] };
        let table = [
            ("HTTP/1.1 200 OK\r\nA: 1\r\nB: 2\r\n", "HTTP/1.1 200 OK\r\nA: 1\r\nB: 2\r\n", None),
            ("HTTP/1.1 200 OK\r\nA: 1\r\nB: 2\r\n", "HTTP/1.1 200 OK\r\nB: 2\r\n", Some(&edit)),
            ("HTTP/1.1 200 OK\r\nConnection: x\r\nB: 2\r\n", "HTTP/1.1 200 OK\r\nB: 2\r\n", None),
            ("HTTP/1.1 204 No  Content\r\n", "HTTP/1.1 204 No  Content\r\n", None),
            ("HTTP/1.0 200 OK\r\nA: 1\r\n", "HTTP/1.1 200 OK\r\nA: 1\r\n", None),
            ("HTTP/1.1 200\r\nA: 1\r\n", "HTTP/1.1 200 \r\nA: 1\r\n", None),
            ("HTTP/1.1 200 gr\u{fc}n\r\nA: 1\r\n", "HTTP/1.1 200 \r\nA: 1\r\n", None),
            ("\r\nHTTP/1.1 200 OK\r\nA: 1\r\n", "HTTP/1.1 200 OK\r\nA: 1\r\n", None),
        ];
        for (text, expected, edit) in table {
            let text = format!("in front{text}Date: x\r\n\r\nbehind");
            let (from, end) = ("in front".len(), text.len() - "behind".len());
            let mut head = ResponseHead::default();
            let read = parse::response(&mut head, text.as_bytes(), from, false);
            assert_eq!(read, Ok(end));
            let extras = ResponseExtras {
                chunked: false,
                connection: None,
                request_id: b"i",
                limits: None,
                date: b"Date: Thu, 01 Jan 1970 00:00:00 GMT\r\n",
                edit,
            };
            let mut out = Vec::new();
            response(&mut out, text.as_bytes(), &head, &extras);
            let expected = format!("{expected}Date: x\r\nX-Request-Id: i\r\n\r\n");
            assert_eq!(String::from_utf8(out).unwrap(), expected, "{text:?}");
        }
    }

    #[test]
    fn what_the_operator_edits_is_there_once_and_as_he_says() {
        let ours = [
            "host",
            "x-forwarded-for",
            "x-forwarded-proto",
            "x-forwarded-host",
            "x-request-id",
            "traceparent",
        ];
        let text =
            "GET / HTTP/1.1\r\nHost: h\r\nX-Forwarded-Proto: a\r\nX-Forwarded-Host: a\r\n\r\n";
        for name in ours {
            for trusted in [false, true] {
                let set = vec![(name.to_owned(), "mine".to_owned())];
                let request_headers = HeaderEdit { set, remove: Vec::new() };
                let rewrite = Rewrite { request_headers, ..Rewrite::default() };
                let out = whole(text, trusted, &rewrite).to_ascii_lowercase();
                let lines = out.lines().filter(|line| line.starts_with(&format!("{name}:")));
                assert_eq!(lines.collect::<Vec<_>>(), [format!("{name}: mine")], "{out}");
            }
        }
    }
}
