//! Each rule by itself; `policy/tests/brownout.rs` has all of them before an origin.

use super::*;

const RULE: Rule = Rule { min: 2, max: 1000, initial: 50, slow: None };
const MS: u64 = 1_000_000;

/// A learner by the clock, told what came of a tenth of a second at a time.
struct Run {
    learner: Learner,
    rule: Rule,
    now_ns: u64,
}

/// So many answers of so many milliseconds, and requests over the limit.
fn window(answers: u32, took_ms: u64, refused: u32) -> Window {
    let sum_us = u64::from(answers) * took_ms * 1_000;
    Window { sum_us, answers, refused, peak: 1, busy: 1, drops: 0, slice: Slice::default() }
}

/// A window, and its last slice.
fn slice(answers: u32, took_ms: u64, refused: u32) -> Window {
    let sum_us = u64::from(answers) * took_ms * 1_000;
    Window { slice: Slice { sum_us, answers }, ..window(48, took_ms, refused) }
}

impl Run {
    /// Quiet for a second: answers take 10 ms, and nobody waits.
    fn quiet(rule: Rule) -> Self {
        let mut run = Self { learner: Learner::default(), rule, now_ns: 50_000 * MS };
        run.step(0, window(0, 0, 0));
        run.pass(10, window(50, 10, 0));
        assert_eq!((run.limit(), run.base_ms()), (rule.initial, 10));
        run
    }

    /// As quiet, and then so much in use that it has fallen once.
    fn steady() -> Self {
        let mut run = Self::quiet(RULE);
        run.pass(1, window(50, 200, 50));
        assert_eq!(run.learner.phase, Phase::Steady);
        run
    }

    /// As steady, and now it looks how long answers take under half of so many, or fewer.
    fn probing(limit: u32, took_ms: u64) -> Self {
        let mut run = Self::steady();
        (run.learner.limit, run.learner.top) = (limit * WHOLE, limit * WHOLE);
        run.learner.short_us = u32::try_from(took_ms * 1_000).unwrap();
        run.learner.probed_ns = 1;
        run.pass(1, window(50, took_ms, 50));
        assert_eq!(run.learner.reason(), Reason::Probe);
        run
    }

    fn step(&mut self, ms: u64, window: Window) -> Used {
        self.now_ns += ms * MS;
        self.learner.step(&self.rule, self.now_ns, &window)
    }

    /// Slices of answers that take so long, some of them more and some less by so much, and a
    /// window after each five.
    fn slices(&mut self, n: u64, took_ms: u64, more_or_less_ms: u64) {
        for at in 0..n {
            let took_ms = match at % 2 {
                0 => took_ms + more_or_less_ms,
                _ => took_ms - more_or_less_ms,
            };
            let used = self.step(20, slice(24, took_ms, 1));
            assert_eq!((used.slice, self.learner.sudden), (at % 5 < 4, false), "{at}");
            if at % 5 == 4 {
                assert!(used.window);
            }
        }
    }

    /// As quiet, with a limit of so many that is in use, and slices that are even.
    fn used(limit: u32) -> Self {
        let mut run = Self::quiet(RULE);
        run.slices(100, 10, 0);
        run.learner.sliced_ns = run.now_ns;
        run.learner.phase = Phase::Steady;
        (run.learner.limit, run.learner.top) = (limit * WHOLE, limit * WHOLE);
        run
    }

    /// As used, and of a sudden answers take so long: the level is lowered.
    fn fallen(took_ms: u64) -> Self {
        let mut run = Self::used(60);
        assert!(run.step(20, slice(24, took_ms, 9)).window);
        assert_eq!((run.learner.phase, run.learner.sudden), (Phase::Drain, true));
        run
    }

    fn pass(&mut self, windows: u32, window: Window) {
        for _ in 0..windows {
            assert!(self.step(100, window).window, "a tenth of a second is a window");
        }
    }

    /// Ends the probe's present level: this is what answers took there.
    fn level(&mut self, took_ms: u64) {
        let mut busy = window(0, 0, 1);
        busy.busy = self.limit();
        while self.learner.phase != Phase::Measure {
            self.step(40, busy);
        }
        while self.learner.phase == Phase::Measure {
            self.step(400, window(100, took_ms, 100));
        }
    }

    fn limit(&self) -> u32 {
        self.learner.limit(&self.rule)
    }

    fn base_ms(&self) -> u32 {
        (self.learner.base_us + 500) / 1_000
    }

    /// Tenths of a second until it probes, in which so much is refused.
    fn until_probe(&mut self, window: Window) -> u32 {
        (1..1_000)
            .find(|_| {
                self.step(100, window);
                self.learner.reason() == Reason::Probe
            })
            .unwrap_or(u32::MAX)
    }
}

#[test]
fn it_grows_by_a_quarter_at_first_and_by_a_sixteenth_later_and_only_in_use() {
    let mut run = Run::quiet(RULE);
    run.pass(20, window(50, 10, 0));
    assert_eq!(run.limit(), 50, "not in use");
    run.pass(1, window(50, 10, 1));
    assert_eq!((run.limit(), run.learner.reason()), (62, Reason::Grown));
    run.pass(1, Window { peak: 31, ..window(50, 10, 0) });
    assert_eq!(run.limit(), 78, "half of it is in use");
    let mut run = Run::steady();
    run.pass(5, window(50, 10, 1));
    let before = run.learner.limit;
    run.pass(1, window(50, 10, 1));
    let grown = run.learner.limit - before;
    assert!(grown.abs_diff(before / 16) <= 1 + WHOLE / 2, "{grown} of {before}");
    assert!(grown >= WHOLE / 2, "half a request at least");
}

#[test]
fn a_fall_is_in_proportion_and_at_most_by_half() {
    let mut run = Run::steady();
    assert_eq!((run.limit(), run.learner.reason()), (31, Reason::Latency));
    run.pass(1, window(50, 2_000, 1));
    assert_eq!(run.limit(), 19, "half, and an eighth for growth");
    let mut run = Run::quiet(RULE);
    // Known to take 10 ms, and now 20: 15.4 by their weight, of which 13 are fair.
    run.pass(1, window(70, 20, 1));
    assert_eq!(run.limit(), 48);
}

#[test]
fn it_does_not_fall_below_what_is_being_answered() {
    let mut run = Run::quiet(RULE);
    // 4,000 a second of 13 ms each: 52 under way.
    run.pass(1, window(400, 200, 50));
    assert!(run.limit() >= 50, "{}", run.limit());
}

#[test]
fn timeouts_and_what_the_operator_calls_slow_lower_it_by_a_tenth() {
    for (drops, answers, expected) in [(1, 50, 50), (2, 50, 45), (40, 0, 45)] {
        let mut run = Run::quiet(RULE);
        run.pass(1, Window { drops, ..window(answers, 10, 0) });
        assert_eq!(run.limit(), expected, "{drops} beside {answers}");
        let why = if expected < 50 { Reason::Timeouts } else { Reason::Initial };
        assert_eq!(run.learner.reason(), why);
    }
    for (slow_ms, expected) in [(11, 50), (9, 45)] {
        let mut run = Run::quiet(RULE);
        run.rule.slow = Some(Duration::from_millis(slow_ms));
        run.pass(1, window(50, 10, 0));
        assert_eq!(run.limit(), expected, "{slow_ms}");
    }
}

#[test]
fn it_stays_within_its_bounds() {
    let mut run = Run::quiet(Rule { min: 40, max: 60, ..RULE });
    run.pass(10, window(50, 10, 1));
    assert_eq!(run.limit(), 60);
    run.pass(20, Window { drops: 50, ..window(50, 10, 0) });
    assert_eq!(run.limit(), 40);
    run.pass(3, window(50, 10, 1));
    assert!(run.limit() > 40, "it had not gone on falling behind its bound");
}

#[test]
fn what_answers_take_is_followed_while_little_is_under_way() {
    for (took_ms, least, most) in [(12, 11, 12), (8, 8, 9), (40, 32, 40)] {
        let mut run = Run::quiet(RULE);
        run.pass(40, window(50, took_ms, 0));
        let base = run.base_ms();
        assert!((least..=most).contains(&base), "{base} ms of {took_ms}");
    }
    // In use, slower answers may be a queue.
    let mut run = Run::steady();
    run.pass(4, window(50, 40, 1));
    assert_eq!(run.base_ms(), 10);
    run.pass(20, window(50, 8, 1));
    assert!(run.base_ms() < 10, "but quicker ones are none");
}

#[test]
fn at_its_least_nothing_of_ours_queues() {
    let mut run = Run::quiet(Rule { min: 50, max: 50, ..RULE });
    run.pass(10, window(50, 40, 1));
    assert_eq!(run.base_ms(), 40);
}

#[test]
fn it_probes_a_moment_after_the_first_fall_then_every_ten_seconds_and_only_when_it_refuses() {
    let refusing = window(50, 15, 50);
    let mut run = Run::steady();
    let since = run.until_probe(refusing);
    assert!((2..=3).contains(&since), "{since}");
    run.level(10);
    let since = run.until_probe(window(50, 10, 50));
    assert!((98..=101).contains(&since), "{since}");
    let mut run = Run::steady();
    run.pass(200, window(50, 10, 6));
    assert_eq!(run.until_probe(window(50, 10, 6)), u32::MAX, "one in eight is too little");
    // A limit that has fallen by a third is looked at sooner.
    let mut run = Run::steady();
    run.until_probe(refusing);
    run.level(10);
    let since = run.until_probe(window(50, 60, 50));
    assert!((48..=51).contains(&since), "{since}");
}

#[test]
fn a_probe_halves_on_while_that_helps() {
    let mut run = Run::probing(64, 80);
    let (first, limit) = (run.limit(), run.learner.limit / WHOLE);
    assert_eq!(first, limit / 2);
    run.level(40);
    assert_eq!(run.limit(), first / 2, "sooner by half: it was a queue");
    run.level(20);
    assert_eq!((run.limit(), run.learner.phase), (first / 4, Phase::Drain));
    run.level(10);
    assert_eq!((run.learner.phase, run.base_ms()), (Phase::Steady, 10), "as without a queue");
    assert_eq!(run.limit(), limit, "what is in force is what it was");
}

#[test]
fn a_service_that_is_slower_without_a_queue_is_believed_and_its_limit_given_back() {
    let mut run = Run::probing(64, 40);
    assert!(run.learner.limit < 64 * WHOLE);
    run.level(40);
    assert_eq!((run.base_ms(), run.limit()), (40, 64));
}

#[test]
fn what_takes_much_longer_of_a_sudden_is_not_waited_for() {
    for (answers, took_ms, refused, expected) in [
        (24, 30, 1, true),
        (23, 30, 1, false),
        // Nothing queues that this limit let in.
        (24, 30, 0, false),
        // A window is soon enough for that.
        (24, 16, 1, false),
        (24, 18, 1, true),
    ] {
        let mut run = Run::used(60);
        let window = run.step(20, slice(answers, took_ms, refused)).window;
        assert_eq!((window, run.learner.sudden), (expected, expected), "{answers} of {took_ms} ms");
    }
    // Where they always differ by that much, it says nothing.
    for (took_ms, expected) in [(33, false), (70, true)] {
        let mut run = Run::used(60);
        run.slices(200, 10, 5);
        run.step(20, slice(24, took_ms, 1));
        assert_eq!(run.learner.sudden, expected, "{took_ms} ms");
    }
}

#[test]
fn a_sudden_fall_is_to_what_is_being_answered() {
    // 1,200 a second of 13 ms each; and 60 in proportion, when so many were under way before.
    let run = Run::fallen(20);
    assert_eq!((run.limit(), run.learner.reason()), (39, Reason::Latency));
    assert_eq!(run.learner.limit / WHOLE, 60, "it is only a suspicion");
    let mut growing = Run::used(60);
    growing.learner.pressed = false;
    growing.step(20, slice(24, 20, 9));
    assert_eq!(growing.limit(), 15);
    // What has become slower of a sudden answers next to nothing at first.
    growing = Run::used(60);
    growing.learner.pressed = false;
    growing.step(90, slice(24, 100, 9));
    assert_eq!(growing.limit(), 10);
}

#[test]
fn a_level_lowered_of_a_sudden_stays_when_answers_come_sooner_then() {
    let mut run = Run::fallen(20);
    run.level(13);
    assert_eq!((run.limit(), run.base_ms(), run.learner.phase), (39, 10, Phase::Steady));
    // With room to spare, it was a little too low.
    let mut run = Run::fallen(40);
    assert_eq!(run.limit(), 19);
    run.level(10);
    assert_eq!(run.limit(), 24);
}

#[test]
fn a_service_that_is_slower_of_a_sudden_is_believed_when_half_of_it_takes_as_long() {
    let mut run = Run::fallen(40);
    run.level(40);
    assert_eq!((run.base_ms(), run.limit(), run.learner.phase), (40, 60, Phase::Steady));
    // If it is not plain, a probe goes on from there.
    let mut run = Run::fallen(40);
    run.level(29);
    assert_eq!((run.learner.phase, run.limit(), run.learner.sudden), (Phase::Drain, 9, false));
    run.level(29);
    assert_eq!((run.base_ms(), run.limit()), (29, 60));
}

#[test]
fn what_was_under_way_before_a_sudden_fall_says_how_long_the_queue_was() {
    let mut run = Run::fallen(40);
    let mut draining = window(10, 60, 5);
    draining.busy = 50;
    assert_eq!(run.step(20, draining), Used::default(), "it is kept until all of it has come");
    draining.busy = 5;
    assert!(run.step(20, draining).window);
    assert_eq!((run.learner.phase, run.learner.prior_us), (Phase::Settle, 60_000));
}

#[test]
fn a_first_fall_that_is_sudden_has_been_looked_at_and_needs_no_probe_yet() {
    let mut run = Run::quiet(RULE);
    run.slices(60, 10, 0);
    run.learner.sliced_ns = run.now_ns;
    assert_eq!(run.learner.phase, Phase::Ramp);
    assert!(run.step(20, slice(24, 18, 9)).window);
    run.level(13);
    let since = run.until_probe(window(50, 13, 50));
    assert!((40..=52).contains(&since), "{since}");
}

#[test]
fn without_any_queue_it_grows_twice_as_fast() {
    for (took_ms, least, most) in [(10, 67, 67), (12, 63, 63)] {
        let mut run = Run::used(60);
        run.learner.short_us = u32::try_from(took_ms * 1_000).unwrap();
        run.pass(1, window(50, took_ms, 1));
        assert!((least..=most).contains(&run.limit()), "{} of {took_ms} ms", run.limit());
    }
}

#[test]
fn a_learner_is_the_same_after_it_was_put_away() {
    let mut run = Run::steady();
    for _ in 0..60 {
        run.step(20, slice(24, 15, 50));
        assert_eq!(Learner::unpack(run.learner.pack()), run.learner);
    }
}
