//! Percentiles over all workers, exact to the width of the fine buckets (1.6 %).

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::cells::Timings;

/// How long requests took, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Latency {
    pub(crate) requests: u64,
    pub(crate) p50_us: u64,
    pub(crate) p95_us: u64,
    pub(crate) p99_us: u64,
    pub(crate) p999_us: u64,
    pub(crate) max_us: u64,
}

/// The fine buckets' ends: 2^27 µs is their last.
const MAX_US: u64 = 1 << 27;

impl Latency {
    pub(crate) fn of<'a>(timings: impl IntoIterator<Item = &'a Timings>) -> Self {
        let Ok(mut merged) = Histogram::<u64>::new_with_bounds(1, MAX_US, 3) else {
            debug_assert!(false, "the bounds are constants");
            return Self::default();
        };
        for (us, requests) in timings.into_iter().flat_map(Timings::fine) {
            // The middle of the last bucket is within the bounds.
            let _ = merged.record_n(us.min(MAX_US), requests);
        }
        if merged.is_empty() {
            return Self::default();
        }
        Self {
            requests: merged.len(),
            p50_us: merged.value_at_quantile(0.50),
            p95_us: merged.value_at_quantile(0.95),
            p99_us: merged.value_at_quantile(0.99),
            p999_us: merged.value_at_quantile(0.999),
            max_us: merged.max(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn percentiles_of_all_workers_are_those_of_their_sum() {
        let workers = [Timings::default(), Timings::default()];
        for us in 1..=10_000 {
            workers[usize::from(us > 2_000)].record(Duration::from_micros(us));
        }
        let found = Latency::of(&workers);
        assert_eq!(found.requests, 10_000);
        for (found, expected) in [
            (found.p50_us, 5_000_u64),
            (found.p95_us, 9_500),
            (found.p99_us, 9_900),
            (found.p999_us, 9_990),
            (found.max_us, 10_000),
        ] {
            assert!(found.abs_diff(expected) * 50 <= expected, "{found} for {expected}");
        }
    }

    #[test]
    fn no_requests_have_no_latency_and_the_longest_is_bounded() {
        assert_eq!(Latency::of(&[Timings::default()]), Latency::default());
        let timings = Timings::default();
        timings.record(Duration::from_secs(3600));
        assert!(Latency::of(&[timings]).max_us <= MAX_US + MAX_US / 50);
    }
}
