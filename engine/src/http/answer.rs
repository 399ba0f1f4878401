//! Replies of our own: problems as RFC 9457 says, and what the operator wrote.

use std::sync::Arc;
use std::time::Duration;

use sluice_policy::decision::Answer;
use sluice_policy::degrade::Source;
use sluice_policy::facts::Facts;
use sluice_policy::flight::Flight;

use super::write;

/// A reply, before it is framed for a version of HTTP.
#[derive(Clone, Debug)]
pub(crate) struct Page {
    pub(crate) status: u16,
    pub(crate) content_type: &'static str,
    /// The operator's own; wins over the one above.
    pub(crate) own_type: Option<String>,
    pub(crate) location: Option<Vec<u8>>,
    /// The methods that would do, for 405 (RFC 9110 section 10.2.1).
    pub(crate) allow: Option<String>,
    pub(crate) retry_after: Option<Duration>,
    /// It stands for what could not be had; from where it comes.
    pub(crate) degraded: Option<&'static str>,
    pub(crate) body: Body,
    /// Our own problems are never stored; what the operator wrote may be.
    pub(crate) no_store: bool,
    /// The client broke the protocol: what it sends next can't be understood.
    pub(crate) close: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum Body {
    Written(Arc<[u8]>),
    Made(Vec<u8>),
}

impl Body {
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Written(bytes) => bytes,
            Self::Made(bytes) => bytes,
        }
    }
}

impl Page {
    /// A problem: what went wrong in words that name no internals.
    pub(crate) fn problem(status: u16, code: &str, request_id: &[u8]) -> Self {
        Self {
            status,
            content_type: "application/problem+json",
            own_type: None,
            location: None,
            allow: None,
            retry_after: None,
            degraded: None,
            body: Body::Made(problem(status, code, request_id)),
            no_store: true,
            close: false,
        }
    }

    /// What policy answered.
    pub(crate) fn of(
        answer: &Answer,
        flight: &Flight,
        facts: &Facts<'_>,
        request_id: &[u8],
    ) -> Self {
        let plan = flight.plan();
        let Some(reply) = answer.reply.and_then(|id| plan.reply(id)) else {
            let mut page = Self::problem(answer.status, answer.code, request_id);
            page.retry_after = answer.retry_after;
            if flight.violated().is_some() {
                page.body = Body::Made(exceeded(page.body.bytes(), flight));
            }
            page.allow = (answer.status == 405).then(|| plan.allowed_methods(facts).join(", "));
            return page;
        };
        Self {
            status: reply.status,
            content_type: "text/plain; charset=utf-8",
            own_type: Some(reply.content_type.clone()),
            location: reply.location.as_deref().map(|to| location(to, facts)),
            allow: None,
            retry_after: answer.retry_after,
            degraded: answer.degraded.map(Source::name),
            body: Body::Written(Arc::clone(&reply.body)),
            no_store: answer.degraded.is_some(),
            close: false,
        }
    }
}

/// Which limits refused, as the quota-exceeded problem type has it: by the names that the
/// `RateLimit` fields give them, too.
fn exceeded(problem: &[u8], flight: &Flight) -> Vec<u8> {
    let names: Vec<_> =
        flight.limits().map(|limit| flight.plan().limit_name(limit.limit)).collect();
    let names = serde_json::to_string(&names).unwrap_or_else(|_| "[]".to_owned());
    let open = problem.strip_suffix(b"}").unwrap_or(problem);
    [open, b",\"violated-policies\":", names.as_bytes(), b"}"].concat()
}

/// `{uri}` at the end stands for the request's path and query.
fn location(to: &str, facts: &Facts<'_>) -> Vec<u8> {
    match to.strip_suffix("{uri}") {
        Some(base) => {
            let mark = if facts.query.is_empty() { "" } else { "?" };
            let path = facts.path;
            // "https://example.com/{uri}" must not become "//".
            let base = if path.starts_with('/') { base.trim_end_matches('/') } else { base };
            [base, path, mark, facts.query].concat().into_bytes()
        }
        None => to.as_bytes().to_vec(),
    }
}

fn problem(status: u16, code: &str, request_id: &[u8]) -> Vec<u8> {
    let kind = match status {
        429 => "https://iana.org/assignments/http-problem-types#quota-exceeded",
        503 => "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
        _ => "about:blank",
    };
    // Request ids and codes hold nothing that JSON would escape.
    let text = format!(
        r#"{{"type":"{kind}","title":"{}","status":{status},"code":"{code}","request_id":"{}"}}"#,
        reason(status),
        String::from_utf8_lossy(request_id),
    );
    text.into_bytes()
}

/// The phrase of RFC 9110 section 15 for the statuses we answer with, or the operator may.
pub(crate) fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        201 => "Created",
        202 => "Accepted",
        204 => "No Content",
        301 => "Moved Permanently",
        302 => "Found",
        303 => "See Other",
        307 => "Temporary Redirect",
        308 => "Permanent Redirect",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        410 => "Gone",
        413 => "Content Too Large",
        414 => "URI Too Long",
        417 => "Expectation Failed",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        _ => "",
    }
}

/// Append the whole reply as HTTP/1.1. `bodiless`: the request was HEAD.
pub(crate) fn write(
    out: &mut Vec<u8>,
    page: &Page,
    extras: &write::ResponseExtras<'_>,
    bodiless: bool,
) {
    let mut digits = itoa::Buffer::new();
    out.extend_from_slice(b"HTTP/1.1 ");
    out.extend_from_slice(digits.format(page.status).as_bytes());
    out.push(b' ');
    out.extend_from_slice(reason(page.status).as_bytes());
    out.extend_from_slice(b"\r\n");
    if !extras.edits(b"date") {
        out.extend_from_slice(extras.date);
    }
    // What the operator sets comes at the end, and instead of ours.
    let field = |out: &mut Vec<u8>, name: &[u8], value: &[u8]| {
        if !extras.edits(name) {
            write::field(out, name, value);
        }
    };
    if let Some(allow) = &page.allow {
        field(out, b"Allow", allow.as_bytes());
    }
    if let Some(location) = &page.location {
        field(out, b"Location", location);
    }
    let body = page.body.bytes();
    if !matches!(page.status, 204 | 304) {
        if !body.is_empty() {
            let kind = page.own_type.as_deref().unwrap_or(page.content_type);
            field(out, b"Content-Type", kind.as_bytes());
        }
        field(out, b"Content-Length", digits.format(body.len()).as_bytes());
    }
    if page.no_store {
        field(out, b"Cache-Control", b"no-store");
    }
    if let Some(source) = page.degraded {
        field(out, b"x-degraded", source.as_bytes());
    }
    if let Some(after) = page.retry_after {
        let seconds = write::seconds_up(after).max(1);
        field(out, b"Retry-After", digits.format(seconds).as_bytes());
    }
    write::write_extras(out, extras);
    if let Some(edit) = extras.edit {
        write::set_fields(out, edit);
    }
    out.extend_from_slice(b"\r\n");
    if !bodiless && !matches!(page.status, 204 | 304) {
        out.extend_from_slice(body);
    }
}
