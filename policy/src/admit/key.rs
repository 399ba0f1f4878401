//! What is counted apart: `ip`, `api_key`, `header:NAME`, `cookie:NAME`, `route`, `path`, `method`, and who asks
//! (`user`, `tenant`, `claim:NAME`), in any mix. `user|ip` is the user, or else the address.

use core::hash::Hasher;
use core::net::IpAddr;

use siphasher::sip::SipHasher13 as SipHasher13Short;
use siphasher::sip128::{Hasher128 as _, SipHasher13};

use super::Ask;
use crate::facts::Facts;
use crate::ledger::{CountKey, Ledger};
use crate::plan::RouteKey;
use crate::route::condition::cookie;
use crate::route::pattern::token_byte;

/// Said when a part is not known.
pub(crate) const PARTS: &str = "ip, ip/24 (leading bits), api_key, header:NAME, cookie:NAME, route, path, \
                                method, user, tenant, claim:NAME; user|ip is the one or else the \
                                other";

/// The field that `api_key` stands for.
const API_KEY: &str = "x-api-key";

/// A mix of parts. Each of them must agree for two requests to share a count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Key(Box<[Part]>);

/// One part: the first of these that the request has.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Part(Box<[Source]>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Source {
    /// The client's address, cut to so many bits.
    Ip {
        v4_bits: u8,
        v6_bits: u8,
    },
    /// The first field of that name; requests without one are counted together.
    Header(String),
    /// The first cookie of that name; as with fields.
    Cookie(String),
    Route,
    Path,
    Method,
    User,
    Tenant,
    Claim(String),
}

/// Whether a part of a key is about who asks and says nothing of anonymous requests. False for
/// what is no part at all.
pub fn needs_identity(part: &str) -> bool {
    Part::parse(part).is_some_and(|part| part.0.last().is_some_and(Source::is_identity))
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

    /// The count that this request belongs to, among those of the rule. Tenants never share one,
    /// whatever the parts.
    pub(crate) fn of(&self, rule: u64, ledger: &Ledger, ask: &Ask<'_>) -> CountKey {
        let mut hasher = ledger.hasher();
        self.write(&mut hasher, rule, ask);
        // Zero stands for nobody in the ledger.
        CountKey { rule, hash: hasher.finish().max(1) }
    }

    /// The same count as every gateway names it. For what is not on the fast path.
    pub(crate) fn name(&self, rule: u64, ask: &Ask<'_>) -> [u64; 2] {
        let mut hasher = SipHasher13::new();
        self.write(&mut hasher, rule, ask);
        // Not keyed by this node's secret, so wide enough that nobody finds a second key for one.
        let hash = hasher.finish128();
        [hash.h1, hash.h2]
    }

    /// Whether requests that differ in this field, lower case, never agree in the key.
    pub(crate) fn holds_field(&self, name: &str) -> bool {
        self.0.iter().any(|part| matches!(part.0.first(), Some(Source::Header(n)) if n == name))
    }

    /// Whether requests of different users never agree in the key.
    pub(crate) fn holds_user(&self) -> bool {
        self.0.iter().any(|part| matches!(part.0.first(), Some(Source::User)))
    }

    /// The fields that it looks at.
    pub(crate) fn fields(&self) -> impl Iterator<Item = &str> {
        self.0.iter().flat_map(|part| &part.0).filter_map(|source| match source {
            Source::Header(name) => Some(name.as_str()),
            Source::Cookie(_) => Some("cookie"),
            Source::Ip { .. }
            | Source::Route
            | Source::Path
            | Source::Method
            | Source::User
            | Source::Tenant
            | Source::Claim(_) => None,
        })
    }

    /// What the request is known by in every process; None when it has none of the parts.
    pub(crate) fn stable(&self, facts: &Facts<'_>, route: RouteKey) -> Option<u64> {
        let mut hasher = SipHasher13Short::new();
        let found = self.0.iter().map(|part| part.write(&mut hasher, facts, route));
        let found = found.fold(false, |any, found| any | found);
        found.then(|| hasher.finish())
    }

    pub(crate) fn write(&self, hasher: &mut impl Hasher, rule: u64, ask: &Ask<'_>) {
        hasher.write_u64(rule);
        if let Some(tenant) = ask.facts.identity.and_then(|identity| identity.tenant) {
            text(hasher, tenant.as_bytes());
        }
        for part in &self.0 {
            part.write(hasher, ask.facts, ask.route);
        }
    }
}

impl Part {
    fn parse(text: &str) -> Option<Self> {
        text.split('|').map(Source::parse).collect::<Option<Box<[_]>>>().map(Self)
    }

    /// False: the request has no such thing, and is like all others that do not.
    fn write(&self, hasher: &mut impl Hasher, facts: &Facts<'_>, route: RouteKey) -> bool {
        for (rank, source) in self.0.iter().enumerate() {
            if rank > 0 {
                hasher.write_u8(2);
            }
            if source.write(hasher, facts, route) {
                return true;
            }
        }
        hasher.write_u8(0);
        false
    }
}

impl Source {
    fn parse(text: &str) -> Option<Self> {
        match text.split_once([':', '/']) {
            None => match text {
                // One line to an IPv6 customer is a /64: a finer key would be a key a request.
                "ip" => Some(Self::Ip { v4_bits: 32, v6_bits: 64 }),
                "api_key" => Some(Self::Header(API_KEY.to_owned())),
                "route" => Some(Self::Route),
                "path" => Some(Self::Path),
                "method" => Some(Self::Method),
                "user" => Some(Self::User),
                "tenant" => Some(Self::Tenant),
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
            Some(("cookie", name)) if text.starts_with("cookie:") => {
                let token = !name.is_empty() && name.bytes().all(token_byte);
                token.then(|| Self::Cookie(name.to_owned()))
            }
            Some(("claim", name)) if text.starts_with("claim:") && !name.is_empty() => {
                Some(Self::Claim(name.to_owned()))
            }
            Some(_) => None,
        }
    }

    const fn is_identity(&self) -> bool {
        match self {
            Self::User | Self::Tenant | Self::Claim(_) => true,
            Self::Ip { .. }
            | Self::Header(_)
            | Self::Cookie(_)
            | Self::Route
            | Self::Path
            | Self::Method => false,
        }
    }

    /// False, and nothing written, when the request has no such thing.
    fn write(&self, hasher: &mut impl Hasher, facts: &Facts<'_>, route: RouteKey) -> bool {
        let who = facts.identity;
        let found = match self {
            Self::Ip { v4_bits, v6_bits } => {
                address(hasher, facts.client, (*v4_bits, *v6_bits));
                return true;
            }
            Self::Route => {
                hasher.write_u64(route.0);
                return true;
            }
            Self::Header(name) => facts.headers.get(name),
            Self::Cookie(name) => cookie(facts, name.as_bytes()),
            Self::Path => Some(facts.path.as_bytes()),
            Self::Method => Some(facts.method.as_bytes()),
            Self::User => who.and_then(|who| who.user).map(str::as_bytes),
            Self::Tenant => who.and_then(|who| who.tenant).map(str::as_bytes),
            Self::Claim(name) => who.and_then(|who| who.claim(name)).map(str::as_bytes),
        };
        if let Some(found) = found {
            text(hasher, found);
        }
        found.is_some()
    }
}

fn address(hasher: &mut impl Hasher, client: IpAddr, (v4_bits, v6_bits): (u8, u8)) {
    match client.to_canonical() {
        IpAddr::V4(a) => {
            let shift = 32 - u32::from(v4_bits);
            hasher.write_u64((4 << 32) | u64::from(a.to_bits() >> shift));
        }
        IpAddr::V6(a) => {
            hasher.write_u8(6);
            hasher.write_u128(a.to_bits() >> (128 - u32::from(v6_bits)));
        }
    }
}

/// With its length, so that two texts in a row cannot trade bytes.
fn text(hasher: &mut impl Hasher, bytes: &[u8]) {
    hasher.write_u8(1);
    hasher.write_u64(bytes.len() as u64);
    hasher.write(bytes);
}
