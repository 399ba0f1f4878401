//! Whether a response may be kept, for how long it answers others, and for how long after that it
//! may stand in for a failure.

use core::hash::Hasher as _;
use core::time::Duration;

use siphasher::sip128::{Hasher128 as _, SipHasher13};

use super::control::Control;
use super::{Asked, Lookup, Rule, Wanted};
use crate::facts::Headers;
use crate::plan::{CacheKey, RouteKey};

/// A response's head.
#[derive(Clone, Copy, Debug)]
pub struct Heard<'a> {
    pub status: u16,
    pub headers: Headers<'a>,
    /// From its `Date` to its `Expires`; zero when that is past, or no date.
    pub expires: Option<Duration>,
}

/// What a copy may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// How old it was when it came.
    pub age: Duration,
    /// Until this age it answers like the server.
    pub fresh: Duration,
    /// For so long after that it stands in for a failure.
    pub stale: Duration,
    /// Said to be for everybody, whatever cookies they bring.
    pub shared: bool,
}

/// Leave to keep a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    pub key: CacheKey,
    pub terms: Terms,
    pub route: RouteKey,
    /// Of the rule; see [`crate::plan::Plan::cache_editions`].
    pub edition: u64,
    pub body_bytes_max: u64,
}

impl Rule {
    /// On what terms a response is kept; None: it is not.
    pub(super) fn terms(&self, asked: &Asked, heard: &Heard<'_>) -> Option<Terms> {
        let Heard { status, headers, expires } = *heard;
        let control = Control::of(headers);
        let banned = control.no_store || control.private || control.no_cache;
        if !asked.keeps || banned || headers.get("set-cookie").is_some() {
            return None;
        }
        if vary(headers).any(|name| name == b"*") {
            return None;
        }
        let stated = control.s_maxage.or(control.max_age).or(expires);
        if !keeps(status, stated.is_some()) {
            return None;
        }
        let shared = control.public || control.s_maxage.is_some();
        if asked.personal() && !shared {
            return None;
        }
        // RFC 9111 sections 4.2.4 and 5.2.2.10: the server may forbid stale answers outright.
        let obliged = control.s_maxage.is_some() && control.stale_if_error.is_none();
        let stale = match control.must_revalidate || obliged {
            true => Duration::ZERO,
            false => self.stale.min(control.stale_if_error.unwrap_or(Duration::MAX)),
        };
        let terms = Terms { age: age(headers), fresh: stated.unwrap_or(self.ttl), stale, shared };
        (!terms.is_spent(Duration::ZERO)).then_some(terms)
    }
}

impl Terms {
    /// How old it is, having been held for so long. A server next door stamps by a clock of its
    /// own, so `Date` does not count.
    pub fn age(&self, held: Duration) -> Duration {
        self.age.saturating_add(held)
    }

    /// Whether it will do.
    pub fn answers(&self, lookup: &Lookup, held: Duration) -> bool {
        let age = self.age(held);
        (self.shared || !lookup.personal)
            && match lookup.wanted {
                Wanted::Fresh { age_max } => age < self.fresh && age <= age_max,
                Wanted::Any => !self.is_spent(held),
            }
    }

    /// Nobody can use it any more.
    pub fn is_spent(&self, held: Duration) -> bool {
        self.age(held) >= self.fresh.saturating_add(self.stale)
    }
}

/// What is final and the same for everybody (RFC 9110 section 15.1). A redirect that is not for
/// good, only when it says for how long. Parts (206) and errors of servers never.
const fn keeps(status: u16, stated: bool) -> bool {
    match status {
        200 | 203 | 204 | 300 | 301 | 308 | 404 | 410 => true,
        302 | 307 => stated,
        _ => false,
    }
}

fn age(headers: Headers<'_>) -> Duration {
    let text = headers.get("age").and_then(|age| str::from_utf8(age).ok());
    Duration::from_secs(text.and_then(|text| text.trim().parse::<u32>().ok()).unwrap_or(0).into())
}

/// The fields that the response depends on, by name; `*` for what cannot be told.
pub fn vary(headers: Headers<'_>) -> impl Iterator<Item = &[u8]> {
    let lists = headers.all("vary").flat_map(|list| list.split(|b| *b == b','));
    lists.map(<[u8]>::trim_ascii).filter(|name| !name.is_empty())
}

impl CacheKey {
    /// What tells apart the responses that share this key: what the request says in the fields
    /// that `Vary` names. Blanks and commas around values do not count, lines do not either.
    pub fn variant<'n>(self, names: impl Iterator<Item = &'n [u8]>, request: Headers<'_>) -> u128 {
        let [high, low] = [self.0 >> 64, self.0 & u128::from(u64::MAX)];
        let half = |bits: u128| u64::try_from(bits).unwrap_or_default();
        let mut hasher = SipHasher13::new_with_keys(half(high), half(low));
        for name in names {
            let lines = request.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name));
            let values = lines.flat_map(|(_, line)| line.split(|b| *b == b','));
            for value in values.map(<[u8]>::trim_ascii).filter(|value| !value.is_empty()) {
                hasher.write_u8(1);
                hasher.write_u64(value.len() as u64);
                hasher.write(value);
            }
            hasher.write_u8(0);
        }
        hasher.finish128().as_u128()
    }
}
