//! `sluice-bench compare`

use std::io::Write;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use sluice_bench::compare::{self, Comparison, Preset, Scenario};
use sluice_bench::cpu::Cpus;
use sluice_bench::peers::{Options, PEERS, Peer};
use sluice_bench::{report, unit};

#[derive(Debug, Args)]
pub(crate) struct Compare {
    /// What to measure, one after another
    #[arg(value_enum, default_value = "plain")]
    scenarios: Vec<Preset>,
    /// Who takes part, besides the load alone; sluice, nginx and haproxy when not given. There are
    /// also sluice-bare (no limit, no log), sluice-epoll, sluice-two (workers), sluice-busy and
    /// haproxy-busy (looking instead of sleeping), and the floors relay, relay-epoll and
    /// relay-splice
    #[arg(long, value_delimiter = ',', value_parser = peer)]
    peers: Vec<&'static dyn Peer>,
    /// Turns for each; medians need three
    #[arg(long, default_value = "3", value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: u32,
    /// Requests a second of the scenarios `rate`, `half`, `beside-stream` and `beside-pipeline`
    #[arg(long, default_value = "5000", value_parser = super::load::rate)]
    rate: NonZeroU32,
    /// Connections of the scenarios `idle` and `half`
    #[arg(long, default_value = "9000", value_parser = clap::value_parser!(u32).range(1..=9_500))]
    crowd: u32,
    /// How long to measure in each run; in `half` also how long a head may take
    #[arg(short, long, default_value = "5s", value_parser = unit::span)]
    duration: Duration,
    /// How long to load before measuring
    #[arg(short, long, default_value = "2s", value_parser = unit::span)]
    warm_up: Duration,
    /// The sluice binary; the one beside this program when not given
    #[arg(long, value_name = "PATH")]
    sluice: Option<PathBuf>,
    /// One, or several as 0,1: then the load side may share them
    #[arg(long, default_value = "0", value_name = "CPU")]
    proxy_cpu: Cpus,
    #[arg(long, default_value = "1", value_name = "CPU")]
    load_cpu: Cpus,
    /// As --load-cpu when not given
    #[arg(long, value_name = "CPU")]
    origin_cpu: Option<Cpus>,
    /// Load and origin as processes of their own, where they are one thread otherwise: on one CPU,
    /// with short answers and nobody beside
    #[arg(long)]
    apart: bool,
    /// Open loops, their origin and their proxy go before everything else on their CPUs (as root;
    /// with /proc/sys/kernel/sched_rt_runtime_us at -1 the kernel holds none of them up)
    #[arg(long)]
    urgent: bool,
    /// Where compare.json, compare.md, a picture for each scenario, and the runs' logs go
    #[arg(long, value_name = "DIR", default_value = "bench-out/compare")]
    out: PathBuf,
    #[arg(long, default_value = "1")]
    seed: u64,
}

impl Compare {
    pub(super) fn run(self, stop: &AtomicBool) -> Result<ExitCode> {
        let origin_cpu = self.origin_cpu.as_ref().unwrap_or(&self.load_cpu);
        let together = !self.apart && is_shared(&self.proxy_cpu, &self.load_cpu, origin_cpu);
        let scenario = |preset: &Preset| Scenario {
            preset: *preset,
            rate: self.rate,
            crowd: self.crowd,
            warm_up: self.warm_up,
            duration: self.duration,
            seed: self.seed,
            together,
        };
        let comparison = Comparison {
            scenarios: self.scenarios.iter().map(scenario).collect(),
            peers: if self.peers.is_empty() { usual() } else { self.peers },
            options: Options { sluice: self.sluice },
            rounds: self.rounds,
            proxy_cpu: self.proxy_cpu,
            origin_cpu: self.origin_cpu.unwrap_or_else(|| self.load_cpu.clone()),
            load_cpu: self.load_cpu,
            urgent: self.urgent,
            folder: self.out,
        };
        let found = compare::run(&comparison, stop, &mut |line| eprintln!("{line}"))?;
        let text = found.markdown();
        std::io::stdout().write_all(text.as_bytes()).context("cannot write to stdout")?;
        report::write(&comparison.folder, "compare.json", &report::json(&found)?)?;
        report::write(&comparison.folder, "compare.md", &text)?;
        for scenario in &found.scenarios {
            report::write(&comparison.folder, &format!("{}.svg", scenario.name), &scenario.svg())?;
        }
        Ok(if found.skipped.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// Whether load and origin have one CPU for both, and the proxy another.
fn is_shared(proxy: &Cpus, load: &Cpus, origin: &Cpus) -> bool {
    load.is_one() && origin == load && !proxy.overlap(load)
}

fn usual() -> Vec<&'static dyn Peer> {
    PEERS.iter().copied().filter(|peer| !peer.is_asked_for()).collect()
}

fn peer(name: &str) -> Result<&'static dyn Peer, String> {
    let known: Vec<_> = PEERS.iter().map(|peer| peer.name()).collect();
    let found = PEERS.iter().find(|peer| peer.name() == name);
    found.copied().ok_or_else(|| format!("`{name}` is none of {}", known.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_and_origin_share_a_cpu_that_is_theirs_alone() {
        let table = [
            ("0", "1", "1", true),
            ("0", "1", "2", false),
            // They have more than one thread can use.
            ("0", "2,3", "2,3", false),
            ("0,1", "1", "1", false),
            ("0,1", "0,1", "0,1", false),
        ];
        for (proxy, load, origin, expected) in table {
            let [p, l, o] = [proxy, load, origin].map(|text| text.parse().unwrap());
            assert_eq!(is_shared(&p, &l, &o), expected, "{proxy} {load} {origin}");
        }
    }
}
