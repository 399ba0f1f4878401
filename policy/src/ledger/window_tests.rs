//! Sliding windows in the ledger against a list of everything that was admitted.

use core::time::Duration;

use proptest::prelude::*;

use super::tests::{at, key};
use super::*;
use crate::mechanism::sliding::Sliding;

const WINDOW_MS: u64 = 60_000;

fn sliding(limit: u32) -> Meter {
    Meter::Sliding(Sliding::new(limit, Duration::from_millis(WINDOW_MS)).unwrap())
}

/// What was admitted, when, and how much of it: the definition of a window.
#[derive(Default)]
struct Log(Vec<(u64, u32)>);

impl Log {
    fn used(&self, now: u64) -> u32 {
        self.0.iter().filter(|(at, _)| at + WINDOW_MS > now).map(|(_, cost)| cost).sum()
    }
}

/// Gaps that bunch up, then leave parts of a window or all of it empty.
fn gap(n: u64) -> u64 {
    match n % 8 {
        0..=4 => 0,
        // Multiples of 64 us, so that rounding plays no part.
        5 => 8 * (n % 40),
        6 => 16 * n,
        _ => 64 * n,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Up to 64 it decides as the list does, whatever costs, pauses and what is given back; the
    /// level is what the list has left; and the wait is tight.
    #[test]
    fn up_to_64_the_window_is_the_list_of_all_admissions(
        limit in 1_u32..=64,
        asks in prop::collection::vec((0_u64..1000, 1_u32..4, 0_u8..8), 1..400),
    ) {
        let (ledger, meter) = (Ledger::new(1024, [1; 16]), sliding(limit));
        let (mut log, mut now) = (Log::default(), 600_000);
        let mut last = None::<Receipt>;
        for (n, cost, what) in asks {
            now += gap(n);
            if what == 7 && let Some(receipt) = last.take() {
                ledger.give_back(&receipt, meter);
                log.0.pop();
            }
            let cost = if n % 3 == 0 { cost } else { 1 };
            let looked = ledger.peek(at(now), key(1), meter, cost);
            match ledger.take(at(now), key(1), meter, cost) {
                Ok(taken) => {
                    log.0.push((now, cost));
                    prop_assert!(log.used(now) <= limit);
                    prop_assert_eq!(taken.level.left, limit - log.used(now));
                    prop_assert_eq!(looked.unwrap().left, taken.level.left);
                    last = Some(taken.receipt);
                }
                Err(_) if cost > limit => {}
                Err(wait) => {
                    prop_assert!(log.used(now) + cost > limit, "refused without need");
                    prop_assert_eq!(looked.unwrap_err().1, wait);
                    let until = now + u64::try_from(wait.as_millis()).unwrap();
                    prop_assert!(log.used(until) + cost <= limit, "the wait is long enough");
                    prop_assert!(log.used(until - 1) + cost > limit, "and no longer");
                }
            }
        }
    }

    /// Above 64 it is never over, and at most two shares below. Receipts come back in any order.
    #[test]
    fn above_64_no_window_is_over_and_two_shares_at_most_are_unused(
        limit in 65_u32..700,
        asks in prop::collection::vec((0_u64..1000, 1_u32..40, 0_u8..16), 1..300),
    ) {
        let (ledger, meter) = (Ledger::new(1024, [1; 16]), sliding(limit));
        let (mut log, mut now, mut given) = (Log::default(), 600_000, false);
        let mut receipts = Vec::new();
        for (n, cost, what) in asks {
            now += gap(n);
            if what == 15 && !receipts.is_empty() {
                let which = usize::try_from(n).unwrap() % receipts.len();
                let (taken, entry): (Receipt, usize) = receipts.swap_remove(which);
                ledger.give_back(&taken, meter);
                given = true;
                // Only what is still in a window comes back; either way it no longer counts.
                log.0[entry].1 = 0;
            }
            match ledger.take(at(now), key(1), meter, cost) {
                Ok(taken) => {
                    log.0.push((now, cost));
                    prop_assert!(log.used(now) <= limit);
                    receipts.push((taken.receipt, log.0.len() - 1));
                }
                Err(_) => {
                    let slack = 2 * limit.div_ceil(64);
                    prop_assert!(given || log.used(now) + cost + slack > limit);
                }
            }
        }
    }

    /// A reload to another limit forgets nothing: from then on no window, those that began before
    /// it included, has more than the limit that holds, or than was already spent.
    #[test]
    fn another_limit_keeps_what_was_lent(
        limits in prop::collection::vec(1_u32..200, 2..6),
        asks in prop::collection::vec((0_u64..400, 1_u32..4), 20..200),
    ) {
        let ledger = Ledger::new(1024, [1; 16]);
        let (mut log, mut now) = (Log::default(), 600_000);
        let turn = asks.len().div_ceil(limits.len());
        for (limit, asks) in limits.iter().zip(asks.chunks(turn)) {
            for (n, cost) in asks {
                now += gap(*n) / 8;
                // In one go, as many as there is room for.
                while ledger.take(at(now), key(1), sliding(*limit), *cost).is_ok() {
                    log.0.push((now, *cost));
                    prop_assert!(log.used(now) <= *limit, "{} of {limit}", log.used(now));
                }
            }
        }
    }
}

#[test]
fn a_lowered_limit_counts_what_lay_in_cells_that_it_no_longer_has() {
    let ledger = Ledger::new(1024, [1; 16]);
    for ms in 0..64 {
        assert!(ledger.take(at(600_000 + 104 * ms), key(1), sliding(64), 1).is_ok());
    }
    let takes = |ms: u64| ledger.take(at(ms), key(1), sliding(10), 1).is_ok();
    // The 55th of them is the first after whose return nine are left.
    let ninth = 600_000 + 104 * 54 + WINDOW_MS;
    assert!(!takes(606_600) && !takes(600_000 + WINDOW_MS) && !takes(ninth - 1));
    assert!(takes(ninth) && !takes(ninth), "and then one by one");
    assert!(takes(ninth + 104) && !takes(ninth + 104));
}

#[test]
fn nobody_is_forgotten_before_its_window_is_over() {
    for limit in [2, 100, 1000] {
        let ledger = Ledger::new(64, [1; 16]);
        let take = |ms: u64, n| ledger.take(at(ms), key(n), sliding(limit), 1).is_ok();
        assert!((0..u64::from(limit)).filter(|_| take(600_000, 1)).count() > 1, "{limit}");
        while take(600_000, 1) {}
        // Fresh keys, all of which want its blocks, through all of its window.
        for n in 0..20_000 {
            let ms = 600_000 + n * 3 - n % 64;
            let _ = take(ms, 1000 + n);
            assert!(n % 50 > 0 || ms >= 660_000 || !take(ms, 1), "{limit} at {ms}");
        }
    }
}

#[test]
fn a_key_of_little_use_has_one_block_and_one_in_full_use_four() {
    let ledger = Ledger::new(1024, [1; 16]);
    let take = |ms: u64, n| ledger.take(at(ms), key(n), sliding(1000), 1).is_ok();
    for minute in 0..200 {
        assert!(take(600_000 + minute * 61_000, 1));
    }
    assert_eq!(ledger.prepare().figures().held, 1);
    (0..1000).for_each(|_| assert!(take(20_000_000, 1)));
    assert_eq!(ledger.prepare().figures().held, 4);
}

#[test]
fn a_lowered_limit_that_is_used_up_lends_nothing_from_cells_that_have_not_lent() {
    let ledger = Ledger::new(1024, [1; 16]);
    assert!((0..80).all(|_| ledger.take(at(600_000), key(1), sliding(100), 1).is_ok()));
    // The first look is at all cells, and finds where they stand for the next ones.
    assert!((0..5).all(|_| ledger.take(at(600_000), key(1), sliding(70), 1).is_err()));
    assert!(ledger.take(at(600_000), key(1), sliding(81), 1).is_ok());
    assert!(ledger.take(at(600_000), key(1), sliding(81), 1).is_err());
}
