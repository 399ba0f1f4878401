//! What a window has counted: when, and how much.

use crate::mechanism::calendar::Period;
use crate::time::Wall;

/// As the script's kinds `w` and `x` have it.
#[derive(Clone, Debug, Default)]
pub(super) struct Log(Vec<(i64, i64)>);

/// How a window notes, and for how long.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    /// What was spent within so many microseconds is noted as one; 0: in a month.
    pub(super) slot: i64,
    /// It counts for so much longer.
    pub(super) then: i64,
    /// A slot is noted at its beginning: the mistake of counting the present one as whole.
    pub(super) early: bool,
}

impl Span {
    fn noted(self, at: i64) -> i64 {
        match self {
            Self { early: true, slot, then } if then > 0 => at / slot * slot,
            Self { slot, then, .. } if then > 0 => (at + slot - 1) / slot * slot,
            Self { slot, .. } if slot > 0 => at / slot * slot + slot,
            Self { .. } => {
                let second = at / 1_000_000;
                let left = Period::Month.left(Wall(u64::try_from(second).unwrap_or(0)));
                (second + i64::try_from(left).unwrap_or(0)) * 1_000_000
            }
        }
    }
}

impl Log {
    pub(super) fn total(&self) -> i64 {
        self.0.iter().map(|(_, n)| n).sum()
    }

    pub(super) fn forget(&mut self, clock: i64, span: Span) {
        self.0.retain(|(stamp, _)| stamp + span.then > clock);
    }

    pub(super) fn note(&mut self, n: i64, at: i64, clock: i64, span: Span) {
        let stamp = span.noted(at);
        if n <= 0 || stamp + span.then <= clock {
            return;
        }
        match self.0.binary_search_by_key(&stamp, |(stamp, _)| *stamp) {
            Ok(found) => self.0[found].1 += n,
            Err(place) => self.0.insert(place, (stamp, n)),
        }
    }

    /// Microseconds until so much less is counted; None: it never is.
    pub(super) fn wait(&self, short: i64, clock: i64, span: Span) -> Option<i64> {
        let mut short = short;
        self.0.iter().find_map(|(stamp, n)| {
            short -= n;
            (short <= 0).then_some(stamp + span.then - clock)
        })
    }
}
