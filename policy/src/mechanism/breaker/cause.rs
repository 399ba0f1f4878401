//! Why a breaker opened, in one word, for people.

use core::fmt;

/// What it was that opened it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// So many of so many calls failed.
    Errors { bad: u32, total: u32 },
    /// So many of so many calls were slow.
    Slow { slow: u32, total: u32 },
    /// So many failures in a row.
    Streak(u32),
    /// Far fewer of its calls went well than of its peers', in parts per million.
    Outlier { good_ppm: u32, usual_ppm: u32 },
    /// A probe failed, was slow, or hung.
    Probe,
}

const BITS: u32 = 30;
const MASK: u64 = (1 << BITS) - 1;

impl Cause {
    /// Zero stands for none.
    pub(super) fn pack(self) -> u64 {
        let (kind, a, b) = match self {
            Self::Errors { bad, total } => (1, bad, total),
            Self::Slow { slow, total } => (2, slow, total),
            Self::Streak(count) => (3, count, 0),
            Self::Outlier { good_ppm, usual_ppm } => (4, good_ppm, usual_ppm),
            Self::Probe => (5, 0, 0),
        };
        let part = |n: u32| u64::from(n).min(MASK);
        kind << (2 * BITS) | part(a) << BITS | part(b)
    }

    pub(super) fn unpack(word: u64) -> Option<Self> {
        let (a, b) = ((word >> BITS & MASK) as u32, (word & MASK) as u32);
        match word >> (2 * BITS) {
            1 => Some(Self::Errors { bad: a, total: b }),
            2 => Some(Self::Slow { slow: a, total: b }),
            3 => Some(Self::Streak(a)),
            4 => Some(Self::Outlier { good_ppm: a, usual_ppm: b }),
            5 => Some(Self::Probe),
            _ => None,
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |ppm: u32| format!("{}.{}%", ppm / 10_000, ppm % 10_000 / 1000);
        match *self {
            Self::Errors { bad, total } => write!(f, "{bad} of {total} calls failed"),
            Self::Slow { slow, total } => write!(f, "{slow} of {total} calls were slow"),
            Self::Streak(1) => f.write_str("1 failure"),
            Self::Streak(count) => write!(f, "{count} failures in a row"),
            Self::Outlier { good_ppm, usual_ppm } => {
                let (good, usual) = (percent(good_ppm), percent(usual_ppm));
                write!(f, "{good} of its calls went well, of all servers' {usual}")
            }
            Self::Probe => f.write_str("a probe went badly"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_comes_out_as_it_went_in_and_reads_well() {
        for (cause, text) in [
            (Cause::Errors { bad: 12, total: 20 }, "12 of 20 calls failed"),
            (Cause::Slow { slow: 3, total: 4 }, "3 of 4 calls were slow"),
            (Cause::Streak(5), "5 failures in a row"),
            (
                Cause::Outlier { good_ppm: 801_234, usual_ppm: 1_000_000 },
                "80.1% of its calls went well, of all servers' 100.0%",
            ),
            (Cause::Probe, "a probe went badly"),
        ] {
            assert_eq!(Cause::unpack(cause.pack()), Some(cause));
            assert_eq!(cause.to_string(), text);
        }
        assert_eq!(Cause::unpack(0), None);
    }
}
