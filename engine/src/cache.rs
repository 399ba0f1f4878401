//! One worker's kept responses, in bounded memory: the least recently used goes first. What may be
//! kept, and what a copy may be used for, is policy's to say.

mod recorder;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use sluice_policy::cache::{Keep, Lookup};
use sluice_policy::facts::Headers;
use sluice_policy::plan::{CacheKey, Plan, RouteKey};
use sluice_policy::time::Instant;

use crate::http::parse::ResponseHead;
use crate::observe::cells::Cells;
pub(crate) use recorder::Recorder;

/// Everything one worker keeps. `used` never exceeds the bound: it counts copies, and responses that
/// are being written down.
#[derive(Debug)]
pub(crate) struct Cache {
    bytes_max: Cell<usize>,
    shelf: RefCell<Shelf>,
    cells: Arc<Cells>,
}

#[derive(Debug, Default)]
struct Shelf {
    used: usize,
    /// Copies that share a key differ in what `Vary` names; the newest stands last.
    slots: HashMap<CacheKey, Slot>,
    /// Keys by when they were last used.
    order: BTreeMap<u64, CacheKey>,
    turn: u64,
}

#[derive(Debug, Default)]
struct Slot {
    turn: u64,
    copies: Vec<Rc<Stored>>,
}

/// A response that was kept.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) keep: Keep,
    /// What its head lies in: the fields that may be sent again, and no others.
    pub(crate) text: Vec<u8>,
    pub(crate) head: ResponseHead,
    pub(crate) body: Vec<u8>,
    /// Lower case, as `Vary` names them.
    vary: Box<[Box<[u8]>]>,
    variant: u128,
    since: Instant,
}

/// A copy that will do.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) stored: Rc<Stored>,
    pub(crate) age: Duration,
    /// It stands in for what could not be had.
    pub(crate) degraded: bool,
}

/// The most copies under one key; the oldest makes room. A server that varies by more tells
/// clients apart, not kinds of response.
const VARIANTS_MAX: usize = 16;

/// What a copy costs beyond its bytes.
const OVERHEAD: usize = 512;

impl Stored {
    fn size(&self) -> usize {
        let fields = self.head.fields.capacity() * size_of::<sluice_policy::facts::Field>();
        let vary: usize = self.vary.iter().map(|name| name.len() + size_of::<usize>() * 2).sum();
        OVERHEAD + self.text.capacity() + self.body.capacity() + 2 * fields + vary
    }

    fn is_for(&self, request: Headers<'_>) -> bool {
        let names = self.vary.iter().map(AsRef::as_ref);
        self.vary.is_empty() || self.keep.key.variant(names, request) == self.variant
    }
}

impl Cache {
    pub(crate) fn new(bytes_max: u64, cells: Arc<Cells>) -> Self {
        let cache = Self { bytes_max: Cell::default(), shelf: RefCell::default(), cells };
        cache.resize(bytes_max);
        cache
    }

    fn resize(&self, bytes_max: u64) {
        self.bytes_max.set(usize::try_from(bytes_max).unwrap_or(usize::MAX));
        // Takes nothing, and so only makes room.
        self.reserve(0);
    }

    pub(crate) fn find(
        &self,
        lookup: &Lookup,
        request: Headers<'_>,
        now: Instant,
    ) -> Option<Found> {
        let mut shelf = self.shelf.borrow_mut();
        let slot = shelf.slots.get(&lookup.key)?;
        let fits = |stored: &&Rc<Stored>| {
            stored.keep.terms.answers(lookup, now.since(stored.since)) && stored.is_for(request)
        };
        let stored = Rc::clone(slot.copies.iter().rev().find(fits)?);
        shelf.touch(lookup.key);
        let age = stored.keep.terms.age(now.since(stored.since));
        let degraded = lookup.wanted == sluice_policy::cache::Wanted::Any;
        Some(Found { stored, age, degraded })
    }

    /// Put a response that came whole in its place.
    pub(crate) fn keep(&self, recorder: Recorder<'_>) {
        let Some(stored) = recorder.finish() else { return };
        let (size, key) = (stored.size(), stored.keep.key);
        if !self.reserve(size) {
            return;
        }
        let mut shelf = self.shelf.borrow_mut();
        let (now, mut gone) = (stored.since, 0);
        let slot = shelf.slots.entry(key).or_default();
        slot.copies.retain(|old| {
            let stays = (old.variant != stored.variant || old.vary != stored.vary)
                && !old.keep.terms.is_spent(now.since(old.since));
            gone += if stays { 0 } else { old.size() };
            stays
        });
        if slot.copies.len() >= VARIANTS_MAX {
            gone += slot.copies.remove(0).size();
        }
        slot.copies.push(Rc::new(stored));
        shelf.used -= gone;
        shelf.touch(key);
        self.cells.cache.stored.add(1);
        self.show(&shelf);
    }

    /// Make room for so many bytes more and take it. False: there is none to be made.
    fn reserve(&self, bytes: usize) -> bool {
        let mut shelf = self.shelf.borrow_mut();
        let mut evicted = 0;
        while shelf.used.saturating_add(bytes) > self.bytes_max.get() {
            let Some((_, key)) = shelf.order.pop_first() else { break };
            evicted += shelf.drop_slot(key);
        }
        let fits = shelf.used.saturating_add(bytes) <= self.bytes_max.get();
        if fits {
            shelf.used += bytes;
        }
        self.cells.cache.evicted.add(evicted);
        self.show(&shelf);
        fits
    }

    fn give_back(&self, bytes: usize) {
        let mut shelf = self.shelf.borrow_mut();
        shelf.used -= bytes;
        self.show(&shelf);
    }

    /// Go on under another configuration: what was kept by a rule that is gone goes, too.
    pub(crate) fn adopt(&self, plan: &Plan, bytes_max: u64) {
        let live: BTreeSet<u64> = plan.cache_editions().map(|(_, edition)| edition).collect();
        self.retain(|stored| live.contains(&stored.keep.edition));
        self.resize(bytes_max);
    }

    /// Forget what was kept of that route, or everything.
    pub(crate) fn purge(&self, route: Option<RouteKey>) {
        self.retain(|stored| route.is_some_and(|route| stored.keep.route != route));
    }

    fn retain(&self, stays: impl Fn(&Stored) -> bool) {
        let mut shelf = self.shelf.borrow_mut();
        let Shelf { used, slots, order, .. } = &mut *shelf;
        slots.retain(|_, slot| {
            // All under one key are of one rule.
            let stay = slot.copies.first().is_some_and(|stored| stays(stored));
            if !stay {
                *used -= slot.copies.iter().map(|stored| stored.size()).sum::<usize>();
                order.remove(&slot.turn);
            }
            stay
        });
        self.show(&shelf);
    }

    fn show(&self, shelf: &Shelf) {
        self.cells.cache.bytes.set(shelf.used as u64);
        self.cells.cache.keys.set(shelf.slots.len() as u64);
    }
}

impl Shelf {
    fn touch(&mut self, key: CacheKey) {
        self.turn += 1;
        let Some(slot) = self.slots.get_mut(&key) else { return };
        self.order.remove(&slot.turn);
        slot.turn = self.turn;
        self.order.insert(self.turn, key);
    }

    /// How many copies were in it.
    fn drop_slot(&mut self, key: CacheKey) -> u64 {
        let Some(slot) = self.slots.remove(&key) else { return 0 };
        self.used -= slot.copies.iter().map(|stored| stored.size()).sum::<usize>();
        slot.copies.len() as u64
    }
}
