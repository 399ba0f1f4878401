//! The heaviest keys of a stream in fixed memory: Space-Saving (Metwally, Agrawal, El Abbadi 2005)
//! in sets of eight, so that a key is looked for in eight places and never moved.
//!
//! A key that is not held takes the place of the lightest of its set and counts on from there, so
//! whatever makes an eighth of its set's traffic is held, whoever floods it with other keys.

const WAYS: usize = 8;

#[derive(Debug)]
pub(crate) struct Sketch {
    /// A power of two.
    sets: Box<[[Entry; WAYS]]>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    /// 0: nobody.
    key: u64,
    /// Fades. Up to what the lightest of the set had, too much.
    count: u32,
    /// Since it was last handed over; nothing of others.
    fresh: u32,
}

impl Sketch {
    /// Room for the heaviest `keys`, and eight times as many that may become so.
    pub(crate) fn new(keys: usize) -> Self {
        let sets = keys.clamp(8, 1 << 12).next_power_of_two();
        Self { sets: (0..sets).map(|_| Default::default()).collect() }
    }

    pub(crate) fn hit(&mut self, key: u64, weight: u32) {
        let set = self.set(key);
        let Some(set) = self.sets.get_mut(set) else { return };
        let lightest = |set: &mut [Entry; WAYS]| {
            let (mut at, mut least) = (0, u32::MAX);
            for (i, entry) in set.iter().enumerate() {
                if entry.key == key {
                    return i;
                }
                if entry.count < least {
                    (at, least) = (i, entry.count);
                }
            }
            at
        };
        let at = lightest(set);
        let Some(entry) = set.get_mut(at) else { return };
        if entry.key != key {
            *entry = Entry { key, fresh: 0, ..*entry };
        }
        entry.count = entry.count.saturating_add(weight);
        entry.fresh = entry.fresh.saturating_add(weight);
    }

    /// How heavy a key is, of late; 0 when it is not held.
    pub(crate) fn count(&self, key: u64) -> u32 {
        let set = self.sets.get(self.set(key));
        set.and_then(|set| set.iter().find(|entry| entry.key == key)).map_or(0, |entry| entry.count)
    }

    /// What came of each key since this was last asked.
    pub(crate) fn take_fresh(&mut self, into: &mut Vec<(u32, u64)>) {
        into.clear();
        for entry in self.sets.iter_mut().flatten().filter(|entry| entry.fresh > 0) {
            into.push((core::mem::take(&mut entry.fresh), entry.key));
        }
    }

    /// Half of everything is forgotten.
    pub(crate) fn fade(&mut self) {
        for entry in self.sets.iter_mut().flatten() {
            entry.count /= 2;
        }
    }

    fn set(&self, key: u64) -> usize {
        // Keys are hashes: their low bits are as good as any.
        usize::try_from(key & (self.sets.len() as u64 - 1)).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mechanism::dice::Dice;

    #[test]
    fn heavy_keys_are_held_through_a_flood_of_light_ones() {
        let (mut sketch, mut dice) = (Sketch::new(8), Dice::new(3));
        let heavy: Vec<u64> = (0..8).map(|_| dice.roll()).collect();
        for turn in 0..40_000 {
            // One in five is one of the eight heavy keys; all others come once.
            let key = if turn % 5 == 0 { heavy[(turn / 5) % 8] } else { dice.roll() };
            sketch.hit(key, 1);
        }
        let mut fresh = Vec::new();
        sketch.take_fresh(&mut fresh);
        for key in heavy {
            assert!(sketch.count(key) >= 1000, "{}", sketch.count(key));
            // Its own, not what it took over from others.
            let own = fresh.iter().find(|(_, held)| *held == key).map(|(own, _)| *own);
            assert!(own.is_some_and(|own| own <= 1000), "{own:?}");
        }
        assert!(fresh.len() <= 64, "{}", fresh.len());
    }

    #[test]
    fn what_is_over_fades() {
        let mut sketch = Sketch::new(8);
        sketch.hit(7, 100);
        (0..7).for_each(|_| sketch.fade());
        assert_eq!((sketch.count(7), sketch.count(8)), (0, 0));
    }
}
