//! What is known about a request. Borrowed from the engine's buffers; nothing is copied.

use core::net::IpAddr;
use core::time::Duration;

/// Everything policy may look at. Plain data, so a log line, a fuzzer or a test can build one.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The other end of the socket.
    pub peer: IpAddr,
    /// The client, after the hops that the operator trusts were peeled off.
    pub client: IpAddr,
    pub method: &'a str,
    /// Lower case, no port. Empty when the request named none (HTTP/1.0).
    pub host: &'a str,
    /// Normalised: dot segments and doubled slashes removed, unreserved escapes decoded
    /// (RFC 3986 section 6.2.2). Starts with `/`, or is `*`.
    pub path: &'a str,
    /// Without the `?`, as received.
    pub query: &'a str,
    pub headers: Headers<'a>,
    /// The head as received, in bytes, request line included.
    pub head_bytes: u32,
    pub body: Body,
    /// How long the client will wait, by its own word.
    pub patience: Option<Duration>,
    /// Who asks, when that has been verified.
    pub identity: Option<&'a Identity<'a>>,
}

/// Who asks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Identity<'a> {
    pub user: Option<&'a str>,
    pub tenant: Option<&'a str>,
    /// Names and values, as texts.
    pub claims: &'a [(&'a str, &'a str)],
}

impl<'a> Identity<'a> {
    pub fn claim(&self, name: &str) -> Option<&'a str> {
        self.claims.iter().find(|(claim, _)| *claim == name).map(|(_, value)| *value)
    }
}

/// Header fields in arrival order and spelling.
#[derive(Clone, Copy, Debug, Default)]
pub struct Headers<'a> {
    text: &'a [u8],
    fields: &'a [Field],
}

/// Where one header field lies in the text of its head: byte offsets, start inclusive, end
/// exclusive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Field {
    pub name: (u32, u32),
    pub value: (u32, u32),
}

impl<'a> Headers<'a> {
    /// `fields` index into `text`. A field that points outside reads as empty.
    pub const fn new(text: &'a [u8], fields: &'a [Field]) -> Self {
        Self { text, fields }
    }

    /// The first field of that name; names compare without case (RFC 9110 section 5.1).
    pub fn get(self, name: &str) -> Option<&'a [u8]> {
        self.all(name).next()
    }

    /// Every field of that name, in order.
    pub fn all(self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        self.iter().filter(move |(n, _)| n.eq_ignore_ascii_case(name.as_bytes())).map(|(_, v)| v)
    }

    pub fn iter(self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        self.fields.iter().map(move |f| (self.slice(f.name), self.slice(f.value)))
    }

    pub const fn len(self) -> usize {
        self.fields.len()
    }

    pub const fn is_empty(self) -> bool {
        self.fields.is_empty()
    }

    fn slice(self, (start, end): (u32, u32)) -> &'a [u8] {
        self.text.get(start as usize..end as usize).unwrap_or_default()
    }
}

/// What the head says about the body that follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Body {
    #[default]
    Empty,
    Length(u64),
    /// Chunked: known only when it has been read.
    Unknown,
}
