//! Sliding windows: the cells of a key, in blocks of sixteen that are found through a table.
//!
//! A key has as many blocks as its use needs, at most four. The table keeps for each block the
//! instant at which all of its cells have their share back; until then it is not forgotten. Who
//! takes from a cell raises that instant first, so the block stays while the cell is swapped. A
//! worker that sleeps for a whole window between the two may write into a block that changed
//! hands, but what it writes is a window old by then and means nothing.
//!
//! When no place is left, the block is one of the spare ones that the keys of a limit share.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::fence;
use core::time::Duration;

use super::table::{Place, Refused, Table, Words};
use super::{CONTENDED_WAIT, CountKey, SPARE_SHARED, idle, shared_key, spread};
use crate::mechanism::gcra::Level;
use crate::mechanism::sliding::{Loan, Sliding};

const BLOCK: usize = 16;
const BLOCKS: usize = Sliding::CELLS_MAX / BLOCK;
/// Looks before giving up; each means that another worker took meanwhile.
const LOOKS_MAX: u32 = 1024;

#[derive(Debug)]
pub(crate) struct Blocks {
    own: Store,
    spare: Store,
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
pub(crate) struct Loans([Option<Lent>; Self::MAX]);

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
        let cell = u8::try_from(loan.cell % BLOCK);
        if let Some(free) = self.0.iter_mut().find(|slot| slot.is_none())
            && let (Ok(cell), Ok(count)) = (cell, u16::try_from(loan.count))
        {
            *free = Some(Lent { word: loan.next, place, count, cell, spare });
        }
    }
}

impl Blocks {
    pub(super) fn new(blocks_max: usize, spare: usize) -> Self {
        Self { own: Store::new(blocks_max), spare: Store::new(spare) }
    }

    /// Blocks that hold a key's cells, spare ones not counted.
    pub(super) fn in_use(&self) -> usize {
        self.own.table.values().count()
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
            let mut words = self.words(key, sliding);
            let now = now();
            let Some(loan) = sliding.lend(&words, now, missing) else {
                self.give_back(&loans, sliding);
                return Err(sliding.wait(&words, now, missing));
            };
            let Some(home) = self.settle(key, loan.cell / BLOCK, sliding, now) else { break };
            if !self.swap(home, loan.cell, loan.word, loan.next) {
                continue;
            }
            if home.spare {
                // As for buckets: whoever brings this key into the table sees what we took, or we
                // see the key, and what it has there must agree, too.
                fence(SeqCst);
                if self.own.table.holds(block_key(key, loan.cell / BLOCK)) {
                    continue;
                }
            }
            loans.push(home, loan);
            missing -= loan.count;
            if missing == 0 {
                words[loan.cell] = loan.next;
                return Ok((loans, sliding.level(&words, now)));
            }
        }
        self.give_back(&loans, sliding);
        Err(CONTENDED_WAIT)
    }

    /// What `take` would say, without taking.
    pub(super) fn peek(
        &self,
        key: CountKey,
        sliding: Sliding,
        cost: u32,
        now: u64,
    ) -> Result<Level, (Level, Duration)> {
        let words = self.words(key, sliding);
        let level = sliding.level(&words, now);
        match level.left.checked_sub(cost) {
            // What is taken now is the last to come back.
            Some(left) if level.reset.is_zero() => Ok(Level { left, reset: sliding.window() }),
            Some(left) => Ok(Level { left, ..level }),
            None => Err((level, sliding.wait(&words, now, cost))),
        }
    }

    pub(super) fn give_back(&self, loans: &Loans, sliding: Sliding) {
        for lent in loans.0.iter().flatten() {
            let Lent { word: taken, place, count, cell, spare } = *lent;
            let cell = &self.store(Home { spare, place }).block(place)[usize::from(cell)];
            let give = |word| sliding.untake(word, taken, count.into());
            let _ = cell.fetch_update(SeqCst, Relaxed, give);
        }
    }

    /// The words of a key's cells. Where there is no block, nothing was lent.
    fn words(&self, key: CountKey, sliding: Sliding) -> [u64; Sliding::CELLS_MAX] {
        let mut words = [0; Sliding::CELLS_MAX];
        let blocks = sliding.cells().div_ceil(BLOCK);
        for (block, words) in words.chunks_exact_mut(BLOCK).take(blocks).enumerate() {
            let own = self.own.table.look(block_key(key, block)).map(|(place, _)| (false, place));
            let look = || self.spare.table.look(spare_key(key, block)).map(|(p, _)| (true, p));
            if let Some((spare, place)) = own.or_else(look) {
                for (word, cell) in
                    words.iter_mut().zip(self.store(Home { spare, place }).block(place))
                {
                    *word = cell.load(SeqCst);
                }
            }
        }
        words
    }

    /// A block for these cells that stays for a window at least.
    fn settle(&self, key: CountKey, block: usize, sliding: Sliding, now: u64) -> Option<Home> {
        let needed = now + sliding.window_ticks();
        // Further than needed, so that it is raised once in an eighth of a window.
        let raised = needed + sliding.window_ticks() / 8;
        let raise = |until| ((until < needed).then_some(raised), ());
        let spare = spare_key(key, block);
        let own = Own { blocks: self, spare, now };
        match self.own.table.update(block_key(key, block), &own, raise) {
            Ok((place, ())) => return Some(Home { spare: false, place }),
            Err(Refused::Contended) => return None,
            Err(Refused::Full) => {}
        }
        let (place, ()) =
            self.spare.table.update(spare, &Spare { blocks: self, now }, raise).ok()?;
        Some(Home { spare: true, place })
    }

    fn swap(&self, home: Home, cell: usize, word: u64, next: u64) -> bool {
        let cell = &self.store(home).block(home.place)[cell % BLOCK];
        cell.compare_exchange(word, next, SeqCst, Relaxed).is_ok()
    }

    const fn store(&self, home: Home) -> &Store {
        if home.spare { &self.spare } else { &self.own }
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

/// Values are the instant at which the block's cells all have their share back.
struct Own<'a> {
    blocks: &'a Blocks,
    spare: u64,
    now: u64,
}

impl Words for Own<'_> {
    fn idle(&self, until: u64) -> bool {
        idle(until, self.now)
    }

    /// What was taken from the spare block while there was no room stays taken.
    fn fresh(&self, place: Place, _: u64) -> u64 {
        fence(SeqCst);
        let from = self.blocks.spare.table.look(self.spare);
        let from = from.map(|(place, _)| self.blocks.spare.block(place));
        for (i, cell) in self.blocks.own.block(place).iter().enumerate() {
            let word = from.and_then(|from| from.get(i)).map_or(0, |cell| cell.load(SeqCst));
            cell.store(word, SeqCst);
        }
        0
    }

    fn cleared(&self, until: u64) -> u64 {
        until + 1
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
        until + 1
    }
}
