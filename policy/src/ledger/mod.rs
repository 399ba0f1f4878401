//! The node's counts: fixed tables of atomics, the only memory that workers share.
//!
//! Exact: whatever the workers do at once, what is admitted is what one worker alone would have
//! admitted, in the order of the compare-and-swaps. A limit of one a minute admits one.
//!
//! Bounded: a key is forgotten only when its bucket is full again, which loses nothing. When all
//! places of a key are held by keys that still owe, the key shares an *overflow* bucket with
//! others of its limit: it may be refused too early, never admitted too often. So a flood of fresh
//! keys cannot push out a key that is being refused.
//!
//! Reloads: a bucket is filed under the limit's name and remembers the instant at which it is full
//! again. A limit with a changed rate keeps that instant, so the time still owed stays owed, but at
//! most as long as the new limit takes to fill an empty bucket.

pub(crate) mod boards;
pub(crate) mod intake;
pub(crate) mod leases;
mod table;

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::fence;
use core::time::Duration;
use std::sync::Arc;

use siphasher::sip::SipHasher13;

use crate::ledger::boards::{BOARDS_MAX, Boards};
use crate::ledger::leases::Leases;
use crate::ledger::table::{Refused, Table, Words};
use crate::mechanism::breaker::{Force, View};
use crate::mechanism::gcra::{Gcra, Level, NEVER, ticks, ticks_of};
use crate::plan::{EndpointKey, UpstreamKey};
use crate::time::Instant;

pub(crate) use crate::ledger::table::Place;

/// The node's clock is noted this often, so that noting costs nothing.
const CLOCK_GRAIN: Duration = Duration::from_millis(100);
/// A bucket owes longer than its limit can: the limit was changed. Far above the grain.
const OWED_SLACK: Duration = Duration::from_secs(1);
/// What a request is told to wait that found the table in the way.
const CONTENDED_WAIT: Duration = Duration::from_millis(1);
/// Overflow buckets: each limit uses one group, each key of it one bucket of the group.
const GROUPS: usize = 64;
const GROUP_BUCKETS: usize = 64;

/// Made once a process, handed to every worker's `Policy`; survives every reload.
#[derive(Debug)]
pub struct Ledger {
    buckets: Table,
    overflow: Box<[AtomicU64]>,
    counts: Table,
    pub(crate) boards: Arc<Boards>,
    /// No worker's clock has been noted later. Workers whose clock stands behind are judged by
    /// this one, so a clock that goes back grants nothing.
    latest: AtomicU64,
    hasher: SipHasher13,
    /// Counts that other gateways share.
    pub(crate) leases: Leases,
}

/// Whose breaker: an upstream's key, or an endpoint's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BreakerKey(u64);

impl core::convert::From<UpstreamKey> for BreakerKey {
    fn from(key: UpstreamKey) -> Self {
        Self(key.0)
    }
}

impl core::convert::From<EndpointKey> for BreakerKey {
    fn from(key: EndpointKey) -> Self {
        Self(key.0)
    }
}

/// What is counted: the hash of a rule's name and of what it counts apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CountKey {
    pub(crate) rule: u64,
    pub(crate) hash: u64,
}

/// Tokens that were taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    pub(crate) level: Level,
    from: From,
    full_at: u64,
}

#[derive(Clone, Copy, Debug)]
enum From {
    Bucket(Place),
    Overflow(usize),
}

/// A place among the requests that may be in progress at once. Goes back through `release`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Permit(Place);

impl Ledger {
    /// `keys_max` buckets can be held at once, 16 bytes each, and an eighth as many counts of
    /// requests in progress. `secret` keys the hash, so that a client cannot choose which keys
    /// collide.
    pub fn new(keys_max: usize, secret: [u8; 16]) -> Self {
        Self {
            buckets: Table::new(keys_max),
            overflow: (0..GROUPS * GROUP_BUCKETS).map(|_| AtomicU64::new(0)).collect(),
            counts: Table::new((keys_max / 8).max(64)),
            boards: Arc::new(Boards::new(BOARDS_MAX)),
            latest: AtomicU64::new(0),
            hasher: SipHasher13::new_with_key(&secret),
            leases: Leases::default(),
        }
    }

    /// How many buckets there is room for.
    pub fn capacity(&self) -> usize {
        self.buckets.capacity()
    }

    /// Buckets that hold a key, full ones not yet forgotten included.
    pub fn keys(&self) -> usize {
        self.buckets.values().count()
    }

    /// Permits that are out, over all workers.
    pub fn permits(&self) -> u64 {
        self.counts.values().map(|value| u64::from(count(value))).sum()
    }

    /// How the breaker of this upstream or endpoint stands; None when it has none.
    pub fn breaker(&self, key: BreakerKey, now: Instant) -> Option<View> {
        let id = self.boards.find(key.0)?;
        Some(self.boards.at(id).view(now))
    }

    /// Takes a breaker out of its own judgement until then, or gives it back (None). False when
    /// there is no such breaker.
    pub fn force(&self, key: BreakerKey, now: Instant, force: Option<(Force, Instant)>) -> bool {
        let found = self.boards.find(key.0);
        if let Some(id) = found {
            self.boards.at(id).force(now, force);
        }
        found.is_some()
    }

    pub(crate) fn hasher(&self) -> SipHasher13 {
        self.hasher
    }

    /// Takes `cost` tokens, or says how long until they are there and changes nothing.
    pub(crate) fn take(
        &self,
        at: Instant,
        key: CountKey,
        gcra: Gcra,
        cost: u32,
    ) -> Result<Taken, Duration> {
        let words = Buckets { now: self.now(at), overflow: self.overflow(key).1 };
        let spend = |full_at| self.spend(at, full_at, gcra, cost);
        loop {
            match self.buckets.update(key.hash, &words, spend) {
                Ok((place, outcome)) => {
                    let (full_at, level) = outcome?;
                    return Ok(Taken { level, from: From::Bucket(place), full_at });
                }
                Err(Refused::Contended) => return Err(CONTENDED_WAIT),
                Err(Refused::Full) => {
                    let taken = self.take_overflow(at, key, gcra, cost)?;
                    // Whoever brings this key into the table writes it there before reading the
                    // overflow bucket. So either they saw what we took, or we see the key: then
                    // its bucket must agree, too.
                    fence(SeqCst);
                    if !self.buckets.holds(key.hash) {
                        return Ok(taken);
                    }
                }
            }
        }
    }

    /// Whether `take` would succeed now, without taking. It only writes when the limit was changed.
    pub(crate) fn peek(
        &self,
        at: Instant,
        key: CountKey,
        gcra: Gcra,
        cost: u32,
    ) -> Result<Level, (Level, Duration)> {
        let now = self.now(at);
        let known = self.buckets.value(key.hash);
        let full_at = known.unwrap_or_else(|| self.overflow(key).1.load(SeqCst));
        match gcra.take(full_at, now, cost) {
            Ok(full_at) => Ok(gcra.level(full_at, now)),
            Err(_) if overdrawn(full_at, now, gcra) => match self.take(at, key, gcra, cost) {
                Ok(taken) => {
                    self.give_back(taken, gcra, cost);
                    Ok(taken.level)
                }
                Err(wait) => Err((gcra.level(full_at, now), wait)),
            },
            Err(wait) => Err((gcra.level(full_at, now), wait)),
        }
    }

    /// Gives back what was just taken. When another worker has taken from the same bucket since,
    /// it stays taken: adding time that has partly passed would admit too much.
    pub(crate) fn give_back(&self, taken: Taken, gcra: Gcra, cost: u32) {
        let before = gcra.untake(taken.full_at, cost);
        match taken.from {
            From::Bucket(place) => {
                self.buckets.swap(place, taken.full_at, before);
            }
            From::Overflow(index) => {
                let bucket = &self.overflow[index];
                let _ = bucket.compare_exchange(taken.full_at, before, SeqCst, Relaxed);
            }
        }
    }

    /// A permit, and how many are left; None when `max` are out. When the table has no room for
    /// the key, that is None, too.
    pub(crate) fn acquire(&self, key: CountKey, max: u32) -> Option<(Permit, u32)> {
        let (place, left) = self
            .counts
            .update(key.hash, &Counts, |value| match max.checked_sub(count(value)) {
                None | Some(0) => (None, None),
                Some(room) => (Some(step(value) + 1), Some(room - 1)),
            })
            .ok()?;
        Some((Permit(place), left?))
    }

    #[expect(clippy::needless_pass_by_value, reason = "a permit is spent by giving it back")]
    pub(crate) fn release(&self, permit: Permit) {
        loop {
            let value = self.counts.at(permit.0);
            debug_assert!(count(value) > 0, "released more often than acquired");
            if count(value) == 0 || self.counts.swap(permit.0, value, step(value) - 1) {
                return;
            }
        }
    }

    fn take_overflow(
        &self,
        at: Instant,
        key: CountKey,
        gcra: Gcra,
        cost: u32,
    ) -> Result<Taken, Duration> {
        let (index, bucket) = self.overflow(key);
        loop {
            let full_at = bucket.load(SeqCst);
            let (next, outcome) = self.spend(at, full_at, gcra, cost);
            let swapped = next
                .is_none_or(|next| bucket.compare_exchange(full_at, next, SeqCst, Relaxed).is_ok());
            if swapped {
                let (full_at, level) = outcome?;
                return Ok(Taken { level, from: From::Overflow(index), full_at });
            }
        }
    }

    /// What becomes of a bucket, and of who asked.
    fn spend(
        &self,
        at: Instant,
        full_at: u64,
        gcra: Gcra,
        cost: u32,
    ) -> (Option<u64>, Result<(u64, Level), Duration>) {
        // Read here, after the slot was claimed: no earlier than any clock that emptied it.
        let now = self.now(at);
        match gcra.take(full_at, now, cost) {
            Ok(next) => (Some(next), Ok((next, gcra.level(next, now)))),
            Err(_) if overdrawn(full_at, now, gcra) => {
                let empty = gcra.empty(now);
                let refusal = gcra.take(empty, now, cost).map(|_| (empty, gcra.level(empty, now)));
                (Some(empty), refusal)
            }
            Err(wait) => (None, Err(wait)),
        }
    }

    /// The node's time: this worker's, or a later one that was noted, never far behind either.
    fn now(&self, at: Instant) -> u64 {
        let (now, latest) = (ticks(at), self.latest.load(SeqCst));
        if now > latest + ticks_of(CLOCK_GRAIN) {
            self.latest.fetch_max(now, SeqCst);
        }
        now.max(latest)
    }

    #[expect(clippy::cast_possible_truncation, reason = "both are reduced to the table's size")]
    fn overflow(&self, key: CountKey) -> (usize, &AtomicU64) {
        let index =
            (key.rule as usize % GROUPS) * GROUP_BUCKETS + key.hash as usize % GROUP_BUCKETS;
        (index, &self.overflow[index])
    }
}

/// Left by a slower rate. Under this one, nobody waits longer than an empty bucket takes: taking
/// sees to that, and refuses.
fn overdrawn(full_at: u64, now: u64, gcra: Gcra) -> bool {
    full_at > gcra.empty(now) + ticks_of(OWED_SLACK)
}

/// Values are the instant at which a bucket is full.
struct Buckets<'a> {
    now: u64,
    overflow: &'a AtomicU64,
}

impl Words for Buckets<'_> {
    /// Full by every worker's clock: none is judged by a time more than a grain before this one.
    fn idle(&self, full_at: u64) -> bool {
        full_at + 2 * ticks_of(CLOCK_GRAIN) < self.now
    }

    /// What was taken from the overflow bucket while there was no room stays taken.
    fn fresh(&self, _: u64) -> u64 {
        fence(SeqCst);
        self.overflow.load(SeqCst)
    }

    fn cleared(&self, full_at: u64) -> u64 {
        debug_assert!(full_at < NEVER - 1);
        full_at + 1
    }
}

/// Values are a count in the low half and the number of changes in the high half, so that no value
/// is seen twice.
struct Counts;

impl Words for Counts {
    fn idle(&self, value: u64) -> bool {
        count(value) == 0
    }

    fn fresh(&self, value: u64) -> u64 {
        step(value)
    }

    fn cleared(&self, value: u64) -> u64 {
        step(value)
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the low half is the count")]
const fn count(value: u64) -> u32 {
    value as u32
}

const fn step(value: u64) -> u64 {
    value.wrapping_add(1 << 32)
}

#[cfg(test)]
mod tests;
