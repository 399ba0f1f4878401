//! Answers that take much longer of a sudden: half of the servers have gone, or everybody has come.
//!
//! A window is too long to wait for then: an origin that answers a thousand times a second has
//! kept a hundred waiting by its end. So a few answers at a time are compared with what was known
//! before, and when they take longer by more than they usually differ, the limit falls at once to
//! what is being answered. That is no more than a suspicion: the lowered level is measured, as a
//! probe's is. If answers now come sooner, it was a queue, and the level becomes the limit. If
//! not, nothing queued: the service is slower.

use super::{FIRST_NS, Learner, PROBE_SOON_NS, Phase, Reason, Rule, Slice, WHOLE, Window, blend};

/// Fewer say too little, and more come too late.
pub(super) const SLICE_ANSWERS: u32 = 24;
/// In percent of what answers take without a queue: below it, a window is soon enough.
const SUDDEN: u64 = 170;
/// In percent of what they took just before.
const LONGER: u64 = 125;
/// And longer by so many times of what slices usually differ by. RFC 6298 takes four, of single
/// times; here a false alarm costs goodput.
const DEVIATIONS: u64 = 6;
/// The lowest level is one part in so many of the limit: just after a service has become slower,
/// only what is quick has come back, and says little.
const FALL_MOST: u64 = 6;

impl Learner {
    /// Looks at a slice that lasted so long. True when the window ends with it.
    pub(super) fn notice(
        &mut self,
        rule: &Rule,
        now_ns: u64,
        lasted_ns: u64,
        window: &Window,
    ) -> bool {
        let Slice { sum_us, answers } = window.slice;
        let n = u64::from(answers);
        let Some(mean) = sum_us.checked_div(n) else { return false };
        let (base, short) = (u64::from(self.base_us), u64::from(self.short_us));
        if base == 0 || short == 0 {
            return false;
        }
        let (fair, limit) = (self.fair(), u64::from(self.limit));
        let sudden = window.uses(self.limit / WHOLE)
            && mean * 100 > base * SUDDEN
            && mean * 100 > short * LONGER
            && mean > short + DEVIATIONS * u64::from(self.noise_us);
        if !sudden {
            let differs = u32::try_from(mean.abs_diff(short)).unwrap_or(u32::MAX);
            self.noise_us = blend(self.noise_us, differs, 8);
            return false;
        }
        // Little's law: so many are under way without a queue.
        let flow = n * fair * 1_000 * u64::from(WHOLE) / lasted_ns.max(1);
        // While a queue still grows, more is under way than the answers tell of.
        let held = if self.pressed { limit * fair / mean } else { 0 };
        let next = flow.max(held).max(limit / FALL_MOST);
        if next >= limit {
            return false;
        }
        self.fall_first(now_ns, mean);
        self.prior_us = u32::try_from(mean).unwrap_or(u32::MAX);
        (self.sudden, self.reason) = (true, Reason::Latency);
        self.lower(now_ns, u32::try_from(next / u64::from(WHOLE)).unwrap_or(u32::MAX), rule);
        true
    }

    /// What answers take at the lowered level.
    pub(super) fn judge(&mut self, rule: &Rule, now_ns: u64, mean_us: u32) {
        self.sudden = false;
        let (fair, mean, prior) = (self.fair(), u64::from(mean_us), u64::from(self.prior_us));
        let level = self.level.saturating_mul(WHOLE);
        let queued = mean * 2 < prior + fair;
        let halved = level <= self.limit / 2;
        if queued {
            let fits = u64::from(level) * fair / mean.max(1);
            let fits = u32::try_from(fits).unwrap_or(u32::MAX);
            self.set(rule, fits.min(self.limit).max(level));
        } else if halved && mean * 5 >= prior * 4 {
            self.base_us = mean_us;
        } else {
            // Neither is plain: looked at once more, from here.
            self.prior_us = mean_us;
            return self.lower(now_ns, self.level / 2, rule);
        }
        self.short_us = mean_us;
        (self.phase, self.since_ns) = (Phase::Steady, now_ns);
    }

    /// The first fall: the first probe waits for what was let in before and still queues.
    pub(super) fn fall_first(&mut self, now_ns: u64, answer_us: u64) {
        if self.phase == Phase::Ramp {
            self.phase = Phase::Steady;
            let soon = PROBE_SOON_NS.max(50 * answer_us * 1_000);
            let first = FIRST_NS.max(2 * answer_us * 1_000);
            self.probed_ns = (now_ns + first).saturating_sub(soon).max(1);
        }
    }
}
