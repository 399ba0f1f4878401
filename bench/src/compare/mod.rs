//! Peers side by side: the same work for each, in turn, round after round.

mod beside;
mod figures;
mod lodger;
mod measure;
mod rest;
mod scenario;
mod stage;
#[cfg(feature = "monoio-http")]
mod standing;
mod verdict;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, bail, ensure};

pub use self::figures::{Figures, Kind};
pub use self::measure::Run;
pub use self::scenario::{Preset, Scenario};
#[cfg(feature = "monoio-http")]
pub use self::standing::Standing;
pub use self::verdict::{Bottleneck, Shares};
use crate::cpu::{self, Cpus};
use crate::peers::{Missing, Options, Peer};
use crate::report::compare::{CompareReport, Contestant, Machine, ScenarioReport, Skipped};

/// What to compare and where.
#[derive(Clone, Debug)]
pub struct Comparison {
    pub scenarios: Vec<Scenario>,
    pub peers: Vec<&'static dyn Peer>,
    pub options: Options,
    pub rounds: u32,
    pub proxy_cpu: Cpus,
    pub load_cpu: Cpus,
    pub origin_cpu: Cpus,
    /// Open loops, their origin and their proxy go before everything else on their CPUs.
    pub urgent: bool,
    /// Configurations and logs of every run are kept below it.
    pub folder: PathBuf,
}

/// Who takes a turn.
#[derive(Clone, Debug)]
pub enum Contender {
    /// No proxy: what the load side alone can do, the yardstick for the others.
    Direct,
    Proxy {
        peer: &'static dyn Peer,
        program: PathBuf,
    },
}

impl Contender {
    pub fn name(&self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Proxy { peer, .. } => peer.name(),
        }
    }
}

/// Runs everything and says, line by line to `tell`, what happens. A peer that is missing or
/// fails is left out aloud; the rest goes on. `stop` drops the run under way and ends.
pub fn run(
    comparison: &Comparison,
    stop: &AtomicBool,
    tell: &mut dyn FnMut(&str),
) -> Result<CompareReport> {
    check(comparison, tell)?;
    let crowd = comparison.scenarios.iter().map(|scenario| scenario.crowd).max();
    cpu::allow_files(2 * u64::from(crowd.unwrap_or_default()) + FILES_MORE);
    let mut skipped = Vec::new();
    let contenders = contenders(comparison, &mut skipped, tell);
    ensure!(contenders.len() > 1, "no peer to compare is on this machine");
    let mut scenarios = Vec::new();
    for scenario in &comparison.scenarios {
        let mut runs: Vec<Run> = Vec::new();
        for round in 1..=comparison.rounds {
            for contender in turns(&contenders, round) {
                let left_out =
                    skipped.iter().any(|skipped: &Skipped| skipped.peer == contender.name());
                if left_out || stop.load(Ordering::Relaxed) {
                    continue;
                }
                let found = measure::run(comparison, scenario, contender, round, stop);
                // A run that was cut short is worth nothing and nobody's fault.
                if stop.load(Ordering::Relaxed) {
                    tell("stopped; what was finished before is reported");
                    continue;
                }
                match found {
                    Ok(run) => {
                        tell(&run.line(comparison.rounds));
                        runs.push(run);
                    }
                    Err(error) => {
                        leave_out(contender.name(), format!("{error:#}"), &mut skipped, tell)
                    }
                }
            }
        }
        scenarios.push(ScenarioReport::new(scenario, &runs));
    }
    Ok(CompareReport {
        machine: Machine::this(),
        rounds: comparison.rounds,
        proxy_cpu: comparison.proxy_cpu.clone(),
        load_cpu: comparison.load_cpu.clone(),
        origin_cpu: comparison.origin_cpu.clone(),
        urgent: comparison.urgent,
        contestants: contenders.iter().map(Contestant::of).collect(),
        skipped,
        scenarios,
    })
}

/// Everybody once, another one first in each round: what a round does to its first is not to fall
/// on the same one each time.
fn turns<T>(all: &[T], round: u32) -> impl Iterator<Item = &T> {
    let first = round.saturating_sub(1) as usize % all.len().max(1);
    all[first..].iter().chain(&all[..first])
}

fn check(comparison: &Comparison, tell: &mut dyn FnMut(&str)) -> Result<()> {
    for cpus in [&comparison.proxy_cpu, &comparison.load_cpu, &comparison.origin_cpu] {
        if let Some(cpu) = cpus.foreign() {
            bail!("CPU {cpu} is not ours to use: --proxy-cpu, --load-cpu, --origin-cpu");
        }
    }
    let others = [&comparison.load_cpu, &comparison.origin_cpu];
    if others.iter().any(|cpus| comparison.proxy_cpu.overlap(cpus)) {
        tell("the proxy shares its CPU with the load side: the figures say little");
    }
    if comparison.rounds < ROUNDS_MIN {
        tell("fewer than three rounds: a median of so few says little");
    }
    let throttle = std::fs::read_to_string(THROTTLE).unwrap_or_default();
    if comparison.urgent && throttle.trim() != "-1" {
        tell(&format!("{THROTTLE} is not -1: the kernel will hold up what is urgent"));
    }
    Ok(())
}

fn contenders(
    comparison: &Comparison,
    skipped: &mut Vec<Skipped>,
    tell: &mut dyn FnMut(&str),
) -> Vec<Contender> {
    let mut found = vec![Contender::Direct];
    for peer in &comparison.peers {
        match peer.find(&comparison.options) {
            Ok(program) => found.push(Contender::Proxy { peer: *peer, program }),
            Err(Missing(hint)) => leave_out(peer.name(), hint, skipped, tell),
        }
    }
    found
}

fn leave_out(peer: &str, why: String, skipped: &mut Vec<Skipped>, tell: &mut dyn FnMut(&str)) {
    tell(&format!("SKIPPED {peer}: {why}"));
    skipped.push(Skipped { peer: peer.to_owned(), why });
}

/// How much of a second may be spent before everything usual, in microseconds.
const THROTTLE: &str = "/proc/sys/kernel/sched_rt_runtime_us";

/// Descriptors besides those of a crowd, which a proxy may hold on both of its sides.
const FILES_MORE: u64 = 2048;

/// The fewest rounds whose median is worth quoting.
pub const ROUNDS_MIN: u32 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_is_first_in_turn() {
        let order = |round| turns(&["a", "b", "c"], round).copied().collect::<String>();
        assert_eq!([1, 2, 3, 4, 5].map(order), ["abc", "bca", "cab", "abc", "bca"]);
        assert_eq!(turns::<u8>(&[], 2).count(), 0);
    }
}
