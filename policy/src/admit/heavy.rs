//! The heaviest keys of a limit: which they are, over all workers, and how they are written.
//!
//! Each worker keeps a sketch of what comes to it and adds it to the node's ten times a second;
//! then it takes over what the node found. A request looks into its own worker's memory only.

use std::collections::BTreeMap;

use super::Ask;
use super::limit::Meaning;
use super::named::Limits;
use crate::ledger::Ledger;
use crate::mechanism::sketch::Sketch;
use crate::time::Instant;

/// The most keys that a limit may watch.
pub(crate) const HEAVIEST_MAX: u32 = 100;

const EVERY_NS: u64 = 100_000_000;
const FADES_NS: u64 = 1_000_000_000;

/// One worker's part of it, by rule.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    all: BTreeMap<u64, Watch>,
    due_ns: u64,
    fades_ns: u64,
}

#[derive(Debug)]
struct Watch {
    sketch: Sketch,
    /// By key.
    heavy: Vec<Heavy>,
    /// Kept so that nothing is allocated each time.
    weights: Vec<(u32, u64)>,
}

#[derive(Debug)]
struct Heavy {
    key: u64,
    /// Empty until a request of this worker has shown it.
    written: String,
}

/// A heavy key, as one worker knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopKey {
    pub limit: String,
    /// Means something within this process.
    pub hash: u64,
    /// Each part and its value, secrets as a fingerprint; empty when this worker has not seen it.
    pub written: String,
    /// What it has cost of late; half of it is forgotten each second.
    pub recent: u32,
}

impl Watches {
    /// A request of this key has come. Whether it is one of the heaviest.
    pub(crate) fn seen(&mut self, ask: &Ask<'_>, meaning: &Meaning, key: u64, cost: u32) -> bool {
        let watch = self.all.entry(meaning.rule).or_insert_with(|| Watch::new(meaning.watched));
        if cost > 0 {
            watch.sketch.hit(key, cost);
        }
        let Ok(at) = watch.heavy.binary_search_by_key(&key, |heavy| heavy.key) else {
            return false;
        };
        if let Some(heavy) = watch.heavy.get_mut(at)
            && heavy.written.is_empty()
        {
            heavy.written = meaning.key.written(ask);
        }
        true
    }

    /// Ten times a second, what came here goes to the node, and what the node knows comes here.
    pub(crate) fn tick(&mut self, ledger: &Ledger, limits: &Limits, now: Instant) {
        let now_ns = now.as_nanos();
        if self.all.is_empty() || now_ns < self.due_ns {
            return;
        }
        self.due_ns = now_ns + EVERY_NS;
        let due = now_ns >= self.fades_ns;
        // Nothing is old yet when it begins.
        let fades = due && self.fades_ns > 0;
        if due {
            self.fades_ns = now_ns + FADES_NS;
        }
        self.all.retain(|rule, watch| {
            let meaning = limits.meanings().find(|meaning| meaning.rule == *rule);
            let wanted = meaning.map_or(0, |meaning| meaning.watched);
            if wanted > 0 {
                watch.exchange(ledger, *rule, wanted as usize, now_ns);
                if fades {
                    watch.sketch.fade();
                }
            }
            wanted > 0
        });
    }

    pub(crate) fn top(&self, limits: &Limits) -> Vec<TopKey> {
        let mut top = Vec::new();
        for (name, meaning) in limits.named() {
            let Some(watch) = self.all.get(&meaning.rule) else { continue };
            top.extend(watch.heavy.iter().map(|Heavy { key, written }| TopKey {
                limit: name.to_owned(),
                hash: *key,
                written: written.clone(),
                recent: watch.sketch.count(*key),
            }));
        }
        top
    }
}

impl Watch {
    fn new(keys: u32) -> Self {
        let sketch = Sketch::new(2 * keys as usize);
        Self { sketch, heavy: Vec::new(), weights: Vec::new() }
    }

    fn exchange(&mut self, ledger: &Ledger, rule: u64, wanted: usize, now_ns: u64) {
        let node = ledger.watching.heavies.find(rule);
        self.sketch.take_fresh(&mut self.weights);
        if let Some(node) = node {
            node.fade(now_ns);
            heaviest(&mut self.weights, 2 * wanted);
            for (fresh, key) in &self.weights {
                node.add(*key, *fresh);
            }
            node.weights(&mut self.weights);
        }
        // Without a place in the node, each worker goes by what it saw itself.
        heaviest(&mut self.weights, wanted);
        self.weights.sort_unstable_by_key(|(_, key)| *key);
        let before = core::mem::take(&mut self.heavy);
        let mut before = before.into_iter().peekable();
        self.heavy.extend(self.weights.iter().map(|(_, key)| {
            while before.next_if(|heavy| heavy.key < *key).is_some() {}
            let known = before.next_if(|heavy| heavy.key == *key);
            known.unwrap_or(Heavy { key: *key, written: String::new() })
        }));
    }
}

/// Leaves so many; of those that weigh the same, the same on every worker.
fn heaviest(weights: &mut Vec<(u32, u64)>, wanted: usize) {
    weights.sort_unstable_by(|a, b| b.cmp(a));
    weights.truncate(wanted);
}
