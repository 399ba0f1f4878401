//! Who the client is, and what the upstream is told of the way the request came.
//!
//! A hop is believed only when it is trusted, counted from the right: the peer's own address is
//! certain, each trusted hop vouches for the one before it, and the first that is not trusted is
//! the client. What an untrusted peer says about others is replaced.

use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};

use sluice_policy::facts::Headers;
use sluice_policy::unit::Network;

use super::fields;

/// The client's address, and whether the peer is a trusted proxy.
pub(crate) fn client(peer: IpAddr, headers: Headers<'_>, trusted: &[Network]) -> (IpAddr, bool) {
    let peer = peer.to_canonical();
    if !is_trusted(peer, trusted) {
        return (peer, false);
    }
    let mut client = peer;
    // Fields of one name are one list, and only its right end was written by somebody known.
    let mut values: [&[u8]; FIELDS_MAX] = [&[]; FIELDS_MAX];
    let mut count = 0;
    for value in headers.all("x-forwarded-for") {
        if count == FIELDS_MAX {
            return (peer, true);
        }
        values[count] = value;
        count += 1;
    }
    for value in values[..count].iter().rev() {
        for hop in value.rsplit(|b| *b == b',').map(<[u8]>::trim_ascii) {
            match address(hop) {
                Some(address) => client = address,
                None => return (client, true),
            }
            if !is_trusted(client, trusted) {
                return (client, true);
            }
        }
    }
    (client, true)
}

/// More `X-Forwarded-For` fields than any chain of proxies writes.
const FIELDS_MAX: usize = 16;

fn is_trusted(address: IpAddr, trusted: &[Network]) -> bool {
    trusted.iter().any(|network| network.contains(address))
}

/// An address, perhaps with a port or in brackets.
fn address(text: &[u8]) -> Option<IpAddr> {
    let text = str::from_utf8(text).ok()?;
    let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
    let address = match bare.parse::<IpAddr>() {
        Ok(address) => address,
        Err(_) => text.parse::<SocketAddr>().ok()?.ip(),
    };
    Some(address.to_canonical())
}

/// Append the list of hops before the peer, as that said.
pub(crate) fn write_hops(out: &mut Vec<u8>, headers: Headers<'_>) {
    for value in headers.all("x-forwarded-for") {
        for hop in fields::list(value) {
            out.extend_from_slice(hop);
            out.extend_from_slice(b", ");
        }
    }
}

/// An address as text, where it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AddressText {
    text: [u8; Self::LEN_MAX],
    len: u8,
}

impl AddressText {
    /// `ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255`
    const LEN_MAX: usize = 45;

    /// Without the formatting machinery for the usual case.
    pub(crate) fn of(address: IpAddr) -> Self {
        let mut text = [0; Self::LEN_MAX];
        let len = match address {
            IpAddr::V4(v4) => {
                // `255.255.255.255.`, of which the last is left off.
                let mut len = 0_u8;
                let mut push = |byte| {
                    text[usize::from(len) % Self::LEN_MAX] = byte;
                    len += 1;
                };
                for octet in v4.octets() {
                    if octet >= 100 {
                        push(b'0' + octet / 100);
                    }
                    if octet >= 10 {
                        push(b'0' + octet / 10 % 10);
                    }
                    push(b'0' + octet % 10);
                    push(b'.');
                }
                len - 1
            }
            IpAddr::V6(v6) => {
                let mut rest = &mut text[..];
                // It fits.
                let _ = write!(rest, "{v6}");
                u8::try_from(Self::LEN_MAX - rest.len()).unwrap_or_default()
            }
        };
        Self { text, len }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.text[..usize::from(self.len)]
    }
}

pub(crate) fn write_address(out: &mut Vec<u8>, address: IpAddr) {
    out.extend_from_slice(AddressText::of(address).bytes());
}

#[cfg(test)]
mod tests {
    use sluice_policy::facts::Field;

    use super::*;

    fn headers<'a>(text: &'a str, fields: &'a mut Vec<Field>) -> Headers<'a> {
        let mut at = 0;
        let offset = |n: usize| u32::try_from(n).unwrap();
        for line in text.split_inclusive('\n') {
            let (name, value) = line.trim_end().split_once(": ").unwrap();
            let value_at = at + name.len() + 2;
            fields.push(Field {
                name: (offset(at), offset(at + name.len())),
                value: (offset(value_at), offset(value_at + value.len())),
            });
            at += line.len();
        }
        Headers::new(text.as_bytes(), fields)
    }

    #[test]
    fn only_trusted_hops_are_believed_counted_from_the_right() {
        let trusted = [
            Network::new("10.0.0.0".parse().unwrap(), 8),
            Network::new("::1".parse().unwrap(), 128),
        ];
        // (peer, fields, client, what the upstream is told)
        let table = [
            ("192.0.2.1", "", "192.0.2.1", "192.0.2.1"),
            ("192.0.2.1", "X-Forwarded-For: 10.0.0.1\n", "192.0.2.1", "192.0.2.1"),
            ("10.0.0.9", "X-Forwarded-For: 1.1.1.1\n", "1.1.1.1", "1.1.1.1, 10.0.0.9"),
            (
                "10.0.0.9",
                "X-Forwarded-For: 9.9.9.9, 1.1.1.1, 10.0.0.8\n",
                "1.1.1.1",
                "9.9.9.9, 1.1.1.1, 10.0.0.8, 10.0.0.9",
            ),
            (
                "10.0.0.9",
                "X-Forwarded-For: 9.9.9.9\nX-Forwarded-For: 1.1.1.1:80\n",
                "1.1.1.1",
                "9.9.9.9, 1.1.1.1:80, 10.0.0.9",
            ),
            ("10.0.0.9", "X-Forwarded-For: unknown\n", "10.0.0.9", "unknown, 10.0.0.9"),
            (
                "::1",
                "X-Forwarded-For: [2001:db8::1]:443\n",
                "2001:db8::1",
                "[2001:db8::1]:443, ::1",
            ),
            ("::ffff:10.0.0.9", "X-Forwarded-For: 1.1.1.1\n", "1.1.1.1", "1.1.1.1, 10.0.0.9"),
            ("10.0.0.9", "X-Forwarded-For: 10.0.0.1\n", "10.0.0.1", "10.0.0.1, 10.0.0.9"),
        ];
        for (peer, text, expected, told) in table {
            let mut fields = Vec::new();
            let headers = headers(text, &mut fields);
            let peer: IpAddr = peer.parse().unwrap();
            let (got, by_proxy) = client(peer, headers, &trusted);
            assert_eq!(got, expected.parse::<IpAddr>().unwrap(), "{peer} {text}");
            let mut out = Vec::new();
            if by_proxy {
                write_hops(&mut out, headers);
            }
            write_address(&mut out, peer.to_canonical());
            assert_eq!(String::from_utf8(out).unwrap(), told, "{peer} {text}");
        }
    }

    #[test]
    fn addresses_are_written_as_the_standard_library_writes_them() {
        let table = [
            "0.0.0.0",
            "1.20.255.100",
            "255.255.255.255",
            "::",
            "2001:db8::1",
            "1111:2222:3333:4444:5555:6666:7777:8888",
            "::ffff:255.255.255.255",
        ];
        for text in table {
            let address: IpAddr = text.parse().unwrap();
            assert_eq!(AddressText::of(address).bytes(), address.to_string().as_bytes());
        }
    }
}
