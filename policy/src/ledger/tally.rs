//! How full a table is, for operators. Counted where keys come and go, so that nobody has to look
//! through the table, and whoever finds its key there pays nothing.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

/// In lines of their own, so that workers in a flood of fresh keys seldom write the same one.
const STRIPES: usize = 8;

#[derive(Debug, Default)]
pub(super) struct Tally([Stripe; STRIPES]);

#[derive(Debug, Default)]
#[repr(align(64))]
struct Stripe {
    /// Places that were free and taken, and those that were freed without another key coming in.
    taken: AtomicU64,
    vacated: AtomicU64,
    /// Keys that were as good as new and made room for another.
    forgotten: AtomicU64,
    full: AtomicU64,
}

/// How a table stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figures {
    pub capacity: usize,
    /// Those as good as new and not yet forgotten included.
    pub held: u64,
    /// Keys that were forgotten for others, because they were as good as new. Since the start.
    pub forgotten: u64,
    /// How often a key was judged by what it shares with others, or refused where nothing is
    /// shared: its places were held by keys that still owe, or had been. Since the start.
    pub full: u64,
}

impl Tally {
    /// A place that was `held` by another key, or by nobody.
    pub(super) fn claimed(&self, key: u64, held: bool) {
        let stripe = self.stripe(key);
        let count = if held { &stripe.forgotten } else { &stripe.taken };
        count.fetch_add(1, Relaxed);
    }

    pub(super) fn vacated(&self, key: u64) {
        self.stripe(key).vacated.fetch_add(1, Relaxed);
    }

    pub(super) fn full(&self, key: u64) {
        self.stripe(key).full.fetch_add(1, Relaxed);
    }

    pub(super) fn figures(&self, capacity: usize) -> Figures {
        let sum = |read: fn(&Stripe) -> &AtomicU64| -> u64 {
            self.0.iter().map(|stripe| read(stripe).load(Relaxed)).sum()
        };
        // First those that are gone, so that a key which comes in between is held, not lost.
        let vacated = sum(|stripe| &stripe.vacated);
        Figures {
            capacity,
            held: sum(|stripe| &stripe.taken).saturating_sub(vacated),
            forgotten: sum(|stripe| &stripe.forgotten),
            full: sum(|stripe| &stripe.full),
        }
    }

    fn stripe(&self, key: u64) -> &Stripe {
        let stripe = usize::try_from(key % STRIPES as u64).unwrap_or(0);
        &self.0[stripe]
    }
}
