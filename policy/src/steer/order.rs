//! The order of smooth weighted round robin, worked out once: a turn in which every server comes
//! as often as its weight says, as evenly spread as can be (the order nginx uses).

/// A longer turn would only be finer than anyone can see.
const TURN_MAX: u64 = 1024;

/// Places of the weights, one turn long. Empty when no weight is above zero.
pub(crate) fn turn(weights: &[u32]) -> Box<[u16]> {
    let common = weights.iter().fold(0, |a, &b| gcd(a, u64::from(b))).max(1);
    let total: u64 = weights.iter().map(|&w| u64::from(w) / common).sum();
    let scaled: Vec<i64> = weights
        .iter()
        .map(|&weight| {
            let weight = u64::from(weight) / common;
            let fit = if total > TURN_MAX { (weight * TURN_MAX / total).max(1) } else { weight };
            i64::try_from(if weight == 0 { 0 } else { fit }).unwrap_or(i64::MAX)
        })
        .collect();
    let total: i64 = scaled.iter().sum();
    let mut standing = vec![0_i64; scaled.len()];
    let mut order = Vec::new();
    for _ in 0..total {
        for (standing, weight) in standing.iter_mut().zip(&scaled) {
            *standing += weight;
        }
        // The first of the highest; a server without weight never comes.
        let open = standing.iter().enumerate().filter(|(i, _)| scaled[*i] > 0);
        let Some((next, _)) = open.rev().max_by_key(|(_, s)| **s) else { break };
        standing[next] -= total;
        order.extend(u16::try_from(next));
    }
    order.into()
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_come_evenly_spread() {
        let table: [(&[u32], &[u16]); 7] = [
            (&[1], &[0]),
            (&[1, 1, 1], &[0, 1, 2]),
            (&[5, 1, 1], &[0, 0, 1, 0, 2, 0, 0]),
            (&[4, 2], &[0, 1, 0]),
            (&[0, 3], &[1]),
            (&[0, 0], &[]),
            (&[], &[]),
        ];
        for (weights, order) in table {
            assert_eq!(&*turn(weights), order, "{weights:?}");
        }
    }

    #[test]
    fn huge_weights_keep_their_proportion_and_small_ones_their_place() {
        let order = turn(&[1_000_000, 3_000_000, 7]);
        let count = |i| order.iter().filter(|o| **o == i).count();
        assert_eq!((count(0), count(1), count(2)), (255, 767, 1));
    }
}
