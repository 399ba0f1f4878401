//! How many requests an upstream may be given at once, learnt from how long it takes to answer.
//!
//! A gradient of two times, as in Netflix's Gradient2: what answers take now, against what they
//! take when nobody waits. Unlike there, the second is no long average, which a long overload
//! would teach to be patient. It is measured: while requests are being refused anyway, the limit
//! is halved for a moment, and again as long as that makes answers come sooner. What stays is
//! the time without a queue, and the last step that made no difference is where the queue begins.
//!
//! ```text
//! Ramp ──answers slow down──► Steady ──refuses, and it is time──► Drain ► Settle ► Measure
//!                               ▲                                   ▲                 │
//!                               └──────── no faster than before ────┼─────────────────┤
//!                                                                   └── faster: halve ┘
//! ```

use core::time::Duration;

/// What the operator says about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) min: u32,
    pub(crate) max: u32,
    pub(crate) initial: u32,
    /// Slower than this is too slow, whatever was measured.
    pub(crate) slow: Option<Duration>,
}

/// What happened since the last step that used one up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Window {
    /// Time until the head, over all answers.
    pub(crate) sum_us: u64,
    pub(crate) answers: u32,
    /// Requests that got none in time.
    pub(crate) drops: u32,
    /// Requests that were over the limit.
    pub(crate) refused: u32,
    /// The most under way at once.
    pub(crate) peak: u32,
    /// Under way now.
    pub(crate) busy: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    /// Nothing has slowed down yet: grows by half.
    #[default]
    Ramp,
    Steady,
    /// Until no more are under way than the lowered limit allows.
    Drain,
    /// Until what is under way was sent under the lowered limit.
    Settle,
    Measure,
}

/// Why the limit is what it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reason {
    /// As configured: nothing has been learnt yet.
    #[default]
    Initial,
    /// It was in use, and answers came as soon as ever.
    Grown,
    /// Answers take longer than they do without a queue.
    Latency,
    /// Answers took longer than the configured bound.
    Slow,
    /// Answers did not come in time.
    Timeouts,
    /// Lowered for a moment, to see how long answers take when nobody waits.
    Probe,
}

impl Reason {
    const ALL: [Self; 6] =
        [Self::Initial, Self::Grown, Self::Latency, Self::Slow, Self::Timeouts, Self::Probe];

    /// As the admin API calls it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Initial => "initial",
            Self::Grown => "grown",
            Self::Latency => "latency",
            Self::Slow => "slow",
            Self::Timeouts => "timeouts",
            Self::Probe => "probe",
        }
    }
}

/// Small and plain, so that a few atomics hold it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Learner {
    /// In parts of [`WHOLE`]; 0: not begun.
    limit: u32,
    /// While probing, the limit that is in force.
    level: u32,
    /// Without a queue; 0: not known.
    base_us: u32,
    /// Now, smoothed.
    short_us: u32,
    /// At the level above, while probing.
    prior_us: u32,
    /// The highest limit since the last probe.
    top: u32,
    phase: Phase,
    reason: Reason,
    /// When this phase, or the present window, began.
    since_ns: u64,
    /// When the last probe ended.
    probed_ns: u64,
}

/// A limit is kept in 256ths.
const WHOLE: u32 = 256;
/// A step a tenth of a second,
pub(crate) const PERIOD_NS: u64 = 100_000_000;
/// with at least so many answers, or after half a second whatever there is.
const ANSWERS_MIN: u32 = 30;
const PATIENCE_NS: u64 = 500_000_000;
/// Answers may take so much longer, in percent, than without a queue. What queues is what keeps
/// the servers busy between two answers.
const TOLERANCE: u64 = 130;
/// One probe in so long, or a hundred times an answer's time, whichever is longer.
const PROBE_EVERY_NS: u64 = 10_000_000_000;
/// But sooner when the limit has fallen by a third: maybe it is no queue, and answers just take
/// longer now.
const PROBE_SOON_NS: u64 = 5_000_000_000;
/// A phase of a probe takes at least a tick or two of the workers, and at most this.
const SETTLE_MIN_NS: u64 = 34_000_000;
const SETTLE_MAX_NS: u64 = 2_000_000_000;
const MEASURED_MIN: u32 = 50;
/// The first probe after a beginning: at least so late, or twice an answer's time.
const FIRST_NS: u64 = 200_000_000;
/// What was known before weighs as much as so many answers.
const KNOWN: u64 = 60;

impl Learner {
    /// The limit that is in force.
    pub(crate) fn limit(&self, rule: &Rule) -> u32 {
        let limit = match self.phase {
            Phase::Ramp | Phase::Steady => self.limit / WHOLE,
            Phase::Drain | Phase::Settle | Phase::Measure => self.level,
        };
        if self.limit == 0 { rule.initial } else { limit.clamp(rule.min, rule.max) }
    }

    pub(crate) fn reason(&self) -> Reason {
        match self.phase {
            Phase::Ramp | Phase::Steady => self.reason,
            Phase::Drain | Phase::Settle | Phase::Measure => Reason::Probe,
        }
    }

    /// How long answers take: without a queue, and now.
    pub(crate) fn times(&self) -> (Duration, Duration) {
        let time = |us: u32| Duration::from_micros(us.into());
        (time(self.base_us), time(self.short_us))
    }

    /// Goes on to this time. True when the window is used up.
    pub(crate) fn step(&mut self, rule: &Rule, now_ns: u64, window: &Window) -> bool {
        if self.limit == 0 {
            *self = Self { limit: rule.initial * WHOLE, since_ns: now_ns, ..Self::default() };
            return true;
        }
        if self.probed_ns == 0 && now_ns >= self.since_ns + PERIOD_NS {
            // What comes back first is what was quick: it is no measure.
            (self.since_ns, self.probed_ns) = (now_ns, 1);
            return true;
        }
        let passed = now_ns.saturating_sub(self.since_ns);
        let prior_ns = u64::from(self.prior_us) * 1_000;
        match self.phase {
            Phase::Ramp | Phase::Steady => {
                let few = window.answers + window.drops < ANSWERS_MIN && passed < PATIENCE_NS;
                if passed < PERIOD_NS || few {
                    return false;
                }
                self.since_ns = now_ns;
                self.learn(rule, now_ns, passed, window);
                if self.wants_probe(rule, now_ns, window) {
                    self.prior_us = self.short_us;
                    self.lower(now_ns, self.limit / WHOLE / 2, rule);
                }
                true
            }
            Phase::Drain => {
                let patience = (4 * prior_ns).clamp(SETTLE_MIN_NS, SETTLE_MAX_NS);
                if window.busy <= self.level || passed > patience {
                    (self.phase, self.since_ns) = (Phase::Settle, now_ns);
                }
                true
            }
            Phase::Settle => {
                if passed >= prior_ns.clamp(SETTLE_MIN_NS, SETTLE_MAX_NS) {
                    (self.phase, self.since_ns) = (Phase::Measure, now_ns);
                }
                true
            }
            Phase::Measure => {
                let enough = passed >= (2 * prior_ns).clamp(SETTLE_MIN_NS, SETTLE_MAX_NS)
                    && window.answers >= MEASURED_MIN;
                let over = passed >= (8 * prior_ns).clamp(PERIOD_NS, 2 * SETTLE_MAX_NS);
                if enough || over {
                    self.measured(rule, now_ns, window);
                }
                enough || over
            }
        }
    }

    /// What a window of ordinary traffic says, that lasted so long.
    fn learn(&mut self, rule: &Rule, now_ns: u64, lasted_ns: u64, window: &Window) {
        let limit = self.limit / WHOLE;
        let used = window.refused > 0 || window.peak.saturating_mul(2) >= limit;
        let Some(mean) = window.sum_us.checked_div(window.answers.into()) else {
            if window.drops > 0 {
                self.shrink(rule, Reason::Timeouts);
            }
            return;
        };
        let mean = u32::try_from(mean).unwrap_or(u32::MAX).max(1);
        self.short_us = match self.short_us {
            0 => mean,
            // Many answers are soon believed, and few by and by.
            short => weigh(short, KNOWN, mean, window.answers.into()),
        };
        let fair = self.fair();
        if self.base_us == 0 || limit <= rule.min {
            // At the least, nothing of ours queues.
            self.base_us = if self.base_us == 0 { mean } else { blend(self.base_us, mean, 2) };
        } else if !used {
            self.base_us = blend(self.base_us, self.short_us, 16);
        } else if self.short_us < self.base_us
            || (self.phase == Phase::Ramp && u64::from(self.short_us) <= fair)
        {
            self.base_us = blend(self.base_us, self.short_us, 8);
        }
        if window.drops.saturating_mul(50) > window.answers {
            return self.shrink(rule, Reason::Timeouts);
        }
        let short = Duration::from_micros(self.short_us.into());
        if rule.slow.is_some_and(|slow| short > slow) {
            return self.shrink(rule, Reason::Slow);
        }
        if used {
            let fair_ns = self.fair() * 1_000;
            let flow = u64::from(window.answers) * fair_ns * u64::from(WHOLE) / lasted_ns.max(1);
            self.follow(rule, now_ns, flow);
        }
    }

    /// The gradient. `flow`: what was answered would have been under way, in 256ths, had each
    /// answer taken what is fair.
    fn follow(&mut self, rule: &Rule, now_ns: u64, flow: u64) {
        let limit = u64::from(self.limit);
        let (fair, short) = (self.fair(), u64::from(self.short_us).max(1));
        let slower = short > fair;
        if slower && self.phase == Phase::Ramp {
            self.phase = Phase::Steady;
            // What was let in before still queues: the first probe waits for it.
            let answer_ns = u64::from(self.short_us) * 1_000;
            let soon = PROBE_SOON_NS.max(50 * answer_ns);
            self.probed_ns = (now_ns + FIRST_NS.max(2 * answer_ns)).saturating_sub(soon).max(1);
        }
        // No fall goes below what is being answered: of that, nothing queues.
        let least = flow.clamp(limit / 2, limit);
        let held = if slower { (limit * fair / short).max(least) } else { limit };
        let room = match self.phase {
            Phase::Ramp => limit / 2,
            Phase::Steady | Phase::Drain | Phase::Settle | Phase::Measure => {
                (limit / 8).max(WHOLE.into())
            }
        };
        let next = held + room;
        let before = self.limit;
        // Down at once, up by and by.
        let next = if next < limit { next } else { limit + (next - limit) / 2 };
        self.set(rule, u32::try_from(next).unwrap_or(u32::MAX));
        if self.limit != before {
            self.reason = if self.limit < before { Reason::Latency } else { Reason::Grown };
        }
    }

    /// What answers may take before it counts as a queue.
    fn fair(&self) -> u64 {
        u64::from(self.base_us) * TOLERANCE / 100
    }

    fn wants_probe(&self, rule: &Rule, now_ns: u64, window: &Window) -> bool {
        let since = now_ns.saturating_sub(self.probed_ns);
        let answer_ns = u64::from(self.short_us) * 1_000;
        let (every, soon) =
            (PROBE_EVERY_NS.max(100 * answer_ns), PROBE_SOON_NS.max(50 * answer_ns));
        let fallen = u64::from(self.limit) * 3 < u64::from(self.top) * 2;
        self.phase == Phase::Steady
            && window.refused.saturating_mul(8) > window.answers
            && self.limit / WHOLE > rule.min
            && (since >= every || (fallen && since >= soon))
    }

    /// The next level of a probe.
    fn lower(&mut self, now_ns: u64, level: u32, rule: &Rule) {
        self.level = level.max(rule.min);
        (self.phase, self.since_ns) = (Phase::Drain, now_ns);
    }

    /// What came of a level.
    fn measured(&mut self, rule: &Rule, now_ns: u64, window: &Window) {
        let mean = window.sum_us.checked_div(window.answers.into());
        let Some(mean) = mean.filter(|_| window.answers >= MEASURED_MIN / 5) else {
            return self.resume(now_ns);
        };
        let mean = u32::try_from(mean).unwrap_or(u32::MAX).max(1);
        let faster = u64::from(mean) * 5 < u64::from(self.prior_us) * 4;
        let known = self.base_us > 0 && u64::from(mean) * 100 <= u64::from(self.base_us) * 105;
        if faster && !known && self.level > rule.min {
            self.prior_us = mean;
            return self.lower(now_ns, self.level / 2, rule);
        }
        let near = |a: u32, b: u32| u64::from(a) * 10 <= u64::from(b) * 13;
        if near(mean, self.base_us) && near(self.base_us, mean) {
            self.base_us = blend(self.base_us, mean, 2);
        } else {
            let slower = mean > self.base_us;
            self.base_us = mean;
            if slower && !faster {
                // It was no queue that made it slow: what was taken for one is given back.
                self.limit = self.top;
            }
        }
        self.short_us = self.base_us;
        self.resume(now_ns);
    }

    fn resume(&mut self, now_ns: u64) {
        (self.phase, self.since_ns, self.probed_ns) = (Phase::Steady, now_ns, now_ns);
        self.top = self.limit;
    }

    fn shrink(&mut self, rule: &Rule, reason: Reason) {
        self.set(rule, self.limit / 10 * 9);
        (self.phase, self.reason) = (Phase::Steady, reason);
    }

    fn set(&mut self, rule: &Rule, limit: u32) {
        self.limit = limit.clamp(rule.min * WHOLE, rule.max * WHOLE);
        self.top = self.top.max(self.limit);
    }

    /// As words, for [`Learner::unpack`].
    pub(crate) fn pack(&self) -> [u64; 6] {
        let two = |a: u32, b: u32| u64::from(a) << 32 | u64::from(b);
        let phase = match self.phase {
            Phase::Ramp => 0,
            Phase::Steady => 1,
            Phase::Drain => 2,
            Phase::Settle => 3,
            Phase::Measure => 4,
        };
        [
            two(self.limit, self.level),
            two(self.base_us, self.short_us),
            two(self.prior_us, self.top),
            phase << 8 | self.reason as u64,
            self.since_ns,
            self.probed_ns,
        ]
    }

    #[expect(clippy::cast_possible_truncation, reason = "halves of words")]
    pub(crate) fn unpack(words: [u64; 6]) -> Self {
        let two = |word: u64| ((word >> 32) as u32, word as u32);
        let (limit, level) = two(words[0]);
        let (base_us, short_us) = two(words[1]);
        let (prior_us, top) = two(words[2]);
        let phase = match words[3] >> 8 {
            0 => Phase::Ramp,
            2 => Phase::Drain,
            3 => Phase::Settle,
            4 => Phase::Measure,
            _ => Phase::Steady,
        };
        let reason = Reason::ALL.get((words[3] & 0xff) as usize).copied().unwrap_or_default();
        let (since_ns, probed_ns) = (words[4], words[5]);
        Self { limit, level, base_us, short_us, prior_us, top, phase, reason, since_ns, probed_ns }
    }
}

/// A step of one part in `share` from the old to the new.
fn blend(old: u32, new: u32, share: u64) -> u32 {
    weigh(old, share - 1, new, 1)
}

/// The mean of the two, each with its weight.
fn weigh(old: u32, old_weight: u64, new: u32, new_weight: u64) -> u32 {
    let sum = u64::from(old) * old_weight + u64::from(new) * new_weight;
    u32::try_from(sum / (old_weight + new_weight)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
