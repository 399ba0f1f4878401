//! What is counted apart: `ip`, `header:NAME`, `route`, `path`, `method`, in any mix.

use core::hash::Hasher;
use core::net::IpAddr;

use siphasher::sip128::{Hasher128 as _, SipHasher13};

use super::Ask;
use crate::ledger::{CountKey, Ledger};
use crate::plan::RouteKey;
use crate::route::pattern::token_byte;

/// Said when a part is not known.
pub(crate) const PARTS: &str = "ip, ip/24 (leading bits), header:NAME, route, path, method";

/// A mix of parts. Each of them must agree for two requests to share a count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Key(Box<[Part]>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    /// The client's address, cut to so many bits.
    Ip {
        v4_bits: u8,
        v6_bits: u8,
    },
    /// The first field of that name; requests without one are counted together.
    Header(String),
    Route,
    Path,
    Method,
}

impl Key {
    /// The parts that cannot be read come back with their places.
    pub(crate) fn parse(texts: &[String]) -> Result<Self, Vec<usize>> {
        let parts: Vec<_> = texts.iter().map(|text| Part::parse(text)).collect();
        let unread: Vec<_> =
            parts.iter().enumerate().filter(|(_, p)| p.is_none()).map(|(i, _)| i).collect();
        if unread.is_empty() {
            Ok(Self(parts.into_iter().flatten().collect()))
        } else {
            Err(unread)
        }
    }

    /// The count that this request belongs to, among those of the rule.
    pub(crate) fn of(&self, rule: u64, ledger: &Ledger, ask: &Ask<'_>) -> CountKey {
        let mut hasher = ledger.hasher();
        hasher.write_u64(rule);
        for part in &self.0 {
            part.write(&mut hasher, ask.facts, ask.route);
        }
        // Zero stands for nobody in the ledger.
        CountKey { rule, hash: hasher.finish().max(1) }
    }
}

impl Key {
    /// The same count as every gateway names it. For what is not on the fast path.
    pub(crate) fn name(&self, rule: u64, ask: &Ask<'_>) -> [u64; 2] {
        let mut hasher = SipHasher13::new();
        hasher.write_u64(rule);
        for part in &self.0 {
            part.write(&mut hasher, ask.facts, ask.route);
        }
        // Not keyed by this node's secret, so wide enough that nobody finds a second key for one.
        let hash = hasher.finish128();
        [hash.h1, hash.h2]
    }
}

impl Part {
    fn parse(text: &str) -> Option<Self> {
        match text.split_once([':', '/']) {
            None => match text {
                // One line to an IPv6 customer is a /64: a finer key would be a key a request.
                "ip" => Some(Self::Ip { v4_bits: 32, v6_bits: 64 }),
                "route" => Some(Self::Route),
                "path" => Some(Self::Path),
                "method" => Some(Self::Method),
                _ => None,
            },
            Some(("ip", bits)) if text.starts_with("ip/") => {
                let bits = bits.parse::<u8>().ok()?;
                match bits {
                    // A /24 of IPv4 is to a host what a /48 of IPv6 is to a /64.
                    1..=32 => Some(Self::Ip { v4_bits: bits, v6_bits: (2 * bits).min(64) }),
                    33..=128 => Some(Self::Ip { v4_bits: 32, v6_bits: bits }),
                    _ => None,
                }
            }
            Some(("header", name)) if text.starts_with("header:") => {
                let token = !name.is_empty() && name.bytes().all(token_byte);
                token.then(|| Self::Header(name.to_ascii_lowercase()))
            }
            Some(_) => None,
        }
    }

    fn write(&self, hasher: &mut impl Hasher, facts: &crate::facts::Facts<'_>, route: RouteKey) {
        match self {
            Self::Ip { v4_bits, v6_bits } => match facts.client.to_canonical() {
                IpAddr::V4(a) => {
                    let shift = 32 - u32::from(*v4_bits);
                    hasher.write_u64((4 << 32) | u64::from(a.to_bits() >> shift));
                }
                IpAddr::V6(a) => {
                    hasher.write_u8(6);
                    hasher.write_u128(a.to_bits() >> (128 - u32::from(*v6_bits)));
                }
            },
            Self::Header(name) => match facts.headers.get(name) {
                Some(value) => text(hasher, value),
                None => hasher.write_u8(0),
            },
            Self::Route => hasher.write_u64(route.0),
            Self::Path => text(hasher, facts.path.as_bytes()),
            Self::Method => text(hasher, facts.method.as_bytes()),
        }
    }
}

/// With its length, so that two texts in a row cannot trade bytes.
fn text(hasher: &mut impl Hasher, bytes: &[u8]) {
    hasher.write_u8(1);
    hasher.write_u64(bytes.len() as u64);
    hasher.write(bytes);
}
