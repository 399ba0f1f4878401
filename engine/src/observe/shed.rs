//! What one worker shed, and why; how late its loop came round.

use std::sync::Arc;

use sluice_policy::flight::Record;
use sluice_policy::shed::{Priority, Signal, reason};

use super::cells::{Cell, Cells};
use super::exposition::{Exposition, seconds};

/// The gate of an upstream, then the node's own signals.
const REASONS: usize = 1 + Signal::ALL.len();
const ADAPTIVE: &str = "adaptive";

#[derive(Debug, Default)]
pub(crate) struct ShedCells {
    /// By reason, then by class.
    counts: [[Cell; Priority::ALL.len()]; REASONS],
    pub(crate) lag_us: Cell,
}

fn reasons() -> impl Iterator<Item = &'static str> {
    [ADAPTIVE].into_iter().chain(Signal::ALL.map(Signal::name))
}

impl ShedCells {
    pub(crate) fn count(&self, record: &Record) {
        let Some(reason) = record.answer.and_then(|answer| reason(answer.code)) else { return };
        let route = record.route.and_then(|id| record.plan().route(id));
        let priority = route.map(|route| route.priority).unwrap_or_default();
        let row = reasons().position(|known| known == reason);
        let class = Priority::ALL.iter().position(|known| *known == priority);
        let cell = row.zip(class).and_then(|(row, class)| self.counts.get(row)?.get(class));
        if let Some(cell) = cell {
            cell.add(1);
        }
    }
}

pub(crate) fn expose(text: &mut Exposition, workers: &[Arc<Cells>]) {
    const SHED: &str = "sluice_shed_total";
    const LAG: &str = "sluice_worker_lag_seconds";
    text.family(SHED, "counter", "Requests shed, by what was at its bound and their class.");
    for (row, reason) in reasons().enumerate() {
        for (class, priority) in Priority::ALL.into_iter().enumerate() {
            let n: u64 = workers.iter().map(|cells| cells.shed.counts[row][class].value()).sum();
            text.sample(SHED, &[("reason", reason), ("class", priority.name())], n);
        }
    }
    let lag = workers.iter().map(|cells| cells.shed.lag_us.value()).max().unwrap_or(0);
    text.single(LAG, "gauge", "How late the latest worker's loop came round.", seconds(lag));
}
