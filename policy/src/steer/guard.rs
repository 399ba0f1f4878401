//! Breakers of upstreams and endpoints, as one worker holds them.

use core::sync::atomic::AtomicU32;
use core::time::Duration;
use std::rc::Rc;
use std::sync::Arc;

use crate::decision::Failure;
use crate::draft::breaker::Failures;
use crate::draft::retry::BUDGET_FLOOR;
use crate::facts::Body;
use crate::ledger::boards::{BoardId, Boards};
use crate::mechanism::breaker::{Board, Outcome, Permit, Rule};
use crate::mechanism::window::{BUCKETS, Counts, Era, Local};
use crate::shed::gate::Seat;
use crate::time::Instant;
use crate::unit::Ratio;

/// A budget looks back ten seconds.
const BUDGET_BUCKET_NS: u64 = 1_000_000_000;

const HEDGE_ONE_IN: u32 = 20;

/// What an upstream's plan says about failing.
#[derive(Debug, Default)]
pub(crate) struct Resilience {
    pub(crate) breaker: Option<Breaker>,
    pub(crate) eject: Option<Eject>,
}

#[derive(Clone, Debug)]
pub(crate) struct Breaker {
    pub(crate) rule: Rule,
    pub(crate) failures: Failures,
}

#[derive(Clone, Debug)]
pub(crate) struct Eject {
    pub(crate) breaker: Breaker,
    /// The most endpoints that are out at once, as a number of them.
    pub(crate) out_max: usize,
    /// Those that fail far oftener than others are, too.
    pub(crate) outliers: bool,
    pub(crate) panic: Ratio,
}

/// One worker's hold on one breaker.
#[derive(Debug)]
pub(crate) struct Guard {
    boards: Arc<Boards>,
    id: BoardId,
    pub(crate) local: Local,
    /// Requests that the node's budget does not know of yet.
    asked: Local,
}

impl Guard {
    /// None when there is no room for its board.
    pub(crate) fn new(boards: &Arc<Boards>, key: u64) -> Option<Rc<Self>> {
        let id = boards.place(key)?;
        Some(Rc::new(Self {
            boards: Arc::clone(boards),
            id,
            local: Local::default(),
            asked: Local::default(),
        }))
    }

    pub(crate) fn board(&self) -> &Board {
        self.boards.at(self.id)
    }

    /// Requests under way over all workers, where they are counted.
    pub(crate) fn load(&self) -> &AtomicU32 {
        self.boards.load(self.id)
    }

    /// One more request, of which a part may be retried.
    pub(crate) fn asked(&self, now: Instant) {
        self.asked.good(self.boards.budget(self.id), Era::FIRST, now, BUDGET_BUCKET_NS);
    }

    /// Whether one more retry is within the budget; if so, it is spent. Workers that ask at the
    /// same instant may go over it by one each.
    pub(crate) fn spend(&self, now: Instant, budget: Ratio) -> bool {
        let window = self.boards.budget(self.id);
        self.asked.hand_over(window);
        let bucket = now.as_nanos() / BUDGET_BUCKET_NS;
        let Counts { total, bad, .. } = window.sum(Era::FIRST, bucket);
        let most =
            u64::from(total) * u64::from(budget.0) / 1_000_000 + BUDGET_FLOOR * u64::from(BUCKETS);
        let within = u64::from(bad) < most;
        if within {
            window.add(Era::FIRST, bucket, Counts { total: 0, bad: 1, slow: 0 });
        }
        within
    }

    /// As [`Self::spend`], for a hedge: besides, only one request in twenty is hedged.
    pub(crate) fn hedge(&self, now: Instant, budget: Ratio) -> bool {
        let window = self.boards.budget(self.id);
        self.asked.hand_over(window);
        let bucket = now.as_nanos() / BUDGET_BUCKET_NS;
        let Counts { total, slow: hedges, .. } = window.sum(Era::FIRST, bucket);
        let within = (hedges + 1) * HEDGE_ONE_IN <= total && self.spend(now, budget);
        if within {
            window.add(Era::FIRST, bucket, Counts { total: 0, bad: 0, slow: 1 });
        }
        within
    }

    /// Hands the requests over that were counted here.
    pub(crate) fn tick(&self) {
        self.asked.hand_over(self.boards.budget(self.id));
    }
}

/// What an attempt holds of the gate and the breakers around it.
#[derive(Debug, Default)]
pub(crate) struct Permits {
    /// At the upstream's gate.
    pub(crate) seat: Option<Seat>,
    pub(crate) upstream: Option<Permit>,
    pub(crate) endpoint: Option<Permit>,
}

impl Permits {
    /// The eras they were given in: to take a judgement back.
    pub(crate) fn eras(&self) -> [Option<Era>; 2] {
        [&self.upstream, &self.endpoint].map(|permit| permit.as_ref().map(|permit| permit.era))
    }
}

/// What an attempt came to, before anybody judges it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Responded {
        status: u16,
        took: Duration,
        timed: bool,
    },
    Failed(Failure),
    /// Another attempt answered first; this one had taken so long by then.
    Overtaken {
        took: Duration,
    },
    /// The client left, or it was never tried.
    Nothing,
}

impl Breaker {
    pub(crate) fn outcome(&self, board: &Board, verdict: Verdict, now: Instant) -> Outcome {
        match verdict {
            Verdict::Responded { status, took, timed } => {
                let slow = board.slow(&self.rule, now);
                let slow = timed && slow.is_some_and(|slow| took > slow);
                match (self.failures.status(status), slow) {
                    (true, _) => Outcome::Bad,
                    (false, true) => Outcome::Slow,
                    (false, false) => Outcome::Good,
                }
            }
            Verdict::Failed(failure) => match self.failures.failed(failure) {
                Some(true) => Outcome::Bad,
                // What the operator does not count, and what is not about the server.
                Some(false) | None => Outcome::Unknown,
            },
            Verdict::Overtaken { took } => {
                match self.rule.slow.is_some_and(|(slow, _)| took > slow) {
                    true => Outcome::Slow,
                    false => Outcome::Unknown,
                }
            }
            Verdict::Nothing => Outcome::Unknown,
        }
    }
}

/// Whether the time until the response's head is the server's: a body that is long, or comes as
/// the client pleases, is not.
pub(crate) fn timed(body: Body) -> bool {
    match body {
        Body::Empty => true,
        Body::Length(bytes) => bytes <= 64 << 10,
        Body::Unknown => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draft::breaker::BreakerSpec;
    use crate::unit::Span;

    #[test]
    fn who_was_overtaken_was_slow_when_he_had_been_for_long() {
        let spec =
            BreakerSpec { slow: Some(Span(Duration::from_millis(500))), ..BreakerSpec::default() };
        let (rule, failures) = spec.compile("b", &mut Vec::new());
        let breaker = Breaker { rule, failures };
        let outcome = |ms| {
            let took = Duration::from_millis(ms);
            breaker.outcome(&Board::default(), Verdict::Overtaken { took }, Instant::default())
        };
        assert_eq!((outcome(500), outcome(501)), (Outcome::Unknown, Outcome::Slow));
    }
}
