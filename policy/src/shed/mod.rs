//! What is given up when there is too much: the limit before an upstream that learns, and what the
//! node sheds for its own sake.

pub mod adaptive;
pub(crate) mod gate;
pub(crate) mod node;
pub mod spec;
pub(crate) mod tenant;

use core::time::Duration;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use serde::Deserialize;

use crate::decision::Answer;
use crate::ledger::Ledger;
use crate::ledger::places::Places;
use crate::plan::{Plan, UpstreamId, UpstreamKey};
use crate::shed::gate::{Gate, Hold, Seat};

pub use crate::mechanism::adaptive::Reason;
pub use crate::shed::gate::View;
pub use crate::shed::node::Signal;
use crate::shed::node::Watcher;
use crate::time::{Instant, nanos};

/// Upstreams of a process that ever had a limit that learns.
pub(crate) const GATES_MAX: usize = 1024;
/// What a client that was shed is told to wait.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// What is given up last, and first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Priority {
    /// Never shed for the node's sake: health, log-in, payment.
    Critical,
    /// Shed when the node is at its bounds.
    High,
    /// Shed from 90% on.
    #[default]
    Normal,
    /// Shed from 80% on: prefetching, reports, crawlers.
    Low,
}

impl Priority {
    pub const ALL: [Self; 4] = [Self::Critical, Self::High, Self::Normal, Self::Low];

    /// As configurations and metrics call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Critical => "critical",
            Self::High => "high",
            Self::Normal => "normal",
            Self::Low => "low",
        }
    }

    /// What it counts as when somebody has too much.
    pub(crate) const fn lower(self) -> Self {
        match self {
            Self::Critical => Self::High,
            Self::High => Self::Normal,
            Self::Normal | Self::Low => Self::Low,
        }
    }

    /// How much of a limit it may fill: what is left is for those above it.
    pub(crate) fn share_of(self, limit: u32) -> u32 {
        let percent = match self {
            Self::Critical => 100,
            Self::High => 95,
            Self::Normal => 90,
            Self::Low => 80,
        };
        let share = (u64::from(limit) * percent).div_ceil(100);
        u32::try_from(share).unwrap_or(u32::MAX)
    }
}

/// One worker's part in shedding.
#[derive(Debug)]
pub(crate) struct Shed {
    gates: Arc<Places<Gate>>,
    holds: BTreeMap<UpstreamKey, Rc<Hold>>,
    watcher: Watcher,
}

/// What one worker sheds for the node's sake.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shedding {
    /// How late its loop comes round.
    pub lag: Duration,
    /// The share of each class that it sheds, in thousandths.
    pub shares: Vec<(Priority, u32)>,
}

impl Shed {
    pub(crate) fn new(ledger: &Ledger, plan: &Plan, seed: u64) -> Self {
        let mut shed = Self {
            gates: Arc::clone(&ledger.gates),
            holds: BTreeMap::new(),
            watcher: Watcher::new(seed),
        };
        shed.adopt(plan);
        shed
    }

    /// Seats that are taken keep their gate, whatever the plan.
    pub(crate) fn adopt(&mut self, plan: &Plan) {
        let before = core::mem::take(&mut self.holds);
        for upstream in plan.upstreams().iter().filter(|upstream| upstream.adaptive.is_some()) {
            let hold = before.get(&upstream.key).map(Rc::clone);
            let hold = hold.or_else(|| Hold::new(&self.gates, upstream.key.0));
            self.holds.extend(hold.map(|hold| (upstream.key, hold)));
        }
    }

    /// What the node answers for its own sake, before anything else is looked at.
    pub(crate) fn verdict(
        &mut self,
        ledger: &Ledger,
        plan: &Plan,
        in_flight: u32,
        priority: Priority,
    ) -> Option<Answer> {
        let signal = self.watcher.sheds(&plan.shed, &ledger.gauges, in_flight, priority)?;
        Some(refusal(signal.code()))
    }

    pub(crate) fn lagged(&mut self, lag: Duration) {
        self.watcher.lagged(lag);
    }

    pub(crate) fn retire(&mut self, ledger: &Ledger) {
        self.watcher.retire(&ledger.gauges);
    }

    pub(crate) fn shedding(&self) -> Shedding {
        Shedding { lag: self.watcher.lag(), shares: self.watcher.shares().collect() }
    }

    /// Leave of the upstream's gate; `Ok(None)` when it has none.
    pub(crate) fn enter(
        &self,
        plan: &Plan,
        id: UpstreamId,
        priority: Priority,
    ) -> Result<Option<Seat>, Answer> {
        let Some(upstream) = plan.upstream(id) else { return Ok(None) };
        let Some(rule) = &upstream.adaptive else { return Ok(None) };
        // A flight of an older plan may know a gate that this one has not.
        let Some(hold) = self.holds.get(&upstream.key) else { return Ok(None) };
        match hold.enter(rule, priority) {
            Some(seat) => Ok(Some(seat)),
            None => Err(refusal("upstream.shed")),
        }
    }

    pub(crate) fn tick(&mut self, ledger: &Ledger, plan: &Plan, now: Instant, in_flight: u32) {
        self.watcher.tick(&plan.shed, &ledger.gauges, in_flight);
        for upstream in plan.upstreams() {
            if let (Some(rule), Some(hold)) = (&upstream.adaptive, self.holds.get(&upstream.key)) {
                hold.tick(rule, now);
            }
        }
    }
}

impl Ledger {
    /// How busy the machine is: its processors in thousandths, and its load average over a minute,
    /// in thousandths too. Once a second or so.
    pub fn weigh(&self, cpu_permille: u32, load_permille: u32) {
        self.gauges.weigh(cpu_permille, load_permille);
    }

    /// Requests in progress over all workers, a tick ago.
    pub fn in_flight(&self) -> u32 {
        self.gauges.in_flight()
    }
}

/// Whether anything is shed by what [`Ledger::weigh`] is told.
pub fn is_weighed(plan: &Plan) -> bool {
    plan.shed.cpu_permille.is_some() || plan.shed.load.is_some()
}

/// How the gates before upstreams stand, for operators.
pub fn gates<'a>(plan: &'a Plan, ledger: &Ledger) -> impl Iterator<Item = (&'a str, View)> {
    plan.upstreams().iter().filter_map(|upstream| {
        let rule = upstream.adaptive.as_ref()?;
        let gate = ledger.gates.find(upstream.key.0)?;
        Some((upstream.name.as_str(), gate.view(rule)))
    })
}

/// How near the node is to its bounds, in thousandths, by what is measured for all workers.
pub fn pressure(plan: &Plan, ledger: &Ledger) -> [(Signal, u64); 3] {
    [Signal::InFlight, Signal::Cpu, Signal::Load]
        .map(|signal| (signal, ledger.gauges.pressure(&plan.shed, signal)))
}

/// The same of a worker's lag.
pub fn lag_pressure(plan: &Plan, lag: Duration) -> u64 {
    plan.shed.lag.map_or(0, |bound| nanos(lag) * 1_000 / nanos(bound).max(1))
}

/// What shed a request, by the code of its answer: a signal's name, or `adaptive`.
pub(crate) fn reason(code: &str) -> Option<&'static str> {
    if code == "upstream.shed" {
        return Some("adaptive");
    }
    Signal::ALL.into_iter().find(|signal| signal.code() == code).map(Signal::name)
}

fn refusal(code: &'static str) -> Answer {
    Answer { retry_after: Some(RETRY_AFTER), ..Answer::problem(503, code) }
}
