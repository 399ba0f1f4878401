//! Fair shares: who has far more in progress than others have counts one class lower.
//!
//! The node's requests in progress are counted by tenant in a few cells; tenants that meet in one
//! count as one. Only what says whose it is takes part.

use core::hash::Hasher as _;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

use siphasher::sip::SipHasher13;

const CELLS: usize = 64;
/// Of so little nobody has too much.
const TOTAL_MIN: u32 = 16;

#[derive(Debug)]
pub(crate) struct Tenants([AtomicU32; CELLS]);

/// One request in progress of somebody.
#[derive(Debug)]
pub(crate) struct Tenant {
    cell: u8,
    /// With more than twice a fair share.
    pub(crate) heavy: bool,
}

impl Default for Tenants {
    fn default() -> Self {
        Self([const { AtomicU32::new(0) }; CELLS])
    }
}

impl Tenants {
    pub(crate) fn enter(&self, mut hasher: SipHasher13, tenant: &str) -> Tenant {
        hasher.write(tenant.as_bytes());
        let cell = u8::try_from(hasher.finish() % CELLS as u64).unwrap_or(0);
        let held = |cell: &AtomicU32| cell.load(Relaxed);
        let (mut total, mut active) = (0_u32, 0_u32);
        for held in self.0.iter().map(held).filter(|held| *held > 0) {
            (total, active) = (total.saturating_add(held), active + 1);
        }
        let mine = self.0.get(usize::from(cell)).map_or(0, |cell| cell.fetch_add(1, Relaxed));
        // Alone, or one of two, nobody can have that much.
        let heavy =
            total >= TOTAL_MIN && u64::from(mine) * u64::from(active) > 2 * u64::from(total);
        Tenant { cell, heavy }
    }

    #[expect(clippy::needless_pass_by_value, reason = "it is spent by giving it back")]
    pub(crate) fn leave(&self, tenant: Tenant) {
        if let Some(cell) = self.0.get(usize::from(tenant.cell)) {
            cell.fetch_sub(1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_twice_a_fair_share_is_heavy_until_it_has_less() {
        let (tenants, hasher) = (Tenants::default(), SipHasher13::new());
        let big: Vec<_> = (0..40).map(|_| tenants.enter(hasher, "big")).collect();
        assert!(big.iter().all(|tenant| !tenant.heavy), "alone it takes from nobody");
        let small: Vec<_> =
            ["a", "b", "c"].map(|name| tenants.enter(hasher, name)).into_iter().collect();
        assert!(small.iter().all(|tenant| !tenant.heavy));
        let more = tenants.enter(hasher, "big");
        assert!(more.heavy, "40 of 43, among four");
        big.into_iter().chain([more]).for_each(|tenant| tenants.leave(tenant));
        assert!(!tenants.enter(hasher, "big").heavy);
    }

    #[test]
    fn of_little_and_among_few_nobody_has_too_much() {
        for (mine, others, expected) in [
            (12, 3, false),
            (13, 3, true),
            (1_000, 0, false),
            (1_000, 1, false),
            (1_000, 2, true),
            (2, 20, false),
        ] {
            let (tenants, hasher) = (Tenants::default(), SipHasher13::new());
            for other in 0..others {
                tenants.enter(hasher, &other.to_string());
            }
            for _ in 0..mine {
                tenants.enter(hasher, "big");
            }
            let heavy = tenants.enter(hasher, "big").heavy;
            assert_eq!(heavy, expected, "{mine} beside {others} others of one each");
        }
    }
}
