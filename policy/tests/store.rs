//! What the store must do with one message after another, shown on its model; and that each way of
//! getting it wrong shows.

use sluice_policy::mechanism::lease::{Class, Count, Message, Reply, Terms};
use sluice_policy::sim::reserve::{Mutant, Store};

const SEC: i64 = 1_000_000;
const T: i64 = 1_000_000 * SEC;
const C: u64 = 50;
const UNITS: u64 = 100_000;
const TERMS: Terms = Terms {
    count: Count::Bucket,
    class: Class::Lease,
    strict: false,
    units: UNITS,
    refill: 1,
    capacity: 50,
    cost: 1,
};

struct Case {
    store: Store,
    failed: Vec<&'static str>,
}

impl Case {
    fn reset(&mut self) {
        let mutant = self.store.mutant;
        self.store = Store::default();
        self.store.mutant = mutant;
        self.store.warm("1");
    }

    fn call(&mut self, at: i64, node: &str, m: Message) -> Reply {
        self.store.call(T + at, "1", node, "k", &m)
    }

    /// Level in tokens, and outstanding.
    fn bucket(&self) -> (i64, i64) {
        let (level, out) = self.store.bucket("k").unwrap_or_default();
        (level / i64::try_from(UNITS).unwrap_or(1), out)
    }

    fn check(&mut self, what: &'static str, holds: bool) {
        if !holds {
            self.failed.push(what);
        }
    }
}

fn tell(seq: u64, spent: u64, held: u64, want: u64) -> Message {
    Message {
        terms: TERMS,
        lease_us: 1_000_000,
        seq,
        born: 1,
        spent,
        held,
        want,
        demand: 0,
        elapsed_us: 0,
        since_seq: 0,
    }
}

fn ask(seq: u64, want: u64) -> Message {
    tell(seq, 0, 0, want)
}

/// Every check that does not hold.
fn failures(mutant: Option<Mutant>) -> Vec<&'static str> {
    let mut store = Store::default();
    store.mutant = mutant;
    let mut case = Case { store, failed: Vec::new() };
    leases(&mut case);
    messages(&mut case);
    times(&mut case);
    windows(&mut case);
    losses(&mut case);
    case.failed
}

fn leases(case: &mut Case) {
    case.reset();
    case.call(0, "a", ask(1, 40));
    case.call(2 * SEC, "b", ask(1, 50));
    let late = case.call(2 * SEC + 1, "a", tell(2, 0, 40, 5));
    let (level, out) = case.bucket();
    case.check("what is held past its lease is void", late.flags & Reply::VOID != 0);
    case.check("level and outstanding stay below the capacity", level + out <= 50);

    case.reset();
    case.call(0, "a", ask(1, 50));
    let early = case.call(900_000, "b", ask(1, 50));
    case.check("nothing fills up beside what is outstanding", early.granted == 0);
    let later = case.call(SEC + 1_000_000, "b", ask(2, 50));
    case.check("after the lease it fills up at its rate", (1..=20).contains(&later.granted));

    case.reset();
    case.call(0, "a", ask(1, 50));
    case.call(1000, "a", tell(2, 80, 0, 0));
    let (level, out) = case.bucket();
    case.check("what was spent without a lease is owed", (-31..=-29).contains(&level) && out == 0);
}

fn messages(case: &mut Case) {
    case.reset();
    case.call(0, "a", ask(1, 30));
    case.call(1000, "a", ask(2, 0));
    case.check("a grant that was never seen flows back", case.bucket() == (50, 0));

    case.reset();
    case.call(0, "a", ask(1, 20));
    case.call(1, "a", tell(3, 10, 10, 0));
    let before = case.bucket();
    let overtaken = case.call(2, "a", tell(2, 5, 15, 9));
    let same = overtaken.granted == 0 && overtaken.flags == 8 && case.bucket() == before;
    case.check("an overtaken message changes nothing", same);

    case.reset();
    let direct = |seq| Message { terms: Terms { class: Class::Direct, ..TERMS }, ..ask(seq, 50) };
    let first = case.call(0, "a", direct(1));
    let again = case.call(1, "a", direct(1));
    let twice = first.granted == C && again.granted == C && again.flags == 2;
    case.check("the same message again gets the same grant", twice && case.bucket().0 == 0);

    case.reset();
    case.call(0, "a", ask(1, 20));
    case.call(1, "a", tell(2, 20, 0, 0));
    case.call(2, "a", Message { born: 3, ..ask(3, 5) });
    case.check("a node that counts anew owes nothing twice", case.bucket() == (25, 5));
}

fn times(case: &mut Case) {
    case.reset();
    case.call(0, "a", ask(1, 20));
    case.store.flush();
    let run =
        |case: &mut Case, at, seq| case.store.call(T + at, "2", "b", "k", &ask(seq, 50)).granted;
    let early = [run(case, 1, 1), run(case, SEC / 2, 2), run(case, SEC, 3)];
    case.check("after a loss of data nothing is granted for a lease", early == [0, 0, 0]);
    let then = run(case, SEC + 300_001, 4);
    case.check("and then from empty", then == 3);

    case.reset();
    case.call(0, "a", ask(1, 50));
    let jumped = Message { elapsed_us: 100_000, since_seq: 1, ..tell(2, 50, 0, 50) };
    let granted = case.call(30 * SEC, "a", jumped).granted;
    case.check("a jump of the server's clock fills nothing", granted <= 1);

    case.reset();
    let minute = Terms { class: Class::Direct, units: 60_000_000, capacity: 1, ..TERMS };
    let one = |seq| Message { terms: minute, ..ask(seq, 1) };
    case.call(0, "a", one(1));
    let at_20 = case.call(20 * SEC, "b", one(1));
    case.check("at 20 s the next is in 40 s", at_20.granted == 0 && at_20.wait_us == 40_000_000);
    let early = case.call(60 * SEC - 1, "b", one(2)).granted;
    let due = case.call(60 * SEC, "c", one(1)).granted;
    case.check("not a microsecond early, nor late", (early, due) == (0, 1));
}

/// 50 in 10 s, noted by 100 ms.
const WINDOW: Terms = Terms { count: Count::Window, units: 100_000, refill: 10_000_000, ..TERMS };

/// Of 1970: four days before the month ends.
const FEBRUARY_25: i64 = 55 * 86_400 * SEC;

fn windows(case: &mut Case) {
    let tell = |seq, spent, held, want| Message { terms: WINDOW, ..tell(seq, spent, held, want) };
    case.reset();
    case.call(50_000, "a", tell(1, 0, 0, 50));
    let beside = case.call(55_000, "b", tell(1, 0, 0, 50)).granted;
    case.check("what is held counts", beside == 0);
    case.call(60_000, "a", tell(2, 50, 0, 0));
    let early = case.call(10 * SEC + 99_999, "b", tell(2, 0, 0, 50));
    case.check("nothing is forgotten before its window is over", early.granted == 0);
    case.check("the wait is until then", early.wait_us == 1);
    let then = case.call(10 * SEC + 100_000, "b", tell(3, 0, 0, 50)).granted;
    case.check("and all of it then", then == 50);

    case.reset();
    case.call(0, "a", tell(1, 0, 0, 50));
    case.call(3 * SEC, "b", tell(1, 0, 0, 0));
    let later = case.call(10 * SEC + SEC - 1, "b", tell(2, 0, 0, 50)).granted;
    case.check("what a dead node held counts until its lease ended, and a window", later == 0);
    let void = case.call(10 * SEC + SEC + 100_000, "a", tell(2, 0, 50, 0));
    case.check("and is void in its hands", void.flags & Reply::VOID != 0);

    case.reset();
    let log = Terms { class: Class::Direct, units: 1, refill: 60_000_000, capacity: 1, ..WINDOW };
    let one = |seq| Message { terms: log, ..ask(seq, 1) };
    case.call(0, "a", one(1));
    let refused = case.call(20 * SEC, "b", one(1));
    case.check("a log waits to the microsecond", refused.wait_us == 40_000_000);
    let early = case.call(60 * SEC - 1, "b", one(2)).granted;
    let due = case.call(60 * SEC, "c", one(1)).granted;
    case.check("not early, nor late", (early, due) == (0, 1));

    case.reset();
    let month = Terms { class: Class::Direct, units: 0, refill: 0, ..WINDOW };
    let all = |seq| Message { terms: month, ..ask(seq, 50) };
    let first = case.call(FEBRUARY_25 - T, "a", all(1)).granted;
    let last = case.call(FEBRUARY_25 - T + 4 * 86_400 * SEC - 1, "b", all(1)).granted;
    let march = case.call(FEBRUARY_25 - T + 4 * 86_400 * SEC, "b", all(2)).granted;
    case.check("a month is one of the calendar", (first, last, march) == (50, 0, 50));
}

fn losses(case: &mut Case) {
    // A replica took over that knows nothing of the last grants.
    for terms in [WINDOW, TERMS] {
        case.reset();
        let terms = Terms { strict: true, ..terms };
        let tell = |seq, spent, want| Message { terms, ..tell(seq, spent, 0, want) };
        case.call(0, "a", tell(1, 0, 0));
        let copy = case.store.clone();
        case.call(1000, "a", tell(2, 0, 50));
        case.call(2000, "a", tell(3, 50, 0));
        case.store = copy;
        let mut run = |at, seq| case.store.call(T + at, "2", "b", "k", &tell(seq, 0, 50)).granted;
        let granted = run(SEC, 1) + run(2 * SEC - 1, 2);
        let whole = if terms.count == Count::Window { 10 * SEC } else { 5 * SEC };
        let then = run(2 * SEC + whole, 3);
        case.check("strict: nothing until all that was lost is made good", granted == 0);
        case.check("and then as ever", then == 50);
    }

    // A planned move carries everything over; a replica that took over after it does not.
    for terms in [WINDOW, TERMS] {
        case.reset();
        let terms = Terms { strict: true, class: Class::Direct, ..terms };
        let ask = |seq, want| Message { terms, ..ask(seq, want) };
        case.call(0, "a", ask(1, 20));
        let quiet = case.store.call(T + 1000, "1", "a", "q", &ask(2, 20)).granted;
        let mut run = |at, run, node, key, want| {
            let reply = case.store.call(T + at, run, node, key, &ask(1, want));
            (reply.granted, reply.flags)
        };
        let moved = run(2000, "2<1", "b", "k", 20);
        let again = run(3000, "3<2", "c", "k", 20);
        let late = run(4000, "3", "d", "q", 40);
        let elsewhere = run(5000, "4<1", "e", "k", 1);
        case.check("what moved is all there", quiet == 20 && moved == (20, 0) && again.0 == 10);
        case.check("twice, too", again.1 == 0 && late == (30, 0));
        case.check("a move from another run is none", elsewhere == (0, 4));
    }

    case.reset();
    let places = Terms { count: Count::Places, units: 1, refill: 0, ..TERMS };
    let tell = |seq, used, free, want| Message { terms: places, ..tell(seq, used, free, want) };
    case.call(0, "a", tell(1, 0, 0, 50));
    case.call(1000, "a", tell(2, 30, 10, 0));
    let given = case.call(2000, "b", tell(1, 0, 0, 50)).granted;
    case.check("places that were given back are given out", given == 10);
    case.call(3000, "a", tell(3, 5, 0, 0));
    let given = case.call(4000, "b", tell(2, 10, 0, 50)).granted;
    case.check("those whose request has ended, too", given == 35);
    let silent = case.call(3 * SEC, "c", tell(1, 0, 0, 50)).granted;
    case.call(3 * SEC + 1000, "b", tell(3, 45, 0, 0));
    let told = case.call(4 * SEC, "c", tell(2, 0, 0, 50)).granted;
    case.check("after a long silence everybody tells first", (silent, told) == (0, 5));
}

#[test]
fn the_store_keeps_its_rules() {
    assert_eq!(failures(None), Vec::<&str>::new());
}

#[test]
fn each_mutant_is_caught() {
    for mutant in [
        Mutant::CapIgnoresOutstanding,
        Mutant::BornFull,
        Mutant::NoFence,
        Mutant::EarlySlots,
        Mutant::ReapsEarly,
        Mutant::NoOrder,
        Mutant::NoStepDetector,
        Mutant::NoVoid,
        Mutant::NoDebt,
        Mutant::AnyMove,
    ] {
        assert!(!failures(Some(mutant)).is_empty(), "{mutant:?}");
    }
}
