//! The boards of all breakers of the node, under the keys of upstreams and endpoints.
//!
//! When all places are taken, a new key gets none, and its breaker lets everything through.

use core::sync::atomic::AtomicU32;

use super::places::{Place, Places};
use super::{BreakerKey, Ledger};
use crate::mechanism::breaker::{Board, Force, Thresholds, View};
use crate::mechanism::window::Window;
use crate::time::Instant;

/// Keys of a process, over all reloads.
pub(crate) const BOARDS_MAX: usize = 8192;

#[derive(Debug)]
pub(crate) struct Boards(Places<Seat>);

#[derive(Debug, Default)]
struct Seat {
    board: Board,
    /// Requests; retries and hedges as what is bad of them, hedges also as what is slow.
    budget: Window,
    /// Requests under way, where balancing has to know.
    load: AtomicU32,
}

/// A board that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BoardId(Place);

impl Boards {
    pub(crate) fn new(max: usize) -> Self {
        Self(Places::new(max))
    }

    /// The key's board, made when there is none; None when there is no room. Not for the way of a
    /// request.
    pub(crate) fn place(&self, key: u64) -> Option<BoardId> {
        self.0.place(key).map(BoardId)
    }

    pub(crate) fn at(&self, id: BoardId) -> &Board {
        &self.0.at(id.0).board
    }

    pub(crate) fn budget(&self, id: BoardId) -> &Window {
        &self.0.at(id.0).budget
    }

    pub(crate) fn load(&self, id: BoardId) -> &AtomicU32 {
        &self.0.at(id.0).load
    }

    /// The key's board, if it has one.
    fn find(&self, key: u64) -> Option<&Board> {
        self.0.find(key).map(|seat| &seat.board)
    }
}

impl Ledger {
    /// How the breaker of this upstream or endpoint stands; None when it has none.
    pub fn breaker(&self, key: BreakerKey, now: Instant) -> Option<View> {
        self.boards.find(key.0).map(|board| board.view(now))
    }

    /// Takes a breaker out of its own judgement until then, or gives it back (None). False when
    /// there is no such breaker.
    pub fn force(&self, key: BreakerKey, now: Instant, force: Option<(Force, Instant)>) -> bool {
        self.boards.find(key.0).map(|board| board.force(now, force)).is_some()
    }

    /// Other thresholds of a breaker until then, or those that are written (None). False when
    /// there is no such breaker.
    pub fn tune(&self, key: BreakerKey, wanted: Option<(Thresholds, Instant)>) -> bool {
        self.boards.find(key.0).map(|board| board.tune(wanted)).is_some()
    }
}
