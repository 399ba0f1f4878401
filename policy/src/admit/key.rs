//! What is counted apart: `ip`, `api_key`, `header:NAME`, `cookie:NAME`, `route`, `path`, `method`, and who asks
//! (`user`, `tenant`, `claim:NAME`), in any mix. `user|ip` is the user, or else the address.

use core::hash::Hasher;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

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

    /// The count of a key that an operator wrote: its parts in their order, with commas between.
    /// A part with a choice (`user|ip`) is the first of them, or says which it is: `ip=10.0.0.1`.
    pub(crate) fn spelled(&self, rule: u64, text: &str) -> Result<[u64; 2], String> {
        let texts: Vec<&str> = match self.0.len() {
            1 => vec![text],
            _ => text.split(',').collect(),
        };
        if texts.len() != self.0.len() {
            return Err(format!("the key has {} parts, with commas between", self.0.len()));
        }
        let chosen: Vec<_> =
            self.0.iter().zip(texts).map(|(part, text)| part.choose(text)).collect();
        let mut hasher = SipHasher13::new();
        hasher.write_u64(rule);
        for (_, source, text) in &chosen {
            if **source == Source::Tenant {
                self::text(&mut hasher, text.as_bytes());
            }
        }
        for (rank, source, text) in chosen {
            (0..rank).for_each(|_| hasher.write_u8(2));
            source.spell(&mut hasher, text)?;
        }
        let hash = hasher.finish128();
        Ok([hash.h1, hash.h2])
    }

    /// The parts with what the request has for them, for operators. What may be a secret is only a
    /// fingerprint, keyed by this process.
    pub(crate) fn written(&self, ask: &Ask<'_>) -> String {
        let mut text = String::new();
        if let Some(tenant) = ask.facts.identity.and_then(|identity| identity.tenant) {
            show(&mut text, "tenant", Some(tenant.as_bytes()));
        }
        for Part(sources) in &self.0 {
            let found = sources.iter().find(|source| source.has(ask.facts));
            if let Some(source) = found.or_else(|| sources.last()) {
                source.show(&mut text, ask);
            }
        }
        text
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

    /// Which source a text is of, by its place, and the value.
    fn choose<'t>(&self, text: &'t str) -> (usize, &Source, &'t str) {
        let named = text.split_once('=').and_then(|(name, value)| {
            let source = Source::parse(name)?;
            let rank = self.0.iter().position(|own| own.is_like(&source))?;
            Some((rank, value))
        });
        let (rank, value) = named.filter(|_| self.0.len() > 1).unwrap_or((0, text));
        (rank, &self.0[rank], value)
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

    /// `ip` names an `ip/24`, too.
    fn is_like(&self, named: &Self) -> bool {
        self == named || matches!((self, named), (Self::Ip { .. }, Self::Ip { .. }))
    }

    /// As `write` would with a request that has this value.
    fn spell(&self, hasher: &mut impl Hasher, value: &str) -> Result<(), String> {
        match self {
            Self::Ip { v4_bits, v6_bits } => {
                let client: IpAddr =
                    value.parse().map_err(|_| format!("`{value}` is no address"))?;
                address(hasher, client, (*v4_bits, *v6_bits));
            }
            Self::Route => hasher.write_u64(RouteKey::of(&[value]).0),
            Self::Header(_)
            | Self::Cookie(_)
            | Self::Path
            | Self::Method
            | Self::User
            | Self::Tenant
            | Self::Claim(_) => text(hasher, value.as_bytes()),
        }
        Ok(())
    }

    /// False, and nothing written, when the request has no such thing.
    fn write(&self, hasher: &mut impl Hasher, facts: &Facts<'_>, route: RouteKey) -> bool {
        match self {
            Self::Ip { v4_bits, v6_bits } => {
                address(hasher, facts.client, (*v4_bits, *v6_bits));
                return true;
            }
            Self::Route => {
                hasher.write_u64(route.0);
                return true;
            }
            Self::Header(_)
            | Self::Cookie(_)
            | Self::Path
            | Self::Method
            | Self::User
            | Self::Tenant
            | Self::Claim(_) => {}
        }
        let found = self.text(facts);
        if let Some(found) = found {
            text(hasher, found);
        }
        found.is_some()
    }

    /// What the request says for it, where that is text.
    fn text<'a>(&self, facts: &Facts<'a>) -> Option<&'a [u8]> {
        let who = facts.identity;
        match self {
            Self::Ip { .. } | Self::Route => None,
            Self::Header(name) => facts.headers.get(name),
            Self::Cookie(name) => cookie(facts, name.as_bytes()),
            Self::Path => Some(facts.path.as_bytes()),
            Self::Method => Some(facts.method.as_bytes()),
            Self::User => who.and_then(|who| who.user).map(str::as_bytes),
            Self::Tenant => who.and_then(|who| who.tenant).map(str::as_bytes),
            Self::Claim(name) => who.and_then(|who| who.claim(name)).map(str::as_bytes),
        }
    }

    fn has(&self, facts: &Facts<'_>) -> bool {
        matches!(self, Self::Ip { .. } | Self::Route) || self.text(facts).is_some()
    }

    fn show(&self, into: &mut String, ask: &Ask<'_>) {
        let text = self.text(ask.facts);
        match self {
            Self::Ip { v4_bits, v6_bits } => {
                let network = match ask.facts.client.to_canonical() {
                    IpAddr::V4(a) => {
                        let cut = u32::MAX << (32 - u32::from(*v4_bits));
                        format!("{}/{v4_bits}", Ipv4Addr::from_bits(a.to_bits() & cut))
                    }
                    IpAddr::V6(a) => {
                        let cut = u128::MAX << (128 - u32::from(*v6_bits));
                        format!("{}/{v6_bits}", Ipv6Addr::from_bits(a.to_bits() & cut))
                    }
                };
                show(into, "ip", Some(network.trim_end_matches("/32").as_bytes()));
            }
            Self::Header(name) if !secret(name) => show(into, name, text),
            Self::Header(name) | Self::Cookie(name) => {
                let print = text.map(|value| {
                    let mut hasher = ask.ledger.hasher();
                    hasher.write(value);
                    format!("#{:08x}", hasher.finish() >> 32)
                });
                show(into, name, print.as_deref().map(str::as_bytes));
            }
            Self::Route => show(into, "route", Some(format!("{:016x}", ask.route.0).as_bytes())),
            Self::Path => show(into, "path", text),
            Self::Method => show(into, "method", text),
            Self::User => show(into, "user", text),
            Self::Tenant => show(into, "tenant", text),
            Self::Claim(name) => show(into, name, text),
        }
    }
}

/// Whether a field of that name may let somebody in.
fn secret(name: &str) -> bool {
    ["auth", "cookie", "key", "token", "secret", "session", "password", "credential", "signature"]
        .iter()
        .any(|word| name.contains(word))
}

/// `name=value`, bounded and in plain characters; `name=-` when there is none.
fn show(into: &mut String, name: &str, value: Option<&[u8]>) {
    if !into.is_empty() {
        into.push(' ');
    }
    into.push_str(name);
    into.push('=');
    let value = value.unwrap_or(b"-");
    let shown = value.get(..SHOWN_BYTES_MAX).unwrap_or(value);
    into.extend(shown.iter().flat_map(|byte| core::ascii::escape_default(*byte)).map(char::from));
    if shown.len() < value.len() {
        into.push_str("...");
    }
}

/// Of one part's value.
const SHOWN_BYTES_MAX: usize = 64;

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admit::named::Limits;
    use crate::facts::Identity;
    use crate::sim::{Head, facts};
    use crate::time::Now;

    #[test]
    fn a_key_that_is_spelled_is_the_one_that_requests_have() {
        let (ledger, limits) = (Ledger::new(8, [1; 16]), Limits::default());
        let head = Head::new(&[("x-api-key", "k,1"), ("x-app", "web")]);
        let known = Identity { user: Some("ann"), tenant: Some("acme"), claims: &[] };
        let nameless = Identity { user: None, tenant: Some("acme"), claims: &[] };
        // (parts, who asks, the key as written)
        let table: &[(&[&str], Option<Identity<'_>>, &str)] = &[
            (&["ip"], None, "10.0.0.1"),
            (&["ip/24"], None, "10.0.0.77"),
            (&["api_key"], None, "k,1"),
            (&["ip", "method"], None, "10.0.0.1,GET"),
            (&["header:x-app", "path"], None, "web,/a"),
            (&["route"], None, "r"),
            (&["tenant"], Some(known), "acme"),
            (&["tenant", "user"], Some(known), "acme,ann"),
            (&["tenant|ip"], None, "ip=10.0.0.1"),
            (&["tenant|ip"], Some(nameless), "tenant=acme"),
            (&["tenant|ip"], Some(nameless), "acme"),
        ];
        for (parts, identity, written) in table {
            let texts: Vec<String> = parts.iter().map(|part| (*part).to_owned()).collect();
            let key = Key::parse(&texts).unwrap();
            let facts =
                Facts { headers: head.headers(), identity: identity.as_ref(), ..facts("/a") };
            let route = RouteKey::of(&["r"]);
            let ask =
                Ask { now: Now::default(), facts: &facts, route, ledger: &ledger, limits: &limits };
            assert_eq!(key.spelled(7, written), Ok(key.name(7, &ask)), "{parts:?} {written}");
        }
        let key = Key::parse(&["ip".to_owned(), "method".to_owned()]).unwrap();
        for wrong in ["10.0.0.1", "10.0.0.1,GET,1", "nobody,GET"] {
            assert!(key.spelled(7, wrong).is_err(), "{wrong}");
        }
    }
}
