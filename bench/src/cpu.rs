//! CPUs: pinning threads to them, and reading from /proc who used how much.

use std::collections::HashMap;
use std::str::FromStr;
use std::time::Duration;
use std::{fmt, fs};

use anyhow::{Context, Result, bail};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::{Deserialize, Serialize};

/// Whether this process may run on the CPU.
pub fn is_allowed(cpu: usize) -> bool {
    cpu < CpuSet::MAX_CPU && sched_getaffinity(None).is_ok_and(|allowed| allowed.is_set(cpu))
}

/// CPUs that something is to run on: `0`, or `0,1`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cpus(Vec<usize>);

impl Cpus {
    pub fn one(cpu: usize) -> Self {
        Self(vec![cpu])
    }

    /// The first that is not this process's to use.
    pub fn foreign(&self) -> Option<usize> {
        self.0.iter().copied().find(|cpu| !is_allowed(*cpu))
    }

    pub fn is_one(&self) -> bool {
        self.0.len() == 1
    }

    pub fn overlap(&self, other: &Self) -> bool {
        self.0.iter().any(|cpu| other.0.contains(cpu))
    }
}

impl FromStr for Cpus {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers: Result<Vec<_>, _> = text.split(',').map(str::parse).collect();
        numbers.map(Self).map_err(|_| format!("{text:?} is no CPU, nor a list of them as 0,1"))
    }
}

impl fmt::Display for Cpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<_> = self.0.iter().map(usize::to_string).collect();
        f.write_str(&numbers.join(","))
    }
}

/// Pins the calling thread, and with it every process that it starts.
pub fn pin(cpus: &Cpus) -> Result<()> {
    if let Some(cpu) = cpus.foreign() {
        bail!("CPU {cpu} is not ours to use; see `taskset -p $$` for those that are");
    }
    let mut only = CpuSet::new();
    for cpu in &cpus.0 {
        only.set(*cpu);
    }
    sched_setaffinity(None, &only).with_context(|| format!("cannot pin to CPU {cpus}"))
}

/// Lets this process, and those it starts, have so many files open, if the machine does. What it
/// does not allow shows when they are opened.
pub fn allow_files(files: u64) {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < files) {
        let current = Some(limit.maximum.map_or(files, |maximum| maximum.min(files)));
        // The hard limit stays, so this can't be refused.
        let _ = setrlimit(Resource::Nofile, Rlimit { current, maximum: limit.maximum });
    }
}

/// One line of `/proc/PID/stat`, as far as we read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Ended, and not yet waited for by its parent.
    pub ended: bool,
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

/// What `/proc` says of these now; of those that are gone, nothing.
pub fn among(pids: &[u32]) -> HashMap<u32, Stat> {
    pids.iter().filter_map(|pid| Some((*pid, process(*pid)?))).collect()
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

/// How long one task (a thread) had a CPU, and how long it was ready and had none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scheduled {
    pub ran: Duration,
    pub waited: Duration,
}

impl Scheduled {
    /// What came to be since `earlier`.
    pub fn since(self, earlier: Self) -> Self {
        let Self { ran, waited } = earlier;
        Self { ran: self.ran.saturating_sub(ran), waited: self.waited.saturating_sub(waited) }
    }
}

/// Every task of some processes by its id; kernel helpers that io_uring made for them included.
pub fn tasks(processes: &HashMap<u32, Stat>) -> HashMap<u32, Scheduled> {
    let of_process = |pid: &u32| {
        let entries = fs::read_dir(format!("/proc/{pid}/task")).ok();
        entries.into_iter().flatten().filter_map(|entry| {
            let entry = entry.ok()?;
            let text = fs::read_to_string(entry.path().join("schedstat")).ok()?;
            Some((entry.file_name().to_str()?.parse().ok()?, parse_schedstat(&text)?))
        })
    };
    processes.keys().flat_map(of_process).collect()
}

/// The calling thread.
pub fn this_task() -> Scheduled {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    parse_schedstat(&text).unwrap_or_default()
}

fn processes() -> HashMap<u32, Stat> {
    let Ok(entries) = fs::read_dir("/proc") else { return HashMap::new() };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    among(&pids.collect::<Vec<u32>>())
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
    let (ended, started) =
        (matches!(fields.first(), Some(&("Z" | "X"))), number(22)?.unsigned_abs());
    Some(Stat {
        ended,
        parent: u32::try_from(number(4)?).ok()?,
        ticks: ticks.unsigned_abs(),
        started,
    })
}

/// Nanoseconds on a CPU, nanoseconds ready without one, turns.
fn parse_schedstat(line: &str) -> Option<Scheduled> {
    let mut fields =
        line.split_ascii_whitespace().map(|field| field.parse().map(Duration::from_nanos));
    let (ran, waited) = (fields.next()?.ok()?, fields.next()?.ok()?);
    Some(Scheduled { ran, waited })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_one_or_a_list() {
        let shown = |text: &str| text.parse::<Cpus>().map(|cpus| cpus.to_string());
        assert_eq!(shown("0").as_deref(), Ok("0"));
        assert_eq!(shown("0,1").as_deref(), Ok("0,1"));
        for text in ["", "a", "0,", "0-1", "-1"] {
            assert!(shown(text).is_err(), "{text:?}");
        }
        let (both, second) = ("0,1".parse::<Cpus>().unwrap(), Cpus::one(1));
        assert!(both.overlap(&second) && second.overlap(&both) && !Cpus::one(0).overlap(&second));
    }

    #[test]
    fn stat_is_read_past_any_name() {
        let tail = "S 7 1 1 0 -1 4194560 1 2 3 4 10 20 3 4 20 0 1 0 999 0 0";
        for name in ["nginx", "a b", ") 1 2 (", "(x)"] {
            let found = parse_stat(&format!("42 ({name}) {tail}"));
            assert_eq!(
                found,
                Some(Stat { ended: false, parent: 7, ticks: 37, started: 999 }),
                "{name}"
            );
        }
        for line in ["", "42 (x", "42 (x) S 7", "42 (x) S a b"] {
            assert_eq!(parse_stat(line), None, "{line}");
        }
    }

    #[test]
    fn a_tree_is_the_root_and_all_below_it() {
        let stat = |parent| Stat { ended: false, parent, ticks: 1, started: 0 };
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
    fn schedstat_is_time_on_and_time_without_a_cpu() {
        let expected =
            Scheduled { ran: Duration::from_nanos(131_230), waited: Duration::from_nanos(53_447) };
        assert_eq!(parse_schedstat("131230 53447 1\n"), Some(expected));
        assert_eq!(expected.since(expected), Scheduled::default());
        for line in ["", "1", "a b c"] {
            assert_eq!(parse_schedstat(line), None, "{line}");
        }
    }

    #[test]
    fn our_own_process_is_a_tree_that_uses_cpu() {
        let tree = tree(std::process::id());
        assert!(tree.contains_key(&std::process::id()));
        assert!(tasks(&tree).values().any(|task| !task.ran.is_zero()));
        assert!(!this_task().ran.is_zero());
    }
}
