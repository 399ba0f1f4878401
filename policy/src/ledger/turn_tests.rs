//! The ledger under workers that interrupt each other at every step: what is admitted is what some
//! order of them would have admitted.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use super::tests::{at, gcra, held, key, takes};
use super::words::interleave;
use super::*;
use crate::mechanism::sliding::Sliding;

/// One an hour, and one a second.
fn slow() -> Meter {
    gcra(1, 3_600_000, 1)
}

fn fast() -> Meter {
    gcra(1, 1000, 1)
}

fn log() -> Meter {
    Meter::Sliding(Sliding::new(1, Duration::from_secs(3600)).unwrap())
}

/// A ledger, and how many the first key and the other were admitted.
struct World {
    ledger: Ledger,
    meter: Meter,
    passed: [AtomicU64; 2],
}

impl World {
    fn new(meter: Meter, prepare: impl Fn(&Ledger)) -> Self {
        let ledger = Ledger::new(8, [0; 16]);
        prepare(&ledger);
        Self { ledger, meter, passed: Default::default() }
    }

    fn take(&self, ms: u64, n: u64) -> bool {
        let passed = takes(&self.ledger, ms, n, self.meter);
        self.passed[usize::from(n == 99)].fetch_add(passed.into(), Relaxed);
        passed
    }

    fn passed(&self) -> [u64; 2] {
        self.passed.each_ref().map(|passed| passed.load(Relaxed))
    }

    /// Those that were admitted, and those that are left.
    fn in_all(&self, ms: u64, n: u64) -> u64 {
        while self.take(ms, n) {}
        self.passed()[usize::from(n == 99)]
    }
}

#[test]
fn a_key_that_workers_bring_at_once_is_counted_once() {
    for meter in [slow(), log()] {
        let take: fn(&World) = |world| _ = world.take(5000, 1);
        let judge = |world: &World| {
            assert_eq!(world.in_all(5000, 1), 1, "{meter:?}");
            let blocks = world.ledger.blocks.get().map_or(0, |blocks| blocks.figures().held);
            assert_eq!(held(&world.ledger) as u64 + blocks, 1, "{meter:?}: in two places");
        };
        let runs = interleave(|| World::new(meter, |_| {}), [take; 3], judge);
        assert!(runs > 1000, "{runs}");
    }
}

#[test]
fn a_place_that_changes_hands_under_its_owner_keeps_the_counts_apart() {
    // The first key's place is the only one that may be forgotten, and its owner comes back.
    // With two each, what one took from the place of the other would not be seen as used up.
    for burst in [1, 2] {
        let meter = gcra(1, 1000, burst);
        let prepare = |ledger: &Ledger| {
            assert!(takes(ledger, 1000, 1, meter));
            (2..=8).for_each(|n| assert!(takes(ledger, 1000, n, slow())));
        };
        let owner: fn(&World) = |world| _ = world.take(9000, 1);
        let other: fn(&World) = |world| _ = world.take(9000, 99);
        let judge = |world: &World| {
            let all = [1, 99].map(|n| world.in_all(9000, n));
            assert!(all.iter().all(|n| *n <= burst.into()), "{all:?} of {burst}");
        };
        let runs = interleave(|| World::new(meter, prepare), [owner, other, owner], judge);
        assert!(runs > 1000, "{runs}");
    }
}

#[test]
fn a_place_that_another_claims_and_leaves_again_keeps_no_count_that_nobody_finds() {
    // As above, but the other asks for more than it can have, so that it leaves with nothing.
    let prepare = |ledger: &Ledger| {
        assert!(takes(ledger, 1000, 1, fast()));
        (2..=8).for_each(|n| assert!(takes(ledger, 1000, n, slow())));
    };
    let owner: fn(&World) = |world| _ = world.take(9000, 1);
    let other: fn(&World) = |world| {
        assert!(world.ledger.take(at(9000), key(99), world.meter, 2).is_err());
    };
    let judge = |world: &World| assert_eq!(world.in_all(9000, 1), 1);
    let runs = interleave(|| World::new(fast(), prepare), [owner, other, owner], judge);
    assert!(runs > 1000, "{runs}");
}

/// A key takes from what others share, because all places are held, while others that see them free
/// bring it in. How many it got in all, at least and at most.
fn overflows(slow: Meter, brief: Meter, expected: core::ops::RangeInclusive<u64>) {
    let prepare = |ledger: &Ledger| {
        for n in 1..=8 {
            // Another limit's, so that it shares nothing with this one's.
            let filler = CountKey { rule: 1 << 40, ..key(n) };
            assert!(ledger.take(at(1000), filler, brief, 1).is_ok());
        }
    };
    // To the one all places are held, to the others all may be forgotten.
    let early: fn(&World) = |world| _ = world.take(1000, 99);
    let late: fn(&World) = |world| _ = world.take(9000, 99);
    let judge = |world: &World| {
        let all = world.in_all(10_000, 99);
        assert!(expected.contains(&all), "{all}");
    };
    let runs = interleave(|| World::new(slow, prepare), [early, late, late], judge);
    assert!(runs > 1000, "{runs}");
}

#[test]
fn what_is_taken_from_the_overflow_while_the_key_finds_room_stays_taken() {
    overflows(slow(), fast(), 1..=1);
}

/// Who takes from a spare block, and then finds that its key has one of its own by now, may be
/// refused by what it took itself.
#[test]
fn what_is_taken_from_a_spare_block_while_the_key_finds_room_stays_taken() {
    let brief = Meter::Sliding(Sliding::new(1, Duration::from_secs(1)).unwrap());
    overflows(log(), brief, 0..=1);
}

#[test]
fn what_is_given_back_while_others_take_is_there_once() {
    for meter in [slow(), log()] {
        let fickle: fn(&World) = |world| {
            if let Ok(taken) = world.ledger.take(at(5000), key(1), world.meter, 1) {
                world.ledger.give_back(&taken.receipt, world.meter);
            }
        };
        let take: fn(&World) = |world| _ = world.take(5000, 1);
        let judge = |world: &World| assert!(world.in_all(5000, 1) <= 1, "{meter:?}");
        interleave(|| World::new(meter, |_| {}), [fickle, take, take], judge);
    }
}

#[test]
fn one_permit_is_never_out_twice() {
    let act: fn(&World) = |world| {
        if let Some((permit, _)) = world.ledger.acquire(key(1), 1) {
            assert_eq!(world.passed[0].fetch_add(1, Relaxed), 0, "out twice");
            world.passed[0].fetch_sub(1, Relaxed);
            world.ledger.release(permit);
        }
    };
    let judge = |world: &World| {
        assert_eq!(world.ledger.permits(), 0);
        assert!(world.ledger.acquire(key(1), 1).is_some());
    };
    interleave(|| World::new(slow(), |_| {}), [act; 3], judge);
}
