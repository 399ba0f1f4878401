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

/// Names compare without case. `name` must be a token, as the parser has seen to.
pub(crate) fn known(name: &[u8]) -> Known {
    // The length rules out nearly every field that means nothing here, before any comparison.
    let candidates: &[(&[u8], Known)] = match name.len() {
        2 => &[(b"te", Known::Other(Kind::Drop))],
        4 => &[(b"host", Known::Other(Kind::Host)), (b"date", Known::Other(Kind::Date))],
        6 => &[(b"expect", Known::Expect)],
        7 => &[(b"upgrade", Known::Other(Kind::Drop))],
        9 => &[(b"forwarded", Known::Other(Kind::Forwarded))],
        10 => &[
            (b"connection", Known::Connection),
            (b"user-agent", Known::UserAgent),
            (b"keep-alive", Known::Other(Kind::Drop)),
        ],
        11 => &[
            (b"traceparent", Known::Other(Kind::TraceParent)),
            (b"x-tenant-id", Known::Other(Kind::Drop)),
        ],
        12 => &[(b"x-request-id", Known::Other(Kind::RequestId))],
        14 => &[
            (b"content-length", Known::ContentLength),
            (b"http2-settings", Known::Other(Kind::Drop)),
        ],
        15 => &[(b"x-forwarded-for", Known::Other(Kind::ForwardedFor))],
        16 => &[
            (b"x-forwarded-host", Known::Other(Kind::ForwardedHost)),
            (b"proxy-connection", Known::Other(Kind::Drop)),
        ],
        17 => &[
            (b"transfer-encoding", Known::TransferEncoding),
            (b"x-forwarded-proto", Known::Other(Kind::ForwardedProto)),
        ],
        18 => &[(b"proxy-authenticate", Known::Other(Kind::Drop))],
        19 => &[(b"proxy-authorization", Known::Other(Kind::Drop))],
        _ => &[],
    };
    for (candidate, known) in candidates {
        // Two different tokens never differ in that bit alone, unless it is the case of a letter.
        if candidate.iter().zip(name).all(|(c, n)| *c == n | 0x20) {
            return *known;
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
}
