//! What a run saw: latencies, statuses, failures by kind.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::cpu::Scheduled;
use crate::histogram::Latencies;

/// Why a request had no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Failure {
    /// No connection could be made.
    Connect,
    /// The connection broke with an error.
    Reset,
    /// The connection ended before the answer did.
    Closed,
    /// The answer was not HTTP/1.1, or more than was asked for.
    Malformed,
    /// No whole answer within the timeout.
    Timeout,
    /// Sent, and not answered by the end of the grace time.
    Unanswered,
    /// Due, and no connection was free for it before the grace time ended.
    Unsent,
}

impl Failure {
    pub fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Reset => "reset",
            Self::Closed => "closed",
            Self::Malformed => "malformed",
            Self::Timeout => "timeout",
            Self::Unanswered => "unanswered",
            Self::Unsent => "unsent",
        }
    }
}

/// Everything that was counted, for requests that were due in the measured window.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// From when a request was due. Those that timed out or were never answered are in here with
    /// the age at which they were given up: leaving them out would flatter the target.
    pub latency: Latencies,
    /// From when a request was sent: what a load without a schedule would have reported.
    pub service: Latencies,
    pub statuses: BTreeMap<u16, u64>,
    pub failures: BTreeMap<Failure, u64>,
    /// Whole answers to requests that were due in the window, whenever they came.
    pub answered: u64,
    /// Whole answers that came within the window; what requests a second are made of.
    pub in_window: u64,
    pub body_bytes: u64,
    /// All bytes that were sent and received within the window, of answers and requests that
    /// began or ended outside of it too.
    pub moved_bytes: u64,
    pub window: Duration,
    /// What the load's thread had and lacked of its CPU in the window, without looking in vain.
    pub load_cpu: Scheduled,
    /// What came of each request, in the order of their ends; empty unless asked for.
    pub ends: Vec<End>,
}

/// What came of one request. Times count from the beginning of the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    pub due: Duration,
    pub ended: Duration,
    /// The status of a whole answer, or why there is none.
    pub came: Result<u16, Failure>,
}

impl Outcome {
    pub fn requests_per_second(&self) -> f64 {
        per(self.in_window, self.window)
    }

    pub fn failed(&self) -> u64 {
        self.failures.values().sum()
    }

    /// Share of the window in which the load's thread was on a CPU.
    pub fn load_share(&self) -> f64 {
        if self.window.is_zero() {
            0.0
        } else {
            self.load_cpu.ran.as_secs_f64() / self.window.as_secs_f64()
        }
    }

    pub(super) fn fail(&mut self, failure: Failure) {
        *self.failures.entry(failure).or_default() += 1;
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of a bounded run fit a double's 53 bits")]
fn per(count: u64, window: Duration) -> f64 {
    if window.is_zero() { 0.0 } else { count as f64 / window.as_secs_f64() }
}
