//! Chance from a seed: the same seed gives the same throws, on every machine.

/// SplitMix64: small, seedable, good enough to spread load. Not for secrets.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub const fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`; 0 when `n` is 0. The multiply keeps the bias below n / 2^64.
    pub const fn below(&mut self, n: u64) -> u64 {
        ((self.roll() as u128 * n as u128) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_throws_the_same() {
        let (mut a, mut b) = (Dice::new(7), Dice::new(7));
        assert!((0..100).all(|_| a.roll() == b.roll()));
        assert_ne!(Dice::new(7).roll(), Dice::new(8).roll());
    }

    #[test]
    fn every_face_comes_up_and_none_beyond() {
        let mut dice = Dice::new(1);
        let mut seen = [0_u32; 6];
        for _ in 0..6000 {
            seen[usize::try_from(dice.below(6)).unwrap()] += 1;
        }
        assert!(seen.iter().all(|n| (800..1200).contains(n)), "{seen:?}");
        assert_eq!(dice.below(0), 0);
    }
}
