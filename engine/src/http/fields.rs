//! Field names that mean something to a gateway. Everything else is passed on as it came.

/// What is to be done with a field on its way through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Passed on, spelling and all.
    Plain,
    /// Between two neighbours only (RFC 9110 section 7.6.1), or written anew by us, or not to be
    /// believed from a client.
    Drop,
    Host,
    ForwardedFor,
    ForwardedProto,
    ForwardedHost,
    Forwarded,
    RequestId,
    TraceParent,
    Date,
}

/// A name that the parser itself must look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    Connection,
    ContentLength,
    TransferEncoding,
    Expect,
    UserAgent,
    Other(Kind),
}

/// Identity that only the gateway may speak of; the operator can name more.
const IDENTITY_PREFIXES: [&[u8]; 2] = [b"x-user-", b"x-internal-"];

/// A name, and its first and its last eight bytes in lower case.
struct Name {
    text: &'static [u8],
    ends: [u64; 2],
    known: Known,
}

impl Name {
    const fn new(text: &'static [u8], known: Known) -> Self {
        Self { text, ends: ends(text), known }
    }

    const fn other(text: &'static [u8], kind: Kind) -> Self {
        Self::new(text, Known::Other(kind))
    }

    const fn drop(text: &'static [u8]) -> Self {
        Self::other(text, Kind::Drop)
    }

    /// What the ends don't cover.
    fn has_middle(&self, name: &[u8]) -> bool {
        name.len() <= 16 || self.text.iter().zip(name).all(|(c, n)| *c == n | 0x20)
    }
}

/// With that bit no other byte of a token becomes one of these names' than a letter in upper case.
const LOWER: u64 = 0x2020_2020_2020_2020;

const fn ends(name: &[u8]) -> [u64; 2] {
    match (name.first_chunk(), name.last_chunk()) {
        (Some(first), Some(last)) => {
            [u64::from_le_bytes(*first) | LOWER, u64::from_le_bytes(*last) | LOWER]
        }
        _ => {
            let (mut word, mut at) = (0, 0);
            while at < name.len() {
                word = word << 8 | name[at] as u64;
                at += 1;
            }
            [word | LOWER, 0]
        }
    }
}

/// Names compare without case. `name` must be a token, as the parser has seen to.
pub(crate) fn known(name: &[u8]) -> Known {
    // The length rules out nearly every field that means nothing here, before any comparison.
    let candidates: &[Name] = match name.len() {
        2 => const { &[Name::drop(b"te")] },
        4 => const { &[Name::other(b"host", Kind::Host), Name::other(b"date", Kind::Date)] },
        6 => const { &[Name::new(b"expect", Known::Expect)] },
        7 => const { &[Name::drop(b"upgrade")] },
        9 => const { &[Name::other(b"forwarded", Kind::Forwarded)] },
        10 => {
            const {
                &[
                    Name::new(b"connection", Known::Connection),
                    Name::new(b"user-agent", Known::UserAgent),
                    Name::drop(b"keep-alive"),
                ]
            }
        }
        11 => {
            const { &[Name::other(b"traceparent", Kind::TraceParent), Name::drop(b"x-tenant-id")] }
        }
        12 => const { &[Name::other(b"x-request-id", Kind::RequestId)] },
        14 => {
            const { &[Name::new(b"content-length", Known::ContentLength), Name::drop(b"http2-settings")] }
        }
        15 => const { &[Name::other(b"x-forwarded-for", Kind::ForwardedFor)] },
        16 => {
            const {
                &[
                    Name::other(b"x-forwarded-host", Kind::ForwardedHost),
                    Name::drop(b"proxy-connection"),
                ]
            }
        }
        17 => {
            const {
                &[
                    Name::new(b"transfer-encoding", Known::TransferEncoding),
                    Name::other(b"x-forwarded-proto", Kind::ForwardedProto),
                ]
            }
        }
        18 => const { &[Name::drop(b"proxy-authenticate")] },
        19 => const { &[Name::drop(b"proxy-authorization")] },
        _ => &[],
    };
    if !candidates.is_empty() {
        let ends = ends(name);
        for candidate in candidates {
            if candidate.ends == ends && candidate.has_middle(name) {
                return candidate.known;
            }
        }
    }
    let identity = |prefix: &&[u8]| {
        name.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
    };
    let may_be = matches!(name.first(), Some(b'x' | b'X'));
    Known::Other(match may_be && IDENTITY_PREFIXES.iter().any(identity) {
        true => Kind::Drop,
        false => Kind::Plain,
    })
}

/// The elements of a comma-separated list (RFC 9110 section 5.6.1), without their white space.
pub(crate) fn list(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|b| *b == b',').map(<[u8]>::trim_ascii).filter(|e| !e.is_empty())
}

/// `token` of RFC 9110 section 5.6.2.
pub(crate) fn is_token(text: &[u8]) -> bool {
    !text.is_empty()
        && text.iter().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_known_in_any_case() {
        let table: [(&str, Known); 12] = [
            ("Connection", Known::Connection),
            ("CONTENT-LENGTH", Known::ContentLength),
            ("transfer-encoding", Known::TransferEncoding),
            ("Keep-Alive", Known::Other(Kind::Drop)),
            ("TE", Known::Other(Kind::Drop)),
            ("Upgrade", Known::Other(Kind::Drop)),
            ("X-User-Id", Known::Other(Kind::Drop)),
            ("x-internal-auth", Known::Other(Kind::Drop)),
            ("X-Tenant-Id", Known::Other(Kind::Drop)),
            ("X-Username", Known::Other(Kind::Plain)),
            ("Accept", Known::Other(Kind::Plain)),
            ("", Known::Other(Kind::Plain)),
        ];
        for (name, expected) in table {
            assert_eq!(known(name.as_bytes()), expected, "{name}");
        }
    }

    #[test]
    fn a_name_with_one_other_byte_is_not_known() {
        let table = [
            "host",
            "expect",
            "upgrade",
            "forwarded",
            "user-agent",
            "traceparent",
            "x-request-id",
            "content-length",
            "x-forwarded-for",
            "proxy-connection",
            "transfer-encoding",
            "proxy-authenticate",
            "proxy-authorization",
        ];
        let plain = Known::Other(Kind::Plain);
        for name in table {
            assert_ne!(known(name.as_bytes()), plain, "{name}");
            assert_eq!(known(name.to_uppercase().as_bytes()), known(name.as_bytes()), "{name}");
            for at in 0..name.len() {
                let mut other = name.as_bytes().to_vec();
                other[at] ^= 1;
                assert_eq!(known(&other), plain, "{name} with another byte at {at}");
            }
        }
    }
}
