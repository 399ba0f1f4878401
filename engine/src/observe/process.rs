//! What the kernel says about this process, under the names that every Prometheus client uses.

use std::fs;
use std::time::Duration;

use rustix::process::Resource;

use super::exposition::{Exposition, seconds};
use crate::clock;

/// `started` is since 1970.
pub(crate) fn expose(text: &mut Exposition, started: Duration) {
    let us = |span: Duration| seconds(u64::try_from(span.as_micros()).unwrap_or(u64::MAX));
    text.single(
        "process_cpu_seconds_total",
        "counter",
        "Processor time used, user and system.",
        us(clock::cpu_time()),
    );
    text.single(
        "process_start_time_seconds",
        "gauge",
        "When the process started, since 1970.",
        us(started),
    );
    if let Some(bytes) = resident_bytes() {
        let name = "process_resident_memory_bytes";
        text.single(name, "gauge", "Memory in RAM.", bytes);
    }
    if let Some(open) = open_descriptors() {
        text.single("process_open_fds", "gauge", "Open file descriptors.", open);
    }
    if let Some(most) = rustix::process::getrlimit(Resource::Nofile).current {
        text.single("process_max_fds", "gauge", "File descriptors that may be open.", most);
    }
}

pub(crate) fn resident_bytes() -> Option<u64> {
    let statm = fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split(' ').nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

pub(crate) fn open_descriptors() -> Option<u64> {
    // One of them is the one that reads the folder.
    let open = fs::read_dir("/proc/self/fd").ok()?.count();
    Some(open.saturating_sub(1) as u64)
}
