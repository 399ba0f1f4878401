//! The conversation about everything that is not one request.

use core::time::Duration;

use crate::degrade::Switches;
use crate::health::{Probe, Sign};
use crate::ledger::BreakerKey;
use crate::plan::{EndpointKey, UpstreamKey};
use crate::shed::Shedding;
use crate::time::Instant;

pub use crate::mechanism::breaker::{Cause, Force, State, Thresholds, View};

/// News from outside.
#[derive(Clone, Copy, Debug)]
pub enum Signal<'a> {
    /// Time for housekeeping: every 20 ms or so, whether anything happened or not.
    Tick,
    /// The operator wants this of a breaker, until then; None: it judges for itself again. For
    /// the whole node, whichever worker is told.
    Force { breaker: BreakerKey, force: Option<(Force, Instant)> },
    /// Discovery: these endpoints, with these weights, are now the upstream.
    Members { upstream: UpstreamKey, endpoints: &'a [(EndpointKey, u32)] },
    /// An answer to [`Effect::Probe`], for the node's `Watch`.
    Probed { endpoint: EndpointKey, sign: Sign },
    /// These endpoints, and no others, are out by their health. The whole truth each time, so that
    /// a worker that missed one lacks nothing.
    Vitals { out: &'a [EndpointKey] },
    /// What operators have switched by hand. The whole truth each time.
    Switches(&'a Switches),
    /// How late this worker's loop came round. Before each tick.
    Pressure { lag: Duration },
}

/// Work the engine should do when it can. Never awaited by a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Ask a server how it is. Answered by [`Signal::Probed`].
    Probe(Probe),
    /// Requests wait for the keeper to ask its store: have it look now.
    Kick,
}

/// What a worker knows, for the console and the admin API. Plain data, made on request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    pub in_flight: u32,
    pub shedding: Shedding,
    /// Requests under way at each endpoint, from this worker.
    pub endpoints: Vec<(EndpointKey, u32)>,
}
