//! What one worker shed, and why; how late its loop came round.

use std::sync::Arc;

use sluice_policy::flight::Record;

use super::cells::{Cell, Cells};
use super::exposition::{Exposition, seconds};

/// The gate of an upstream, then the node's own signals, as policy calls them.
const REASONS: [&str; 5] = ["adaptive", "lag", "in_flight", "cpu", "load"];
const CLASSES: [&str; 4] = ["critical", "high", "normal", "low"];

#[derive(Debug, Default)]
pub(crate) struct ShedCells {
    /// By reason, then by class.
    counts: [[Cell; CLASSES.len()]; REASONS.len()],
    pub(crate) lag_us: Cell,
}

impl ShedCells {
    pub(crate) fn count(&self, record: &Record) {
        let Some((reason, class)) = record.shed() else { return };
        let row = REASONS.iter().position(|known| *known == reason);
        let class = CLASSES.iter().position(|known| *known == class);
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
    for (row, reason) in REASONS.into_iter().enumerate() {
        for (class, name) in CLASSES.into_iter().enumerate() {
            let n: u64 = workers.iter().map(|cells| cells.shed.counts[row][class].value()).sum();
            text.sample(SHED, &[("reason", reason), ("class", name)], n);
        }
    }
    let lag = workers.iter().map(|cells| cells.shed.lag_us.value()).max().unwrap_or(0);
    text.single(LAG, "gauge", "How late the latest worker's loop came round.", seconds(lag));
}
