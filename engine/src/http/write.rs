//! Heads on their way out. What needs no change is copied as it came, many fields at a time.

use std::net::IpAddr;
use std::time::Duration;

use sluice_config::{DeadlineHeader, LimitHeaders};
use sluice_policy::facts::Field;
use sluice_policy::flight::Flight;
use sluice_policy::plan::{HeaderEdit, Rewrite};

use super::fields::Kind;
use super::head::Head;
use super::limit;
use super::parse::ResponseHead;
use super::{deadline, forward};
use crate::ids::{self, HexId, Trace};

/// What this gateway adds to one request, and knows of its way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Passport {
    pub(crate) peer: IpAddr,
    pub(crate) client: IpAddr,
    /// The peer is a trusted proxy: what it says of the way is passed on.
    pub(crate) trusted: bool,
    /// Made by us; the client's own stands in the head when it sent a good one.
    made_id: Option<HexId>,
    pub(crate) trace: Trace,
}

impl Passport {
    pub(crate) fn new(ids: &ids::Ids, head: &Head, peer: IpAddr, from: (IpAddr, bool)) -> Self {
        let given = head.request_id.is_some_and(|at| ids::is_request_id(head.bytes(at)));
        Self {
            peer,
            client: from.0,
            trusted: from.1,
            made_id: (!given).then(|| ids.id()),
            trace: ids.trace(head.traceparent.map(|at| head.bytes(at))),
        }
    }

    pub(crate) fn request_id<'a>(&'a self, head: &'a Head) -> &'a [u8] {
        match &self.made_id {
            Some(id) => id,
            None => head.request_id.map_or(&[], |at| head.bytes(at)),
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
    out.extend_from_slice(head.method().as_bytes());
    out.push(b' ');
    write_target(out, head, rewrite);
    out.extend_from_slice(b" HTTP/1.1\r\n");
    write_host(out, head, host);
    let edit = &rewrite.request_headers;
    copy_fields(out, &head.text, &head.fields, &head.kinds, |kind, name| {
        matches!(kind, Kind::Plain | Kind::Date) && !is_edited(edit, name)
            || passport.trusted
                && matches!(kind, Kind::ForwardedProto | Kind::ForwardedHost | Kind::Forwarded)
    });
    if head.body == sluice_policy::facts::Body::Unknown {
        out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
    }
    if expect {
        out.extend_from_slice(b"Expect: 100-continue\r\n");
    }
    write_forwarded(out, head, passport);
    out.extend_from_slice(b"X-Request-Id: ");
    out.extend_from_slice(passport.request_id(head));
    out.extend_from_slice(b"\r\ntraceparent: ");
    passport.trace.write(out);
    out.extend_from_slice(b"\r\n");
    if let Some((header, left)) = deadline
        && !is_edited(edit, header.name().as_bytes())
    {
        deadline::write(out, header, left);
    }
    set_fields(out, edit);
    out.extend_from_slice(b"\r\n");
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

/// First, as RFC 9110 section 7.2 asks. An absolute form's authority counts.
fn write_host(out: &mut Vec<u8>, head: &Head, fallback: &str) {
    let named = || head.kinded().find(|(kind, _)| *kind == Kind::Host).map(|(_, f)| f.value);
    match head.authority.or_else(named) {
        Some(at) => field(out, b"Host", head.bytes(at)),
        None => field(out, b"Host", fallback.as_bytes()),
    }
}

fn write_forwarded(out: &mut Vec<u8>, head: &Head, passport: &Passport) {
    out.extend_from_slice(b"X-Forwarded-For: ");
    forward::write_hops(out, passport.peer, head.headers(), passport.trusted);
    out.extend_from_slice(b"\r\n");
    let told = |wanted: Kind| passport.trusted && head.kinds.contains(&wanted);
    if !told(Kind::ForwardedProto) {
        out.extend_from_slice(b"X-Forwarded-Proto: http\r\n");
    }
    if !told(Kind::ForwardedHost)
        && let Some((_, host)) = head.kinded().find(|(kind, _)| *kind == Kind::Host)
    {
        field(out, b"X-Forwarded-Host", head.bytes(host.value));
    }
}

/// How the response that follows is framed for the client, and what it is told besides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResponseExtras<'a> {
    /// `Transfer-Encoding: chunked` is to be announced.
    pub(crate) chunked: bool,
    /// The `Connection` option to send.
    pub(crate) connection: Option<&'static str>,
    pub(crate) request_id: &'a [u8],
    /// Whose limits the client is told, and how.
    pub(crate) limits: Option<(&'a Flight, LimitHeaders)>,
    /// For a response that has no Date of its own.
    pub(crate) date: &'a [u8],
    pub(crate) edit: Option<&'a HeaderEdit>,
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
    wanted: impl Fn(&[u8]) -> bool,
    more: impl FnOnce(&mut Vec<u8>),
) {
    out.extend_from_slice(b"HTTP/1.1 ");
    let mut digits = itoa::Buffer::new();
    out.extend_from_slice(digits.format(head.status).as_bytes());
    out.push(b' ');
    out.extend_from_slice(slice(text, head.reason));
    out.extend_from_slice(b"\r\n");
    copy_fields(out, text, &head.fields, &head.kinds, |kind, name| {
        matches!(kind, Kind::Plain | Kind::Date)
            && !extras.edit.is_some_and(|edit| is_edited(edit, name))
            && wanted(name)
    });
    more(out);
    if !head.has_date {
        field(out, b"Date", extras.date);
    }
    if extras.chunked {
        out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
    }
    write_extras(out, extras);
    if let Some(edit) = extras.edit {
        set_fields(out, edit);
    }
    out.extend_from_slice(b"\r\n");
}

/// The fields that every response of ours or through us ends with.
pub(crate) fn write_extras(out: &mut Vec<u8>, extras: &ResponseExtras<'_>) {
    if let Some(option) = extras.connection {
        field(out, b"Connection", option.as_bytes());
    }
    field(out, b"X-Request-Id", extras.request_id);
    if let Some((flight, form)) = extras.limits {
        limit::write(out, flight, form);
    }
}

/// Whole seconds, never too few.
pub(crate) fn seconds_up(span: Duration) -> u64 {
    span.as_secs() + u64::from(span.subsec_nanos() > 0)
}

pub(crate) fn field(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Copy the lines of the fields that `keep` wants, neighbours in one go, spelling and all.
fn copy_fields(
    out: &mut Vec<u8>,
    text: &[u8],
    fields: &[Field],
    kinds: &[Kind],
    keep: impl Fn(Kind, &[u8]) -> bool,
) {
    let mut run: Option<(u32, u32)> = None;
    for (i, (field, kind)) in fields.iter().zip(kinds).enumerate() {
        if keep(*kind, slice(text, field.name)) {
            // A line ends where the next begins; the last ends with its own CRLF.
            let end = fields.get(i + 1).map_or_else(|| line_end(text, field), |f| f.name.0);
            run = Some((run.map_or(field.name.0, |(from, _)| from), end));
        } else if let Some(run) = run.take() {
            out.extend_from_slice(slice(text, run));
        }
    }
    if let Some(run) = run {
        out.extend_from_slice(slice(text, run));
    }
}

/// Behind the CRLF of the field's line.
fn line_end(text: &[u8], field: &Field) -> u32 {
    let from = field.name.1.max(field.value.1);
    let rest = text.get(from as usize..).unwrap_or_default();
    let to_lf = memchr::memchr(b'\n', rest).map_or(0, |at| at + 1);
    from + u32::try_from(to_lf).unwrap_or(0)
}

fn is_edited(edit: &HeaderEdit, name: &[u8]) -> bool {
    edit.set.iter().any(|(set, _)| set.as_bytes().eq_ignore_ascii_case(name))
        || edit.remove.iter().any(|removed| removed.as_bytes().eq_ignore_ascii_case(name))
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
    out.extend_from_slice(b"HTTP/1.1 ");
    out.extend_from_slice(itoa::Buffer::new().format(head.status).as_bytes());
    out.push(b' ');
    out.extend_from_slice(slice(text, head.reason));
    out.extend_from_slice(b"\r\n");
    copy_fields(out, text, &head.fields, &head.kinds, |kind, _| kind == Kind::Plain);
    out.extend_from_slice(b"\r\n");
}
