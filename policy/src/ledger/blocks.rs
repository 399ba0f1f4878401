//! Sliding windows: the cells of a key, in blocks of sixteen that are found through a table.
//!
//! A key has as many blocks as its use needs, at most four. The table keeps for each block the
//! instant at which all of its cells have their share back; until then it is not forgotten. Who
//! takes from a cell raises that instant first, so the block stays while the cell is swapped. A
//! worker that sleeps for a whole window between the two may write into a block that changed
//! hands, but what it writes is a window old by then and means nothing.
//!
//! When no place is left, the block is one of the spare ones that the keys of a limit share.

use core::cell::Cell;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::fence;
use core::time::Duration;

use super::marks::Marks;
use super::table::{Place, Refused, Table, Words};
use super::tally::Figures;
use super::words::AtomicU64;
use super::{CONTENDED_WAIT, CountKey, SPARE_SHARED, idle, shared_key, spread};
use crate::mechanism::gcra::Level;
use crate::mechanism::ring::{Ring, Step};
use crate::mechanism::sliding::{Loan, Sliding};

const BLOCK: usize = 16;
const BLOCKS: usize = Sliding::CELLS_MAX / BLOCK;
/// The low bits of a first block's word.
const RING: u64 = (1 << Ring::BITS) - 1;
/// Looks before giving up; each means that another worker took meanwhile.
const LOOKS_MAX: u32 = 1024;

#[derive(Debug)]
pub(crate) struct Blocks {
    own: Store,
    spare: Store,
    /// Of blocks whose key took from the spare ones.
    marks: Marks,
}

#[derive(Debug)]
struct Store {
    table: Table,
    cells: Box<[AtomicU64]>,
}

#[derive(Clone, Copy, Debug)]
struct Home {
    spare: bool,
    place: Place,
}

/// What was taken, cell by cell. More cells than fit are not given back.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Loans {
    lent: [Option<Lent>; Self::MAX],
    /// The key's first block, unless it is a spare one.
    first: Option<Place>,
}

#[derive(Clone, Copy, Debug)]
struct Lent {
    word: u64,
    place: Place,
    count: u16,
    cell: u8,
    spare: bool,
}

impl Loans {
    const MAX: usize = 4;

    fn push(&mut self, Home { spare, place }: Home, loan: Loan) {
        if let Some(free) = self.lent.iter_mut().find(|slot| slot.is_none())
            && let (Ok(cell), Ok(count)) = (u8::try_from(loan.cell), u16::try_from(loan.count))
        {
            *free = Some(Lent { word: loan.next, place, count, cell, spare });
        }
    }
}

/// A loan that is about to be made, and what there is after it.
struct Pick {
    home: Home,
    loan: Loan,
    ring: Option<Ring>,
    level: Level,
}

/// A key's first block, and the table's word for it.
#[derive(Clone, Copy)]
struct First {
    home: Home,
    word: u64,
}

impl Blocks {
    pub(super) fn new(blocks_max: usize, spare: usize) -> Self {
        Self {
            own: Store::new(blocks_max),
            spare: Store::new(spare),
            marks: Marks::new(blocks_max),
        }
    }

    /// Of the blocks that hold a key's cells, spare ones not counted.
    pub(super) fn figures(&self) -> Figures {
        self.own.table.figures()
    }

    pub(super) fn take(
        &self,
        key: CountKey,
        sliding: Sliding,
        cost: u32,
        now: impl Fn() -> u64,
    ) -> Result<(Loans, Level), Duration> {
        let (mut loans, mut missing) = (Loans::default(), cost);
        for _ in 0..LOOKS_MAX {
            let now = now();
            // Always, wherever the loan is: so the first block outlives what the others have lent.
            let Some(first) = self.settle(key, 0, sliding, now) else { break };
            let picked = match self.pick_next(key, first, sliding, now, missing) {
                Some(picked) => picked,
                None => self.pick_any(key, first, sliding, now, missing),
            };
            let Pick { home, loan, ring, level } = match picked {
                Ok(Some(pick)) => pick,
                Ok(None) => break,
                Err(wait) => {
                    self.give_back(&loans, sliding);
                    return Err(wait);
                }
            };
            if !self.swap(home, loan.cell, loan.word, loan.next) {
                continue;
            }
            if home.spare {
                // As for buckets: whoever brings this key into the table sees what we took, or we
                // see the key, and what it has there must agree, too.
                let key = block_key(key, loan.cell / BLOCK);
                self.marks.raise(key, now + sliding.window_ticks());
                fence(SeqCst);
                if self.own.table.holds(key) {
                    continue;
                }
            }
            if !self.note(first, ring) && ring.is_none() {
                // Without a ring, cells depend on each other: the look at them holds only if
                // nobody else changed the word since.
                self.untake(home, &loan, sliding);
                continue;
            }
            loans.first = (!first.home.spare).then_some(first.home.place);
            loans.push(home, loan);
            missing -= loan.count;
            if missing == 0 {
                return Ok((loans, level));
            }
        }
        self.give_back(&loans, sliding);
        Err(CONTENDED_WAIT)
    }

    /// The cell whose turn it is. None: look at all of them. An error is how long until there is
    /// one.
    fn pick_next(
        &self,
        key: CountKey,
        first: First,
        sliding: Sliding,
        now: u64,
        missing: u32,
    ) -> Option<Result<Option<Pick>, Duration>> {
        let ring = Ring::unpack(first.word).filter(|_| !first.home.spare)?;
        let near = Near::new(self, key, first.home.place);
        match ring.step(sliding, |cell| near.word(cell), now, missing)? {
            Step::Full(wait) => Some(Err(wait)),
            Step::Lend { loan, ring, level } => {
                let home = match loan.cell / BLOCK {
                    0 => first.home,
                    block => self.settle(key, block, sliding, now)?.home,
                };
                (!home.spare).then_some(Ok(Some(Pick { home, loan, ring: Some(ring), level })))
            }
        }
    }

    /// The best of all cells. None when another worker stood in the way.
    fn pick_any(
        &self,
        key: CountKey,
        first: First,
        sliding: Sliding,
        now: u64,
        missing: u32,
    ) -> Result<Option<Pick>, Duration> {
        let mut words = self.words(key, now);
        let Some(loan) = sliding.lend(&words, now, missing) else {
            if let ring @ Some(_) = Ring::seen(sliding, &words, now, 0) {
                self.note(first, ring);
            }
            return Err(sliding.wait(&words, now, missing));
        };
        let settled = self.settle(key, loan.cell / BLOCK, sliding, now);
        Ok(settled.map(|First { home, .. }| {
            words[loan.cell] = loan.next;
            let ring = Ring::seen(sliding, &words, now, loan.cell);
            Pick { home, loan, ring, level: sliding.level(&words, now) }
        }))
    }

    /// What `take` would say, without taking.
    pub(super) fn peek(
        &self,
        key: CountKey,
        sliding: Sliding,
        cost: u32,
        now: u64,
    ) -> Result<Level, (Level, Duration)> {
        let first = self.own.table.look(block_key(key, 0));
        let near = first.and_then(|(place, word)| {
            let near = Near::new(self, key, place);
            Ring::unpack(word)?.level(sliding, |cell| near.word(cell), now)
        });
        let level = near.unwrap_or_else(|| sliding.level(&self.words(key, now), now));
        match level.left.checked_sub(cost) {
            // What is taken now is the last to come back.
            Some(left) if level.reset.is_zero() => Ok(Level { left, reset: sliding.window() }),
            Some(left) => Ok(Level { left, ..level }),
            None if cost == 1 => Err((level, level.reset)),
            None => Err((level, sliding.wait(&self.words(key, now), now, cost))),
        }
    }

    /// Before it could take.
    pub(super) fn refused(&self, key: CountKey) {
        self.own.table.refused(block_key(key, 0));
    }

    pub(super) fn give_back(&self, loans: &Loans, sliding: Sliding) {
        for lent in loans.lent.iter().flatten() {
            let Lent { word: taken, place, count, cell, spare } = *lent;
            let cell = usize::from(cell);
            let word = &self.store(Home { spare, place }).block(place)[cell % BLOCK];
            let give = |word| sliding.untake(word, taken, count.into());
            let given = word.fetch_update(SeqCst, Relaxed, give).is_ok();
            // A hole amid the ring. Whether it is still this key's does not matter: it is a hint.
            if given && let Some(first) = loans.first {
                let word = self.own.table.at(first);
                if Ring::unpack(word).is_some_and(|ring| ring.head() != cell) {
                    let _ =
                        self.note(First { home: Home { spare: false, place: first }, word }, None);
                }
            }
        }
    }

    /// Remembers where the ring stands, or that nobody knows; false when somebody else changed the
    /// word.
    fn note(&self, First { home, word }: First, ring: Option<Ring>) -> bool {
        let changes = || (word + 1) & (Ring::KNOWN - 1);
        let next = (word & !RING) | ring.map_or_else(changes, Ring::pack);
        next == word || self.store(home).table.swap(home.place, word, next)
    }

    fn untake(&self, home: Home, loan: &Loan, sliding: Sliding) {
        let cell = &self.store(home).block(home.place)[loan.cell % BLOCK];
        let give = |word| sliding.untake(word, loan.next, loan.count);
        let _ = cell.fetch_update(SeqCst, Relaxed, give);
    }

    /// The words of a key's cells. Where there is no block, nothing was lent.
    fn words(&self, key: CountKey, now: u64) -> [u64; Sliding::CELLS_MAX] {
        let mut words = [0; Sliding::CELLS_MAX];
        for (block, words) in words.chunks_exact_mut(BLOCK).enumerate() {
            let own = self.own.table.look(block_key(key, block)).map(|(place, _)| (false, place));
            let look = || self.shared(key, block, now).map(|place| (true, place));
            match own.or_else(look) {
                Some((spare, place)) => {
                    let cells = self.store(Home { spare, place }).block(place);
                    for (word, cell) in words.iter_mut().zip(cells) {
                        *word = cell.load(SeqCst);
                    }
                }
                // The first outlives the others.
                None if block == 0 => break,
                None => {}
            }
        }
        words
    }

    /// The spare block that stands for one that the key does not have: because it has taken from
    /// there, or would have to.
    fn shared(&self, key: CountKey, block: usize, now: u64) -> Option<Place> {
        let own = Own::new(self, key, block, now, 0);
        let took = !idle(self.marks.until(own.key), now);
        if !took && self.own.table.has_room(own.key, &own) {
            return None;
        }
        self.spare.table.look(own.spare).map(|(place, _)| place)
    }

    /// A block for these cells that stays for a window at least.
    fn settle(&self, key: CountKey, block: usize, sliding: Sliding, now: u64) -> Option<First> {
        let needed = now + sliding.window_ticks();
        // Further than needed, so that it is raised once in an eighth of a window.
        let raised = (needed + sliding.window_ticks() / 8).next_multiple_of(RING + 1);
        let raise = |word| {
            let next = (word < needed).then_some(raised | (word & RING));
            (next, next.unwrap_or(word))
        };
        let own = Own::new(self, key, block, now, Ring::new(sliding).pack());
        match self.own.table.update(own.key, &own, raise) {
            Ok((place, word)) => return Some(First { home: Home { spare: false, place }, word }),
            Err(Refused::Contended) => return None,
            Err(Refused::Full) => {}
        }
        let (place, word) =
            self.spare.table.update(own.spare, &Spare { blocks: self, now }, raise).ok()?;
        Some(First { home: Home { spare: true, place }, word })
    }

    fn swap(&self, home: Home, cell: usize, word: u64, next: u64) -> bool {
        let cell = &self.store(home).block(home.place)[cell % BLOCK];
        cell.compare_exchange(word, next, SeqCst, Relaxed).is_ok()
    }

    const fn store(&self, home: Home) -> &Store {
        if home.spare { &self.spare } else { &self.own }
    }
}

/// A key's cells, one after the other: finds a block once.
struct Near<'a> {
    blocks: &'a Blocks,
    key: CountKey,
    first: Place,
    last: Cell<(usize, Option<Place>)>,
}

impl<'a> Near<'a> {
    fn new(blocks: &'a Blocks, key: CountKey, first: Place) -> Self {
        Self { blocks, key, first, last: Cell::new((0, Some(first))) }
    }

    fn word(&self, cell: usize) -> u64 {
        let block = cell / BLOCK;
        let place = match block {
            0 => Some(self.first),
            _ if self.last.get().0 == block => self.last.get().1,
            _ => {
                let found = self.blocks.own.table.look(block_key(self.key, block));
                let place = found.map(|(place, _)| place);
                self.last.set((block, place));
                place
            }
        };
        place.map_or(0, |place| self.blocks.own.block(place)[cell % BLOCK].load(SeqCst))
    }
}

impl Store {
    fn new(blocks_max: usize) -> Self {
        let table = Table::new(blocks_max);
        let cells = (0..table.capacity() * BLOCK).map(|_| AtomicU64::new(0)).collect();
        Self { table, cells }
    }

    fn block(&self, place: Place) -> &[AtomicU64] {
        &self.cells[place.index() * BLOCK..][..BLOCK]
    }
}

fn block_key(key: CountKey, block: usize) -> u64 {
    const { assert!(BLOCKS <= 1 << 8, "told apart below") };
    if block == 0 { key.hash } else { spread(key.hash ^ block as u64) }
}

fn spare_key(key: CountKey, block: usize) -> u64 {
    spread(shared_key(key, SPARE_SHARED) ^ block as u64)
}

/// Values are the instant at which the block's cells all have their share back; in the low bits,
/// for the first block, where the ring of the key's cells stands.
struct Own<'a> {
    blocks: &'a Blocks,
    key: u64,
    spare: u64,
    now: u64,
    ring: u64,
}

impl<'a> Own<'a> {
    fn new(blocks: &'a Blocks, key: CountKey, block: usize, now: u64, ring: u64) -> Self {
        let (key, spare) = (block_key(key, block), spare_key(key, block));
        Self { blocks, key, spare, now, ring }
    }
}

impl Words for Own<'_> {
    fn idle(&self, until: u64) -> bool {
        idle(until, self.now)
    }

    /// What was taken from the spare block while there was no room stays taken.
    fn fresh(&self, place: Place, _: u64) -> u64 {
        fence(SeqCst);
        let took = !idle(self.blocks.marks.until(self.key), self.now);
        let from = took.then(|| self.blocks.spare.table.look(self.spare)).flatten();
        let from = from.map(|(place, _)| self.blocks.spare.block(place));
        if from.is_some() {
            self.blocks.own.table.shares(self.key);
        }
        let ring = if from.is_some() { 0 } else { self.ring };
        for (i, cell) in self.blocks.own.block(place).iter().enumerate() {
            let word = from.and_then(|from| from.get(i)).map_or(0, |cell| cell.load(SeqCst));
            cell.store(word, SeqCst);
        }
        ring
    }

    fn cleared(&self, until: u64) -> u64 {
        (until | RING) + 1
    }
}

struct Spare<'a> {
    blocks: &'a Blocks,
    now: u64,
}

impl Words for Spare<'_> {
    fn idle(&self, until: u64) -> bool {
        idle(until, self.now)
    }

    fn fresh(&self, place: Place, _: u64) -> u64 {
        for cell in self.blocks.spare.block(place) {
            cell.store(0, SeqCst);
        }
        0
    }

    fn cleared(&self, until: u64) -> u64 {
        (until | RING) + 1
    }
}
