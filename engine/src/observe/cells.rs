//! One worker's figures: written by that worker alone, with plain stores, read by anyone.
//!
//! No cell is shared between two writers, so counting costs no locked instruction and no cache
//! line moves until somebody looks.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::kept::{CacheCells, RESULTS};
use super::shed::ShedCells;

/// A figure that only its worker changes.
#[derive(Debug, Default)]
pub(crate) struct Cell(AtomicU64);

impl Cell {
    pub(crate) fn add(&self, n: u64) {
        // One writer: a load and a store lose nothing, and cost a tenth of a fetch_add.
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    pub(crate) fn sub(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).saturating_sub(n), Relaxed);
    }

    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Relaxed);
    }

    pub(crate) fn value(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Everything one worker counts.
#[derive(Debug, Default)]
pub(crate) struct Cells {
    pub(crate) connections_open: Cell,
    pub(crate) connections_resting: Cell,
    pub(crate) connections_total: Cell,
    /// Refused at the worker's or the client address's bound.
    pub(crate) connections_refused: Cell,
    /// `accept` failed: descriptors or memory ran out.
    pub(crate) accept_errors: Cell,
    /// Requests begun and not ended.
    pub(crate) in_flight: Cell,
    /// Heads that were refused before policy saw them, by status.
    pub(crate) refused_400: Cell,
    pub(crate) refused_408: Cell,
    pub(crate) refused_414: Cell,
    pub(crate) refused_417: Cell,
    pub(crate) refused_431: Cell,
    pub(crate) refused_501: Cell,
    pub(crate) refused_505: Cell,
    /// Clients that left before their response was whole.
    pub(crate) clients_gone: Cell,
    pub(crate) upstream_connections_open: Cell,
    pub(crate) upstream_connections_total: Cell,
    pub(crate) upstream_connects_failed: Cell,
    /// Requests that found an idle connection.
    pub(crate) upstream_reused: Cell,
    /// Idle connections closed because the other side closed, or sent what nobody asked for.
    pub(crate) upstream_idle_closed: Cell,
    /// Requests that wait for a connection of a full pool now, that ever did, and in vain.
    pub(crate) pool_waiting: Cell,
    pub(crate) pool_waits: Cell,
    pub(crate) pool_waits_timed_out: Cell,
    /// Attempts after the first, but for hedges.
    pub(crate) retries: Cell,
    /// Requests sent to a second server because the first took long, and what that answered first.
    pub(crate) hedges: Cell,
    pub(crate) hedges_won: Cell,
    /// Responses that broke off after their head, for the client, too; and attempts that ended so
    /// while their response was held.
    pub(crate) upstream_cut: Cell,
    pub(crate) upstream_cut_held: Cell,
    /// Connection tasks that panicked and were caught.
    pub(crate) panics: Cell,
    /// Spent on looking for what comes next, when nothing did.
    pub(crate) busy_poll_us: Cell,
    pub(crate) log_lines: Cell,
    /// Log lines dropped because the writer was behind.
    pub(crate) log_dropped: Cell,
    pub(crate) cache: CacheCells,
    pub(crate) shed: ShedCells,
    /// Every request, whatever its route.
    pub(crate) all: Timings,
    /// Requests that no route took.
    pub(crate) unrouted: Arc<RouteCells>,
    routes: Mutex<BTreeMap<String, Arc<RouteCells>>>,
    limits: Mutex<BTreeMap<String, Arc<LimitCells>>>,
}

/// One route's figures.
#[derive(Debug, Default)]
pub(crate) struct RouteCells {
    /// By method, then by status class.
    counts: [[Cell; STATUS_CLASSES.len()]; METHODS.len()],
    pub(crate) timings: Timings,
    /// By cause, then by source.
    degraded: [[Cell; SOURCES.len()]; CAUSES.len()],
    pub(super) cache: [Cell; RESULTS.len()],
}

/// One limit's decisions.
#[derive(Debug, Default)]
pub(crate) struct LimitCells {
    pub(crate) allowed: Cell,
    pub(crate) refused: Cell,
    /// Would have been refused, were the limit enforced.
    pub(crate) shadow_refused: Cell,
}

/// Stands where a route's name would for requests that no route took. No route can be named so.
pub(crate) const NO_ROUTE: &str = "(none)";

/// The methods that metrics tell apart; the last stands for all others.
pub(crate) const METHODS: [&str; 8] =
    ["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "other"];

/// Why the real thing could not be had, as policy calls it.
pub(crate) const CAUSES: [&str; 8] =
    ["limited", "shed", "open", "connect", "timeout", "5xx", "off", "other"];

/// What stood for it.
pub(crate) const SOURCES: [&str; 4] = ["stale", "static", "empty", "other"];

/// The last stands for clients that left before a status was sent.
pub(crate) const STATUS_CLASSES: [&str; 6] = ["1xx", "2xx", "3xx", "4xx", "5xx", "none"];

impl Cells {
    /// The cells of that route on this worker, made at first sight. Locks: for reloads and
    /// scrapes, never for a request.
    pub(crate) fn route(&self, name: &str) -> Arc<RouteCells> {
        named(&self.routes, name)
    }

    pub(crate) fn limit(&self, name: &str) -> Arc<LimitCells> {
        named(&self.limits, name)
    }

    /// The last is [`NO_ROUTE`].
    pub(crate) fn routes(&self) -> Vec<(String, Arc<RouteCells>)> {
        let mut routes = all(&self.routes);
        routes.push((NO_ROUTE.to_owned(), Arc::clone(&self.unrouted)));
        routes
    }

    pub(crate) fn limits(&self) -> Vec<(String, Arc<LimitCells>)> {
        all(&self.limits)
    }
}

fn named<T: Default>(map: &Mutex<BTreeMap<String, Arc<T>>>, name: &str) -> Arc<T> {
    let mut map = map.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(cells) = map.get(name) {
        return Arc::clone(cells);
    }
    let cells = Arc::new(T::default());
    map.insert(name.to_owned(), Arc::clone(&cells));
    cells
}

fn all<T>(map: &Mutex<BTreeMap<String, Arc<T>>>) -> Vec<(String, Arc<T>)> {
    let map = map.lock().unwrap_or_else(PoisonError::into_inner);
    map.iter().map(|(name, cells)| (name.clone(), Arc::clone(cells))).collect()
}

impl RouteCells {
    /// Why, and from where, an answer that stood for what could not be had.
    pub(crate) fn count_degraded(&self, degraded: Option<(&str, &str)>) {
        let Some((cause, source)) = degraded else { return };
        let cause = CAUSES.iter().position(|c| *c == cause).unwrap_or(CAUSES.len() - 1);
        let source = SOURCES.iter().position(|s| *s == source).unwrap_or(SOURCES.len() - 1);
        self.degraded[cause][source].add(1);
    }

    /// (cause, source, requests) for every pair that occurred.
    pub(crate) fn degraded(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
        CAUSES.iter().zip(&self.degraded).flat_map(|(cause, row)| {
            SOURCES.iter().zip(row).filter_map(move |(source, cell)| {
                let n = cell.value();
                (n > 0).then_some((*cause, *source, n))
            })
        })
    }

    pub(crate) fn count(&self, method: &str, status: Option<u16>, took: Duration) {
        let method = METHODS.iter().position(|m| *m == method).unwrap_or(METHODS.len() - 1);
        let class = match status {
            Some(status) => usize::from((status / 100).clamp(1, 5)) - 1,
            None => STATUS_CLASSES.len() - 1,
        };
        self.counts[method][class].add(1);
        self.timings.record(took);
    }

    /// (method, status class, requests) for every pair that occurred.
    pub(crate) fn counts(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
        METHODS.iter().zip(&self.counts).flat_map(|(method, row)| {
            STATUS_CLASSES.iter().zip(row).filter_map(move |(class, cell)| {
                let n = cell.value();
                (n > 0).then_some((*method, *class, n))
            })
        })
    }
}

/// How long requests took: coarse buckets for Prometheus, fine ones for percentiles.
#[derive(Debug)]
pub(crate) struct Timings {
    buckets: [Cell; BOUNDS_US.len() + 1],
    sum_us: Cell,
    fine: Box<[Cell]>,
}

/// Upper bounds in microseconds: OpenTelemetry's for HTTP, and 0.1 to 2.5 ms below them.
pub(crate) const BOUNDS_US: [u64; 19] = [
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 75_000, 100_000, 250_000, 500_000,
    750_000, 1_000_000, 2_500_000, 5_000_000, 7_500_000, 10_000_000,
];

/// Fine buckets are 1 µs wide up to 64 µs, then 32 to the octave: within 1.6 % at its middle.
const FINE_BITS: u32 = 5;

/// Values from 2^27 µs (134 s) on share the last bucket.
const FINE_OCTAVES: u32 = 27 - FINE_BITS;

const FINE_LEN: usize = ((FINE_OCTAVES + 1) << FINE_BITS) as usize;

impl Default for Timings {
    fn default() -> Self {
        let fine = (0..FINE_LEN).map(|_| Cell::default()).collect();
        Self { buckets: Default::default(), sum_us: Cell::default(), fine }
    }
}

impl Timings {
    pub(crate) fn record(&self, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.buckets[BOUNDS_US.partition_point(|bound| *bound < us)].add(1);
        self.sum_us.add(us);
        self.fine[fine_index(us)].add(1);
    }

    /// Requests in each bucket (not cumulative); the last is beyond every bound.
    pub(crate) fn buckets(&self) -> impl Iterator<Item = u64> {
        self.buckets.iter().map(Cell::value)
    }

    pub(crate) fn sum_us(&self) -> u64 {
        self.sum_us.value()
    }

    /// (microseconds, requests) for every fine bucket in use; the value is the bucket's middle.
    pub(crate) fn fine(&self) -> impl Iterator<Item = (u64, u64)> {
        self.fine.iter().enumerate().filter_map(|(index, cell)| {
            let n = cell.value();
            (n > 0).then(|| (fine_value(index), n))
        })
    }
}

fn fine_index(us: u64) -> usize {
    let octave = u64::BITS - (us >> (FINE_BITS + 1)).leading_zeros();
    let index = (u64::from(octave) << FINE_BITS) + (us >> octave);
    usize::try_from(index).unwrap_or(usize::MAX).min(FINE_LEN - 1)
}

fn fine_value(index: usize) -> u64 {
    let index = index as u64;
    let octave = (index >> FINE_BITS).saturating_sub(1);
    let low = (index - (octave << FINE_BITS)) << octave;
    low + ((1_u64 << octave) >> 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fine_buckets_are_within_two_per_cent() {
        for us in [0, 1, 31, 32, 63, 64, 65, 100, 999, 1_000, 12_345, 1_000_000, 99_999_999] {
            let back = fine_value(fine_index(us));
            assert!(back.abs_diff(us) * 50 <= us, "{us} µs reads back as {back}");
        }
        let indices: Vec<_> = (0..1 << 20).map(fine_index).collect();
        assert!(indices.is_sorted_by(|a, b| b - a <= 1), "no gap and no step back");
        assert_eq!(fine_index(u64::MAX), FINE_LEN - 1);
    }

    #[test]
    fn a_value_on_a_bound_belongs_below_it() {
        let timings = Timings::default();
        timings.record(Duration::from_micros(100));
        timings.record(Duration::from_micros(101));
        timings.record(Duration::from_secs(60));
        let buckets: Vec<_> = timings.buckets().collect();
        assert_eq!((buckets[0], buckets[1], buckets[BOUNDS_US.len()]), (1, 1, 1));
    }

    #[test]
    fn unknown_methods_and_absent_statuses_are_counted_apart() {
        let route = RouteCells::default();
        route.count("BREW", Some(418), Duration::ZERO);
        route.count("GET", None, Duration::ZERO);
        let counts: Vec<_> = route.counts().collect();
        assert_eq!(counts, [("GET", "none", 1), ("other", "4xx", 1)]);
    }
}
