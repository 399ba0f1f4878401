//! What a request lets a cache do, and which copies are its own.

use core::hash::Hasher as _;
use core::time::Duration;

use siphasher::sip128::{Hasher128 as _, SipHasher13};

use super::control::Control;
use super::{Rule, Use};
use crate::admit::Ask;
use crate::facts::{Body, Headers};
use crate::plan::CacheKey;

/// Which copy would do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lookup {
    pub key: CacheKey,
    pub wanted: Wanted,
    /// It came with a cookie that the key does not hold: only what is meant for everybody will do.
    pub personal: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Fresh, and no older than this.
    Fresh { age_max: Duration },
    /// Fresh, or as stale as its own terms allow: the real thing cannot be had.
    Any,
}

/// What a request lets a cache do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    key: CacheKey,
    personal: bool,
    /// The oldest copy it takes; None: it wants a new response.
    age_max: Option<Duration>,
    /// A response to it may be kept.
    pub(super) keeps: bool,
}

/// What the fields of a request say that bears on caches.
#[derive(Debug, Default)]
struct Notes {
    /// It is about part of a response, or about one state of the resource.
    narrow: bool,
    cookie: bool,
    authorization: bool,
    api_key: bool,
    pragma: bool,
    controlled: bool,
    control: Control,
}

impl Asked {
    /// None: neither answered by a copy nor kept.
    pub(crate) fn of(rule: &Rule, ask: &Ask<'_>) -> Option<Self> {
        let facts = ask.facts;
        let method = matches!(facts.method, "GET" | "HEAD");
        if !method || facts.body != Body::Empty {
            return None;
        }
        let notes = Notes::of(facts.headers);
        let key = &rule.key;
        // Whoever shows who he is gets what is his: a copy is for others only if they show the same.
        let shown = (notes.authorization && !key.holds_field("authorization"))
            || (notes.api_key && !key.holds_field("x-api-key"))
            || (facts.identity.is_some_and(|who| who.user.is_some()) && !key.holds_user());
        // Two values, of which only one is in the key, could put one response in another's place.
        let twice = |name: &str| facts.headers.all(name).nth(1).is_some();
        if notes.narrow || notes.control.no_store || shown || key.fields().any(twice) {
            return None;
        }
        let host = facts.headers.get("host");
        // An authority that only the request's target holds: its port is not known here.
        if host.is_none() && !facts.host.is_empty() {
            return None;
        }
        let renew = notes.control.no_cache || (notes.pragma && !notes.controlled);
        let age_max = notes.control.max_age.unwrap_or(Duration::MAX);
        Some(Self {
            key: key_of(rule, ask, host.unwrap_or_default()),
            personal: notes.cookie && !key.holds_field("cookie"),
            age_max: (!renew && !age_max.is_zero()).then_some(age_max),
            keeps: facts.method == "GET",
        })
    }

    pub(crate) const fn key(&self) -> CacheKey {
        self.key
    }

    pub(super) const fn personal(&self) -> bool {
        self.personal
    }

    fn fresh(&self) -> Option<Lookup> {
        let Self { key, personal, age_max, .. } = *self;
        let age_max = age_max?;
        Some(Lookup { key, wanted: Wanted::Fresh { age_max }, personal })
    }

    const fn any(&self) -> Lookup {
        let Self { key, personal, .. } = *self;
        Lookup { key, wanted: Wanted::Any, personal }
    }
}

impl Notes {
    fn of(headers: Headers<'_>) -> Self {
        let mut notes = Self::default();
        for (name, value) in headers.iter() {
            let is = |wanted: &str| name.eq_ignore_ascii_case(wanted.as_bytes());
            match name.len() {
                5 => notes.narrow |= is("range"),
                6 if is("cookie") => notes.cookie = true,
                6 => notes.pragma |= is("pragma") && value.eq_ignore_ascii_case(b"no-cache"),
                8 => notes.narrow |= is("if-match") || is("if-range"),
                9 => notes.api_key |= is("x-api-key"),
                13 if is("cache-control") => {
                    notes.controlled = true;
                    notes.control.read(value);
                }
                13 => notes.authorization |= is("authorization"),
                19 => notes.narrow |= is("if-unmodified-since"),
                _ => {}
            }
        }
        notes
    }
}

/// All that tells this request's copies from others, but what `Vary` names. Keyed by the node's
/// secret, and wide: nobody finds two requests that share one.
fn key_of(rule: &Rule, ask: &Ask<'_>, host: &[u8]) -> CacheKey {
    let half = |part: u8| {
        let mut hasher = ask.ledger.hasher();
        hasher.write_u64(rule.edition);
        hasher.write_u8(part);
        hasher.finish()
    };
    let mut hasher = SipHasher13::new_with_keys(half(0), half(1));
    let facts = ask.facts;
    // As servers see them: what links and redirects in a response are made of.
    let told = ["x-forwarded-proto", "x-forwarded-host", "forwarded"];
    let told = told.map(|name| facts.headers.get(name).unwrap_or_default());
    for text in [host, facts.path.as_bytes(), facts.query.as_bytes()].iter().chain(&told) {
        hasher.write_u64(text.len() as u64);
        hasher.write(text);
    }
    rule.key.write(&mut hasher, rule.edition, ask);
    let hash = hasher.finish128();
    CacheKey(hash.as_u128())
}

/// How far a flight has got with the cache of its route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Caching {
    asked: Option<Asked>,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Idle,
    /// A fresh copy was looked for.
    Fresh,
    /// Any copy was looked for, in place of a failure.
    Any,
}

impl Caching {
    pub(crate) fn begin(&mut self, rule: &Rule, ask: &Ask<'_>) {
        self.asked = Asked::of(rule, ask);
    }

    pub(super) const fn asked(&self) -> Option<&Asked> {
        self.asked.as_ref()
    }

    /// A fresh copy is to be looked for, once.
    pub(crate) fn look_for_fresh(&mut self) -> Option<Lookup> {
        let lookup = self.asked.filter(|_| self.stage == Stage::Idle)?.fresh()?;
        self.stage = Stage::Fresh;
        Some(lookup)
    }

    /// Any copy is to be looked for, once.
    pub(crate) fn look_for_any(&mut self) -> Option<Lookup> {
        let lookup = self.asked.filter(|_| self.stage != Stage::Any)?.any();
        self.stage = Stage::Any;
        Some(lookup)
    }

    /// The last look was for a copy in place of a failure.
    pub(crate) fn fails(&self) -> bool {
        self.stage == Stage::Any
    }

    pub(super) const fn result(&self, found: bool, called: bool) -> Option<Use> {
        match (self.stage, found) {
            (Stage::Idle, _) if called => Some(Use::Bypass),
            (Stage::Idle, _) => None,
            (Stage::Fresh, true) => Some(Use::Hit),
            (Stage::Any, true) => Some(Use::Stale),
            (Stage::Fresh | Stage::Any, false) => Some(Use::Miss),
        }
    }
}
