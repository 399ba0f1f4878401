//! Decides; never does.
//!
//! No IO, no clock, no threads, no randomness of its own, and no panic on any input. A request is
//! a [`Flight`]: [`Policy::begin`] opens it, [`Policy::decide`] is told each [`Event`] and returns
//! the [`Decision`] to carry out, [`Policy::end`] closes it.

#![forbid(unsafe_code)]

pub mod admit;
pub mod decision;
pub mod draft;
pub mod facts;
pub mod flight;
pub mod ledger;
pub mod plan;
pub mod time;
pub mod unit;
pub mod world;

use std::sync::Arc;

use crate::decision::{Decision, Event};
use crate::facts::Facts;
use crate::flight::{Ending, Flight, Record};
use crate::ledger::Ledger;
use crate::plan::Plan;
use crate::time::{Instant, Now};
use crate::world::{Effect, Signal, Snapshot};

/// One worker's judgement: the shared plan and this worker's own memory.
#[derive(Debug)]
pub struct Policy {}

impl Policy {
    /// `seed` feeds the dice (balancing, jitter): the same seed and the same events give the same
    /// decisions.
    pub fn new(_plan: Arc<Plan>, _ledger: Arc<Ledger>, _seed: u64) -> Self {
        todo!()
    }

    /// Judge new flights by this plan. What was learnt under the old one stays.
    pub fn adopt(&mut self, _plan: Arc<Plan>) {
        todo!()
    }

    /// Open a flight for a request whose head has been read. First event: `Arrived`.
    pub fn begin(&mut self, _now: Now, _facts: &Facts<'_>) -> Flight {
        todo!()
    }

    /// What to do next with this request.
    pub fn decide(
        &mut self,
        _now: Now,
        _facts: &Facts<'_>,
        _flight: &mut Flight,
        _event: Event,
    ) -> Decision {
        todo!()
    }

    /// The request is over, whichever way. Takes the flight, so no permit can leak.
    pub fn end(&mut self, _now: Now, _flight: Flight, _ending: Ending) -> Record {
        todo!()
    }

    /// News from outside.
    pub fn signal(&mut self, _now: Now, _signal: Signal<'_>) {
        todo!()
    }

    /// Errands for the engine. Call until None.
    pub fn poll(&mut self, _now: Now) -> Option<Effect> {
        todo!()
    }

    /// When to bring `Signal::Tick`.
    pub fn deadline(&self) -> Option<Instant> {
        todo!()
    }

    /// What this worker knows, for the admin API.
    pub fn inspect(&self, _now: Now) -> Snapshot {
        todo!()
    }
}
