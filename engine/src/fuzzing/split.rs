//! A head split into its parts by three readers: ours, httparse, and one that is plain and slow.

use super::plain_line;
use crate::http::head::Version;
use crate::http::parse::lines::Lines;

/// Names and values.
type Fields = Vec<(Vec<u8>, Vec<u8>)>;

/// A head's parts: of its first line three, of its fields name and value.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Split {
    start: [Vec<u8>; 3],
    pub(super) fields: Fields,
}

impl Split {
    pub(super) fn request(text: &[u8], end: usize) -> Option<Self> {
        let mut lines = Lines::new(text, 0);
        let line = lines.request_line().ok()?;
        let target = &text[line.target_at..line.target_at + line.target.len()];
        assert_eq!(target, line.target.as_bytes());
        let start = [line.method.into(), line.target.into(), version(line.version).into()];
        Self::fields(lines, text, end).map(|fields| Self { start, fields })
    }

    pub(super) fn response(text: &[u8], end: usize) -> Option<Self> {
        let mut lines = Lines::new(text, 0);
        let line = lines.status_line().ok()?;
        let start = [
            version(line.version).into(),
            line.status.to_string().into_bytes(),
            part(text, line.reason),
        ];
        Self::fields(lines, text, end).map(|fields| Self { start, fields })
    }

    fn fields(mut lines: Lines<'_>, text: &[u8], end: usize) -> Option<Fields> {
        let mut fields = Vec::new();
        while let Some(field) = lines.field().ok()? {
            fields.push((part(text, field.name), part(text, field.value)));
        }
        assert_eq!(lines.at(), end, "the head that was looked for");
        Some(fields)
    }

    pub(super) fn request_by_httparse(head: &[u8]) -> Option<Self> {
        let mut slots = vec![httparse::EMPTY_HEADER; head.len()];
        let mut parsed = httparse::Request::new(&mut slots);
        let whole = parsed.parse(head) == Ok(httparse::Status::Complete(head.len()));
        let start = [parsed.method?.into(), parsed.path?.into(), minor(parsed.version?)];
        whole.then(|| Self { start, fields: copied(parsed.headers) })
    }

    pub(super) fn response_by_httparse(head: &[u8]) -> Option<Self> {
        let mut slots = vec![httparse::EMPTY_HEADER; head.len()];
        let mut parsed = httparse::Response::new(&mut slots);
        let whole = parsed.parse(head) == Ok(httparse::Status::Complete(head.len()));
        let code = parsed.code?.to_string().into_bytes();
        let start = [minor(parsed.version?), code, parsed.reason?.into()];
        whole.then(|| Self { start, fields: copied(parsed.headers) })
    }

    pub(super) fn request_plainly(head: &[u8]) -> Option<Self> {
        let (line, fields) = plain_lines(head)?;
        let parts: Vec<&[u8]> = line.split(|b| *b == b' ').collect();
        let [method, target, version] = parts[..] else { return None };
        let target_ok = !target.is_empty() && !target.iter().any(u8::is_ascii_control);
        let version_ok = matches!(version, b"HTTP/1.0" | b"HTTP/1.1");
        let ok = is_token(method) && target_ok && str::from_utf8(target).is_ok() && version_ok;
        ok.then(|| Self { start: [method.into(), target.into(), version.into()], fields })
    }

    pub(super) fn response_plainly(head: &[u8]) -> Option<Self> {
        let (line, fields) = plain_lines(head)?;
        let (version, rest) = line.split_at_checked(8)?;
        let (code, reason) = rest.strip_prefix(b" ")?.split_at_checked(3)?;
        let reason_ok = !reason.iter().any(|b| b.is_ascii_control() && *b != b'\t');
        let spaced = reason.is_empty() || reason.starts_with(b" ");
        let code_ok = code.iter().all(u8::is_ascii_digit);
        let ok = matches!(version, b"HTTP/1.0" | b"HTTP/1.1") && code_ok && spaced && reason_ok;
        let code: u16 = str::from_utf8(code).ok()?.parse().ok()?;
        let reason = reason.get(1..).filter(|reason| reason.is_ascii()).unwrap_or_default();
        let start = [version.into(), code.to_string().into_bytes(), reason.into()];
        ok.then_some(Self { start, fields })
    }
}

fn version(version: Version) -> &'static str {
    match version {
        Version::Http10 => "HTTP/1.0",
        Version::Http11 => "HTTP/1.1",
    }
}

fn minor(minor: u8) -> Vec<u8> {
    format!("HTTP/1.{minor}").into_bytes()
}

fn part(text: &[u8], (from, to): (u32, u32)) -> Vec<u8> {
    text[from as usize..to as usize].to_vec()
}

fn copied(fields: &[httparse::Header<'_>]) -> Fields {
    fields.iter().map(|field| (field.name.into(), field.value.to_vec())).collect()
}

pub(super) fn is_token(text: &[u8]) -> bool {
    let token = |b: &u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(b);
    !text.is_empty() && text.iter().all(token)
}

/// The first line, and the fields (RFC 9112 sections 2.2 and 5).
fn plain_lines(mut head: &[u8]) -> Option<(&[u8], Fields)> {
    while let Some(rest) = head.strip_prefix(b"\r\n") {
        head = rest;
    }
    let start_end = head.windows(2).position(|pair| pair == b"\r\n")?;
    let mut at = start_end + 2;
    let mut fields = Vec::new();
    loop {
        let line = plain_line(head, &mut at)?;
        if line.is_empty() {
            return Some((&head[..start_end], fields));
        }
        let colon = line.iter().position(|b| *b == b':')?;
        let (name, value) = (&line[..colon], &line[colon + 1..]);
        let space = |b: &u8| matches!(b, b' ' | b'\t');
        let from = value.iter().position(|b| !space(b)).unwrap_or(value.len());
        let to = value.iter().rposition(|b| !space(b)).map_or(from, |last| last + 1);
        fields.push((name.to_vec(), value[from..to].to_vec()));
        if !is_token(name) {
            return None;
        }
    }
}
