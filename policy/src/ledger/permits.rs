//! Requests in progress: places among those that may be at once, by key.

use super::table::{Place, Words};
use super::{CountKey, Ledger};

/// A place among the requests that may be in progress at once. Goes back through `release`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Permit(Place);

impl Ledger {
    /// Permits that are out, over all workers.
    pub fn permits(&self) -> u64 {
        self.counts.values().map(|value| u64::from(count(value))).sum()
    }

    /// A permit, and how many are left; None when `max` are out. When the table has no room for
    /// the key, that is None, too.
    pub(crate) fn acquire(&self, key: CountKey, max: u32) -> Option<(Permit, u32)> {
        let (place, left) = self
            .counts
            .update(key.hash, &Counts, |value| match max.checked_sub(count(value)) {
                None | Some(0) => (None, None),
                Some(room) => (Some(step(value) + 1), Some(room - 1)),
            })
            .ok()?;
        Some((Permit(place), left?))
    }

    #[expect(clippy::needless_pass_by_value, reason = "a permit is spent by giving it back")]
    pub(crate) fn release(&self, permit: Permit) {
        loop {
            let value = self.counts.at(permit.0);
            debug_assert!(count(value) > 0, "released more often than acquired");
            if count(value) == 0 || self.counts.swap(permit.0, value, step(value) - 1) {
                return;
            }
        }
    }
}

/// Values are a count in the low half and the number of changes in the high half, so that no value
/// is seen twice.
struct Counts;

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
const fn count(value: u64) -> u32 {
    value as u32
}

const fn step(value: u64) -> u64 {
    value.wrapping_add(1 << 32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::table::Table;

    /// What the table relies on: no slot shows the same value under two keys.
    #[test]
    fn a_place_that_changes_hands_shows_another_value() {
        let place = Table::new(8).update(1, &Counts, |word| (Some(word), ())).unwrap().0;
        for value in [0, 1 << 32, 7 << 32, u64::MAX << 32] {
            assert!(Counts.idle(value) && !Counts.idle(value + 1));
            for next in [Counts.fresh(place, value), Counts.cleared(value)] {
                assert_eq!((count(next), next == value), (0, false), "{value}");
            }
        }
    }
}
