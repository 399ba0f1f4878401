//! The node's counts: fixed tables of atomics, the only memory that workers share.
//!
//! Exact: whatever the workers do at once, what is admitted is what one worker alone would have
//! admitted, in the order of the compare-and-swaps. A limit of one a minute admits one.
//!
//! Bounded: a key is forgotten only when it is as good as new, which loses nothing. When all
//! places of a key are held by keys that still owe, the key shares an *overflow* count with
//! others of its limit: it may be refused too early, never admitted too often. So a flood of fresh
//! keys cannot push out a key that is being refused.
//!
//! Reloads: a count is filed under the limit's name and kind. A bucket remembers the instant at
//! which it is full again: under a changed rate the time still owed stays owed, but at most as
//! long as the new limit takes to fill an empty bucket. A window keeps its count.

mod blocks;
pub(crate) mod boards;
pub(crate) mod intake;
pub(crate) mod leases;
pub(crate) mod places;
mod table;

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::SeqCst;
use core::sync::atomic::fence;
use core::time::Duration;
use std::sync::{Arc, OnceLock};

use siphasher::sip::SipHasher13;

use crate::ledger::blocks::{Blocks, Loans};
use crate::ledger::boards::{BOARDS_MAX, Boards};
use crate::ledger::leases::Leases;
use crate::ledger::places::Places;
use crate::ledger::table::{Refused, Table, Words};
use crate::mechanism::gcra::{Gcra, Level, NEVER, ticks, ticks_of};
use crate::mechanism::meter::{Meter, Single, Spent};
use crate::plan::{EndpointKey, UpstreamKey};
use crate::shed::GATES_MAX;
use crate::shed::gate::Gate;
use crate::shed::node::Gauges;
use crate::shed::tenant::Tenants;
use crate::time::{Instant, Now};

pub(crate) use crate::ledger::table::Place;

/// The node's clock is noted this often, so that noting costs nothing.
const CLOCK_GRAIN: Duration = Duration::from_millis(100);
/// A bucket owes longer than its limit can: the limit was changed. Far above the grain.
const OWED_SLACK: Duration = Duration::from_secs(1);
/// What a request is told to wait that found the table in the way.
const CONTENDED_WAIT: Duration = Duration::from_millis(1);
/// The keys of a limit that find no room share so many counts, by the table's size: more of them,
/// so that fewer keys meet the debts of others; fewer, so that a flood is not admitted there.
const SHARED: core::ops::RangeInclusive<usize> = 64..=4096;
/// Spare blocks of sliding windows, and how many of them the keys of a limit share.
const SPARE: usize = 1024;
const SPARE_SHARED: u64 = 64;

/// Made once a process, handed to every worker's `Policy`; survives every reload.
#[derive(Debug)]
pub struct Ledger {
    buckets: Table,
    overflow: Table,
    shared: u64,
    counts: Table,
    pub(crate) boards: Arc<Boards>,
    pub(crate) gates: Arc<Places<Gate>>,
    pub(crate) gauges: Gauges,
    pub(crate) tenants: Tenants,
    /// Made when a plan first has a sliding window.
    blocks: OnceLock<Blocks>,
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
    /// Until it is the request's turn.
    pub(crate) delay: Duration,
    pub(crate) receipt: Receipt,
}

/// What it takes to give them back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Receipt {
    cost: u32,
    from: From,
}

#[derive(Clone, Copy, Debug)]
enum From {
    Bucket(Place, u64),
    Overflow(Place, u64),
    Cells(Loans),
}

/// A place among the requests that may be in progress at once. Goes back through `release`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Permit(Place);

impl Ledger {
    /// `keys_max` keys can be counted at once, 16 bytes each; an eighth as many counts of requests
    /// in progress; and, when a plan has sliding windows, an eighth as many blocks of theirs, 144
    /// bytes each. `secret` keys the hash, so that a client cannot choose which keys collide.
    pub fn new(keys_max: usize, secret: [u8; 16]) -> Self {
        let shared = (keys_max / 16).clamp(*SHARED.start(), *SHARED.end());
        Self {
            buckets: Table::new(keys_max),
            // Those of eight limits at once.
            overflow: Table::new(8 * shared),
            shared: shared as u64,
            counts: Table::new((keys_max / 8).max(64)),
            boards: Arc::new(Boards::new(BOARDS_MAX)),
            gates: Arc::new(Places::new(GATES_MAX)),
            gauges: Gauges::default(),
            tenants: Tenants::default(),
            blocks: OnceLock::new(),
            latest: AtomicU64::new(0),
            hasher: SipHasher13::new_with_key(&secret),
            leases: Leases::default(),
        }
    }

    /// How many keys there is room for.
    pub fn capacity(&self) -> usize {
        self.buckets.capacity()
    }

    /// Keys that are held, those as good as new and not yet forgotten included.
    pub fn keys(&self) -> usize {
        self.buckets.values().count()
    }

    /// Blocks of sliding windows that are held; None when no plan has had any.
    pub fn blocks(&self) -> Option<usize> {
        self.blocks.get().map(Blocks::in_use)
    }

    /// Permits that are out, over all workers.
    pub fn permits(&self) -> u64 {
        self.counts.values().map(|value| u64::from(count(value))).sum()
    }

    /// Makes room for sliding windows, before a request needs it.
    pub(crate) fn prepare(&self) -> &Blocks {
        self.blocks.get_or_init(|| Blocks::new((self.capacity() / 8).max(64), SPARE))
    }

    pub(crate) fn hasher(&self) -> SipHasher13 {
        self.hasher
    }

    /// Takes `cost` tokens, or says how long until they are there and changes nothing.
    pub(crate) fn take(
        &self,
        clock: Now,
        key: CountKey,
        meter: Meter,
        cost: u32,
    ) -> Result<Taken, Duration> {
        let taken = |(from, level): (From, Level), delay| Taken {
            level,
            delay,
            receipt: Receipt { cost, from },
        };
        match meter {
            Meter::Bucket(gcra) => {
                let (from, spent) = self.take_single(clock, key, Single::Gcra(gcra), cost)?;
                Ok(taken((from, spent.level), Duration::ZERO))
            }
            Meter::Queue(gcra) => {
                let (from, spent) = self.take_single(clock, key, Single::Gcra(gcra), cost)?;
                let delay = gcra.turn(spent.word, self.now(clock.at), cost);
                Ok(taken((from, spent.level), delay))
            }
            Meter::Fixed(fixed) => {
                let (from, spent) = self.take_single(clock, key, Single::Fixed(fixed), cost)?;
                Ok(taken((from, spent.level), Duration::ZERO))
            }
            Meter::Sliding(sliding) => {
                let now = || self.now(clock.at);
                let (loans, level) = self.prepare().take(key, sliding, cost, now)?;
                Ok(taken((From::Cells(loans), level), Duration::ZERO))
            }
        }
    }

    fn take_single(
        &self,
        clock: Now,
        key: CountKey,
        single: Single,
        cost: u32,
    ) -> Result<(From, Spent), Duration> {
        let overflow = shared_key(key, self.shared);
        let words = Own { ledger: self, clock, overflow };
        loop {
            let spend = |word| self.spend(clock, word, single, cost, true);
            match self.buckets.update(key.hash, &words, spend) {
                Ok((place, outcome)) => {
                    let spent = outcome?;
                    return Ok((From::Bucket(place, spent.word), spent));
                }
                Err(Refused::Contended) => return Err(CONTENDED_WAIT),
                Err(Refused::Full) => {
                    let words = Shared { now: self.now(clock.at) };
                    // Others of this limit may owe longer than this key could: no correction.
                    let spend = |word| self.spend(clock, word, single, cost, false);
                    let updated = self.overflow.update(overflow, &words, spend);
                    let (place, outcome) = updated.map_err(|_| CONTENDED_WAIT)?;
                    let spent = outcome?;
                    // Whoever brings this key into the table writes it there before reading the
                    // overflow. So either they saw what we took, or we see the key: then its
                    // count must agree, too.
                    fence(SeqCst);
                    if !self.buckets.holds(key.hash) {
                        return Ok((From::Overflow(place, spent.word), spent));
                    }
                }
            }
        }
    }

    /// Takes `cost` more whatever there is, into debt if need be: of a bucket at most as much again
    /// as it holds, of a window without bound. What is left then; None when nothing was taken.
    pub(crate) fn charge(
        &self,
        clock: Now,
        key: CountKey,
        meter: Meter,
        cost: u32,
    ) -> Option<Level> {
        let single = match meter {
            Meter::Bucket(gcra) => Single::Gcra(gcra),
            Meter::Fixed(fixed) => Single::Fixed(fixed),
            Meter::Queue(_) | Meter::Sliding(_) => return None,
        };
        let overflow = shared_key(key, self.shared);
        let charge = |word| {
            let now = self.now(clock.at);
            let next = single.charge(word, now, clock, cost);
            (Some(next), single.level(next, now, clock))
        };
        match self.buckets.update(key.hash, &Own { ledger: self, clock, overflow }, charge) {
            Ok((_, level)) => Some(level),
            Err(Refused::Contended) => None,
            Err(Refused::Full) => {
                let words = Shared { now: self.now(clock.at) };
                self.overflow.update(overflow, &words, charge).ok().map(|(_, level)| level)
            }
        }
    }

    /// Whether `take` would succeed now, without taking. It only writes when the limit was changed.
    pub(crate) fn peek(
        &self,
        clock: Now,
        key: CountKey,
        meter: Meter,
        cost: u32,
    ) -> Result<Level, (Level, Duration)> {
        let now = self.now(clock.at);
        let (single, gcra) = match meter {
            Meter::Bucket(gcra) | Meter::Queue(gcra) => (Single::Gcra(gcra), Some(gcra)),
            Meter::Fixed(fixed) => (Single::Fixed(fixed), None),
            Meter::Sliding(sliding) => return self.prepare().peek(key, sliding, cost, now),
        };
        let own = self.buckets.value(key.hash);
        let word = own.or_else(|| self.overflow.value(shared_key(key, self.shared))).unwrap_or(0);
        match single.take(word, now, clock, cost) {
            Ok((_, level)) => Ok(level),
            Err(_) if own.is_some() && gcra.is_some_and(|gcra| overdrawn(word, now, gcra)) => {
                match self.take(clock, key, meter, cost) {
                    Ok(taken) => {
                        self.give_back(&taken.receipt, meter);
                        Ok(taken.level)
                    }
                    Err(wait) => Err((single.level(word, now, clock), wait)),
                }
            }
            Err(wait) => Err((single.level(word, now, clock), wait)),
        }
    }

    /// Gives back what was just taken. When another worker has taken from the same bucket since,
    /// it stays taken: adding time that has partly passed would admit too much.
    pub(crate) fn give_back(&self, receipt: &Receipt, meter: Meter) {
        let single = match meter {
            Meter::Bucket(gcra) | Meter::Queue(gcra) => Single::Gcra(gcra),
            Meter::Fixed(fixed) => Single::Fixed(fixed),
            Meter::Sliding(sliding) => {
                if let (From::Cells(loans), Some(blocks)) = (&receipt.from, self.blocks.get()) {
                    blocks.give_back(loans, sliding);
                }
                return;
            }
        };
        let (table, place, taken) = match receipt.from {
            From::Bucket(place, taken) => (&self.buckets, place, taken),
            From::Overflow(place, taken) => (&self.overflow, place, taken),
            From::Cells(_) => return,
        };
        loop {
            let word = table.at(place);
            match single.untake(word, taken, receipt.cost) {
                Some(before) if !table.swap(place, word, before) => {}
                Some(_) | None => return,
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

    /// What becomes of a count, and of who asked.
    fn spend(
        &self,
        clock: Now,
        word: u64,
        single: Single,
        cost: u32,
        corrects: bool,
    ) -> (Option<u64>, Result<Spent, Duration>) {
        // Read here, after the slot was claimed: no earlier than any clock that emptied it.
        let now = self.now(clock.at);
        let spent = |(word, level)| Spent { word, level };
        match (single.take(word, now, clock, cost), single) {
            (Ok((next, level)), _) => (Some(next), Ok(spent((next, level)))),
            (Err(_), Single::Gcra(gcra)) if corrects && overdrawn(word, now, gcra) => {
                let lowest = gcra.lowest(now);
                let refusal = single.take(lowest, now, clock, cost).map(spent);
                (Some(lowest), refusal)
            }
            (Err(wait), Single::Gcra(_) | Single::Fixed(_)) => (None, Err(wait)),
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
}

/// Left by a slower rate. Under this one, nobody waits longer than an empty bucket takes: taking
/// sees to that, and refuses.
fn overdrawn(full_at: u64, now: u64, gcra: Gcra) -> bool {
    full_at > gcra.lowest(now) + ticks_of(OWED_SLACK)
}

/// Over by every worker's clock: none is judged by a time more than a grain before this one.
fn idle(until: u64, now: u64) -> bool {
    until + 2 * ticks_of(CLOCK_GRAIN) < now
}

/// The count that this key shares with others of its limit when there is no room.
fn shared_key(key: CountKey, shared: u64) -> u64 {
    spread(key.rule.wrapping_add(1 + key.hash % shared))
}

/// Bits well mixed (the finaliser of MurmurHash3), and never zero, which stands for nobody.
const fn spread(n: u64) -> u64 {
    let n = (n ^ (n >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let n = (n ^ (n >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    let n = n ^ (n >> 33);
    if n == 0 { 1 } else { n }
}

/// Values are instants after which they mean nothing.
struct Own<'a> {
    ledger: &'a Ledger,
    clock: Now,
    overflow: u64,
}

impl Words for Own<'_> {
    fn idle(&self, until: u64) -> bool {
        idle(until, self.ledger.now(self.clock.at))
    }

    /// What was taken from the overflow while there was no room stays taken.
    fn fresh(&self, _: Place, _: u64) -> u64 {
        fence(SeqCst);
        self.ledger.overflow.value(self.overflow).unwrap_or(0)
    }

    fn cleared(&self, until: u64) -> u64 {
        debug_assert!(until < NEVER - 1);
        until + 1
    }
}

struct Shared {
    now: u64,
}

impl Words for Shared {
    fn idle(&self, until: u64) -> bool {
        idle(until, self.now)
    }

    fn fresh(&self, _: Place, _: u64) -> u64 {
        0
    }

    fn cleared(&self, until: u64) -> u64 {
        until + 1
    }
}

/// Values are a count in the low half and the number of changes in the high half, so that no value
/// is seen twice.
struct Counts;

impl Words for Counts {
    fn idle(&self, value: u64) -> bool {
        count(value) == 0
    }

    fn fresh(&self, _: Place, value: u64) -> u64 {
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
#[cfg(test)]
mod window_tests;
