//! Weighted rendezvous hashing: every server draws a number from the key and its own name, and the
//! highest wins. When a server leaves, only the keys that it won move, each to whoever came second
//! for it, so they spread over all others; when one comes, it takes its share and nothing else
//! moves. No table, nothing to build.
//!
//! With weights, the number is weight / −log₂(u) for a uniform u (Schindelhauer and Schomaker,
//! 2005): each server wins in proportion to its weight, and changing one weight moves keys only to
//! or from that server.

/// A server's claim to a key. The greatest wins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim {
    weight: u64,
    /// −log₂(u), in units of 2^−40; at least one.
    distance: u64,
}

impl Claim {
    pub(crate) fn new(key: u64, server: u64, weight: u32) -> Self {
        let distance = (64 << FRACTION) - log2(mixed(key, server));
        Self { weight: u64::from(weight), distance: distance.max(1) }
    }

    /// The first of two that are alike stays.
    pub(crate) fn beats(self, other: Self) -> bool {
        // weight / distance, without dividing: 10 bits by 46.
        self.weight * other.distance > other.weight * self.distance
    }
}

/// A number that looks drawn by chance from both (the finaliser of SplitMix64, twice).
pub(crate) const fn mixed(key: u64, server: u64) -> u64 {
    scrambled(scrambled(key).wrapping_add(server))
}

const fn scrambled(n: u64) -> u64 {
    let n = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

const FRACTION: u32 = 40;

/// log₂ of a number, of 1 for zero, in units of 2^−40: exact at 256 places between two powers, and
/// a straight line between two of them, which is off by less than one in 300,000.
fn log2(n: u64) -> u64 {
    let n = n.max(1);
    let whole = u64::from(63 - n.leading_zeros());
    // What follows the leading one: 8 bits of place, and 32 of the way to the next.
    let rest = (n << n.leading_zeros()) << 1;
    let place = (rest >> 56) as usize;
    let way = (rest >> 24) & u64::from(u32::MAX);
    let (from, to) = (LOG2[place], LOG2[place + 1]);
    (whole << FRACTION) + from + (((to - from) * (way >> 8)) >> 24)
}

/// log₂(1 + i/256), in units of 2^−40.
static LOG2: [u64; 257] = {
    let mut table = [0; 257];
    let mut i = 0;
    while i < 256 {
        table[i] = log2_of(256 + i as u64);
        i += 1;
    }
    table[256] = 1 << FRACTION;
    table
};

/// log₂(n/256) for n from 256 to 511: squaring doubles a logarithm, and each doubling that goes
/// above one is the next bit.
const fn log2_of(n: u64) -> u64 {
    let mut x = (n as u128) << 54;
    let mut bits = 0;
    let mut left = FRACTION;
    while left > 0 {
        x = (x * x) >> 62;
        bits <<= 1;
        if x >= 2 << 62 {
            x >>= 1;
            bits |= 1;
        }
        left -= 1;
    }
    bits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithms_are_right_and_never_fall() {
        for (n, expected) in [(1_u64, 0.0), (2, 1.0), (3, 1.584_962_5), (1 << 40, 40.0)] {
            assert!((log2(n) as f64 / (1_u64 << 40) as f64 - expected).abs() < 4e-6, "{n}");
        }
        assert_eq!(log2(0), 0);
        let mut seed = 1_u64;
        for _ in 0..10_000 {
            seed = scrambled(seed);
            let near = seed.saturating_add(seed >> 20).saturating_add(1);
            assert!(log2(near) >= log2(seed), "{seed}");
            let exact = (seed as f64).log2();
            assert!((log2(seed) as f64 / (1_u64 << 40) as f64 - exact).abs() < 4e-6, "{seed}");
        }
        assert!(log2(u64::MAX) < 64 << 40);
    }

    fn winner(key: u64, weights: &[u32], gone: Option<usize>) -> usize {
        let claims = weights.iter().enumerate().filter(|(i, _)| Some(*i) != gone);
        let claims = claims.map(|(i, w)| (i, Claim::new(key, 7000 + i as u64, *w)));
        claims.reduce(|best, next| if next.1.beats(best.1) { next } else { best }).unwrap().0
    }

    #[test]
    fn shares_follow_the_weights() {
        let weights = [1, 1, 2, 4, 8];
        let mut counts = [0_u32; 5];
        (0..160_000).for_each(|key| counts[winner(key, &weights, None)] += 1);
        for (count, weight) in counts.iter().zip(weights) {
            assert!(count.abs_diff(weight * 10_000) < weight * 10_000 / 20, "{counts:?}");
        }
    }

    #[test]
    fn who_leaves_takes_only_its_own_keys_along_and_they_spread_by_weight() {
        let weights = [1, 1, 2, 4, 8];
        for gone in 0..5 {
            let mut taken = [0_u32; 5];
            let mut moved = 0;
            for key in 0..40_000 {
                let (before, after) =
                    (winner(key, &weights, None), winner(key, &weights, Some(gone)));
                if before == gone {
                    taken[after] += 1;
                    moved += 1;
                } else {
                    assert_eq!(before, after, "{key} had nothing to do with it");
                }
            }
            let rest = 16 - weights[gone];
            for (i, count) in taken.iter().enumerate().filter(|(i, _)| *i != gone) {
                let share = moved * weights[i] / rest;
                assert!(count.abs_diff(share) < share / 5 + 40, "{gone} gone: {taken:?}");
            }
        }
    }

    #[test]
    fn a_weight_that_grows_only_draws_keys_to_its_server() {
        for key in 0..20_000 {
            let (before, after) = (winner(key, &[2, 2, 2], None), winner(key, &[2, 3, 2], None));
            assert!(before == after || after == 1, "{key}");
        }
    }
}
