//! Latencies in an HDR histogram, and the percentiles that reports quote.

use std::fmt;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Latencies in nanoseconds, right to three digits from 1 ns to an hour.
#[derive(Clone)]
pub struct Latencies(Histogram<u64>);

/// What people quote, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    pub p50: f64,
    pub p75: f64,
    pub p90: f64,
    pub p99: f64,
    pub p99_9: f64,
    pub p99_99: f64,
    pub max: f64,
    pub mean: f64,
}

/// One point of the distribution: this share of requests took at most that long.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// 0..=1
    pub quantile: f64,
    pub latency_us: f64,
    /// Requests at or below `latency_us`.
    pub count: u64,
}

impl Latencies {
    pub fn new() -> Self {
        let histogram = Histogram::new_with_bounds(1, HIGHEST_NS, DIGITS);
        Self(histogram.expect("the bounds are constants that hdrhistogram accepts"))
    }

    /// Longer than an hour counts as an hour.
    pub fn record_ns(&mut self, nanoseconds: u64) {
        self.0.saturating_record(nanoseconds);
    }

    pub fn merge(&mut self, other: &Self) {
        self.0.add(&other.0).expect("all our histograms have the same bounds");
    }

    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// How many took `floor` or longer, to the histogram's precision.
    pub fn count_from(&self, floor: Duration) -> u64 {
        let floor_ns = u64::try_from(floor.as_nanos()).unwrap_or(HIGHEST_NS).min(HIGHEST_NS);
        self.0.count_between(floor_ns, HIGHEST_NS)
    }

    /// Microseconds within which this share of requests was answered; 0 when there were none.
    pub fn at_us(&self, quantile: f64) -> f64 {
        microseconds(self.0.value_at_quantile(quantile))
    }

    pub fn percentiles(&self) -> Percentiles {
        Percentiles {
            p50: self.at_us(0.5),
            p75: self.at_us(0.75),
            p90: self.at_us(0.9),
            p99: self.at_us(0.99),
            p99_9: self.at_us(0.999),
            p99_99: self.at_us(0.9999),
            max: microseconds(self.0.max()),
            mean: self.0.mean() / NS_PER_US,
        }
    }

    /// The distribution as a plot wants it: ever finer steps towards 100 %.
    pub fn steps(&self) -> Vec<Step> {
        let mut count = 0;
        let step = |point: hdrhistogram::iterators::IterationValue<u64>| {
            count += point.count_since_last_iteration();
            Step {
                quantile: point.quantile_iterated_to(),
                latency_us: microseconds(point.value_iterated_to().min(self.0.max())),
                count,
            }
        };
        self.0.iter_quantiles(STEPS_PER_HALVING).map(step).collect()
    }
}

impl Percentiles {
    /// Name and microseconds, in the order that reports list them.
    pub fn rows(&self) -> [(&'static str, f64); 7] {
        [
            ("P50", self.p50),
            ("P75", self.p75),
            ("P90", self.p90),
            ("P99", self.p99),
            ("P99.9", self.p99_9),
            ("P99.99", self.p99_99),
            ("max", self.max),
        ]
    }
}

impl Default for Latencies {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Latencies {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Latencies").field("count", &self.count()).finish_non_exhaustive()
    }
}

/// Microseconds in the unit that reads best: `870 µs`, `12.3 ms`, `4.05 s`.
pub fn human_us(microseconds: f64) -> String {
    let (value, unit) = match microseconds {
        us if us < 1_000.0 => (us, "µs"),
        us if us < 1_000_000.0 => (us / 1_000.0, "ms"),
        us => (us / 1_000_000.0, "s"),
    };
    match value {
        v if v < 10.0 => format!("{v:.2} {unit}"),
        v if v < 100.0 => format!("{v:.1} {unit}"),
        v => format!("{v:.0} {unit}"),
    }
}

#[expect(clippy::cast_precision_loss, reason = "an hour in ns has 42 bits; a double holds 53")]
fn microseconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / NS_PER_US
}

const NS_PER_US: f64 = 1_000.0;
const HIGHEST_NS: u64 = 3_600_000_000_000;
const DIGITS: u8 = 3;
/// Five points each time the rest halves draws a smooth curve and stays under 200 points.
const STEPS_PER_HALVING: u32 = 5;

#[cfg(test)]
mod tests {
    use super::*;

    fn one_to(last_us: u64) -> Latencies {
        let mut latencies = Latencies::new();
        (1..=last_us).for_each(|us| latencies.record_ns(us * 1_000));
        latencies
    }

    #[test]
    fn percentiles_of_one_to_ten_thousand_are_known() {
        let found = one_to(10_000).percentiles();
        let expected = [5_000.0, 7_500.0, 9_000.0, 9_900.0, 9_990.0, 9_999.0, 10_000.0];
        for ((name, us), expected) in found.rows().into_iter().zip(expected) {
            assert!((us - expected).abs() <= expected * 0.001, "{name}: {us}, not {expected}");
        }
        assert!((found.mean - 5_000.5).abs() < 5.0, "mean {}", found.mean);
    }

    #[test]
    fn nothing_recorded_is_all_zero_and_draws_nothing() {
        assert_eq!(Latencies::new().percentiles(), Percentiles::default());
        assert_eq!(Latencies::new().steps().iter().filter(|step| step.count > 0).count(), 0);
    }

    #[test]
    fn steps_rise_and_end_with_every_request() {
        let steps = one_to(1_000).steps();
        assert!(steps.is_sorted_by(|a, b| a.quantile <= b.quantile && a.count <= b.count));
        let last = steps.last().unwrap();
        assert_eq!(last.count, 1_000);
        assert!((last.latency_us - 1_000.0).abs() < 1.0, "{}", last.latency_us);
    }

    #[test]
    fn count_from_counts_the_slow_ones_only() {
        let latencies = one_to(1_000);
        for (floor_us, expected) in [(0, 1_000), (501, 500), (1_000, 1), (2_000, 0)] {
            assert_eq!(latencies.count_from(Duration::from_micros(floor_us)), expected);
        }
    }

    #[test]
    fn more_than_an_hour_counts_as_an_hour() {
        let mut latencies = Latencies::new();
        latencies.record_ns(u64::MAX);
        assert_eq!(latencies.count(), 1);
        assert!(latencies.percentiles().max >= 3_600e6);
    }

    #[test]
    fn merged_counts_add_up() {
        let mut sum = one_to(10);
        sum.merge(&one_to(20));
        assert_eq!(sum.count(), 30);
    }

    #[test]
    fn microseconds_read_well() {
        let cases = [
            (0.5, "0.50 µs"),
            (87.04, "87.0 µs"),
            (870.4, "870 µs"),
            (12_345.0, "12.3 ms"),
            (4_050_000.0, "4.05 s"),
        ];
        for (us, expected) in cases {
            assert_eq!(human_us(us), expected);
        }
    }
}
