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
mod marks;
mod meaning;
mod permits;
pub(crate) mod places;
pub(crate) mod rules;
mod table;
mod tally;
pub(crate) mod watching;

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::SeqCst;
use core::sync::atomic::fence;
use core::time::Duration;
use std::sync::{Arc, OnceLock};

use siphasher::sip::SipHasher13;

use crate::ledger::blocks::{Blocks, Loans};
use crate::ledger::boards::{BOARDS_MAX, Boards};
use crate::ledger::leases::Leases;
use crate::ledger::marks::Marks;
use crate::ledger::meaning::{Own, Shared};
use crate::ledger::places::Places;
use crate::ledger::table::{Refused, Table};
use crate::ledger::watching::Watching;
use crate::mechanism::gcra::{Gcra, Level, ticks, ticks_of};
use crate::mechanism::meter::{Meter, Single, Spent};
use crate::plan::{EndpointKey, UpstreamKey};
use crate::shed::GATES_MAX;
use crate::shed::gate::Gate;
use crate::shed::node::Gauges;
use crate::shed::tenant::Tenants;
use crate::time::{Instant, Now};

pub(crate) use crate::ledger::permits::Permit;
pub(crate) use crate::ledger::table::Place;
pub use crate::ledger::tally::Figures;

/// The node's clock is noted this often, so that noting costs nothing.
const CLOCK_GRAIN: Duration = Duration::from_millis(100);
/// A bucket owes longer than its limit can: the limit was changed. Far above the grain.
const OWED_SLACK: Duration = Duration::from_secs(1);
/// What a request is told to wait that found the table in the way.
const CONTENDED_WAIT: Duration = Duration::from_millis(1);
/// The keys of a limit that find no room share so many counts, by the table's size: more of them,
/// so that fewer keys meet the debts of others; fewer, so that a flood is not admitted there.
const SHARED: core::ops::RangeInclusive<usize> = 64..=4096;
/// As few as the tests of interruptions can fill each time.
const BLOCKS_MIN: usize = if cfg!(test) { 8 } else { 64 };
/// Spare blocks of sliding windows, and how many of them the keys of a limit share.
const SPARE: usize = 1024;
const SPARE_SHARED: u64 = 64;

/// Made once a process, handed to every worker's `Policy`; survives every reload.
#[derive(Debug)]
pub struct Ledger {
    buckets: Table,
    overflow: Table,
    shared: u64,
    /// Of keys that took from the overflow.
    marks: Marks,
    counts: Table,
    pub(crate) boards: Arc<Boards>,
    pub(crate) gates: Arc<Places<Gate>>,
    pub(crate) gauges: Gauges,
    pub(crate) tenants: Tenants,
    pub(crate) watching: Watching,
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

impl From<UpstreamKey> for BreakerKey {
    fn from(key: UpstreamKey) -> Self {
        Self(key.0)
    }
}

impl From<EndpointKey> for BreakerKey {
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
pub(crate) enum Receipt {
    Word(Slip),
    Cells(Loans),
}

/// What was taken from a count that is one word.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slip {
    cost: u32,
    place: Place,
    /// As the taking left it.
    word: u64,
    overflow: bool,
}

impl Receipt {
    /// None for a sliding window, where nobody waits for a turn.
    pub(crate) const fn slip(&self) -> Option<Slip> {
        match self {
            Self::Word(slip) => Some(*slip),
            Self::Cells(_) => None,
        }
    }
}

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
            marks: Marks::new(keys_max),
            counts: Table::new((keys_max / 8).max(64)),
            boards: Arc::new(Boards::new(BOARDS_MAX)),
            gates: Arc::new(Places::new(GATES_MAX)),
            gauges: Gauges::default(),
            tenants: Tenants::default(),
            watching: Watching::default(),
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
    pub fn keys(&self) -> u64 {
        self.buckets.figures().held
    }

    /// How full each table is, by what it holds: counts of keys, blocks of sliding windows (none
    /// before a plan has any), and requests in progress.
    pub fn tables(&self) -> impl Iterator<Item = (&'static str, Figures)> {
        let windows = self.blocks.get().map(Blocks::figures);
        [
            ("counts", Some(self.buckets.figures())),
            ("windows", windows),
            ("concurrency", Some(self.counts.figures())),
        ]
        .into_iter()
        .filter_map(|(table, figures)| Some((table, figures?)))
    }

    /// Makes room for sliding windows, before a request needs it.
    pub(crate) fn prepare(&self) -> &Blocks {
        self.blocks.get_or_init(|| Blocks::new((self.capacity() / 8).max(BLOCKS_MIN), SPARE))
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
        let single = match meter {
            Meter::Bucket(gcra) | Meter::Queue(gcra) => Single::Gcra(gcra),
            Meter::Fixed(fixed) => Single::Fixed(fixed),
            Meter::Sliding(sliding) => {
                let now = || self.now(clock.at);
                let (loans, level) = self.prepare().take(key, sliding, cost, now)?;
                let receipt = Receipt::Cells(loans);
                return Ok(Taken { level, delay: Duration::ZERO, receipt });
            }
        };
        let (slip, level) = self.take_single(clock, key, single, cost)?;
        let delay = match meter {
            Meter::Queue(gcra) => gcra.turn(slip.word, self.now(clock.at), cost),
            Meter::Bucket(_) | Meter::Fixed(_) | Meter::Sliding(_) => Duration::ZERO,
        };
        Ok(Taken { level, delay, receipt: Receipt::Word(slip) })
    }

    fn take_single(
        &self,
        clock: Now,
        key: CountKey,
        single: Single,
        cost: u32,
    ) -> Result<(Slip, Level), Duration> {
        let words = Own { ledger: self, clock, key };
        let slip =
            |place, Spent { word, level }, overflow| (Slip { cost, place, word, overflow }, level);
        loop {
            let spend = |word| self.spend(clock, word, single, cost, true);
            match self.buckets.update(key.hash, &words, spend) {
                Ok((place, outcome)) => return Ok(slip(place, outcome?, false)),
                Err(Refused::Contended) => return Err(CONTENDED_WAIT),
                Err(Refused::Full) => {
                    let words = Shared { now: self.now(clock.at) };
                    // Others of this limit may owe longer than this key could: no correction.
                    let spend = |word| self.spend(clock, word, single, cost, false);
                    let updated = self.overflow.update(shared_key(key, self.shared), &words, spend);
                    let (place, outcome) = updated.map_err(|_| CONTENDED_WAIT)?;
                    let spent = outcome?;
                    self.marks.raise(key.hash, spent.word);
                    // Whoever brings this key into the table writes it there before reading its
                    // mark and the overflow. So either they saw what we took, or we see the key:
                    // then its count must agree, too.
                    fence(SeqCst);
                    if !self.buckets.holds(key.hash) {
                        return Ok(slip(place, spent, true));
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
        let charge = |word| {
            let now = self.now(clock.at);
            let next = single.charge(word, now, clock, cost);
            (Some(next), (next, single.level(next, now, clock)))
        };
        loop {
            match self.buckets.update(key.hash, &Own { ledger: self, clock, key }, charge) {
                Ok((_, (_, level))) => return Some(level),
                Err(Refused::Contended) => return None,
                Err(Refused::Full) => {
                    let words = Shared { now: self.now(clock.at) };
                    let overflow = shared_key(key, self.shared);
                    let updated = self.overflow.update(overflow, &words, charge);
                    let (_, (word, level)) = updated.ok()?;
                    // As in taking.
                    self.marks.raise(key.hash, word);
                    fence(SeqCst);
                    if !self.buckets.holds(key.hash) {
                        return Some(level);
                    }
                }
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
        let word = own.unwrap_or_else(|| self.first_word(clock, key, now));
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

    /// The same before taking: whoever is refused here, by what it shares, is counted here. Taking
    /// counts the others.
    pub(crate) fn look(
        &self,
        clock: Now,
        key: CountKey,
        meter: Meter,
        cost: u32,
    ) -> Result<Level, (Level, Duration)> {
        let seen = self.peek(clock, key, meter, cost);
        if seen.is_err() {
            match meter {
                Meter::Sliding(_) => self.prepare().refused(key),
                Meter::Bucket(_) | Meter::Queue(_) | Meter::Fixed(_) => {
                    self.buckets.refused(key.hash);
                }
            }
        }
        seen
    }

    /// Gives back what was just taken. When another worker has taken from the same bucket since,
    /// it stays taken: adding time that has partly passed would admit too much.
    pub(crate) fn give_back(&self, receipt: &Receipt, meter: Meter) {
        match (receipt, meter) {
            (Receipt::Word(slip), _) => self.give_back_word(slip, meter),
            (Receipt::Cells(loans), Meter::Sliding(sliding)) => {
                if let Some(blocks) = self.blocks.get() {
                    blocks.give_back(loans, sliding);
                }
            }
            (Receipt::Cells(_), Meter::Bucket(_) | Meter::Queue(_) | Meter::Fixed(_)) => {}
        }
    }

    pub(crate) fn give_back_word(&self, slip: &Slip, meter: Meter) {
        let single = match meter {
            Meter::Bucket(gcra) | Meter::Queue(gcra) => Single::Gcra(gcra),
            Meter::Fixed(fixed) => Single::Fixed(fixed),
            Meter::Sliding(_) => return,
        };
        let Slip { cost, place, word: taken, overflow } = *slip;
        let table = if overflow { &self.overflow } else { &self.buckets };
        loop {
            let word = table.at(place);
            match single.untake(word, taken, cost) {
                Some(before) if !table.swap(place, word, before) => {}
                Some(_) | None => return,
            }
        }
    }

    /// What a key that is not in the table would start with.
    fn first_word(&self, clock: Now, key: CountKey, now: u64) -> u64 {
        let own = Own { ledger: self, clock, key };
        if self.buckets.has_room(key.hash, &own) {
            self.inherited(key, now)
        } else {
            self.overflow.value(shared_key(key, self.shared)).unwrap_or(0)
        }
    }

    /// What a key that gets a place starts with: what it may have taken while there was none.
    fn inherited(&self, key: CountKey, now: u64) -> u64 {
        if idle(self.marks.until(key.hash), now) {
            return 0;
        }
        self.overflow.value(shared_key(key, self.shared)).unwrap_or(0)
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

/// What the tables are made of.
#[cfg(not(test))]
mod words {
    pub(super) use core::hint::spin_loop;
    pub(super) use core::sync::atomic::AtomicU64;
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod turn_tests;
#[cfg(test)]
mod window_tests;
/// Words that stop between two steps, so that tests can try every order of them.
#[cfg(test)]
#[path = "../../tests/stepping/mod.rs"]
mod words;
