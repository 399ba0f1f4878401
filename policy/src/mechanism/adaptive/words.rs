//! A learner put away in a few words, which a node keeps in atomics.

use super::{Learner, Phase, Reason};

pub(crate) const WORDS: usize = 8;

impl Learner {
    /// As words, for [`Learner::unpack`].
    pub(crate) fn pack(&self) -> [u64; WORDS] {
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
            u64::from(self.pressed) << 17
                | u64::from(self.sudden) << 16
                | phase << 8
                | self.reason as u64,
            self.since_ns,
            self.probed_ns,
            self.sliced_ns,
            self.noise_us.into(),
        ]
    }

    #[expect(clippy::cast_possible_truncation, reason = "halves of words")]
    pub(crate) fn unpack(words: [u64; WORDS]) -> Self {
        let two = |word: u64| ((word >> 32) as u32, word as u32);
        let (limit, level) = two(words[0]);
        let (base_us, short_us) = two(words[1]);
        let (prior_us, top) = two(words[2]);
        let phase = match words[3] >> 8 & 0xff {
            0 => Phase::Ramp,
            2 => Phase::Drain,
            3 => Phase::Settle,
            4 => Phase::Measure,
            _ => Phase::Steady,
        };
        let reason = Reason::ALL.get((words[3] & 0xff) as usize).copied().unwrap_or_default();
        let (since_ns, probed_ns, sliced_ns) = (words[4], words[5], words[6]);
        Self {
            limit,
            level,
            base_us,
            short_us,
            prior_us,
            top,
            phase,
            sudden: words[3] >> 16 & 1 != 0,
            pressed: words[3] >> 17 != 0,
            reason,
            since_ns,
            probed_ns,
            sliced_ns,
            noise_us: words[7] as u32,
        }
    }
}
