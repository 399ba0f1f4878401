//! What the node watches for limits that depend on it: how busy a route is, and which keys of a
//! limit are the heaviest over all workers.

use core::sync::atomic::Ordering::{AcqRel, Relaxed};
use core::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::OnceLock;

use super::Ledger;
use super::places::Places;
use crate::mechanism::pulse::Pulse;
use crate::plan::Plan;

/// Routes of a process that ever were watched, each with each period.
const PULSES_MAX: usize = 256;
/// Limits of a process that ever watched their heaviest keys.
const HEAVIES_MAX: usize = 64;
/// Candidates of one limit: several times the most that may be wanted, so that what is dropped to
/// make room is far from being wanted.
const CANDIDATES: usize = 512;
const FADES_NS: u64 = 1_000_000_000;

#[derive(Debug)]
pub(crate) struct Watching {
    pub(crate) pulses: Places<Pulse>,
    pub(crate) heavies: Places<Heavies>,
}

/// The keys that may be the heaviest of one limit. Workers add what came to theirs with their
/// housekeeping; what two of them do to one place at the same moment may be lost, which makes a
/// key lighter for a moment and nothing else.
#[derive(Debug, Default)]
pub(crate) struct Heavies {
    /// Made when a plan first needs them.
    candidates: OnceLock<Box<[Candidate]>>,
    fades: AtomicU64,
}

#[derive(Debug, Default)]
struct Candidate {
    /// 0: nobody.
    key: AtomicU64,
    weight: AtomicU32,
}

impl Default for Watching {
    fn default() -> Self {
        Self { pulses: Places::new(PULSES_MAX), heavies: Places::new(HEAVIES_MAX) }
    }
}

impl Ledger {
    /// Makes room for what the plan counts, before a request needs it.
    pub(crate) fn make_room(&self, plan: &Plan) {
        if plan.limits.slide() {
            self.prepare();
        }
        for pulse in plan.routes.iter().flat_map(|route| &route.watched) {
            self.watching.pulses.place(pulse.key);
        }
        for rule in plan.limits.weighing() {
            self.watching.heavies.place(rule);
        }
    }
}

impl Heavies {
    fn candidates(&self) -> &[Candidate] {
        let make = || (0..CANDIDATES).map(|_| Candidate::default()).collect();
        self.candidates.get_or_init(make)
    }

    /// So much more came of this key.
    pub(crate) fn add(&self, key: u64, fresh: u32) {
        let candidates = self.candidates();
        let (mut lightest, mut least) = (None, u32::MAX);
        for candidate in candidates {
            if candidate.key.load(Relaxed) == key {
                let more = |weight: u32| Some(weight.saturating_add(fresh));
                let _ = candidate.weight.fetch_update(Relaxed, Relaxed, more);
                return;
            }
            let weight = candidate.weight.load(Relaxed);
            if weight < least {
                (lightest, least) = (Some(candidate), weight);
            }
        }
        if let Some(lightest) = lightest.filter(|_| fresh > least) {
            lightest.key.store(key, Relaxed);
            lightest.weight.store(fresh, Relaxed);
        }
    }

    /// Half of everything is forgotten, once a second.
    pub(crate) fn fade(&self, now_ns: u64) {
        let due = self.fades.load(Relaxed);
        let next = now_ns.saturating_add(FADES_NS);
        if now_ns < due || self.fades.compare_exchange(due, next, AcqRel, Relaxed).is_err() {
            return;
        }
        for candidate in self.candidates() {
            let _ = candidate.weight.fetch_update(Relaxed, Relaxed, |weight| Some(weight / 2));
        }
    }

    /// Each candidate and its weight.
    pub(crate) fn weights(&self, into: &mut Vec<(u32, u64)>) {
        into.clear();
        let weight = |it: &Candidate| (it.weight.load(Relaxed), it.key.load(Relaxed));
        into.extend(self.candidates().iter().map(weight).filter(|(weight, _)| *weight > 0));
    }
}
