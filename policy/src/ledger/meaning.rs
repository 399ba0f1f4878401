//! What the words of the tables mean: when a key may be forgotten, what a new one starts with.

use core::sync::atomic::Ordering::SeqCst;
use core::sync::atomic::fence;

use super::table::{Place, Words};
use super::{CountKey, Ledger, idle};
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
        let word = self.ledger.inherited(self.key, self.ledger.now(self.clock.at));
        if word != 0 {
            self.ledger.buckets.shares(self.key.hash);
        }
        word
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
