//! One run: an origin, perhaps a proxy before it, the load, and CPU time read at both ends of
//! the measured window.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use serde::{Deserialize, Serialize};

use super::verdict::{Bottleneck, Shares, Usage};
use super::{Comparison, Contender, Preset, Scenario};
use crate::cpu::{self, Cpus, Scheduled};
use crate::histogram::{Latencies, Percentiles, human_us};
use crate::load::{self, Failure, Moment, Outcome, Work};
use crate::peers::{Setup, Site};
use crate::process::{Running, answers, free_ports};
use crate::report::grouped;

/// What one run of one contender showed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Run {
    pub contender: String,
    pub round: u32,
    pub window_s: f64,
    pub requests_per_second: f64,
    pub latency_us: Percentiles,
    /// Of the proxy's process tree; none without a proxy.
    pub cpu_us_per_request: Option<f64>,
    pub shares: Shares,
    pub bottleneck: Bottleneck,
    pub answered: u64,
    /// Without an answer, or with one that is not the origin's 200: fast refusals are no speed.
    pub failed: u64,
    pub statuses: BTreeMap<u16, u64>,
    pub failures: BTreeMap<Failure, u64>,
    /// Kept for the distribution over all rounds, which the report writes out instead.
    #[serde(skip)]
    pub latency: Latencies,
}

impl Run {
    /// The run on one line of progress.
    pub fn line(&self, rounds: u32) -> String {
        let cpu = self.cpu_us_per_request.map(|us| format!(", {us:.1} µs CPU/request"));
        let cpu = cpu.unwrap_or_default();
        let failed =
            if self.failed > 0 { format!(", {} FAILED", self.failed) } else { String::new() };
        format!(
            "round {}/{rounds} {:<8} {:>8} requests/s, P50 {}, P99 {}{cpu}, bottleneck: {}{failed}",
            self.round,
            self.contender,
            grouped(self.requests_per_second),
            human_us(self.latency_us.p50),
            human_us(self.latency_us.p99),
            self.bottleneck.describe(),
        )
    }
}

/// Starts all, measures, ends all.
pub(super) fn run(
    comparison: &Comparison,
    scenario: &Scenario,
    contender: &Contender,
    round: u32,
    stop: &AtomicBool,
) -> Result<Run> {
    let folder = run_folder(comparison, scenario, contender, round)?;
    let (mut origin, origin_address) = Running::origin(&folder, &comparison.origin_cpu, &[])?;
    let (path, size) = (scenario.path(), scenario.answer_bytes());
    origin.await_ready(|| answers(origin_address.port(), &path, size))?;
    let [port, admin_port] = free_ports()?;
    let site = Site {
        folder: &folder,
        port,
        admin_port,
        origin_port: origin_address.port(),
        setup: match scenario.preset {
            Preset::Limit => Setup::Limited,
            Preset::Plain
            | Preset::Few
            | Preset::Many
            | Preset::Pieces
            | Preset::Conn
            | Preset::Rate
            | Preset::Large => Setup::Plain,
        },
    };
    let (proxy, port) = match contender {
        Contender::Direct => (None, origin_address.port()),
        Contender::Proxy { peer, program } => {
            let mut proxy = Running::peer(*peer, program, &site, &comparison.proxy_cpu)?;
            proxy.await_ready(|| answers(port, &path, size))?;
            (Some(proxy), port)
        }
    };
    let work = scenario.work(port)?;
    let sample = || Sample::take(proxy.as_ref().map(Running::pid), origin.pid());
    let (outcome, before, after) = drive(&work, &comparison.load_cpu, stop, sample)?;
    ensure!(outcome.answered > 0, "no request was answered: {:?}", outcome.failures);
    let whole = outcome.in_window * scenario.answer_bytes();
    ensure!(
        !is_clean(&outcome) || outcome.body_bytes == whole,
        "bodies came back with another size"
    );
    let usage = Usage {
        window: outcome.window,
        proxy: between(&before.proxy, &after.proxy),
        load: outcome.load_cpu,
        origin: between(&before.origin, &after.origin),
        one_load_core: comparison.load_cpu == comparison.origin_cpu,
    };
    let proxy_cpu = proxy.map(|_| after.proxy_cpu.saturating_sub(before.proxy_cpu));
    Ok(summed_up(contender, round, &outcome, usage.shares(), proxy_cpu))
}

fn run_folder(
    comparison: &Comparison,
    scenario: &Scenario,
    contender: &Contender,
    round: u32,
) -> Result<PathBuf> {
    let name = format!("{}-{round}-{}", scenario.preset.name(), contender.name());
    let folder = comparison.folder.join("runs").join(name);
    if folder.exists() {
        fs::remove_dir_all(&folder)
            .with_context(|| format!("cannot clear {}", folder.display()))?;
    }
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    fs::canonicalize(&folder).with_context(|| format!("cannot find {}", folder.display()))
}

/// The load runs on a thread of its own CPU; this thread only takes the samples.
fn drive(
    work: &Work,
    cpus: &Cpus,
    stop: &AtomicBool,
    sample: impl Fn() -> Sample,
) -> Result<(Outcome, Sample, Sample)> {
    thread::scope(|scope| {
        let (sender, moments) = mpsc::channel();
        let load = scope.spawn(move || {
            cpu::pin(cpus)?;
            load::run(work, stop, &mut |moment| {
                // A watcher that has gone misses nothing that matters.
                let _ = sender.send(moment);
            })
        });
        let (mut before, mut after) = (Sample::default(), Sample::default());
        for moment in moments {
            match moment {
                Moment::Measuring => before = sample(),
                Moment::Measured => after = sample(),
                Moment::Second { .. } => {}
            }
        }
        let outcome = load.join().map_err(|_| anyhow!("the load's thread broke"))??;
        Ok((outcome, before, after))
    })
}

fn summed_up(
    contender: &Contender,
    round: u32,
    outcome: &Outcome,
    shares: Shares,
    proxy_cpu: Option<Duration>,
) -> Run {
    Run {
        contender: contender.name().to_owned(),
        round,
        window_s: outcome.window.as_secs_f64(),
        requests_per_second: outcome.requests_per_second(),
        latency_us: outcome.latency.percentiles(),
        cpu_us_per_request: proxy_cpu.and_then(|cpu| per_request_us(cpu, outcome.in_window)),
        shares,
        bottleneck: shares.bottleneck(),
        answered: outcome.answered,
        failed: outcome.failed() + answered_wrong(outcome),
        statuses: outcome.statuses.clone(),
        failures: outcome.failures.clone(),
        latency: outcome.latency.clone(),
    }
}

fn is_clean(outcome: &Outcome) -> bool {
    outcome.failed() + answered_wrong(outcome) == 0
}

fn answered_wrong(outcome: &Outcome) -> u64 {
    outcome.statuses.iter().filter(|(status, _)| **status != 200).map(|(_, count)| count).sum()
}

#[expect(clippy::cast_precision_loss, reason = "requests of one run fit a double's 53 bits")]
fn per_request_us(cpu: Duration, requests: u64) -> Option<f64> {
    (requests > 0).then(|| cpu.as_secs_f64() * 1e6 / requests as f64)
}

/// What had been used at one moment.
#[derive(Clone, Debug, Default)]
struct Sample {
    /// Of the proxy's tree, with children that have come and gone.
    proxy_cpu: Duration,
    proxy: HashMap<u32, Scheduled>,
    origin: HashMap<u32, Scheduled>,
}

impl Sample {
    fn take(proxy: Option<u32>, origin: u32) -> Self {
        let proxy = proxy.map(cpu::tree).unwrap_or_default();
        Self {
            proxy_cpu: cpu::used(&proxy),
            proxy: cpu::tasks(&proxy),
            origin: cpu::tasks(&cpu::tree(origin)),
        }
    }
}

/// What each task used between two samples; one that came to be meanwhile, all of it.
fn between(before: &HashMap<u32, Scheduled>, after: &HashMap<u32, Scheduled>) -> Vec<Scheduled> {
    let earlier = |id| before.get(id).copied().unwrap_or_default();
    after.iter().map(|(id, now)| now.since(earlier(id))).collect()
}
