//! Memory of processes, as `/proc` tells it.

use std::collections::HashMap;
use std::fs;

use crate::cpu::Stat;

/// What these processes have in memory, in KB.
pub fn resident_kb(processes: &HashMap<u32, Stat>) -> u64 {
    sum(processes, "VmRSS:")
}

/// The most that each of them ever had, in KB.
pub fn peak_kb(processes: &HashMap<u32, Stat>) -> u64 {
    sum(processes, "VmHWM:")
}

fn sum(processes: &HashMap<u32, Stat>, name: &str) -> u64 {
    let status = |pid: &u32| fs::read_to_string(format!("/proc/{pid}/status")).ok();
    processes.keys().filter_map(|pid| kilobytes(&status(pid)?, name)).sum()
}

/// `VmRSS:      1234 kB`
fn kilobytes(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu;

    #[test]
    fn a_status_is_read_by_name() {
        let status = "Name:\tVmRSS: 7\nVmHWM:\t   2048 kB\nVmRSS:\t    1024 kB\nThreads:\t1\n";
        assert_eq!(kilobytes(status, "VmRSS:"), Some(1024));
        assert_eq!(kilobytes(status, "VmHWM:"), Some(2048));
        assert_eq!(kilobytes(status, "VmSwap:"), None);
    }

    #[test]
    fn memory_that_was_touched_is_in_the_peak() {
        let own = cpu::tree(std::process::id());
        let before = resident_kb(&own);
        let touched = vec![1_u8; 64 << 20];
        assert!(resident_kb(&own) >= before + (48 << 10), "{before}");
        drop(touched);
        assert!(peak_kb(&own) >= before + (48 << 10), "{before}");
    }
}
