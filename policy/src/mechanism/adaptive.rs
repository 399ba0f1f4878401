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

use self::sudden::SLICE_ANSWERS;
pub(crate) use self::words::WORDS;

mod sudden;
mod words;

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
    pub(crate) slice: Slice,
}

impl Window {
    /// None without an answer.
    fn mean_us(&self) -> Option<u32> {
        let mean = self.sum_us.checked_div(self.answers.into())?;
        Some(u32::try_from(mean).unwrap_or(u32::MAX).max(1))
    }

    /// Whether a limit of so many made a difference.
    fn uses(&self, limit: u32) -> bool {
        self.refused > 0 || self.peak.saturating_mul(2) >= limit
    }
}

/// The last few answers, so that what is sudden is noticed before a window ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Slice {
    pub(crate) sum_us: u64,
    pub(crate) answers: u32,
}

/// What a step has used up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Used {
    pub(crate) window: bool,
    pub(crate) slice: bool,
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

impl Phase {
    /// A lowered level is in force.
    fn probes(self) -> bool {
        match self {
            Self::Ramp | Self::Steady => false,
            Self::Drain | Self::Settle | Self::Measure => true,
        }
    }
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
    /// The level was lowered because answers took much longer of a sudden.
    sudden: bool,
    /// Something was refused in the last window.
    pressed: bool,
    reason: Reason,
    /// When this phase, or the present window, began.
    since_ns: u64,
    /// When the last probe ended.
    probed_ns: u64,
    /// When the present slice began.
    sliced_ns: u64,
    /// How far slices usually are from what was known before.
    noise_us: u32,
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
        if self.phase.probes() && !self.sudden { Reason::Probe } else { self.reason }
    }

    /// How long answers take: without a queue, and now.
    pub(crate) fn times(&self) -> (Duration, Duration) {
        let time = |us: u32| Duration::from_micros(us.into());
        (time(self.base_us), time(self.short_us))
    }

    /// Goes on to this time.
    pub(crate) fn step(&mut self, rule: &Rule, now_ns: u64, window: &Window) -> Used {
        let window_used = self.go_on(rule, now_ns, window);
        if self.phase.probes() {
            // What comes now was sent under another limit.
            if window_used {
                self.sliced_ns = now_ns;
            }
            return Used { window: window_used, slice: window_used };
        }
        if window_used || window.slice.answers < SLICE_ANSWERS {
            return Used { window: window_used, slice: false };
        }
        let lasted = now_ns.saturating_sub(self.sliced_ns);
        self.sliced_ns = now_ns;
        Used { window: self.notice(rule, now_ns, lasted, window), slice: true }
    }

    /// By whole windows. True when this one is used up.
    fn go_on(&mut self, rule: &Rule, now_ns: u64, window: &Window) -> bool {
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
                self.pressed = window.refused > 0;
                if self.wants_probe(rule, now_ns, window) {
                    self.prior_us = self.short_us;
                    self.lower(now_ns, self.limit / WHOLE / 2, rule);
                }
                true
            }
            Phase::Drain => {
                let patience = (4 * prior_ns).clamp(SETTLE_MIN_NS, SETTLE_MAX_NS);
                if window.busy > self.level && passed <= patience {
                    // How long the last of those before take is worth knowing.
                    return !self.sudden;
                }
                if self.sudden {
                    self.prior_us = self.prior_us.max(window.mean_us().unwrap_or(0));
                }
                (self.phase, self.since_ns) = (Phase::Settle, now_ns);
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
        let used = window.uses(limit);
        let Some(mean) = window.mean_us() else {
            if window.drops > 0 {
                self.shrink(rule, Reason::Timeouts);
            }
            return;
        };
        self.short_us = match self.short_us {
            0 => {
                // As RFC 6298 section 2.2 begins.
                self.noise_us = mean / 2;
                mean
            }
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
        if slower {
            self.fall_first(now_ns, short);
        }
        // No fall goes below what is being answered: of that, nothing queues.
        let least = flow.clamp(limit / 2, limit);
        let held = if slower { (limit * fair / short).max(least) } else { limit };
        let room = match self.phase {
            Phase::Ramp => limit / 2,
            Phase::Steady | Phase::Drain | Phase::Settle | Phase::Measure => {
                // Where nothing at all queues, there is more to give.
                let part = if short * 10 <= u64::from(self.base_us) * 11 { 4 } else { 8 };
                (limit / part).max(WHOLE.into())
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
        let Some(mean) = window.mean_us().filter(|_| window.answers >= MEASURED_MIN / 5) else {
            return self.resume(now_ns);
        };
        if self.sudden {
            return self.judge(rule, now_ns, mean);
        }
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
        self.sudden = false;
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
