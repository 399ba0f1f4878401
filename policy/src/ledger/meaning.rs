//! What the words of the tables mean: when a key may be forgotten, what a new one starts with.

use core::sync::atomic::Ordering::SeqCst;
use core::sync::atomic::fence;

use super::table::{Place, Words};
use super::{CountKey, Ledger, idle, shared_key};
use crate::mechanism::gcra::NEVER;
use crate::time::Now;

/// Values are instants after which they mean nothing.
pub(super) struct Own<'a> {
    pub(super) ledger: &'a Ledger,
    pub(super) clock: Now,
    pub(super) key: CountKey,
}

impl Words for Own<'_> {
    fn idle(&self, until: u64) -> bool {
        idle(until, self.ledger.now(self.clock.at))
    }

    /// What was taken from the overflow while there was no room stays taken.
    fn fresh(&self, _: Place, _: u64) -> u64 {
        fence(SeqCst);
        let overflow = shared_key(self.key, self.ledger.shared);
        self.ledger.overflow.value(overflow).unwrap_or(0)
    }

    fn cleared(&self, until: u64) -> u64 {
        debug_assert!(until < NEVER - 1);
        until + 1
    }
}

pub(super) struct Shared {
    pub(super) now: u64,
}

impl Words for Shared {
    fn idle(&self, until: u64) -> bool {
        idle(until, self.now)
    }

    fn fresh(&self, _: Place, _: u64) -> u64 {
        0
    }

    fn cleared(&self, until: u64) -> u64 {
        until + 1
    }
}

/// Values are a count in the low half and the number of changes in the high half, so that no value
/// is seen twice.
pub(super) struct Counts;

impl Words for Counts {
    fn idle(&self, value: u64) -> bool {
        count(value) == 0
    }

    fn fresh(&self, _: Place, value: u64) -> u64 {
        step(value)
    }

    fn cleared(&self, value: u64) -> u64 {
        step(value)
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the low half is the count")]
pub(super) const fn count(value: u64) -> u32 {
    value as u32
}

pub(super) const fn step(value: u64) -> u64 {
    value.wrapping_add(1 << 32)
}
