//! CPUs: pinning threads to them, and reading from /proc who used how much.

use std::collections::HashMap;
use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Whether this process may run on the CPU.
pub fn is_allowed(cpu: usize) -> bool {
    cpu < CpuSet::MAX_CPU && sched_getaffinity(None).is_ok_and(|allowed| allowed.is_set(cpu))
}

/// Pins the calling thread, and with it every process that it starts.
pub fn pin(cpu: usize) -> Result<()> {
    ensure!(
        is_allowed(cpu),
        "CPU {cpu} is not ours to use; see `taskset -p $$` for those that are"
    );
    let mut only = CpuSet::new();
    only.set(cpu);
    sched_setaffinity(None, &only).with_context(|| format!("cannot pin to CPU {cpu}"))
}

/// One line of `/proc/PID/stat`, as far as we read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    pub parent: u32,
    /// Own time and that of children that were waited for, in clock ticks.
    pub ticks: u64,
    /// Since boot, in ticks: with the pid it names one process for good.
    pub started: u64,
}

/// `root` and all that descends from it, with what `/proc` says of each.
pub fn tree(root: u32) -> HashMap<u32, Stat> {
    descendants(root, &processes())
}

/// CPU time that a tree has used, including children that came and went.
pub fn used(tree: &HashMap<u32, Stat>) -> Duration {
    let ticks: u64 = tree.values().map(|stat| stat.ticks).sum();
    Duration::from_nanos(
        ticks.saturating_mul(1_000_000_000 / rustix::param::clock_ticks_per_second().max(1)),
    )
}

/// What the process with this pid is now.
pub fn process(pid: u32) -> Option<Stat> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// What one CPU spent its time on, idling aside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Busy {
    /// Processes, in user mode and in the kernel.
    pub tasks: Duration,
    /// Hard and soft interrupts; loopback traffic is partly counted here.
    pub interrupts: Duration,
    /// Taken by the host for other guests.
    pub stolen: Duration,
}

impl Busy {
    /// What came to be since `earlier`.
    pub fn since(self, earlier: Self) -> Self {
        Self {
            tasks: self.tasks.saturating_sub(earlier.tasks),
            interrupts: self.interrupts.saturating_sub(earlier.interrupts),
            stolen: self.stolen.saturating_sub(earlier.stolen),
        }
    }
}

/// Since boot; all zero when `/proc/stat` does not know the CPU.
pub fn busy(cpu: usize) -> Busy {
    fs::read_to_string("/proc/stat")
        .ok()
        .and_then(|text| parse_busy(&text, cpu))
        .unwrap_or_default()
}

fn processes() -> HashMap<u32, Stat> {
    let Ok(entries) = fs::read_dir("/proc") else { return HashMap::new() };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid| Some((pid, process(pid)?))).collect()
}

fn descendants(root: u32, all: &HashMap<u32, Stat>) -> HashMap<u32, Stat> {
    let mut found = HashMap::new();
    let mut next = vec![root];
    while let Some(pid) = next.pop() {
        if let Some(stat) = all.get(&pid)
            && found.insert(pid, *stat).is_none()
        {
            next.extend(all.iter().filter(|(_, stat)| stat.parent == pid).map(|(pid, _)| *pid));
        }
    }
    found
}

/// proc(5): the name in parentheses may hold anything, so fields count from its last `)`.
fn parse_stat(line: &str) -> Option<Stat> {
    let (_, rest) = line.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let number = |field: usize| fields.get(field - 3)?.parse::<i64>().ok();
    let ticks: i64 = [14, 15, 16, 17].into_iter().map(number).sum::<Option<i64>>()?;
    let started = number(22)?.unsigned_abs();
    Some(Stat { parent: u32::try_from(number(4)?).ok()?, ticks: ticks.unsigned_abs(), started })
}

/// `cpu0 user nice system idle iowait irq softirq steal …`, in ticks.
fn parse_busy(text: &str, cpu: usize) -> Option<Busy> {
    let name = format!("cpu{cpu} ");
    let line = text.lines().find_map(|line| line.strip_prefix(&name))?;
    let fields: Vec<u64> =
        line.split_ascii_whitespace().filter_map(|field| field.parse().ok()).collect();
    let [user, nice, system, _idle, _iowait, irq, softirq, steal, ..] = fields[..] else {
        return None;
    };
    let tick_ns = 1_000_000_000 / rustix::param::clock_ticks_per_second().max(1);
    let span = |ticks: u64| Duration::from_nanos(ticks.saturating_mul(tick_ns));
    Some(Busy {
        tasks: span(user + nice + system),
        interrupts: span(irq + softirq),
        stolen: span(steal),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_is_read_past_any_name() {
        let tail = "S 7 1 1 0 -1 4194560 1 2 3 4 10 20 3 4 20 0 1 0 999 0 0";
        for name in ["nginx", "a b", ") 1 2 (", "(x)"] {
            let found = parse_stat(&format!("42 ({name}) {tail}"));
            assert_eq!(found, Some(Stat { parent: 7, ticks: 37, started: 999 }), "{name}");
        }
        for line in ["", "42 (x", "42 (x) S 7", "42 (x) S a b"] {
            assert_eq!(parse_stat(line), None, "{line}");
        }
    }

    #[test]
    fn a_tree_is_the_root_and_all_below_it() {
        let stat = |parent| Stat { parent, ticks: 1, started: 0 };
        let all =
            HashMap::from([(1, stat(0)), (2, stat(1)), (3, stat(2)), (4, stat(1)), (5, stat(9))]);
        for (root, mut expected) in
            [(2, vec![2, 3]), (1, vec![1, 2, 3, 4]), (5, vec![5]), (6, vec![])]
        {
            let mut found: Vec<_> = descendants(root, &all).into_keys().collect();
            found.sort_unstable();
            expected.sort_unstable();
            assert_eq!(found, expected, "root {root}");
        }
    }

    #[test]
    fn busy_is_told_apart_by_tasks_interrupts_and_steal() {
        let text =
            "cpu  9 9 9 9 9 9 9 9 9 9\ncpu1 1 0 0 0 0 0 0 0 0 0\ncpu0 10 1 5 1000 7 2 3 4 0 0\n";
        let ticks = |count| {
            Duration::from_nanos(count * 1_000_000_000 / rustix::param::clock_ticks_per_second())
        };
        let expected = Busy { tasks: ticks(16), interrupts: ticks(5), stolen: ticks(4) };
        assert_eq!(parse_busy(text, 0), Some(expected));
        assert_eq!(parse_busy(text, 7), None);
    }

    #[test]
    fn our_own_process_is_a_tree_that_uses_cpu() {
        let tree = tree(std::process::id());
        assert!(tree.contains_key(&std::process::id()));
    }
}
