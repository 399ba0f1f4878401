//! The gate before an upstream: no more of the node's requests go through at once than its limit,
//! which learns. Memory of the node, under the upstream's key, so that a reload forgets nothing.
//!
//! What goes through is one word of the node, changed by compare-and-swap. What answers took is
//! kept by each worker and handed over with its housekeeping; one worker at a time then learns.

use core::cell::Cell;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64};
use core::time::Duration;
use std::rc::Rc;
use std::sync::Arc;

use super::Priority;
use crate::decision::Failure;
use crate::ledger::places::{Place, Places};
use crate::mechanism::adaptive::{Learner, PERIOD_NS, Reason, Rule, Slice, WORDS, Window};
use crate::steer::guard::Verdict;
use crate::time::{Instant, nanos};

/// One upstream's gate, as the node has it.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    busy: AtomicU32,
    /// In force; 0 until the first step.
    limit: AtomicU32,
    sum_us: AtomicU64,
    answers: AtomicU32,
    slice_us: AtomicU64,
    slice_answers: AtomicU32,
    drops: AtomicU32,
    refused: AtomicU32,
    peak: AtomicU32,
    /// When the next step is due; [`BUSY`] while a worker takes one.
    due: AtomicU64,
    learner: [AtomicU64; WORDS],
}

const BUSY: u64 = u64::MAX;
/// A probe has to look more often than a step is due.
const PROBE_NS: u64 = PERIOD_NS / 10;

/// How a gate stands, for operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// The most requests at once.
    pub limit: u32,
    pub busy: u32,
    pub reason: Reason,
    /// Until an answer's head: without a queue, and lately.
    pub base: Duration,
    pub lately: Duration,
}

/// One worker's hold on a gate.
#[derive(Debug)]
pub(crate) struct Hold {
    gates: Arc<Places<Gate>>,
    place: Place,
    sum_us: Cell<u64>,
    answers: Cell<u32>,
}

/// Leave to be under way at an upstream. Goes back with what came of it.
#[derive(Debug)]
pub(crate) struct Seat(Rc<Hold>);

impl Hold {
    /// None when there is no room for the gate: then everything goes through.
    pub(crate) fn new(gates: &Arc<Places<Gate>>, key: u64) -> Option<Rc<Self>> {
        let place = gates.place(key)?;
        let (sum_us, answers) = Default::default();
        Some(Rc::new(Self { gates: Arc::clone(gates), place, sum_us, answers }))
    }

    fn gate(&self) -> &Gate {
        self.gates.at(self.place)
    }

    /// One more under way, if the limit has room for its priority.
    pub(crate) fn enter(self: &Rc<Self>, rule: &Rule, priority: Priority) -> Option<Seat> {
        let gate = self.gate();
        let limit = match gate.limit.load(Relaxed) {
            0 => rule.initial,
            limit => limit,
        };
        let room = priority.share_of(limit);
        let more = |busy: u32| (busy < room).then(|| busy + 1);
        match gate.busy.fetch_update(AcqRel, Relaxed, more) {
            Ok(busy) => {
                if busy + 1 > gate.peak.load(Relaxed) {
                    gate.peak.fetch_max(busy + 1, Relaxed);
                }
                Some(Seat(Rc::clone(self)))
            }
            Err(_) => {
                gate.refused.fetch_add(1, Relaxed);
                None
            }
        }
    }

    fn measure(&self, took: Duration) {
        let us = nanos(took) / 1_000;
        self.sum_us.set(self.sum_us.get().saturating_add(us));
        self.answers.set(self.answers.get() + 1);
    }

    /// Hands over what this worker has seen; and learns, when that is due.
    pub(crate) fn tick(&self, rule: &Rule, now: Instant) {
        let gate = self.gate();
        if self.answers.get() > 0 {
            let (sum_us, answers) = (self.sum_us.take(), self.answers.take());
            gate.sum_us.fetch_add(sum_us, Relaxed);
            gate.answers.fetch_add(answers, Relaxed);
            gate.slice_us.fetch_add(sum_us, Relaxed);
            gate.slice_answers.fetch_add(answers, Relaxed);
        }
        let due = gate.due.load(Acquire);
        let mine =
            now.as_nanos() >= due && gate.due.compare_exchange(due, BUSY, AcqRel, Relaxed).is_ok();
        if mine {
            gate.step(rule, now.as_nanos());
            gate.due.store(now.as_nanos() + PROBE_NS, Release);
        }
    }
}

impl Seat {
    /// It is over, or as far as its head.
    pub(crate) fn settle(self, verdict: Verdict) {
        let hold = &self.0;
        let gate = hold.gate();
        let before = gate.busy.fetch_sub(1, AcqRel);
        debug_assert!(before > 0, "left more often than entered");
        match verdict {
            // An error comes as fast as it likes, and says nothing about a queue.
            Verdict::Responded { status, took, timed } if timed && status < 500 => {
                hold.measure(took);
            }
            // It would have taken longer still.
            Verdict::Overtaken { took } => hold.measure(took),
            Verdict::Failed(Failure::TimedOut | Failure::Stalled) => {
                gate.drops.fetch_add(1, Relaxed);
            }
            Verdict::Responded { .. } | Verdict::Failed(_) | Verdict::Nothing => {}
        }
    }
}

impl Gate {
    fn step(&self, rule: &Rule, now_ns: u64) {
        let mut learner = self.learner();
        let window = Window {
            sum_us: self.sum_us.load(Relaxed),
            answers: self.answers.load(Relaxed),
            drops: self.drops.load(Relaxed),
            refused: self.refused.load(Relaxed),
            peak: self.peak.load(Relaxed),
            busy: self.busy.load(Relaxed),
            slice: Slice {
                sum_us: self.slice_us.load(Relaxed),
                answers: self.slice_answers.load(Relaxed),
            },
        };
        let used = learner.step(rule, now_ns, &window);
        if used.slice {
            self.slice_us.fetch_sub(window.slice.sum_us, Relaxed);
            self.slice_answers.fetch_sub(window.slice.answers, Relaxed);
        }
        if used.window {
            self.sum_us.fetch_sub(window.sum_us, Relaxed);
            self.answers.fetch_sub(window.answers, Relaxed);
            self.drops.fetch_sub(window.drops, Relaxed);
            self.refused.fetch_sub(window.refused, Relaxed);
            self.peak.store(window.busy, Relaxed);
        }
        self.limit.store(learner.limit(rule), Relaxed);
        for (cell, word) in self.learner.iter().zip(learner.pack()) {
            cell.store(word, Relaxed);
        }
    }

    fn learner(&self) -> Learner {
        let mut words = [0; WORDS];
        for (word, cell) in words.iter_mut().zip(&self.learner) {
            *word = cell.load(Relaxed);
        }
        Learner::unpack(words)
    }

    pub(crate) fn view(&self, rule: &Rule) -> View {
        let learner = self.learner();
        let (base, lately) = learner.times();
        View {
            limit: learner.limit(rule),
            busy: self.busy.load(Relaxed),
            reason: learner.reason(),
            base,
            lately,
        }
    }
}

#[cfg(test)]
mod tests;
