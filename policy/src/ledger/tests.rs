//! The ledger against plain models of what it should be.

use core::num::NonZeroU64;
use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::mechanism::calendar::Period;
use crate::mechanism::fixed::Fixed;
use crate::mechanism::sliding::Sliding;
use crate::time::Wall;
use crate::unit::Rate;

const MS: u64 = 1_000_000;

pub(super) fn gcra(tokens: u64, period_ms: u64, burst: u32) -> Meter {
    Meter::Bucket(plain(tokens, period_ms, burst))
}

fn plain(tokens: u64, period_ms: u64, burst: u32) -> Gcra {
    let rate = Rate::new(NonZeroU64::new(tokens).unwrap(), Duration::from_millis(period_ms));
    Gcra::new(rate.unwrap(), burst).unwrap()
}

/// Spread like hashes are.
pub(super) fn key(n: u64) -> CountKey {
    let hash = n.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17) | 1;
    CountKey { rule: 7, hash }
}

pub(super) fn at(ms: u64) -> Now {
    Now { at: Instant::from_nanos(ms * MS), wall: Wall(ms / 1000) }
}

pub(super) fn takes(ledger: &Ledger, ms: u64, n: u64, meter: Meter) -> bool {
    ledger.take(at(ms), key(n), meter, 1).is_ok()
}

/// By looking at every place.
pub(super) fn held(ledger: &Ledger) -> usize {
    let held = ledger.buckets.values().count();
    assert_eq!(ledger.keys(), held as u64, "what is counted is what is there");
    held
}

#[test]
fn a_key_that_is_refused_cannot_be_pushed_out_by_a_flood() {
    let ledger = Ledger::new(64, [0; 16]);
    let slow = gcra(1, 60_000, 1);
    assert!(takes(&ledger, 1000, 0, slow));
    for n in 1..100_000 {
        let _ = ledger.take(at(1000 + n / 10_000), key(n), slow, 1);
        assert!(held(&ledger) <= 64);
    }
    assert!(!takes(&ledger, 1500, 0, slow));
    assert!(!takes(&ledger, 60_999, 0, slow));
    assert!(takes(&ledger, 61_000, 0, slow));
}

#[test]
fn what_was_taken_from_the_overflow_stays_taken_when_there_is_room_again() {
    // Two lines, so any eight keys fill every place.
    let ledger = Ledger::new(8, [0; 16]);
    let (short, long) = (gcra(1, 1000, 1), gcra(2, 100_000, 2));
    for n in 1..=8 {
        assert!(takes(&ledger, 1000, n, short), "{n}");
    }
    assert!(takes(&ledger, 1000, 99, long) && takes(&ledger, 1000, 99, long));
    assert!(!takes(&ledger, 1000, 99, long));
    assert!(ledger.buckets.value(key(99).hash).is_none(), "there is no room");
    // Everybody else's bucket is full and forgotten; this one still owes.
    for n in 11..=18 {
        assert!(takes(&ledger, 10_000, n, short), "{n}");
    }
    assert!(!takes(&ledger, 20_000, 99, long));
    assert!(!takes(&ledger, 50_999, 99, long));
    assert!(takes(&ledger, 51_000, 99, long));
    assert!(ledger.buckets.value(key(99).hash).is_some(), "there is room");
    assert!(!takes(&ledger, 51_001, 99, long));
}

#[test]
fn a_clock_that_goes_back_grants_nothing() {
    let ledger = Ledger::new(8, [0; 16]);
    let slow = gcra(1, 1000, 1);
    assert!(takes(&ledger, 50_000, 1, slow));
    for ms in [40_000, 0, 49_999, 50_000, 10_000, 50_999] {
        assert!(!takes(&ledger, ms, 1, slow), "{ms}");
    }
    // Nor does it forget: these would each need the place of the first.
    for n in 2..100 {
        let _ = takes(&ledger, 100, n, slow);
    }
    assert!(!takes(&ledger, 100, 1, slow));
    assert!(takes(&ledger, 51_000, 1, slow));
}

#[test]
fn nobody_is_forgotten_while_any_clock_says_that_it_owes() {
    // Every place is held until 51,000 ms. One worker's clock is 80 ms ahead of another's, and
    // neither is far enough from what was noted to be noted itself.
    let ledger = Ledger::new(8, [0; 16]);
    let slow = gcra(1, 1000, 1);
    (1..=8).for_each(|n| assert!(takes(&ledger, 50_000, n, slow)));
    assert!(!takes(&ledger, 50_950, 1, slow));
    let _ = takes(&ledger, 51_040, 9, slow);
    (1..=8).for_each(|n| assert!(!takes(&ledger, 50_960, n, slow), "{n}"));
}

#[test]
fn a_faster_rate_keeps_what_was_spent_and_owes_no_longer_than_it_fills() {
    let (daily, fast) = (gcra(1, 86_400_000, 1), gcra(2, 1000, 4));
    for look in [false, true] {
        let ledger = Ledger::new(8, [0; 16]);
        assert!(takes(&ledger, 1000, 1, daily));
        let takes = |ms| {
            let looked = look.then(|| ledger.peek(at(ms), key(1), fast, 1).is_ok());
            let took = takes(&ledger, ms, 1, fast);
            assert!(looked.is_none_or(|looked| looked == took), "{ms}");
            took
        };
        // Empty, whatever it owed before; from then on two a second.
        assert!(!takes(1001) && !takes(1500));
        assert!(takes(1501) && !takes(1501));
        assert!(takes(2001) && !takes(2001));
    }
}

#[test]
fn what_is_charged_while_there_is_no_room_stays_charged() {
    let ledger = Ledger::new(8, [0; 16]);
    let owing = Meter::Bucket(plain(1, 1000, 10).owing());
    for n in 1..=8 {
        let filler = CountKey { rule: 1 << 40, ..key(n) };
        assert!(ledger.take(at(1000), filler, gcra(1, 1000, 1), 1).is_ok());
    }
    assert!(takes(&ledger, 1000, 99, owing));
    assert_eq!(ledger.charge(at(1000), key(99), owing, 9).unwrap().left, 0);
    // The others are forgotten; four of ten are back.
    assert!(ledger.take(at(5000), key(99), owing, 5).is_err());
    assert!(ledger.take(at(5000), key(99), owing, 4).is_ok());
}

#[test]
fn what_is_given_back_is_there_again() {
    for full in [false, true] {
        let ledger = Ledger::new(8, [0; 16]);
        let (slow, two) = (gcra(1, 60_000, 1), gcra(2, 60_000, 2));
        if full {
            (1..=8).for_each(|n| assert!(takes(&ledger, 1000, n, slow)));
        }
        let taken = ledger.take(at(1000), key(99), two, 2).unwrap();
        assert_eq!(taken.level.left, 0);
        ledger.give_back(&taken.receipt, two);
        let one = ledger.take(at(1000), key(99), two, 1).unwrap();
        assert!(takes(&ledger, 1000, 99, two), "full: {full}");
        assert!(!takes(&ledger, 1000, 99, two), "full: {full}");
        // Somebody took since: it stays taken.
        ledger.give_back(&one.receipt, two);
        assert!(!takes(&ledger, 1000, 99, two), "full: {full}");
    }
}

#[test]
fn a_look_takes_nothing_and_tells_what_taking_would() {
    let ledger = Ledger::new(8, [0; 16]);
    let two = gcra(2, 60_000, 2);
    for left in [1, 0] {
        for _ in 0..3 {
            let looked = ledger.peek(at(1000), key(1), two, 1).unwrap();
            assert_eq!(looked.left, left);
        }
        assert_eq!(ledger.take(at(1000), key(1), two, 1).unwrap().level.left, left);
    }
    let (level, wait) = ledger.peek(at(1000), key(1), two, 1).unwrap_err();
    assert_eq!((level.left, wait), (0, Duration::from_secs(30)));
    assert_eq!(ledger.take(at(1000), key(1), two, 1).unwrap_err(), wait);
}

#[test]
fn permits_are_counted_by_key_and_go_back() {
    let ledger = Ledger::new(8, [0; 16]);
    let take = |n, max| ledger.acquire(key(n), max);
    let (one, left) = take(1, 2).unwrap();
    assert_eq!(left, 1);
    let (two, left) = take(1, 2).unwrap();
    assert_eq!(left, 0);
    assert!(take(1, 2).is_none() && take(1, 1).is_none(), "a lower bound after a reload, too");
    let (other, _) = take(2, 1).unwrap();
    assert_eq!(ledger.permits(), 3);
    ledger.release(one);
    assert_eq!(take(1, 2).map(|(permit, left)| (ledger.release(permit), left)), Some(((), 0)));
    [two, other].into_iter().for_each(|permit| ledger.release(permit));
    assert_eq!(ledger.permits(), 0);
    // Keys that hold nothing make room for others.
    for n in 0..10_000 {
        let (permit, _) = take(n, 1).expect("room");
        ledger.release(permit);
    }
}

#[test]
fn a_key_with_requests_in_progress_is_not_forgotten_for_others() {
    let ledger = Ledger::new(8, [0; 16]);
    let first = ledger.acquire(key(0), 1).unwrap().0;
    // More keys than the table has places for: those that find none are refused.
    let mut permits: Vec<_> = (1..5000).filter_map(|n| ledger.acquire(key(n), 1)).collect();
    assert!((50..64).contains(&permits.len()), "{}", permits.len());
    assert!(ledger.acquire(key(0), 1).is_none());
    assert_eq!(ledger.permits(), permits.len() as u64 + 1);
    // Whoever leaves makes room for another.
    ledger.release(permits.pop().unwrap().0);
    let other = (5000..6000).find_map(|n| ledger.acquire(key(n), 1)).expect("room");
    permits.push(other);
    ledger.release(first);
    assert!(ledger.acquire(key(0), 1).is_some_and(|(permit, _)| {
        ledger.release(permit);
        true
    }));
    permits.into_iter().for_each(|(permit, _)| ledger.release(permit));
    assert_eq!(ledger.permits(), 0);
}

proptest! {
    /// With room for all, every decision is that of a map without bounds; without, whoever is
    /// admitted would have been admitted there. The model knows nothing of forgetting.
    #[test]
    fn decisions_are_those_of_a_map_that_forgets_nothing(
        asks in prop::collection::vec((0_u64..24, 0_u64..400, 1_u32..3), 1..400),
        small in any::<bool>(),
    ) {
        let ledger = Ledger::new(if small { 8 } else { 1024 }, [1; 16]);
        let gcra = plain(2, 1000, 3);
        let mut model: BTreeMap<u64, u64> = BTreeMap::new();
        let mut now = 1000;
        for (n, gap, cost) in asks {
            now += gap * gap / 200;
            let got = ledger.take(at(now), key(n), Meter::Bucket(gcra), cost);
            let state = model.entry(n).or_default();
            let expected = gcra.take(*state, ticks(at(now).at), cost);
            match (&got, expected) {
                (Ok(_), Ok(next)) => *state = next,
                (Err(_), Ok(_)) => prop_assert!(small, "refused without need"),
                (Ok(_), Err(_)) => prop_assert!(false, "admitted above the bound"),
                (Err(wait), Err(expected)) => prop_assert!(small || *wait == expected),
            }
        }
    }
}

/// One of each kind, all of which admit two a minute or fewer.
fn kinds() -> [Meter; 5] {
    let minute = Duration::from_secs(60);
    [
        gcra(2, 60_000, 2),
        Meter::Queue(plain(2, 60_000, 2)),
        Meter::Fixed(Fixed::every(2, minute).unwrap()),
        Meter::Fixed(Fixed::calendar(2, Period::Day).unwrap()),
        Meter::Sliding(Sliding::new(2, minute).unwrap()),
    ]
}

#[test]
fn a_flood_of_fresh_keys_frees_no_refused_key_and_admits_no_more_than_there_is_room() {
    for meter in kinds() {
        let ledger = Ledger::new(1024, [0; 16]);
        let take = |ms, n| ledger.take(at(ms), key(n), meter, 1).is_ok();
        assert!(take(600_000, 0) && take(600_000, 0) && !take(600_000, 0), "{meter:?}");
        let mut admitted = 0;
        for n in 1..200_000 {
            admitted += u32::from(take(600_000 + n / 50_000, n));
            assert!(n % 1000 > 0 || !take(600_000 + n / 50_000, 0), "{meter:?} after {n}");
        }
        // Each key asks once: one for each place, and two for each of the counts they share.
        let (places, blocks) = (1024 + 2 * 64, 128 + 2 * 64);
        let room = if matches!(meter, Meter::Sliding(_)) { blocks } else { places };
        assert!((100..=room).contains(&admitted), "{meter:?}: {admitted} of {room}");
        assert!(held(&ledger) <= 1024);
    }
}

#[test]
fn two_limits_without_room_do_not_touch_each_other() {
    // Every place is taken, so both count in the overflow, under one number of 64.
    let ledger = Ledger::new(8, [0; 16]);
    let long = gcra(1, 3_600_000, 1);
    (1..=8).for_each(|n| assert!(takes(&ledger, 1000, n, long)));
    let (slow, fast) = (gcra(1, 600_000, 1), gcra(1, 10, 1));
    let keys = |rule| CountKey { rule, hash: key(99).hash };
    assert!(ledger.take(at(1000), keys(64), slow, 1).is_ok());
    for ms in 0..100 {
        let _ = ledger.take(at(2000 + ms), keys(128), fast, 1);
    }
    assert!(ledger.take(at(9000), keys(64), slow, 1).is_err());
}

#[test]
fn every_kind_gives_back_what_was_taken() {
    for meter in kinds() {
        for full in [false, true] {
            let ledger = Ledger::new(8, [0; 16]);
            if full {
                for n in 1..=2000 {
                    let _ = ledger.take(at(600_000), key(n), meter, 1);
                }
            }
            let Ok(taken) = ledger.take(at(600_000), key(9999), meter, 2) else {
                assert!(full);
                continue;
            };
            assert!(ledger.take(at(600_000), key(9999), meter, 1).is_err(), "{meter:?}");
            ledger.give_back(&taken.receipt, meter);
            assert!(ledger.take(at(600_000), key(9999), meter, 2).is_ok(), "{meter:?}");
        }
    }
}

#[test]
fn a_look_agrees_with_taking_for_every_kind() {
    for meter in kinds() {
        let ledger = Ledger::new(64, [0; 16]);
        for _ in 0..4 {
            let looked = ledger.peek(at(600_000), key(1), meter, 1).map_err(|(_, wait)| wait);
            let taken = ledger.take(at(600_000), key(1), meter, 1).map(|taken| taken.level);
            assert_eq!(looked, taken, "{meter:?}");
        }
    }
}

/// The keys of one shared count, of which only the first has taken from it.
#[test]
fn only_those_that_took_from_a_shared_count_begin_with_what_it_owes() {
    let window = |secs| Meter::Sliding(Sliding::new(1, Duration::from_secs(secs)).unwrap());
    let fixed = |secs| Meter::Fixed(Fixed::every(1, Duration::from_secs(secs)).unwrap());
    // (short, long, how many share)
    let table = [
        (gcra(1, 1000, 1), gcra(1, 3_600_000, 1), *SHARED.start()),
        (fixed(1), fixed(3600), *SHARED.start()),
        (window(1), window(3600), usize::try_from(SPARE_SHARED).unwrap()),
    ];
    for (short, long, shares) in table {
        let ledger = Ledger::new(8, [0; 16]);
        for n in 1..=8 {
            // Another limit's, so that they share nothing with this one's keys.
            let _ = ledger.take(at(7_201_000), CountKey { rule: 1 << 40, ..key(n) }, short, 1);
        }
        assert!(takes(&ledger, 7_201_000, 9999, long), "{long:?}");
        let shared = |n: u64| shared_key(key(n), shares as u64);
        let mut others = (10_000..).filter(|n| shared(*n) == shared(9999));
        let looks = |ms, n| ledger.peek(at(ms), key(n), long, 1).is_ok();
        assert!(!looks(7_201_000, others.next().unwrap()), "no place, and nothing left");
        // Those before are forgotten, so everybody finds a place; a look says so, too.
        let judged = || ledger.tables().map(|(_, figures)| figures.full).sum::<u64>();
        let before = judged();
        assert!(!takes(&ledger, 7_209_000, 9999, long), "{long:?}");
        assert_eq!(judged(), before + 1, "by what it shares, though it has a place: {long:?}");
        let mut other = |ms| {
            let n = others.next().unwrap();
            looks(ms, n) && takes(&ledger, ms, n, long)
        };
        let fresh = (0..8).filter(|_| other(7_209_000)).count();
        assert!(fresh >= 7, "one may have the mark of the first: {fresh}, {long:?}");
        assert!(!looks(7_209_000, 9999), "{long:?}");
        assert!(!takes(&ledger, 7_209_000, 9999, long), "{long:?}");
    }
}

/// 25 bytes a key with everything around it: seven places in ten are taken then, and 99 keys of 100
/// have one of their own. The others share counts, which errs towards refusing. For real, and each
/// key of them: `tests/millions.rs`.
#[test]
fn ten_million_keys_fit_in_256_megabytes() {
    const KEYS: usize = 10_000_000;
    const BYTES: usize = 256_000_000;
    // 3 MB for all that does not depend on keys.
    let slots = (BYTES - 3_000_000 - 8 * SHARED.end() * 16) * 4 / 73;
    let tables = |slots: usize| (slots + slots / 8 + 8 * SHARED.end()) * size_of::<[u64; 2]>();
    let bytes = |slots| tables(slots) + slots / 32 * size_of::<u64>();
    assert!(bytes(slots) <= BYTES, "{}", bytes(slots));
    // The same fill, at a hundredth of the size: how many keys find a place of their own.
    let ledger = Ledger::new(slots / 100, [0; 16]);
    let slow = gcra(1, 3_600_000, 1);
    for n in 0..KEYS as u64 / 100 {
        let _ = ledger.take(at(1000), CountKey { rule: 7, hash: spread(n + 1) }, slow, 1);
    }
    let placed = held(&ledger);
    assert!(placed * 100 >= KEYS / 100 * 99, "{placed} of {}", KEYS / 100);
}

proptest! {
    /// No window of a minute ever has more than the limit, whatever the table's size, the clock's
    /// jumps and what is given back.
    #[test]
    fn no_window_has_more_than_the_limit(
        limit in prop::sample::select(vec![1_u32, 5, 64, 70]),
        small in any::<bool>(),
        asks in prop::collection::vec((0_u64..3, 0_u64..9000, any::<bool>()), 1..400),
    ) {
        let ledger = Ledger::new(if small { 8 } else { 1024 }, [1; 16]);
        let meter = Meter::Sliding(Sliding::new(limit, Duration::from_secs(60)).unwrap());
        let (mut now, mut admitted) = (600_000, BTreeMap::<u64, Vec<u64>>::new());
        for (n, gap, keep) in asks {
            now += gap * gap / 30_000;
            if let Ok(taken) = ledger.take(at(now), key(n), meter, 1) {
                if keep {
                    let log = admitted.entry(n).or_default();
                    log.push(now);
                    let within = log.iter().filter(|t| **t + 60_000 > now).count();
                    prop_assert!(within <= limit as usize);
                } else {
                    ledger.give_back(&taken.receipt, meter);
                }
            }
        }
    }
}

#[test]
fn who_has_no_place_is_counted_in_taking_and_in_looking() {
    let hour = || "1/h".parse().unwrap();
    for meter in [
        Meter::Bucket(Gcra::new(hour(), 1).unwrap()),
        Meter::Fixed(Fixed::every(1, Duration::from_secs(3600)).unwrap()),
    ] {
        let ledger = Ledger::new(64, [0; 16]);
        let figures = || ledger.tables().next().map(|(_, f)| (f.held, f.full)).unwrap();
        let asks = 1000;
        for n in 1..=asks {
            let _ = ledger.take(at(600_000), key(n), meter, 1);
        }
        let (held, full) = figures();
        assert!(held > 32 && held + full == asks, "{meter:?}: {held} and {full}");
        let mut refused = 0;
        for n in asks + 1..=2 * asks {
            refused += u64::from(ledger.look(at(600_000), key(n), meter, 1).is_err());
        }
        assert!(refused > 900, "{meter:?}: {refused}");
        assert_eq!(figures(), (held, full + refused), "{meter:?}");
        assert!(ledger.peek(at(600_000), key(2 * asks), meter, 1).is_err(), "told, not counted");
        // Who has a place is judged by its own.
        let own = (1..=asks).filter(|n| ledger.buckets.value(key(*n).hash).is_some());
        for n in own {
            let _ = ledger.look(at(600_000), key(n), meter, 1);
        }
        assert_eq!(figures(), (held, full + refused), "{meter:?}");
    }
}
