//! One run: the stage is set, the load does its work, and what it and the proxy showed is noted.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use serde::{Deserialize, Serialize};

use super::figures::{Figures, Kind};
use super::scenario::Act;
use super::stage::{Sample, Stage};
use super::verdict::{Bottleneck, Shares};
use super::{Comparison, Contender, Preset, Scenario, beside, rest};
use crate::histogram::{Latencies, Percentiles};
use crate::load::{Failure, Moment, Outcome, Work};

/// What one run of one contender showed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Run {
    pub contender: String,
    pub round: u32,
    pub has_proxy: bool,
    pub window_s: f64,
    pub figures: Figures,
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
        let figures = self.figures.iter().map(|(kind, value)| {
            format!("{} {}", kind.name(), kind.show(*value)) //
        });
        let figures = figures.collect::<Vec<_>>().join(", ");
        let failed =
            if self.failed > 0 { format!(", {} FAILED", self.failed) } else { String::new() };
        let (round, contender) = (self.round, &self.contender);
        let held_back = self.bottleneck.describe();
        format!("round {round}/{rounds} {contender:<8} {figures}, bottleneck: {held_back}{failed}")
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
    let stage = Stage::set(comparison, scenario, contender, round)?;
    let seen = match scenario.preset.act() {
        Act::Load => load(&stage, scenario, stop)?,
        Act::Rest => rest::run(&stage, scenario, stop)?,
        Act::Beside(what) => beside::run(&stage, scenario, what, stop)?,
    };
    let Seen { outcome, mut figures, shares } = seen;
    if stage.has_proxy() {
        figures.insert(Kind::ProxyCpuPercent, shares.proxy * 100.0);
    }
    Ok(Run {
        contender: contender.name().to_owned(),
        round,
        has_proxy: stage.has_proxy(),
        window_s: outcome.window.as_secs_f64(),
        figures,
        shares,
        bottleneck: shares.bottleneck(),
        answered: outcome.answered,
        failed: outcome.failed() + answered_wrong(&outcome),
        statuses: outcome.statuses,
        failures: outcome.failures,
        latency: outcome.latency,
    })
}

/// What an act came to.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) outcome: Outcome,
    pub(super) figures: Figures,
    pub(super) shares: Shares,
}

/// The load by itself.
fn load(stage: &Stage, scenario: &Scenario, stop: &AtomicBool) -> Result<Seen> {
    let work = scenario.work(stage.address.port())?;
    let Driven { outcome, before, after } = drive(&work, stage, stop)?;
    let whole = outcome.in_window * scenario.answer_bytes();
    ensure!(
        !is_clean(&outcome) || outcome.body_bytes == whole,
        "bodies came back with another size"
    );
    let cpu = stage.has_proxy().then(|| after.proxy_cpu.saturating_sub(before.proxy_cpu));
    let per = |count: u64| cpu.and_then(|cpu| share(cpu, count));
    let moved = outcome.moved_bytes;
    let peak = stage.growth_kb(Kind::PeakKbPerConnection, work.connections);
    let long = [
        (Kind::GbPerSecond, share(outcome.window, moved).map(|s| 1e-9 / s)),
        (Kind::CpuSecondsPerGb, per(moved).map(|s| s * 1e9)),
        (Kind::PeakKbPerConnection, peak.map(|(_, kb)| kb)),
    ];
    let Percentiles { p50, p90, p99, p99_9, p99_99, max, .. } = outcome.latency.percentiles();
    let short = [
        (Kind::RequestsPerSecond, Some(outcome.requests_per_second())),
        (Kind::CpuUsPerRequest, per(outcome.in_window).map(|s| s * 1e6)),
        (Kind::P50, Some(p50)),
        (Kind::P90, Some(p90)),
        (Kind::P99, Some(p99)),
        (Kind::P999, Some(p99_9)),
        (Kind::P9999, Some(p99_99)),
        (Kind::Max, Some(max)),
    ];
    let is_long = matches!(scenario.preset, Preset::Down | Preset::Up);
    let figures = if is_long { &long[..] } else { &short[..] };
    let figures = figures.iter().filter_map(|(kind, value)| Some((*kind, (*value)?))).collect();
    let shares = stage.shares((&before, &after), outcome.load_cpu, outcome.window);
    Ok(Seen { outcome, figures, shares })
}

/// Seconds for each.
#[expect(clippy::cast_precision_loss, reason = "counts of one run fit a double's 53 bits")]
fn share(time: Duration, count: u64) -> Option<f64> {
    (count > 0).then(|| time.as_secs_f64() / count as f64)
}

/// A load's outcome, and what was used at both ends of its window.
#[derive(Debug)]
pub(super) struct Driven {
    pub(super) outcome: Outcome,
    pub(super) before: Sample,
    pub(super) after: Sample,
}

/// The load runs on a thread of its own CPU; this thread only takes the samples, where it can.
pub(super) fn drive(work: &Work, stage: &Stage, stop: &AtomicBool) -> Result<Driven> {
    thread::scope(|scope| {
        let (sender, moments) = mpsc::channel();
        let load = scope.spawn(move || {
            stage.load(work, stop, &mut |moment| {
                let sample = match moment {
                    Moment::Measuring | Moment::Measured => stage.glance(),
                    Moment::Second { .. } => None,
                };
                // A watcher that has gone misses nothing that matters.
                let _ = sender.send((moment, sample));
            })
        });
        let (mut before, mut after) = (Sample::default(), Sample::default());
        for (moment, sample) in moments {
            let sample = || sample.unwrap_or_else(|| stage.sample());
            match moment {
                Moment::Measuring => before = sample(),
                Moment::Measured => after = sample(),
                Moment::Second { .. } => {}
            }
        }
        let outcome = load.join().map_err(|_| anyhow!("the load's thread broke"))??;
        // A long body may begin before a short window and end after it.
        let moved = outcome.answered > 0 || outcome.moved_bytes > 0;
        ensure!(moved, "no request was answered: {:?}", outcome.failures);
        Ok(Driven { outcome, before, after })
    })
}

fn is_clean(outcome: &Outcome) -> bool {
    outcome.failed() + answered_wrong(outcome) == 0
}

fn answered_wrong(outcome: &Outcome) -> u64 {
    outcome.statuses.iter().filter(|(status, _)| **status != 200).map(|(_, count)| count).sum()
}
