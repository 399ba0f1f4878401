//! How near the node is to its bounds, and what its upstreams' limits have learnt.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sluice_policy::shed::{Signal, gates, lag_pressure, pressure};

use crate::control::desk::Desk;
use crate::control::fleet::Fleet;
use crate::observe::exposition::Exposition;

#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OverloadStatus {
    /// Each signal as thousandths of its bound; 0 where it has none.
    pub(crate) pressure: BTreeMap<String, u64>,
    pub(crate) adaptive: Vec<AdaptiveStatus>,
}

/// The limit before an upstream.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AdaptiveStatus {
    pub(crate) upstream: String,
    pub(crate) limit: u32,
    pub(crate) in_flight: u32,
    /// Why it is what it is.
    pub(crate) reason: String,
    /// Until an answer's head: when nobody waits, and lately.
    pub(crate) unloaded_us: u64,
    pub(crate) lately_us: u64,
}

impl OverloadStatus {
    pub(crate) fn of(fleet: &Fleet) -> Self {
        let plan = &fleet.generation().config.plan;
        let lag = fleet.cells().iter().map(|cells| cells.shed.lag_us.value()).max().unwrap_or(0);
        let lag = (Signal::Lag, lag_pressure(plan, Duration::from_micros(lag)));
        let all = pressure(plan, fleet.ledger()).into_iter().chain([lag]);
        let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let adaptive = gates(plan, fleet.ledger()).map(|(upstream, view)| AdaptiveStatus {
            upstream: upstream.to_owned(),
            limit: view.limit,
            in_flight: view.busy,
            reason: view.reason.name().to_owned(),
            unloaded_us: us(view.base),
            lately_us: us(view.lately),
        });
        Self {
            pressure: all.map(|(signal, p)| (signal.name().to_owned(), p)).collect(),
            adaptive: adaptive.collect(),
        }
    }
}

pub(super) fn expose(text: &mut Exposition, desk: &Desk) {
    const PRESSURE: &str = "sluice_pressure_ratio";
    const LIMIT: &str = "sluice_adaptive_limit";
    const IN_FLIGHT: &str = "sluice_adaptive_in_flight";
    let status = OverloadStatus::of(&desk.fleet());
    text.family(PRESSURE, "gauge", "How near a signal is to its bound; shedding begins at 0.8.");
    for (signal, permille) in &status.pressure {
        let ratio = format!("{}.{:03}", permille / 1_000, permille % 1_000);
        text.sample(PRESSURE, &[("signal", signal)], ratio);
    }
    text.family(LIMIT, "gauge", "Requests that may be under way to the upstream at once.");
    for gate in &status.adaptive {
        text.sample(LIMIT, &[("upstream", &gate.upstream)], gate.limit);
    }
    text.family(IN_FLIGHT, "gauge", "Requests under way to the upstream, until their head.");
    for gate in &status.adaptive {
        text.sample(IN_FLIGHT, &[("upstream", &gate.upstream)], gate.in_flight);
    }
}
