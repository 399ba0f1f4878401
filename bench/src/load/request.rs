//! The request that is sent over and over, written once.

use std::str::FromStr;

use super::Work;
use super::schedule::roll;

/// A method name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Method(String);

/// Method and the headers that the caller adds.
#[derive(Clone, Debug)]
pub struct Head {
    pub method: Method,
    /// Name and value, checked by [`header`](Head::header).
    pub headers: Vec<(String, String)>,
}

impl FromStr for Method {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if is_token(text) {
            Ok(Self(text.to_owned()))
        } else {
            Err(format!("`{text}` is not a method"))
        }
    }
}

impl Head {
    /// `Name: value`, refused when it could break out of its line or of our framing.
    pub fn header(text: &str) -> Result<(String, String), String> {
        let (name, value) = text.split_once(':').ok_or("a header is `Name: value`")?;
        if !is_token(name) {
            return Err(format!("`{name}` is not a header name"));
        }
        let ours = ["content-length", "transfer-encoding", "connection"];
        if ours.iter().any(|ours| name.eq_ignore_ascii_case(ours)) {
            return Err(format!("`{name}` is set by the load itself"));
        }
        let value = value.trim();
        if value.bytes().any(|byte| byte.is_ascii_control() && byte != b'\t') {
            return Err("a header value has no control characters".to_owned());
        }
        Ok((name.to_owned(), value.to_owned()))
    }
}

/// The bytes of one request: what fits into one block, then the block's filler again and again.
#[derive(Debug)]
pub(super) struct Payload {
    /// Head, and as much body as one block holds.
    first: Vec<u8>,
    block: Vec<u8>,
    total: u64,
    pub(super) is_head: bool,
}

impl Payload {
    pub(super) fn new(work: &Work) -> Self {
        let mut text = format!("{} {} HTTP/1.1\r\n", work.head.method.0, work.target.path);
        let has = |wanted: &str| {
            work.head.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case(wanted))
        };
        if !has("host") {
            text.push_str(&format!("Host: {}\r\n", work.target.authority));
        }
        if !has("user-agent") {
            text.push_str("User-Agent: sluice-bench\r\n");
        }
        for (name, value) in &work.head.headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        if work.body_bytes > 0 {
            text.push_str(&format!("Content-Length: {}\r\n", work.body_bytes));
        }
        text.push_str(if work.connect_each { "Connection: close\r\n\r\n" } else { "\r\n" });
        let block = noise(work.seed);
        let total = text.len() as u64 + work.body_bytes;
        let mut first = text.into_bytes();
        first.extend_from_slice(up_to(&block, work.body_bytes));
        Self { first, block, total, is_head: work.head.method.0 == "HEAD" }
    }

    /// What follows after `sent` bytes; empty at the end.
    pub(super) fn rest(&self, sent: u64) -> &[u8] {
        match usize::try_from(sent) {
            Ok(sent) if sent < self.first.len() => &self.first[sent..],
            _ => up_to(&self.block, self.total - sent),
        }
    }

    pub(super) fn is_whole(&self, sent: u64) -> bool {
        sent == self.total
    }
}

fn up_to(block: &[u8], bytes: u64) -> &[u8] {
    &block[..usize::try_from(bytes).unwrap_or(usize::MAX).min(block.len())]
}

/// Bytes that do not compress, the same for one seed.
fn noise(seed: u64) -> Vec<u8> {
    let mut dice = seed;
    (0..BLOCK_BYTES / 8).flat_map(|_| roll(&mut dice).to_le_bytes()).collect()
}

/// RFC 9110 section 5.6.2.
fn is_token(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(allowed)
}

const BLOCK_BYTES: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::{Pace, Target};
    use super::*;

    fn work(body_bytes: u64, headers: &[&str], connect_each: bool) -> Work {
        Work {
            target: Target::resolve("http://127.0.0.1:8080/a?b", false).unwrap(),
            head: Head {
                method: "PUT".parse().unwrap(),
                headers: headers.iter().map(|text| Head::header(text).unwrap()).collect(),
            },
            body_bytes,
            connections: 1,
            pace: Pace::Closed,
            connect_each,
            warm_up: Duration::ZERO,
            duration: Duration::ZERO,
            requests_max: 1,
            timeout: Duration::ZERO,
            grace: Duration::ZERO,
            seed: 1,
            keep_ends: false,
        }
    }

    fn sent(payload: &Payload) -> Vec<u8> {
        let mut bytes = Vec::new();
        while !payload.is_whole(bytes.len() as u64) {
            // Odd pieces, as a socket would take them.
            let rest = payload.rest(bytes.len() as u64);
            bytes.extend_from_slice(&rest[..rest.len().min(40_001)]);
        }
        bytes
    }

    #[test]
    fn a_request_is_its_head_and_exactly_its_body() {
        let plain = "PUT /a?b HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nUser-Agent: sluice-bench\r\n\r\n";
        assert_eq!(sent(&Payload::new(&work(0, &[], false))), plain.as_bytes());
        let own = "PUT /a?b HTTP/1.1\r\nUser-Agent: sluice-bench\r\nhost: x\r\nA: b\r\nConnection: close\r\n\r\n";
        assert_eq!(sent(&Payload::new(&work(0, &["host: x", "A:b "], true))), own.as_bytes());
        for bytes in [1usize, 65_536, 65_537, 300_000] {
            let found = sent(&Payload::new(&work(bytes as u64, &[], false)));
            let head = format!("{}Content-Length: {bytes}\r\n\r\n", &plain[..plain.len() - 2]);
            assert!(found.starts_with(head.as_bytes()), "{bytes}");
            assert_eq!(found.len(), head.len() + bytes);
        }
    }

    #[test]
    fn headers_cannot_break_out() {
        for text in [
            "x",
            "x y: z",
            ": z",
            "x: a\r\nb: c",
            "Content-Length: 3",
            "transfer-encoding: chunked",
            "connection: close",
        ] {
            assert!(Head::header(text).is_err(), "{text:?}");
        }
        for text in ["", "GE T", "GET\r\n"] {
            assert!(text.parse::<Method>().is_err(), "{text:?}");
        }
    }
}
