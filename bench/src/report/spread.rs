//! Median and spread of a few rounds, and how far from the best a median is.

use serde::{Deserialize, Serialize};

/// The middle of a few measurements and how far they lay apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Spread {
    /// `None` when nothing was measured.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median = if values.len() % 2 == 1 {
            values[middle]
        } else {
            f64::midpoint(values[middle - 1], values[middle])
        };
        Some(Self { median, min, max })
    }

    /// Median over the best median; `None` when the best is nothing.
    pub fn ratio(&self, best: f64) -> Option<f64> {
        (best > 0.0).then(|| self.median / best)
    }
}

/// Which end of a figure is the good one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Good {
    High,
    Low,
}

impl Good {
    /// The best of some medians.
    pub fn best(self, medians: impl IntoIterator<Item = f64>) -> Option<f64> {
        medians.into_iter().filter(|median| *median > 0.0).reduce(match self {
            Self::High => f64::max,
            Self::Low => f64::min,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_and_the_spread_its_ends() {
        let cases = [
            (vec![], None),
            (vec![f64::NAN], None),
            (vec![3.0], Some((3.0, 3.0, 3.0))),
            (vec![9.0, 1.0, 2.0], Some((2.0, 1.0, 9.0))),
            (vec![4.0, 1.0, 2.0, 3.0], Some((2.5, 1.0, 4.0))),
        ];
        for (values, expected) in cases {
            let found = Spread::of(values.iter().copied())
                .map(|spread| (spread.median, spread.min, spread.max));
            assert_eq!(found, expected, "{values:?}");
        }
    }

    #[test]
    fn the_best_is_at_the_good_end_and_never_nothing() {
        assert_eq!(Good::High.best([2.0, 0.0, 5.0]), Some(5.0));
        assert_eq!(Good::Low.best([2.0, 0.0, 5.0]), Some(2.0));
        assert_eq!(Good::Low.best([0.0]), None);
        assert_eq!(Spread { median: 4.0, min: 1.0, max: 9.0 }.ratio(2.0), Some(2.0));
        assert_eq!(Spread::default().ratio(0.0), None);
    }
}
