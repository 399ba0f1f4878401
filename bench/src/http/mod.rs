//! Just enough strict HTTP/1.1 to drive and to answer: heads by httparse, framing by our own rules.

pub mod body;
pub mod request;
pub mod response;

use std::fmt;

use self::body::Framing;

/// The peer did not speak HTTP/1.1, or spoke it ambiguously.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

impl fmt::Display for Malformed {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.0)
    }
}

impl std::error::Error for Malformed {}

/// What a head says about its body and its connection.
#[derive(Debug, Default)]
pub(crate) struct Said {
    pub(crate) length: Option<u64>,
    pub(crate) chunked: bool,
    pub(crate) close: bool,
    pub(crate) keep_alive: bool,
    pub(crate) expects_continue: bool,
}

impl Said {
    /// Refuses what RFC 9112 section 6.3 calls ambiguous instead of choosing a reading.
    pub(crate) fn read(headers: &[httparse::Header<'_>]) -> Result<Self, Malformed> {
        let mut said = Self::default();
        for header in headers {
            let value = header.value.trim_ascii();
            if header.name.eq_ignore_ascii_case("content-length") {
                if said.length.replace(decimal(value)?).is_some() {
                    return Err(Malformed("more than one content-length"));
                }
            } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
                if said.chunked || !value.eq_ignore_ascii_case(b"chunked") {
                    return Err(Malformed("a transfer-encoding other than chunked"));
                }
                said.chunked = true;
            } else if header.name.eq_ignore_ascii_case("connection") {
                for word in value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
                    said.close |= word.eq_ignore_ascii_case(b"close");
                    said.keep_alive |= word.eq_ignore_ascii_case(b"keep-alive");
                }
            } else if header.name.eq_ignore_ascii_case("expect") {
                said.expects_continue |= value.eq_ignore_ascii_case(b"100-continue");
            }
        }
        if said.chunked && said.length.is_some() {
            return Err(Malformed("both content-length and transfer-encoding"));
        }
        Ok(said)
    }

    pub(crate) fn framing(&self, otherwise: Framing) -> Framing {
        match (self.chunked, self.length) {
            (true, _) => Framing::Chunked,
            (false, Some(length)) => Framing::Length(length),
            (false, None) => otherwise,
        }
    }

    /// Whether the connection may carry another exchange; `minor` is httparse's HTTP/1.x.
    pub(crate) fn persists(&self, minor: u8) -> bool {
        !self.close && (minor == 1 || self.keep_alive)
    }
}

/// Digits only: `u64::from_str` would take a leading plus.
pub(crate) fn decimal(text: &[u8]) -> Result<u64, Malformed> {
    const BAD: Malformed = Malformed("a number that is not one");
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return Err(BAD);
    }
    std::str::from_utf8(text).ok().and_then(|digits| digits.parse().ok()).ok_or(BAD)
}

pub(crate) const HEAD_BYTES_MAX: usize = 64 * 1024;
pub(crate) const HEADERS_MAX: usize = 128;
