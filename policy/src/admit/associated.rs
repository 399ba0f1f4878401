//! A limit that counts only while another route is busy.

use serde::Deserialize;

use super::Ask;
use crate::ledger::Ledger;
use crate::mechanism::pulse::BEATS_MAX;
use crate::plan::{Route, stable_hash};
use crate::time::{Instant, nanos};
use crate::unit::Rate;

/// `while = { route = "pay", above = "500/s" }`
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct WhileSpec {
    /// The route that is watched, by name.
    pub route: String,
    /// It is busy when more requests than this come to it, over all workers.
    pub above: Rate,
}

/// A route's requests, as a limit watches them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Watched {
    pub(crate) key: u64,
    period_ns: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Association {
    pub(crate) watched: Watched,
    above: u64,
}

impl Association {
    pub(crate) fn compile(spec: &WhileSpec, problem: &mut impl FnMut(&str, String, &str)) -> Self {
        let (above, period) = (spec.above.tokens().get(), spec.above.period());
        if above >= BEATS_MAX {
            let hint = "write at most 4000000, by a shorter period if need be";
            problem(".while.above", format!("{above} cannot be counted"), hint);
        }
        if period.as_secs() == 0 || period.as_secs() > 3600 {
            let hint = "write it by the second, the minute or the hour";
            problem(".while.above", "out of bounds".to_owned(), hint);
        }
        let key = stable_hash(&["pulse", &spec.route, &period.as_nanos().to_string()]);
        Self { watched: Watched { key, period_ns: nanos(period) }, above }
    }

    /// Whether the route is busy now.
    pub(crate) fn holds(&self, ask: &Ask<'_>) -> bool {
        let Watched { key, period_ns } = self.watched;
        let pulse = ask.ledger.watching.pulses.find(key);
        pulse.is_some_and(|pulse| pulse.rate(ask.now.at.as_nanos(), period_ns) > self.above)
    }
}

/// A request has come to a route that a limit watches.
pub(crate) fn beat(ledger: &Ledger, route: &Route, now: Instant) {
    for Watched { key, period_ns } in &route.watched {
        if let Some(pulse) = ledger.watching.pulses.find(*key) {
            pulse.beat(now.as_nanos(), *period_ns);
        }
    }
}
