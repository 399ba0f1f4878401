//! Machines that give less than one hopes for: no io_uring, fewer CPUs than there are.

use std::collections::BTreeMap;
use std::fs;
use std::thread;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch, apply_filter};
use sluice_tests::{Config, Origin, Signal, Sluice, eventually};
use tempfile::TempDir;

/// The same on every architecture: younger system calls share their numbers.
const IO_URING_SETUP: i64 = 425;

/// What a kernel says that was built without io_uring, and one that forbids it.
const REFUSALS: [(u32, &str); 2] =
    [(38, "Function not implemented"), (1, "Operation not permitted")];

const RINGS: [&str; 3] = ["io_uring", "io_uring-coop", "io_uring-plain"];

#[test]
fn without_io_uring_it_runs_on_epoll_and_says_why() {
    for (errno, why) in REFUSALS {
        let why = reason(why);
        let origin = Origin::ok("hello");
        let file = Written::new(&Config::to(&[origin.addr()]).workers(2));
        let mut sluice = without_rings(errno, || Sluice::with_args(&file.run(&[])));
        let banner = sluice.stderr();
        let line = banner.lines().find(|line| line.starts_with("driver ")).expect("a driver");
        assert!(line.starts_with("driver epoll: io_uring"), "{line}");
        assert!(line.contains(why), "{line}");
        let mut client = sluice.client();
        for _ in 0..3 {
            assert_eq!(client.get("/a").text(), "hello", "{why}");
        }
        let status = sluice.admin("/v1/status").json();
        assert_eq!(status["driver"]["name"], "epoll");
        // One without flags is worse than epoll.
        assert!(status["driver"]["fallen"].get("io_uring-plain").is_none(), "{status}");
        for ring in &RINGS[..2] {
            let fallen = status["driver"]["fallen"][*ring].as_str().expect("each step is named");
            assert!(fallen.contains(why), "{ring}: {fallen}");
        }
        drop(client);
        sluice.signal(Signal::TERM);
        assert_eq!(sluice.wait(), Some(0));
    }
}

#[test]
fn io_uring_that_was_asked_for_and_is_not_there_is_a_clear_failure() {
    for (errno, why) in REFUSALS {
        let why = reason(why);
        let config = Config::to(&["127.0.0.1:9".parse().unwrap()]);
        let (any, asking) =
            (Written::new(&config), Written::new(&config.clone().server("io = \"uring\"")));
        for (file, more) in [
            (&any, &["--driver", "io_uring"][..]),
            (&any, &["--driver", "io_uring-plain"]),
            (&asking, &[]),
        ] {
            let ended = without_rings(errno, || Sluice::command(&file.run(more)));
            assert_eq!(ended.code, Some(1), "{more:?}: {}", ended.stderr);
            assert!(ended.stderr.contains("error: ") && ended.stderr.contains(why), "{ended:?}");
            assert!(!ended.stderr.contains("ready"), "{ended:?}");
        }
    }
}

#[test]
fn the_doctor_says_that_io_uring_is_not_there() {
    for (errno, why) in REFUSALS {
        let why = reason(why);
        let found = findings(&without_rings(errno, || Sluice::command(&["doctor"])).stdout);
        for ring in RINGS {
            let finding = &found[&format!("driver {ring}")];
            assert!(finding["is"].as_str().is_some_and(|is| is.contains(why)), "{finding}");
        }
        let best = &found["driver io_uring"];
        assert!(best["should"].is_string(), "the best step should be there: {best}");
        let epoll = &found["driver epoll"];
        assert_eq!((&epoll["is"], epoll["should"].is_null()), (&"available".into(), true));
    }
}

#[test]
fn each_worker_stays_on_a_cpu_of_its_own_among_those_it_may_use() {
    let mask = sched_getaffinity(None).expect("a CPU mask");
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| mask.is_set(*cpu)).collect();
    let last = *cpus.last().expect("a CPU");
    for allowed in [cpus, vec![last]] {
        let origin = Origin::ok("hello");
        let config = Config::to(&[origin.addr()]).to_string().replace("workers = 1", "");
        let sluice = on_cpus(&allowed, move || Sluice::start(config));
        let pinned = eventually("every worker on its CPU", || {
            let pinned = worker_cpus(sluice.pid());
            (pinned.len() == allowed.len()).then_some(pinned)
        });
        let expected: Vec<String> = allowed.iter().map(ToString::to_string).collect();
        assert_eq!(pinned, expected);
        let banner = sluice.stderr();
        let said = format!("workers {} on CPUs {}", allowed.len(), allowed[0]);
        assert!(banner.contains(&said), "{banner}");
        assert_eq!(sluice.client().get("/a").text(), "hello");
    }
}

/// Why rings are not to be had: what the kernel says, unless the binary itself can't ask it.
fn reason(kernel: &'static str) -> &'static str {
    const BUILD: &str = "this build has no io_uring";
    let built = !Sluice::command(&["doctor"]).stdout.contains(BUILD);
    if built { kernel } else { BUILD }
}

/// A configuration's file, run without what `SLUICE_TEST_DRIVER` asks for.
struct Written {
    config: String,
    control: String,
    _dir: TempDir,
}

impl Written {
    fn new(config: &Config) -> Self {
        let dir = TempDir::new().expect("a temporary folder");
        let path = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
        let (file, control) = (path("sluice.toml"), path("control.sock"));
        fs::write(&file, config.to_string()).expect("write");
        Self { config: file, control, _dir: dir }
    }

    fn run<'a>(&'a self, more: &[&'a str]) -> Vec<&'a str> {
        [&["run", "-c", &self.config, "--control", &self.control], more].concat()
    }
}

/// Starts something where the kernel answers every request for a ring with this error. The filter
/// binds the thread that asks for it and whatever that starts, so it gets a thread of its own.
fn without_rings<T: Send>(errno: u32, start: impl FnOnce() -> T + Send) -> T {
    // Built before, should it have to be: a compiler needs no filter.
    let _ = sluice_tests::process::binary();
    let arch = TargetArch::try_from(std::env::consts::ARCH).expect("an architecture with seccomp");
    let rules = BTreeMap::from([(IO_URING_SETUP, Vec::new())]);
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Errno(errno), arch);
    let filter: BpfProgram = filter.and_then(TryInto::try_into).expect("a filter");
    alone(move || {
        apply_filter(&filter).expect("a kernel with seccomp");
        start()
    })
}

/// Starts something that may use these CPUs only.
fn on_cpus<T: Send>(cpus: &[usize], start: impl FnOnce() -> T + Send) -> T {
    let mut mask = CpuSet::new();
    cpus.iter().for_each(|cpu| mask.set(*cpu));
    alone(move || {
        sched_setaffinity(None, &mask).expect("CPUs of our own mask");
        start()
    })
}

fn alone<T: Send>(start: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| match scope.spawn(start).join() {
        Ok(started) => started,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

/// Where the kernel may run each worker's thread, in the order of the workers.
fn worker_cpus(pid: u32) -> Vec<String> {
    let mut found = BTreeMap::new();
    for task in fs::read_dir(format!("/proc/{pid}/task")).expect("a process").flatten() {
        let status = fs::read_to_string(task.path().join("status")).unwrap_or_default();
        let value = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap_or_default().trim().to_owned()
        };
        let (name, cpus) = (value("Name:"), value("Cpus_allowed_list:"));
        if name.starts_with("worker-") && !cpus.contains(['-', ',']) {
            found.insert(name, cpus);
        }
    }
    found.into_values().collect()
}

fn findings(json: &str) -> BTreeMap<String, serde_json::Value> {
    let list: Vec<serde_json::Value> = serde_json::from_str(json).expect("JSON, not a terminal");
    let named = |finding: serde_json::Value| {
        (finding["name"].as_str().expect("a name").to_owned(), finding)
    };
    list.into_iter().map(named).collect()
}
