//! Counts that several gateways share, as far as this node has reserved them.
//!
//! Workers spend tokens with one compare-and-swap; one *keeper* (the control thread's) brings them
//! in, tells of what was spent, and is the only one that adds or removes keys. Tokens are good
//! until a deadline, so a node that has lost its store stops by itself.
//!
//! A slot's word holds the tokens in its low half and a *turn* in its high half. The turn changes
//! with each report to the store and with each change of hands. So a swap that succeeds proves the
//! key, and tokens that were taken go back only if no report has told of them yet.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::time::Duration;
use std::sync::OnceLock;

use crate::keeper::{ALL, bit};
use crate::ledger::intake::{Intake, Wish};
use crate::ledger::rules::{Rules, Tally};
use crate::mechanism::gcra::{Gcra, ticks};
use crate::time::Instant;

/// Keys in use at once, over all shared limits.
const KEYS_MAX: usize = 1 << 16;
/// A key lies within this many slots of its own.
const WINDOW: usize = 16;
const WISHES_MAX: u32 = 1 << 12;
const NOBODY: u64 = 0;

/// Takes memory only once a store is configured.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    shelf: OnceLock<Shelf>,
    /// The shards of the store that can't be asked, as bits.
    lost: AtomicU64,
    /// When the latest of them was lost, in nanoseconds.
    lost_since: AtomicU64,
}

#[derive(Debug)]
struct Shelf {
    keys: Box<[AtomicU64]>,
    slots: Box<[Slot]>,
    intake: Intake,
    rules: Rules,
}

/// One key. All times are nanoseconds of the node's clock.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Slot {
    word: AtomicU64,
    deadline: AtomicU64,
    /// No token comes before.
    denied_until: AtomicU64,
    used: AtomicU64,
    /// Tokens asked for, ever.
    seen: AtomicU64,
    /// Tokens that requests wait for, not yet asked of the store.
    wanted: AtomicU64,
    /// What the store had left, when it last answered.
    left: AtomicU64,
    /// The bucket of a node on its own: when it is full again, in ticks.
    alone: AtomicU64,
    /// Tokens admitted on its own, ever.
    unleased: AtomicU64,
}

/// A key's slot: for the keeper, who gives slots out, or for one look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct At(u32);

/// How a key stands with this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stand {
    Held,
    Denied(Duration),
    /// Nothing in hand, and no reason to refuse.
    Dry,
    /// No slot.
    Unknown,
}

/// Tokens that were taken from what the node holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loan {
    at: At,
    turn: u64,
    cost: u32,
    /// In hand, and in the store as it last said.
    pub(crate) left: u64,
}

/// A place that was taken. Goes back through `vacate`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Occupied {
    at: At,
    hash: u64,
    alone: bool,
}

/// What the keeper reads of a slot.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct View {
    pub(crate) tokens: u32,
    pub(crate) deadline: u64,
    pub(crate) used: u64,
    pub(crate) seen: u64,
    pub(crate) wanted: u64,
    pub(crate) unleased: u64,
}

const fn tokens(word: u64) -> u64 {
    word & 0xffff_ffff
}

const fn turn(word: u64) -> u64 {
    word >> 32
}

const fn word(turn: u64, tokens: u64) -> u64 {
    (turn << 32) | tokens
}

/// For workers.
impl Leases {
    /// When this shard of the store was lost at the latest, if it is. Which one it is, is asked
    /// only if some are.
    pub(crate) fn lost_since(&self, shard: impl FnOnce() -> u64) -> Option<Instant> {
        let is_lost = match self.lost.load(SeqCst) {
            0 => false,
            ALL => true,
            some => some & bit(shard()) != 0,
        };
        is_lost.then(|| Instant::from_nanos(self.lost_since.load(SeqCst)))
    }

    /// A request has come that costs this much.
    pub(crate) fn arrive(&self, at: Instant, hash: u64, cost: u32) {
        if let Some((_, slot)) = self.find(hash) {
            slot.seen.fetch_add(u64::from(cost), Relaxed);
            slot.used.store(at.as_nanos(), Relaxed);
        }
    }

    /// `ours`: what is held is for this request, too.
    pub(crate) fn stand(&self, at: Instant, hash: u64, cost: u32, ours: bool) -> Stand {
        let Some((_, slot)) = self.find(hash) else { return Stand::Unknown };
        let now = at.as_nanos();
        let held = tokens(slot.word.load(SeqCst));
        if ours && held >= u64::from(cost) && now < slot.deadline.load(SeqCst) {
            return Stand::Held;
        }
        match slot.denied_until.load(SeqCst).checked_sub(now) {
            None | Some(0) => Stand::Dry,
            Some(ns) => Stand::Denied(Duration::from_nanos(ns)),
        }
    }

    pub(crate) fn take(&self, at: Instant, hash: u64, cost: u32) -> Option<Loan> {
        let (found, slot) = self.find(hash)?;
        let now = at.as_nanos();
        loop {
            let held = slot.word.load(SeqCst);
            // In this order: a slot that changes hands afterwards has another turn.
            if self.key(found).is_none_or(|key| key.load(SeqCst) != hash) {
                return None;
            }
            let rest = tokens(held).checked_sub(u64::from(cost))?;
            if now >= slot.deadline.load(SeqCst) {
                return None;
            }
            let next = word(turn(held), rest);
            if slot.word.compare_exchange_weak(held, next, SeqCst, Relaxed).is_ok() {
                let left = rest.saturating_add(slot.left.load(Relaxed));
                return Some(Loan { at: found, turn: turn(held), cost, left });
            }
        }
    }

    /// What was taken a moment ago. If the store has been told meanwhile, it stays spent.
    pub(crate) fn give_back(&self, loan: Loan) {
        let Some(slot) = self.slot(loan.at) else { return };
        let mut held = slot.word.load(SeqCst);
        while turn(held) == loan.turn {
            let next = held + u64::from(loan.cost);
            match slot.word.compare_exchange_weak(held, next, SeqCst, Relaxed) {
                Ok(_) => return,
                Err(now) => held = now,
            }
        }
    }

    /// Have the keeper ask for tokens. False: it can't be told now.
    pub(crate) fn wish(&self, wish: &Wish) -> bool {
        self.shelf.get().is_some_and(|shelf| shelf.intake.push(wish))
    }

    /// From this node's own share, which was empty when the store was lost. Otherwise, how long
    /// until there is a token.
    pub(crate) fn take_alone(
        &self,
        at: Instant,
        since: Instant,
        hash: u64,
        share: Gcra,
        cost: u32,
    ) -> Result<u64, Duration> {
        let now = ticks(at);
        let floor = share.empty(ticks(since));
        let Some((_, slot)) = self.find(hash) else {
            return Err(share.take(floor, now, cost).err().unwrap_or_default());
        };
        loop {
            let full_at = slot.alone.load(SeqCst);
            let next = share.take(full_at.max(floor), now, cost)?;
            if slot.alone.compare_exchange(full_at, next, SeqCst, Relaxed).is_ok() {
                slot.unleased.fetch_add(u64::from(cost), SeqCst);
                return Ok(u64::from(share.level(next, now).left));
            }
        }
    }

    /// Spent without having been asked for: the store is told, and charges it.
    pub(crate) fn charge(&self, hash: u64, cost: u32) {
        if let Some((_, slot)) = self.find(hash) {
            slot.unleased.fetch_add(u64::from(cost), SeqCst);
        }
    }

    /// It was not spent after all. What the store knows of stays charged.
    pub(crate) fn discharge(&self, hash: u64, cost: u32) {
        if let Some((_, slot)) = self.find(hash) {
            let less = |n: u64| n.checked_sub(u64::from(cost));
            let _ = slot.unleased.fetch_update(SeqCst, SeqCst, less);
        }
    }

    /// A place that was asked for is free again, unless its key is gone.
    pub(crate) fn vacate(&self, taken: Occupied) {
        let Some((at, slot)) = self.find(taken.hash) else { return };
        if taken.alone {
            self.discharge(taken.hash, 1);
        } else if at == taken.at {
            slot.word.fetch_add(1, SeqCst);
        }
    }

    /// One of what the node holds.
    pub(crate) fn occupy(&self, at: Instant, hash: u64) -> Option<Occupied> {
        let loan = self.take(at, hash, 1)?;
        Some(Occupied { at: loan.at, hash, alone: false })
    }

    /// A place of this node's own share, while there is no store.
    pub(crate) fn occupy_alone(&self, hash: u64, share: u64) -> Option<Occupied> {
        let (at, slot) = self.find(hash)?;
        let more = |n: u64| (n < share).then_some(n + 1);
        slot.unleased.fetch_update(SeqCst, SeqCst, more).ok()?;
        Some(Occupied { at, hash, alone: true })
    }

    /// A request waits for the store.
    pub(crate) fn parked(&self, rule: u64) {
        self.tally(rule).map(|tally| tally.parked.fetch_add(1, Relaxed));
    }

    /// The rule for a lost store has decided.
    pub(crate) fn degraded(&self, rule: u64, allowed: bool) {
        let which = |tally: &Tally| {
            let count = if allowed { &tally.allowed } else { &tally.refused };
            count.fetch_add(1, Relaxed)
        };
        self.tally(rule).map(which);
    }

    pub(crate) fn tally(&self, rule: u64) -> Option<&Tally> {
        self.shelf.get()?.rules.find(rule)
    }

    fn find(&self, hash: u64) -> Option<(At, &Slot)> {
        let shelf = self.shelf.get()?;
        let at = shelf.window(hash).find(|at| shelf.keys[at.index()].load(SeqCst) == hash)?;
        Some((at, &shelf.slots[at.index()]))
    }

    fn key(&self, at: At) -> Option<&AtomicU64> {
        self.shelf.get()?.keys.get(at.index())
    }

    fn slot(&self, at: At) -> Option<&Slot> {
        self.shelf.get()?.slots.get(at.index())
    }
}

/// For the keeper alone.
impl Leases {
    pub(crate) fn open(&self) {
        self.shelf.get_or_init(|| Shelf {
            keys: (0..KEYS_MAX).map(|_| AtomicU64::new(NOBODY)).collect(),
            slots: (0..KEYS_MAX).map(|_| Slot::default()).collect(),
            intake: Intake::new(WISHES_MAX),
            rules: Rules::new(),
        });
    }

    /// Count what happens at this rule.
    pub(crate) fn count(&self, rule: u64) {
        if let Some(shelf) = self.shelf.get() {
            shelf.rules.open(rule);
        }
    }

    pub(crate) fn rules(&self) -> Option<&Rules> {
        self.shelf.get().map(|shelf| &shelf.rules)
    }

    pub(crate) fn wished(&self) -> Option<Wish> {
        self.shelf.get()?.intake.pop()
    }

    /// The key's slot, found or made. None: there is no room.
    pub(crate) fn settle(&self, hash: u64) -> Option<At> {
        let shelf = self.shelf.get()?;
        if let Some((at, _)) = self.find(hash) {
            return Some(at);
        }
        let free = |at: &At| shelf.keys[at.index()].load(SeqCst) == NOBODY;
        let at = shelf.window(hash).find(free)?;
        shelf.keys[at.index()].store(hash, SeqCst);
        Some(at)
    }

    /// Forget a key that holds nothing and owes nothing.
    pub(crate) fn leave(&self, at: At) {
        self.empty(at);
        let (Some(slot), Some(key)) = (self.slot(at), self.key(at)) else { return };
        for cell in [
            &slot.deadline,
            &slot.denied_until,
            &slot.used,
            &slot.seen,
            &slot.wanted,
            &slot.left,
            &slot.alone,
            &slot.unleased,
        ] {
            cell.store(0, SeqCst);
        }
        key.store(NOBODY, SeqCst);
    }

    pub(crate) fn view(&self, at: At) -> View {
        let Some(slot) = self.slot(at) else { return View::default() };
        View {
            tokens: low(slot.word.load(SeqCst)),
            deadline: slot.deadline.load(SeqCst),
            used: slot.used.load(Relaxed),
            seen: slot.seen.load(Relaxed),
            wanted: slot.wanted.load(SeqCst),
            unleased: slot.unleased.load(SeqCst),
        }
    }

    /// Cut what is in hand to at most this, for a report. Returns what stays and what is given up.
    pub(crate) fn cut(&self, at: At, most: u32) -> (u32, u32) {
        let Some(slot) = self.slot(at) else { return (0, 0) };
        let mut held = slot.word.load(SeqCst);
        loop {
            let keep = tokens(held).min(u64::from(most));
            let next = word(turn(held).wrapping_add(1) & 0xffff_ffff, keep);
            match slot.word.compare_exchange_weak(held, next, SeqCst, SeqCst) {
                Ok(_) => return (low(keep), low(tokens(held) - keep)),
                Err(now) => held = now,
            }
        }
    }

    /// Nothing in hand is good any more. Returns how much that was.
    pub(crate) fn empty(&self, at: At) -> u32 {
        self.cut(at, 0).1
    }

    pub(crate) fn add(&self, at: At, granted: u32, deadline: u64) {
        let Some(slot) = self.slot(at) else { return };
        slot.deadline.store(deadline, SeqCst);
        slot.word.fetch_add(u64::from(granted), SeqCst);
    }

    pub(crate) fn note(&self, at: At, left: u64, denied_until: u64) {
        let Some(slot) = self.slot(at) else { return };
        slot.left.store(left, Relaxed);
        slot.denied_until.store(denied_until, SeqCst);
    }

    /// Nothing speaks against asking.
    pub(crate) fn admit(&self, at: At) {
        if let Some(slot) = self.slot(at) {
            slot.denied_until.store(0, SeqCst);
        }
    }

    pub(crate) fn want(&self, at: At, cost: u32, now: u64) {
        let Some(slot) = self.slot(at) else { return };
        slot.wanted.fetch_add(u64::from(cost), SeqCst);
        slot.used.fetch_max(now, SeqCst);
    }

    /// What requests wait for is being asked for.
    pub(crate) fn asked(&self, at: At) -> u64 {
        self.slot(at).map_or(0, |slot| slot.wanted.swap(0, SeqCst))
    }

    pub(crate) fn lose(&self, at: Instant, shards: u64) {
        if shards & !self.lost.load(SeqCst) != 0 {
            self.lost_since.store(at.as_nanos(), SeqCst);
            self.lost.fetch_or(shards, SeqCst);
        }
    }

    pub(crate) fn recover(&self, shards: u64) {
        self.lost.fetch_and(!shards, SeqCst);
    }
}

impl Shelf {
    #[expect(clippy::cast_possible_truncation, reason = "reduced to the shelf's length")]
    fn window(&self, hash: u64) -> impl Iterator<Item = At> {
        let home = hash % KEYS_MAX as u64;
        (0..WINDOW as u64).map(move |i| At(((home + i) % KEYS_MAX as u64) as u32))
    }
}

impl At {
    const fn index(self) -> usize {
        self.0 as usize
    }
}

#[expect(clippy::cast_possible_truncation, reason = "tokens are the low half")]
const fn low(word: u64) -> u32 {
    word as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ns: u64) -> Instant {
        Instant::from_nanos(ns)
    }

    fn shelf() -> (Leases, At) {
        let leases = Leases::default();
        assert_eq!(leases.stand(at(1), 7, 1, true), Stand::Unknown, "not opened yet");
        leases.open();
        let slot = leases.settle(7).unwrap();
        (leases, slot)
    }

    #[test]
    fn tokens_are_spent_until_they_are_gone_or_their_deadline_is() {
        let (leases, slot) = shelf();
        assert_eq!(leases.stand(at(1), 7, 1, true), Stand::Dry);
        leases.add(slot, 3, 100);
        assert_eq!(leases.take(at(99), 7, 2).unwrap().left, 1);
        assert!(leases.take(at(99), 7, 2).is_none(), "only one is left");
        assert!(leases.take(at(100), 7, 1).is_none(), "the lease has ended");
        assert!(leases.take(at(99), 7, 1).is_some());
        leases.note(slot, 0, 150);
        assert_eq!(leases.stand(at(100), 7, 1, true), Stand::Denied(Duration::from_nanos(50)));
        assert_eq!(leases.stand(at(150), 7, 1, true), Stand::Dry);
    }

    #[test]
    fn what_was_reported_as_spent_stays_spent() {
        let (leases, slot) = shelf();
        leases.add(slot, 5, 100);
        let early = leases.take(at(1), 7, 1).unwrap();
        leases.give_back(early);
        assert_eq!(leases.view(slot).tokens, 5);
        let late = leases.take(at(1), 7, 1).unwrap();
        assert_eq!(leases.cut(slot, 3), (3, 1), "reported: 3 held, 1 returned, 1 spent");
        leases.give_back(late);
        assert_eq!(leases.view(slot).tokens, 3);
    }

    #[test]
    fn a_key_that_left_takes_nothing_along() {
        let (leases, slot) = shelf();
        leases.add(slot, 5, 100);
        let loan = leases.take(at(1), 7, 1).unwrap();
        leases.leave(slot);
        assert_eq!(leases.stand(at(1), 7, 1, true), Stand::Unknown);
        assert_eq!(leases.settle(7), Some(slot));
        leases.give_back(loan);
        assert_eq!(leases.view(slot).tokens, 0);
    }
}
