//! What is said at the start: what runs, where, on what, and why not on something better.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;

use super::fleet::{Fleet, State};
use crate::runtime::{Driver, Fallen, Wanted};

/// What a banner says besides the workers.
#[derive(Debug)]
pub(crate) struct Facts<'a> {
    pub(crate) source: &'a str,
    pub(crate) number: u64,
    pub(crate) listeners: &'a [SocketAddr],
    pub(crate) admin: Option<SocketAddr>,
    pub(crate) control: &'a Path,
}

/// The lines before `ready`, each with its line end.
pub(crate) fn banner(facts: &Facts<'_>, fleet: &Fleet) -> String {
    let mut text = format!("sluice {}\n", env!("CARGO_PKG_VERSION"));
    let _ = writeln!(text, "config {} (version {})", facts.source, facts.number);
    let first = fleet.workers.iter().find_map(|worker| match &worker.state {
        State::Running { driver, fallen } => Some((*driver, fallen.as_slice())),
        State::Starting | State::Draining | State::Ended => None,
    });
    if let Some((driver, fallen)) = first {
        let forbidden = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").ok();
        let line = driver_line(driver, fallen, fleet.wanted(), forbidden.as_deref());
        let _ = writeln!(text, "driver {line}");
    }
    let cores: Vec<_> =
        fleet.workers.iter().map(|worker| worker.core.map(|core| core.id)).collect();
    let _ = writeln!(text, "workers {}", workers_line(&cores));
    for listener in facts.listeners {
        let _ = writeln!(text, "listening on {listener}");
    }
    if let Some(admin) = facts.admin {
        let _ = writeln!(text, "admin on {admin}");
    }
    let _ = writeln!(text, "control on {}", facts.control.display());
    text
}

/// `io_uring`, or `epoll: io_uring: Operation not permitted; io_uring-coop: …`. Steps that fell
/// for one reason are named together, and a sysctl that forbids io_uring (1: to some, 2: to all)
/// is named too.
fn driver_line(
    driver: Driver,
    fallen: &[Fallen],
    wanted: Wanted,
    forbidden: Option<&str>,
) -> String {
    let mut line = driver.name().to_owned();
    if let Wanted::Only(_) = wanted {
        line.push_str(", as asked");
    }
    let mut said: Vec<(&str, Vec<&str>)> = Vec::new();
    for step in fallen {
        match said.iter_mut().find(|(why, _)| *why == step.why) {
            Some((_, names)) => names.push(step.driver.name()),
            None => said.push((&step.why, vec![step.driver.name()])),
        }
    }
    for (i, (why, names)) in said.iter().enumerate() {
        let _ = write!(line, "{} {}: {why}", if i == 0 { ":" } else { ";" }, names.join(", "));
    }
    if let (Driver::Epoll, false, Some(level @ ("1" | "2"))) =
        (driver, fallen.is_empty(), forbidden.map(str::trim))
    {
        let _ = write!(line, " (kernel.io_uring_disabled={level})");
    }
    line
}

fn workers_line(cores: &[Option<usize>]) -> String {
    let pinned: Option<Vec<usize>> = cores.iter().copied().collect();
    match pinned {
        Some(pinned) => format!("{} on CPUs {}", cores.len(), ranges(&pinned)),
        None => {
            format!("{}, not pinned: more workers than CPUs that this process may use", cores.len())
        }
    }
}

/// `0-3,8`, as the kernel writes CPU lists. The input is sorted.
pub(crate) fn ranges(numbers: &[usize]) -> String {
    let mut text = String::new();
    let mut rest = numbers;
    while let Some(&first) = rest.first() {
        let run = rest.iter().enumerate().take_while(|(i, n)| **n == first + i).count();
        let comma = if text.is_empty() { "" } else { "," };
        let _ = match run {
            1 => write!(text, "{comma}{first}"),
            run => write!(text, "{comma}{first}-{}", first + run - 1),
        };
        rest = &rest[run..];
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_driver_line_says_why_the_better_ones_fell() {
        let fell = |driver, why: &str| Fallen { driver, why: why.to_owned() };
        let refused = || {
            vec![
                fell(Driver::UringDefer, "Invalid argument"),
                fell(Driver::UringCoop, "Operation not permitted"),
            ]
        };
        let alike = || [Driver::UringDefer, Driver::UringCoop].map(|it| fell(it, "No such")).into();
        let line = "epoll: io_uring: Invalid argument; io_uring-coop: Operation not permitted";
        let with_sysctl = format!("{line} (kernel.io_uring_disabled=2)");
        let only = Wanted::Only(Driver::Epoll);
        for (driver, fallen, wanted, forbidden, expected) in [
            (Driver::UringDefer, vec![], Wanted::Auto, Some("0\n"), "io_uring"),
            (Driver::Epoll, vec![], only, Some("2\n"), "epoll, as asked"),
            (Driver::Epoll, alike(), Wanted::Auto, None, "epoll: io_uring, io_uring-coop: No such"),
            (Driver::Epoll, refused(), Wanted::Auto, Some("0\n"), line),
            (Driver::Epoll, refused(), Wanted::Auto, None, line),
            (Driver::Epoll, refused(), Wanted::Auto, Some("2\n"), with_sysctl.as_str()),
        ] {
            assert_eq!(driver_line(driver, &fallen, wanted, forbidden), expected);
        }
    }

    #[test]
    fn cpus_are_listed_as_the_kernel_does() {
        for (cores, expected) in [
            (vec![Some(0)], "1 on CPUs 0"),
            (vec![Some(0), Some(1), Some(2), Some(8), Some(10), Some(11)], "6 on CPUs 0-2,8,10-11"),
            (vec![None, None], "2, not pinned: more workers than CPUs that this process may use"),
        ] {
            assert_eq!(workers_line(&cores), expected);
        }
    }
}
