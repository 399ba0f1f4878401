//! Which responses may be kept, under which key, and when a kept one may stand for a new one
//! (RFC 9111). The engine keeps them; nothing here holds a byte of a response.

pub mod control;
mod request;
mod rule;
mod terms;

pub(crate) use self::request::{Asked, Caching};
pub use self::request::{Lookup, Wanted};
pub use self::rule::CacheSpec;
pub(crate) use self::rule::Rule;
pub use self::terms::{Heard, Keep, Terms, vary};

use crate::flight::{Flight, Phase};

/// How a cache bore on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Answered by a fresh copy.
    Hit,
    /// There was no copy to answer it.
    Miss,
    /// Answered by a copy, because the real thing could not be had.
    Stale,
    /// It was not asked: the request, or who sent it, does not let it.
    Bypass,
}

impl Use {
    pub const ALL: [Self; 4] = [Self::Hit, Self::Miss, Self::Stale, Self::Bypass];

    /// As logs and metrics call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hit => "hit",
            Self::Miss => "miss",
            Self::Stale => "stale",
            Self::Bypass => "bypass",
        }
    }
}

impl Flight {
    /// Whether the response that is relayed may be kept, and on what terms.
    pub fn keep(&self, heard: &Heard<'_>) -> Option<Keep> {
        let route = self.route()?;
        let (rule, asked) = (route.cache.as_ref()?, self.caching.asked()?);
        let terms = rule.terms(asked, heard)?;
        Some(Keep {
            key: asked.key(),
            terms,
            route: route.key,
            edition: rule.edition,
            body_bytes_max: rule.body_bytes_max,
        })
    }

    /// What the cache of its route did for it; None when there is none, or it did not get so far.
    pub(crate) fn cache_use(&self) -> Option<Use> {
        self.route()?.cache.as_ref()?;
        self.caching.result(self.phase == Phase::Looking, self.tries.calls > 0)
    }
}
