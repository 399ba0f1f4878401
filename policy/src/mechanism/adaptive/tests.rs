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
    Window { sum_us, answers, refused, peak: 1, busy: 1, drops: 0 }
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

    fn step(&mut self, ms: u64, window: Window) -> bool {
        self.now_ns += ms * MS;
        self.learner.step(&self.rule, self.now_ns, &window)
    }

    fn pass(&mut self, windows: u32, window: Window) {
        for _ in 0..windows {
            assert!(self.step(100, window), "a tenth of a second is a window");
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
fn a_learner_is_the_same_after_it_was_put_away() {
    let mut run = Run::steady();
    for _ in 0..60 {
        run.step(100, window(50, 15, 50));
        assert_eq!(Learner::unpack(run.learner.pack()), run.learner);
    }
}
