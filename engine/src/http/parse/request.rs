//! Request heads: the request line, the host, the body's framing.

use sluice_policy::facts::{Body, Field};

use super::bytes::alphanumeric_or;
use super::lines::{BadLine, Lines, RequestLine};
use super::{
    BadHead, HeadRules, Notes, bad, content_length, drop_nominated, note_connection, offset, range,
    transfer_encoding,
};
use crate::http::fields::{self, Kind, Known};
use crate::http::head::{Head, Version};
use crate::http::target::{self, BadPath, Form};

/// Read the request head at the beginning of `head.text`, where more may follow it. What has not all
/// come is refused, too; [`Head::shed`] before another try.
pub(crate) fn request(head: &mut Head, rules: HeadRules) -> Result<(), BadHead> {
    let text = std::mem::take(&mut head.text);
    let judged = judge(head, &text, rules);
    head.text = text;
    judged
}

fn judge(head: &mut Head, text: &[u8], rules: HeadRules) -> Result<(), BadHead> {
    let notes = read_request(head, text, rules)?;
    judge_body(head, &notes)?;
    judge_host(head, text)?;
    judge_path(head, rules)?;
    head.keep_alive = match head.version {
        Version::Http11 => !notes.close,
        Version::Http10 => notes.keep_alive && !notes.close,
    };
    Ok(())
}

const TOO_MANY_FIELDS: BadHead = bad(431, "request.fields");

fn read_request(head: &mut Head, text: &[u8], rules: HeadRules) -> Result<Notes, BadHead> {
    let mut lines = Lines::new(text, 0);
    let line = lines.request_line()?;
    head.version = line.version;
    head.line_at = offset(line.method_at);
    read_target(head, line)?;
    let mut notes = Notes::default();
    while let Some(field) = lines.field()? {
        if head.fields.len() == rules.fields_max {
            return Err(TOO_MANY_FIELDS);
        }
        let kind = note_request_field(head, &mut notes, text, field)?;
        head.kinds.push(kind);
        head.fields.push(field);
    }
    head.end = lines.at();
    if notes.nominates {
        drop_nominated(&head.fields, &mut head.kinds, text);
    }
    Ok(notes)
}

impl From<BadLine> for BadHead {
    fn from(line: BadLine) -> Self {
        match line {
            BadLine::Malformed => bad(400, "request.malformed"),
            BadLine::Version => bad(505, "request.version"),
        }
    }
}

/// RFC 9112 section 3.2: origin form, absolute form, asterisk form.
fn read_target(head: &mut Head, line: RequestLine<'_>) -> Result<(), BadHead> {
    let RequestLine { method, target, target_at, .. } = line;
    if method == "CONNECT" {
        return Err(bad(501, "request.method"));
    }
    let mut path = target;
    let asterisk = target == "*" && method == "OPTIONS";
    if !target.starts_with('/') && !asterisk {
        let scheme = target.get(..7).is_some_and(|s| s.eq_ignore_ascii_case("http://"));
        let rest = target.get(7..).filter(|_| scheme).ok_or(bad(400, "request.target"))?;
        let at = rest.find(['/', '?']).unwrap_or(rest.len());
        let from = target_at + 7;
        head.authority = Some((offset(from), offset(from + at)));
        path = &rest[at..];
    }
    let mut path_len = path.len();
    for (at, b) in path.bytes().enumerate() {
        match b {
            b'#' => return Err(bad(400, "request.target")),
            b'?' if path_len == path.len() => path_len = at,
            _ => {}
        }
    }
    head.set_line(method, path, path_len);
    Ok(())
}

fn note_request_field(
    head: &mut Head,
    notes: &mut Notes,
    text: &[u8],
    field: Field,
) -> Result<Kind, BadHead> {
    let value = || &text[range(field.value)];
    let kind = match fields::known(&text[range(field.name)]) {
        Known::Connection => {
            note_connection(notes, value());
            Kind::Drop
        }
        Known::ContentLength => {
            let length = content_length(value()).ok_or(bad(400, "request.length"))?;
            if notes.length.replace(length).is_some() {
                return Err(bad(400, "request.length"));
            }
            Kind::Plain
        }
        Known::TransferEncoding => {
            transfer_encoding(value(), &mut notes.codings)?;
            Kind::Drop
        }
        Known::Expect if value().eq_ignore_ascii_case(b"100-continue") => {
            notes.expects = true;
            Kind::Drop
        }
        Known::Expect => return Err(bad(417, "request.expectation")),
        Known::UserAgent => {
            head.user_agent = Some(field.value);
            Kind::Plain
        }
        Known::Other(kind) => kind,
    };
    match kind {
        Kind::Host if head.host_field.replace(field.value).is_some() => {
            return Err(bad(400, "request.host"));
        }
        Kind::RequestId => head.request_id = Some(field.value),
        Kind::TraceParent => head.traceparent = Some(field.value),
        _ => {}
    }
    Ok(kind)
}

/// RFC 9112 section 6.3; both lengths at once are refused rather than ranked.
fn judge_body(head: &mut Head, notes: &Notes) -> Result<(), BadHead> {
    head.body = match (notes.codings.judge()?, notes.length) {
        (true, Some(_)) => return Err(bad(400, "request.length")),
        (true, None) if head.version == Version::Http10 => {
            return Err(bad(400, "request.coding"));
        }
        (true, None) => Body::Unknown,
        (false, None | Some(0)) => Body::Empty,
        (false, Some(n)) => Body::Length(n),
    };
    head.expects = notes.expects && head.version == Version::Http11 && head.body != Body::Empty;
    Ok(())
}

/// RFC 9112 section 3.2: exactly one host; an absolute form must agree with it.
fn judge_host(head: &mut Head, text: &[u8]) -> Result<(), BadHead> {
    const BAD: BadHead = bad(400, "request.host");
    if let (Some(authority), Some(host)) = (head.authority, head.host_field)
        && !text[range(authority)].eq_ignore_ascii_case(&text[range(host)])
    {
        return Err(BAD);
    }
    if head.host_field.is_none() && head.version == Version::Http11 {
        return Err(BAD);
    }
    let named = &text[range(head.authority.or(head.host_field).unwrap_or_default())];
    if !head.has_host(named) {
        head.set_host(named, host_name(named).ok_or(BAD)?);
    }
    Ok(())
}

/// What a registered name may hold (RFC 3986 section 3.2.2).
const IN_NAMES: [bool; 256] = alphanumeric_or(b"-._~!$&'()*+,;=%");

/// `host[:port]` without its port and the root's dot; None when it is not one.
fn host_name(authority: &[u8]) -> Option<&str> {
    let text = str::from_utf8(authority).ok()?;
    let (name, port) = match text.strip_prefix('[') {
        Some(v6) => {
            let (inside, after) = v6.split_once(']')?;
            inside.parse::<std::net::Ipv6Addr>().ok()?;
            (&text[..inside.len() + 2], after)
        }
        None => text.split_at(text.bytes().position(|b| b == b':').unwrap_or(text.len())),
    };
    let digits = port.strip_prefix(':').unwrap_or(port);
    let port_ok =
        (port.is_empty() || port.starts_with(':')) && digits.bytes().all(|b| b.is_ascii_digit());
    let name_ok = name.starts_with('[') || name.bytes().all(|b| IN_NAMES[usize::from(b)]);
    (port_ok && name_ok).then(|| name.strip_suffix('.').unwrap_or(name))
}

fn judge_path(head: &mut Head, rules: HeadRules) -> Result<(), BadHead> {
    if head.raw_path().is_empty() {
        // `http://host` and `http://host?q` ask for the root.
        head.path = Some("/".to_owned());
        head.crooked = true;
        return Ok(());
    }
    let mut normal = head.spare_path();
    match target::normalise(head.raw_path(), rules.slashes, &mut normal) {
        Ok(Form::Normal) => head.keep_spare_path(normal),
        Ok(form) => {
            head.path = Some(normal);
            head.crooked = form == Form::Crooked;
        }
        Err(BadPath::Escape | BadPath::Ambiguous | BadPath::AboveRoot) => {
            return Err(bad(400, "request.path"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use sluice_config::EncodedSlashes;

    use super::*;
    use crate::http::parse::{Scan, Scanned};

    const RULES: HeadRules = HeadRules { fields_max: 8, slashes: EncodedSlashes::Reject };

    fn parse(text: &str) -> Result<Head, BadHead> {
        let mut head = Head::default();
        head.text.extend_from_slice(text.as_bytes());
        match Scan::default().run(&head.text) {
            Scanned::Head(_) => request(&mut head, RULES).map(|()| head),
            Scanned::BareLf => Err(bad(400, "bare LF")),
            Scanned::More => Err(bad(0, "more")),
        }
    }

    #[test]
    fn a_head_used_again_is_of_the_host_that_its_request_names() {
        let mut head = Head::default();
        let table = [
            ("a.test:80", Some("a.test")),
            ("A.test:80", Some("a.test")),
            ("b.test", Some("b.test")),
            ("b.test", Some("b.test")),
            ("", Some("")),
            ("b.test/", None),
            ("b.test/", None),
            ("b.test", Some("b.test")),
        ];
        for (host, expected) in table {
            head.forget(usize::MAX);
            let text = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
            head.text.extend_from_slice(text.as_bytes());
            let read = request(&mut head, RULES);
            assert_eq!(read.is_ok().then_some(head.host.as_str()), expected, "{host:?}");
        }
    }

    #[test]
    fn ambiguous_or_malformed_heads_are_refused() {
        // (status, head without its last empty line)
        let table = [
            (
                400,
                "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n",
            ),
            (
                400,
                "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n",
            ),
            (400, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nContent-Length: 4\r\n"),
            (400, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4, 4\r\n"),
            (400, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +4\r\n"),
            (400, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -4\r\n"),
            (400, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0x4\r\n"),
            (400, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length:\r\n"),
            (400, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999\r\n"),
            (400, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, chunked\r\n"),
            (
                400,
                "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
            ),
            (400, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, identity\r\n"),
            (400, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: identity\r\n"),
            (400, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\r\n"),
            (400, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: \x0bchunked\r\n"),
            (400, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n"),
            (501, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n"),
            (400, "POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n"),
            (417, "POST / HTTP/1.1\r\nHost: a\r\nExpect: 200-maybe\r\n"),
            (400, "GET / HTTP/1.1\r\nHost : a\r\n"),
            (400, "GET / HTTP/1.1\r\nHost: a\r\nX: 1\r\n 2\r\n"),
            (400, "GET / HTTP/1.1\r\nHost: a\r\nX: \0\r\n"),
            (400, "GET / HTTP/1.1\r\nHost: a\r\nX: a\rb\r\n"),
            (400, "GET / HTTP/1.1\r\nHost: a\r\n: v\r\n"),
            (400, "GET / HTTP/1.1\r\nHost: a\r\nno colon\r\n"),
            (400, "GET / HTTP/1.1\r\n"),
            (400, "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n"),
            (400, "GET / HTTP/1.1\r\nHost: a b\r\n"),
            (400, "GET / HTTP/1.1\r\nHost: a:x\r\n"),
            (400, "GET / HTTP/1.1\r\nHost: user@a\r\n"),
            (400, "GET / HTTP/1.1\r\nHost: [::1\r\n"),
            (400, "GET http://b/ HTTP/1.1\r\nHost: a\r\n"),
            (400, "GET ftp://a/ HTTP/1.1\r\nHost: a\r\n"),
            (400, "GET a HTTP/1.1\r\nHost: a\r\n"),
            (400, "GET * HTTP/1.1\r\nHost: a\r\n"),
            (400, "GET /a#b HTTP/1.1\r\nHost: a\r\n"),
            (400, "GET /a b HTTP/1.1\r\nHost: a\r\n"),
            (400, "GET /../a HTTP/1.1\r\nHost: a\r\n"),
            (400, "G@T / HTTP/1.1\r\nHost: a\r\n"),
            (400, "GET  / HTTP/1.1\r\nHost: a\r\n"),
            (400, "GET /\r\nHost: a\r\n"),
            (400, "GET / FOO/1.1\r\nHost: a\r\n"),
            (505, "GET / HTTP/2.0\r\nHost: a\r\n"),
            (505, "GET / HTTP/1.2\r\nHost: a\r\n"),
            (505, "GET / HTTP/3\r\nHost: a\r\n"),
            (501, "CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n"),
            (
                431,
                "GET / HTTP/1.1\r\nHost: a\r\na: \r\nb: \r\nc: \r\nd: \r\ne: \r\nf: \r\ng: \r\nh: \r\n",
            ),
        ];
        for (status, text) in table {
            let got = parse(&format!("{text}\r\n")).map(|_| ()).map_err(|e| e.status);
            assert_eq!(got, Err(status), "{text:?}");
        }
    }

    #[test]
    fn a_head_ends_where_its_lines_do_and_is_none_before() {
        let text = "\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n\r\n";
        let end = text.len() - 2;
        for came in 0..=text.len() {
            let mut head = Head::default();
            head.text.extend_from_slice(&text.as_bytes()[..came]);
            let read = request(&mut head, RULES).map(|()| head.end).ok();
            assert_eq!(read, (came >= end).then_some(end), "{came}");
        }
    }

    #[test]
    fn a_part_of_a_head_leaves_nothing_behind_but_its_text() {
        let mut head = Head::default();
        let text = format!("GET /{} HTTP/1.1\r\nHost: a\r\nX: b\r\nY: ", "a".repeat(1000));
        head.text.extend_from_slice(text.as_bytes());
        assert!(request(&mut head, RULES).is_err());
        assert!(head.fields.len() == 2 && head.raw_path().len() == 1001);
        head.shed();
        assert_eq!((head.fields.capacity(), head.raw_path()), (0, ""));
        assert_eq!(head.text, text.as_bytes());
        head.text.extend_from_slice(b"c\r\n\r\n");
        request(&mut head, RULES).unwrap();
        assert_eq!((head.fields.len(), head.end), (3, head.text.len()));
    }

    #[test]
    fn as_many_fields_as_the_operator_allows_are_read() {
        for (fields, fields_max, status) in
            [(1000, 1000, None), (257, 300, None), (301, 300, Some(431)), (1001, 1000, Some(431))]
        {
            let many = "a: b\r\n".repeat(fields - 1);
            let mut head = Head::default();
            head.text = format!("GET / HTTP/1.1\r\nHost: a\r\n{many}\r\n").into_bytes();
            let got = request(&mut head, HeadRules { fields_max, ..RULES });
            assert_eq!(got.err().map(|bad| bad.status), status, "{fields} of {fields_max}");
            assert!(status.is_some() || head.fields.len() == fields);
        }
    }

    #[test]
    fn a_head_says_what_it_means() {
        let head = parse(
            "POST /a/../b?x=1 HTTP/1.1\r\nHOST: Api.Example.COM:8080\r\nX-My: 1\r\n\
             Connection: x-my, Keep-Alive\r\nContent-Length: 12\r\nExpect: 100-Continue\r\n\
             User-Agent: t\r\n\r\nhello",
        )
        .unwrap();
        assert_eq!((head.method(), head.path(), head.query()), ("POST", "/b", "x=1"));
        assert_eq!((&head.host[..], head.body), ("api.example.com", Body::Length(12)));
        assert!(head.keep_alive && head.expects);
        assert_eq!(&head.text[head.end..], b"hello");
        assert_eq!(head.kinds[1], Kind::Drop, "named by Connection");
        assert_eq!(head.user_agent.map(|at| head.bytes(at)), Some(&b"t"[..]));
    }

    #[test]
    fn forms_of_target_and_host() {
        // (request line and host, path, query, host)
        let table = [
            ("GET http://A.b/x?y HTTP/1.1\r\nHost: a.B\r\n", "/x", "y", "a.b"),
            ("GET http://a HTTP/1.1\r\nHost: a\r\n", "/", "", "a"),
            ("GET http://a?q HTTP/1.1\r\nHost: a\r\n", "/", "q", "a"),
            ("OPTIONS * HTTP/1.1\r\nHost: a.\r\n", "*", "", "a"),
            ("GET / HTTP/1.0\r\n", "/", "", ""),
            ("GET /? HTTP/1.1\r\nHost: [::1]:80\r\n", "/", "", "[::1]"),
        ];
        for (text, path, query, host) in table {
            let head = parse(&format!("{text}\r\n")).unwrap();
            assert_eq!((head.path(), head.query(), &head.host[..]), (path, query, host), "{text}");
        }
    }

    #[test]
    fn connections_persist_as_their_version_says() {
        let table = [
            ("1.1", "", true),
            ("1.1", "Connection: close\r\n", false),
            ("1.0", "", false),
            ("1.0", "Connection: Keep-Alive\r\n", true),
            ("1.0", "Connection: keep-alive, close\r\n", false),
        ];
        for (version, field, keep) in table {
            let head = parse(&format!("GET / HTTP/{version}\r\nHost: a\r\n{field}\r\n")).unwrap();
            assert_eq!(head.keep_alive, keep, "{version} {field}");
        }
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(text in proptest::collection::vec(0_u8.., 0..300)) {
            let mut head = Head::default();
            head.text = text;
            let _ = request(&mut head, RULES);
        }
    }
}
