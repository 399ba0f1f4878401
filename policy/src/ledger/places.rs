//! Memory of the node under keys that the plan names: upstreams, endpoints, routes, limits.
//!
//! A key takes the first free place from where it points, and keeps it for good; so workers meet
//! at the same place without a lock, and a reload finds everything as it was. When all places are
//! taken, a new key gets none.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, SeqCst};

const NOBODY: u64 = 0;

#[derive(Debug)]
pub(crate) struct Places<T>(Box<[Slot<T>]>);

/// Whole lines of the cache, shared with no other key.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Slot<T> {
    key: AtomicU64,
    held: T,
}

/// A place that is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place(usize);

impl<T: Default> Places<T> {
    pub(crate) fn new(max: usize) -> Self {
        Self((0..max.max(1)).map(|_| Slot::default()).collect())
    }

    /// The key's place, taken if need be. Not for the way of a request.
    pub(crate) fn place(&self, key: u64) -> Option<Place> {
        self.walk(key).find(|place| {
            let slot = &self.0[place.0].key;
            match slot.compare_exchange(NOBODY, named(key), SeqCst, SeqCst) {
                Ok(_) => true,
                Err(held) => held == named(key),
            }
        })
    }

    /// What is held for the key, if anything is.
    pub(crate) fn find(&self, key: u64) -> Option<&T> {
        let held = |place: &Place| self.0[place.0].key.load(Acquire);
        let found = self.walk(key).find(|place| [NOBODY, named(key)].contains(&held(place)))?;
        (held(&found) == named(key)).then(|| self.at(found))
    }

    pub(crate) fn at(&self, place: Place) -> &T {
        &self.0[place.0].held
    }

    fn walk(&self, key: u64) -> impl Iterator<Item = Place> {
        let len = self.0.len();
        let start = usize::try_from(key % len as u64).unwrap_or(0);
        (start..len).chain(0..start).map(Place)
    }
}

fn named(key: u64) -> u64 {
    key.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_keeps_its_place_and_a_full_table_has_none_for_another() {
        let places = Places::<AtomicU64>::new(3);
        let taken: Vec<_> = [5, 8, 11].map(|key| places.place(key)).into();
        assert!(taken.iter().all(Option::is_some), "{taken:?}");
        assert_eq!([5, 8, 11].map(|key| places.place(key)).to_vec(), taken);
        assert!([5, 8, 11].iter().all(|key| places.find(*key).is_some()));
        assert_eq!((places.place(7), places.find(7).is_some()), (None, false));
        assert!(Places::<AtomicU64>::new(3).find(7).is_none());
    }
}
