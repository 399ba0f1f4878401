//! What workers tell the control thread: a bounded ring of small messages, without locks.
//!
//! A full ring refuses. Nothing depends on one message: whoever waits says so again.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// A request waits for tokens of this key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wish {
    /// The key as the node counts it.
    pub(crate) hash: u64,
    /// The key as every node counts it.
    pub(crate) name: [u64; 2],
    pub(crate) rule: u64,
    /// Tokens.
    pub(crate) cost: u32,
    /// They were spent already: nobody waits.
    pub(crate) spent: bool,
}

/// Many writers, one reader. Each cell says by its turn whose it is: `n` is free for the `n`th
/// message, `n + 1` holds it.
#[derive(Debug)]
pub(crate) struct Intake {
    cells: Box<[Cell]>,
    written: AtomicU64,
    read: AtomicU64,
}

#[derive(Debug, Default)]
struct Cell {
    turn: AtomicU64,
    words: [AtomicU64; 5],
}

impl Intake {
    pub(crate) fn new(messages_max: u32) -> Self {
        let cells = (0..u64::from(messages_max.max(2)))
            .map(|turn| Cell { turn: AtomicU64::new(turn), ..Cell::default() });
        Self { cells: cells.collect(), written: AtomicU64::new(0), read: AtomicU64::new(0) }
    }

    /// False: there is no room.
    pub(crate) fn push(&self, wish: &Wish) -> bool {
        let mut at = self.written.load(Relaxed);
        loop {
            let cell = self.cell(at);
            let turn = cell.turn.load(Acquire);
            if turn < at {
                return false;
            }
            if turn > at {
                at = self.written.load(Relaxed);
                continue;
            }
            match self.written.compare_exchange_weak(at, at + 1, Relaxed, Relaxed) {
                Ok(_) => {
                    let [first, second] = wish.name;
                    let cost = u64::from(wish.cost) | u64::from(wish.spent) << 32;
                    let told = [wish.hash, first, second, wish.rule, cost];
                    for (word, value) in cell.words.iter().zip(told) {
                        word.store(value, Relaxed);
                    }
                    cell.turn.store(at + 1, Release);
                    return true;
                }
                Err(now) => at = now,
            }
        }
    }

    /// For the one reader.
    pub(crate) fn pop(&self) -> Option<Wish> {
        let at = self.read.load(Relaxed);
        let cell = self.cell(at);
        if cell.turn.load(Acquire) != at + 1 {
            return None;
        }
        let [hash, first, second, rule, cost] = cell.words.each_ref().map(|w| w.load(Relaxed));
        cell.turn.store(at + self.cells.len() as u64, Release);
        self.read.store(at + 1, Relaxed);
        let spent = cost >> 32 != 0;
        let cost = u32::try_from(cost & u64::from(u32::MAX)).unwrap_or(u32::MAX);
        Some(Wish { hash, name: [first, second], rule, cost, spent })
    }

    #[expect(clippy::cast_possible_truncation, reason = "reduced to the ring's length")]
    fn cell(&self, at: u64) -> &Cell {
        &self.cells[(at % self.cells.len() as u64) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(hash: u64) -> Wish {
        Wish {
            hash,
            name: [hash + 1, hash + 2],
            rule: hash + 3,
            cost: 1,
            spent: hash.is_multiple_of(2),
        }
    }

    #[test]
    fn what_goes_in_comes_out_in_order_and_a_full_ring_refuses() {
        let intake = Intake::new(3);
        for round in 0..5 {
            let hashes = [round * 10, round * 10 + 1, round * 10 + 2];
            assert!(hashes.iter().all(|hash| intake.push(&wish(*hash))));
            assert!(!intake.push(&wish(99)), "full");
            assert!(hashes.iter().all(|hash| intake.pop() == Some(wish(*hash))));
            assert_eq!(intake.pop(), None);
        }
    }

    #[test]
    fn many_writers_lose_nothing() {
        let intake = Intake::new(64);
        let mut heard = 0_u64;
        std::thread::scope(|scope| {
            for writer in 1..=4_u64 {
                let intake = &intake;
                scope.spawn(move || {
                    for n in 0..1000 {
                        while !intake.push(&wish(writer * 10_000 + n)) {
                            std::thread::yield_now();
                        }
                    }
                });
            }
            while heard < 4000 {
                match intake.pop() {
                    Some(found) => {
                        assert_eq!(found, wish(found.hash), "no message is torn");
                        heard += 1;
                    }
                    None => std::thread::yield_now(),
                }
            }
        });
        assert_eq!(intake.pop(), None);
    }
}
