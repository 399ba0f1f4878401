//! Who goes through a gate, what comes back, and what of it counts.

use super::*;
use crate::ledger::Ledger;

const RULE: Rule = Rule { min: 2, max: 1000, initial: 40, slow: None };

fn hold() -> Rc<Hold> {
    let ledger = Ledger::new(16, [7; 16]);
    Hold::new(&ledger.gates, 1).unwrap()
}

fn responded(status: u16, timed: bool) -> Verdict {
    Verdict::Responded { status, took: Duration::from_millis(5), timed }
}

#[test]
fn what_is_left_of_a_limit_is_for_those_above() {
    let hold = hold();
    let mut seats = Vec::new();
    for (priority, expected) in [
        (Priority::Low, 32),
        (Priority::Normal, 36),
        (Priority::High, 38),
        (Priority::Critical, 40),
    ] {
        seats.extend(core::iter::from_fn(|| hold.enter(&RULE, priority)));
        assert_eq!(seats.len(), expected, "{priority:?}");
    }
    assert_eq!(hold.gate().refused.load(Relaxed), 4);
    assert_eq!(hold.gate().peak.load(Relaxed), 40);
    seats.into_iter().for_each(|seat| seat.settle(Verdict::Nothing));
    assert!(hold.enter(&RULE, Priority::Low).is_some());
}

#[test]
fn every_seat_comes_back_and_only_what_tells_of_a_queue_is_a_measure() {
    let took = Duration::from_millis(5);
    for (verdict, answers, drops) in [
        (responded(200, true), 1, 0),
        (responded(404, true), 1, 0),
        (responded(500, true), 0, 0),
        (responded(200, false), 0, 0),
        (Verdict::Overtaken { took }, 1, 0),
        (Verdict::Failed(Failure::TimedOut), 0, 1),
        (Verdict::Failed(Failure::Connect), 0, 0),
        (Verdict::Nothing, 0, 0),
    ] {
        let hold = hold();
        hold.enter(&RULE, Priority::Normal).unwrap().settle(verdict);
        let gate = hold.gate();
        assert_eq!(gate.busy.load(Relaxed), 0, "{verdict:?}");
        assert_eq!((hold.answers.get(), gate.drops.load(Relaxed)), (answers, drops), "{verdict:?}");
        assert_eq!(hold.sum_us.get(), u64::from(answers) * 5_000, "{verdict:?}");
    }
}

#[test]
fn one_worker_learns_when_it_is_time_and_the_others_only_hand_over() {
    let (one, two) = (hold(), Instant::from_nanos(1_000_000_000));
    one.tick(&RULE, two);
    assert_eq!(one.gate().limit.load(Relaxed), 40);
    let due = one.gate().due.load(Relaxed);
    assert_eq!(due, two.as_nanos() + PROBE_NS);
    one.enter(&RULE, Priority::Normal).unwrap().settle(responded(200, true));
    one.tick(&RULE, two + Duration::from_millis(9));
    assert_eq!(one.gate().due.load(Relaxed), due, "too early");
    assert_eq!((one.answers.get(), one.gate().answers.load(Relaxed)), (0, 1));
    // Another is at it.
    one.gate().due.store(BUSY, Relaxed);
    one.tick(&RULE, two + Duration::from_secs(1));
    assert_eq!(one.gate().due.load(Relaxed), BUSY);
}

#[test]
fn a_window_begins_with_what_is_under_way_and_nothing_else() {
    let hold = hold();
    let mut now = Instant::from_nanos(1_000_000_000);
    let mut seats: Vec<_> = (0..40).filter_map(|_| hold.enter(&RULE, Priority::Normal)).collect();
    seats.drain(6..).for_each(|seat| seat.settle(responded(200, true)));
    for _ in 0..12 {
        hold.tick(&RULE, now);
        now = now + Duration::from_millis(100);
    }
    let gate = hold.gate();
    assert_eq!(gate.answers.load(Relaxed) + gate.refused.load(Relaxed), 0);
    assert_eq!((gate.sum_us.load(Relaxed), gate.peak.load(Relaxed)), (0, 6));
}

#[test]
fn answers_that_are_slow_of_a_sudden_lower_the_limit_before_a_window_ends() {
    let hold = hold();
    let mut now = Instant::from_nanos(1_000_000_000);
    let gate = hold.gate();
    let mut answer = |n: usize, took_ms: u64, ms: u64| {
        let seats: Vec<_> = (0..n).filter_map(|_| hold.enter(&RULE, Priority::Normal)).collect();
        let took = Duration::from_millis(took_ms);
        for seat in seats {
            seat.settle(Verdict::Responded { status: 200, took, timed: true });
        }
        now = now + Duration::from_millis(ms);
        hold.tick(&RULE, now);
        (gate.slice_answers.load(Relaxed), gate.slice_us.load(Relaxed))
    };
    answer(0, 0, 0);
    for _ in 0..60 {
        answer(30, 10, 20);
    }
    let looked = (0..9).any(|_| answer(30, 10, 20) == (0, 0));
    assert!(looked, "a slice ends with enough answers");
    let before = gate.limit.load(Relaxed);
    assert_eq!(answer(10, 10, 20), (10, 100_000), "too few to say anything");
    assert_eq!(answer(20, 10, 20), (0, 0), "and now it has been looked at");
    assert_eq!(answer(50, 90, 20), (0, 0));
    let after = gate.limit.load(Relaxed);
    assert!(after < before, "{after} after {before}");
    assert_eq!(gate.answers.load(Relaxed), 0, "its window ended with it");
}
