//! `doctor`: what this machine gives a gateway, and what it should.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, IsTerminal as _};
use std::path::PathBuf;

use rustix::process::Resource;
use serde::Serialize;

use super::{colour, json as pretty, print};
use crate::control::ranges;
use crate::control::source::Source;
use crate::exit::{Exit, Failure, reason};
use crate::observe::process;
use crate::runtime;
use crate::store;
use crate::worker::descriptors::Share;

/// One thing that was looked at.
#[derive(Debug, Serialize)]
struct Finding {
    name: String,
    is: String,
    /// What would be better. None: it is well as it is.
    should: Option<String>,
}

pub(super) fn doctor(config: Option<PathBuf>, json: bool) -> Result<Exit, Failure> {
    let mut findings = examine();
    if let Some(file) = config {
        findings.extend(store(file)?);
    }
    if json || !io::stdout().is_terminal() {
        return print(&pretty(&findings)?);
    }
    print(&text(&findings, colour(&io::stdout())))
}

fn examine() -> Vec<Finding> {
    let system = rustix::system::uname();
    let machine = system.machine().to_string_lossy().into_owned();
    let kernel = format!("{} {machine}", system.release().to_string_lossy());
    let mut findings = vec![Finding { name: "kernel".to_owned(), is: kernel, should: None }];
    findings.push(cpus());
    findings.extend(quota());
    findings.extend(drivers());
    if let Some(found) = sysctl("kernel/io_uring_disabled") {
        let should =
            (found != "0").then(|| "0, or 1 with the process in io_uring_group".to_owned());
        let name = "kernel.io_uring_disabled".to_owned();
        findings.push(Finding { name, is: found, should });
    }
    findings.push(limit("RLIMIT_NOFILE", Resource::Nofile, DESCRIPTORS));
    findings.push(clients());
    findings.push(limit("RLIMIT_MEMLOCK", Resource::Memlock, LOCKED_BYTES));
    findings.push(at_least("net.core.somaxconn", 4096, "new connections wait there for a worker"));
    findings.push(at_least(
        "net.ipv4.tcp_max_syn_backlog",
        4096,
        "half-open connections wait there",
    ));
    findings.push(ports());
    findings.push(huge_pages());
    findings
}

/// The Redis of a configuration, as this machine reaches it.
fn store(file: PathBuf) -> Result<Vec<Finding>, Failure> {
    let Some(client) = Source::File(file).store(colour(&io::stderr()))? else {
        let is = "none in that configuration".to_owned();
        return Ok(vec![Finding { name: "store.redis".to_owned(), is, should: None }]);
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|e| Failure::io("the command could not be set up", &e))?;
    let told = |finding: store::examine::Finding| {
        let server = finding.server.map(|server| format!(" {server}")).unwrap_or_default();
        let name = format!("store.redis{server}");
        Finding { name, is: finding.is, should: finding.should }
    };
    Ok(runtime.block_on(store::examine::examine(client)).into_iter().map(told).collect())
}

/// `server.connections` unless written.
const CLIENTS: u32 = 16_384;

/// 65,536 connections and their upstreams' need twice as many.
const DESCRIPTORS: u64 = 131_072;

/// A ring of 1024 entries takes 150 KiB of it on kernels that still charge it, and 64 workers
/// may have one.
const LOCKED_BYTES: u64 = 8 << 20;

fn cpus() -> Finding {
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    let ids: Vec<_> = cores.iter().map(|core| core.id).collect();
    let should = ids.is_empty().then(|| "a CPU mask that can be read".to_owned());
    Finding { name: "CPUs".to_owned(), is: format!("{} ({})", ids.len(), ranges(&ids)), should }
}

/// What the control group leaves of those CPUs, where it bounds them.
fn quota() -> Option<Finding> {
    let found = fs::read_to_string("/sys/fs/cgroup/cpu.max").ok()?;
    let (quota, period) = found.trim().split_once(' ')?;
    let (quota, period): (u64, u64) = (quota.parse().ok()?, period.parse().ok()?);
    let cores = core_affinity::get_core_ids().unwrap_or_default().len() as u64;
    let should = (quota < cores.saturating_mul(period)).then(|| {
        format!("{cores} CPUs, or fewer workers: a worker whose time is up stalls its connections")
    });
    let is = format!("{quota} of every {period} µs");
    Some(Finding { name: "cgroup cpu.max".to_owned(), is, should })
}

/// The ladder, from the best step down. A step below a good one is not needed.
fn drivers() -> Vec<Finding> {
    let mut found_one = false;
    let finding = |(name, result): (&str, io::Result<()>)| {
        let is = result.as_ref().map_or_else(reason, |()| "available".to_owned());
        let better = "io_uring: kernel 6.1, allowed by sysctl, seccomp and RLIMIT_MEMLOCK";
        let should = (result.is_err() && !found_one).then(|| better.to_owned());
        found_one |= result.is_ok();
        Finding { name: format!("driver {name}"), is, should }
    };
    runtime::available().into_iter().map(finding).collect()
}

fn limit(name: &str, resource: Resource, least: u64) -> Finding {
    let limit = rustix::process::getrlimit(resource);
    let shown =
        |bound: Option<u64>| bound.map_or_else(|| "unlimited".to_owned(), |n| n.to_string());
    // The process raises the soft limit to the hard one itself.
    let low = limit.maximum.is_some_and(|most| most < least);
    Finding {
        name: name.to_owned(),
        is: format!("{} (hard {})", shown(limit.current), shown(limit.maximum)),
        should: low.then(|| format!("a hard limit of {least}")),
    }
}

/// What the hard limit on descriptors leaves for clients.
fn clients() -> Finding {
    let limit = rustix::process::getrlimit(Resource::Nofile).maximum;
    let workers = core_affinity::get_core_ids().unwrap_or_default().len().max(1);
    let open = process::open_descriptors().unwrap_or(0);
    let sure = Share::of(limit, open, workers, 1).sure();
    Finding {
        name: "client connections".to_owned(),
        is: format!("at least {sure} a worker, the other descriptors are kept for upstreams"),
        should: (sure < CLIENTS).then(|| format!("{CLIENTS}, as server.connections is by default")),
    }
}

fn at_least(name: &str, least: u64, why: &str) -> Finding {
    let found = sysctl(&name.replace('.', "/"));
    let low = found.as_deref().and_then(|n| n.parse().ok()).is_some_and(|n: u64| n < least);
    Finding {
        name: name.to_owned(),
        is: found.unwrap_or_else(unknown),
        should: low.then(|| format!("{least}: {why}")),
    }
}

/// Connections from one address of ours to one server of an upstream.
fn ports() -> Finding {
    let name = "net.ipv4.ip_local_port_range".to_owned();
    let Some(found) = sysctl("net/ipv4/ip_local_port_range") else {
        return Finding { name, is: unknown(), should: None };
    };
    let bounds: Vec<u32> = found.split_whitespace().filter_map(|n| n.parse().ok()).collect();
    let narrow = matches!(bounds[..], [low, high] if high.saturating_sub(low) < 28_000);
    let should = narrow.then(|| "1024 65535: bounds the connections to one server".to_owned());
    Finding { name, is: found.split_whitespace().collect::<Vec<_>>().join(" "), should }
}

fn huge_pages() -> Finding {
    let name = "transparent_hugepage".to_owned();
    let found = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    let Ok(found) = found else { return Finding { name, is: unknown(), should: None } };
    let chosen = found.split(['[', ']']).nth(1).unwrap_or_else(|| found.trim()).to_owned();
    let should = (chosen == "always")
        .then(|| "madvise: huge pages for everything grow memory and stall".to_owned());
    Finding { name, is: chosen, should }
}

fn sysctl(path: &str) -> Option<String> {
    fs::read_to_string(format!("/proc/sys/{path}")).ok().map(|text| text.trim().to_owned())
}

fn unknown() -> String {
    "unknown".to_owned()
}

fn text(findings: &[Finding], colour: bool) -> String {
    let width = findings.iter().map(|finding| finding.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for Finding { name, is, should } in findings {
        let (mark, code) = if should.is_some() { ("warn", 33) } else { ("ok", 32) };
        let mark = match colour {
            true => format!("\x1b[{code}m{mark:4}\x1b[0m"),
            false => format!("{mark:4}"),
        };
        let _ = write!(text, "{mark}  {name:width$}  {is}");
        let _ = match should {
            Some(should) => writeln!(text, "; should be {should}"),
            None => writeln!(text),
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_of_the_ladder_is_looked_at() {
        let findings = examine();
        for name in ["driver io_uring", "driver io_uring-coop", "driver epoll", "RLIMIT_NOFILE"] {
            assert!(findings.iter().any(|finding| finding.name == name), "{name}");
        }
    }

    #[test]
    fn text_says_what_should_be() {
        let finding = |should: Option<&str>| Finding {
            name: "net.core.somaxconn".to_owned(),
            is: "128".to_owned(),
            should: should.map(str::to_owned),
        };
        for (should, colour, expected) in [
            (None, false, "ok    net.core.somaxconn  128\n"),
            (Some("4096"), false, "warn  net.core.somaxconn  128; should be 4096\n"),
            (Some("4096"), true, "\x1b[33mwarn\x1b[0m  net.core.somaxconn  128; should be 4096\n"),
        ] {
            assert_eq!(text(&[finding(should)], colour), expected);
        }
    }
}
