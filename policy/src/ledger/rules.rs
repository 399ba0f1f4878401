//! What happened at each shared limit off the fast path, for operators.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};

/// Shared limits of a process, over all reloads. What is done at more is not told apart.
const RULES_MAX: usize = 1 << 10;
const NOBODY: u64 = 0;

#[derive(Debug)]
pub(crate) struct Rules(Box<[Tally]>);

#[derive(Debug, Default)]
pub(crate) struct Tally {
    rule: AtomicU64,
    /// Requests that waited for the store.
    pub(crate) parked: AtomicU64,
    /// Decided by the rule for a lost store.
    pub(crate) allowed: AtomicU64,
    pub(crate) refused: AtomicU64,
}

impl Rules {
    pub(crate) fn new() -> Self {
        Self((0..RULES_MAX).map(|_| Tally::default()).collect())
    }

    /// For the keeper alone, before workers look.
    pub(crate) fn open(&self, rule: u64) {
        let held = |tally: &&Tally| [NOBODY, rule].contains(&tally.rule.load(SeqCst));
        if let Some(tally) = self.walk(rule).find(held) {
            tally.rule.store(rule, SeqCst);
        }
    }

    pub(crate) fn find(&self, rule: u64) -> Option<&Tally> {
        let tally = self.walk(rule).find(|tally| {
            let held = tally.rule.load(Relaxed);
            held == rule || held == NOBODY
        })?;
        (tally.rule.load(Relaxed) == rule).then_some(tally)
    }

    pub(crate) fn sum(&self, read: impl Fn(&Tally) -> &AtomicU64) -> u64 {
        self.0.iter().map(|tally| read(tally).load(Relaxed)).sum()
    }

    fn walk(&self, rule: u64) -> impl Iterator<Item = &Tally> {
        let len = self.0.len();
        let start = usize::try_from(rule % len as u64).unwrap_or(0);
        (start..len).chain(0..start).filter_map(|i| self.0.get(i))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rule_has_its_own_and_one_that_was_not_opened_has_none() {
        let rules = Rules::new();
        for rule in [5, 5 + RULES_MAX as u64, 9] {
            rules.open(rule);
            rules.open(rule);
            rules.find(rule).unwrap().parked.fetch_add(rule, Relaxed);
        }
        assert_eq!(rules.find(5).unwrap().parked.load(Relaxed), 5);
        assert_eq!(rules.find(5 + RULES_MAX as u64).unwrap().parked.load(Relaxed), 1029);
        assert!(rules.find(6).is_none());
        assert_eq!(rules.sum(|tally| &tally.parked), 5 + 1029 + 9);
    }
}
