//! Figures of kept responses.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::cells::{Cell, Cells, RouteCells};
use super::exposition::Exposition;

/// What a cache did for a request, as policy calls it.
pub(crate) const RESULTS: [&str; 4] = ["hit", "miss", "stale", "bypass"];

/// One worker's.
#[derive(Debug, Default)]
pub(crate) struct CacheCells {
    /// In use now: copies, and responses that are being written down.
    pub(crate) bytes: Cell,
    /// Requests that copies are kept for, now.
    pub(crate) keys: Cell,
    pub(crate) stored: Cell,
    /// Copies that made room for others.
    pub(crate) evicted: Cell,
}

impl RouteCells {
    pub(crate) fn count_cache(&self, used: Option<&str>) {
        let Some(used) = used else { return };
        for (kind, cell) in RESULTS.into_iter().zip(&self.cache) {
            cell.add(u64::from(kind == used));
        }
    }
}

pub(super) fn expose(
    text: &mut Exposition,
    workers: &[Arc<Cells>],
    routes: &BTreeMap<String, Vec<Arc<RouteCells>>>,
) {
    const REQUESTS: &str = "sluice_cache_requests_total";
    let sum = |read: fn(&CacheCells) -> &Cell| -> u64 {
        workers.iter().map(|cells| read(&cells.cache).value()).sum()
    };
    let help = "Memory taken by kept responses.";
    text.single("sluice_cache_bytes", "gauge", help, sum(|c| &c.bytes));
    let help = "Requests that responses are kept for.";
    text.single("sluice_cache_keys", "gauge", help, sum(|c| &c.keys));
    text.single("sluice_cache_stored_total", "counter", "Responses kept.", sum(|c| &c.stored));
    let help = "Copies that made room for others.";
    text.single("sluice_cache_evicted_total", "counter", help, sum(|c| &c.evicted));
    text.family(REQUESTS, "counter", "What the cache of a route did for requests.");
    for (route, cells) in routes {
        for (at, kind) in RESULTS.into_iter().enumerate() {
            let n: u64 =
                cells.iter().filter_map(|cells| cells.cache.get(at)).map(Cell::value).sum();
            if n > 0 {
                text.sample(REQUESTS, &[("route", route), ("result", kind)], n);
            }
        }
    }
}
