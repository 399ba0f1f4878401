//! The report of a comparison: every run, and medians, spreads and ratios over the rounds.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::spread::Spread;
use super::svg::{self, Line};
use crate::compare::{Bottleneck, Contender, Kind, ROUNDS_MIN, Run, Scenario};
use crate::cpu::Cpus;
use crate::histogram::{Latencies, Step};
use crate::peers::Peer;

/// A comparison, as JSON keeps it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CompareReport {
    pub machine: Machine,
    pub rounds: u32,
    pub proxy_cpu: Cpus,
    pub load_cpu: Cpus,
    pub origin_cpu: Cpus,
    pub urgent: bool,
    pub contestants: Vec<Contestant>,
    pub skipped: Vec<Skipped>,
    pub scenarios: Vec<ScenarioReport>,
}

/// Where it ran.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Machine {
    pub cpu: String,
    pub cpus: usize,
    pub kernel: String,
}

/// Who took part, in which version.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Contestant {
    pub name: String,
    pub version: String,
}

/// Who did not, and why.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Skipped {
    pub peer: String,
    pub why: String,
}

/// One scenario.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ScenarioReport {
    pub name: String,
    pub description: String,
    pub summaries: Vec<Summary>,
    pub runs: Vec<Run>,
}

/// One contender over all rounds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Summary {
    pub contender: String,
    pub rounds: usize,
    /// Requests that failed or were refused.
    pub failed: u64,
    /// Not so many that its figures are those of other work.
    pub counts: bool,
    pub figures: Vec<Figure>,
    /// Over all rounds together.
    pub distribution: Vec<Step>,
}

/// One figure of one contender.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    pub kind: Kind,
    #[serde(flatten)]
    pub spread: Spread,
    /// Of the best proxy's median; none for the yardstick, which is no proxy, and for whoever did
    /// not answer all.
    pub ratio: Option<f64>,
}

impl Machine {
    pub fn this() -> Self {
        let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            cpu: model.map_or("unknown", |(_, name)| name).to_owned(),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: kernel.trim().to_owned(),
        }
    }
}

impl Contestant {
    pub fn of(contender: &Contender) -> Self {
        let version = match contender {
            Contender::Direct => "no proxy: the yardstick".to_owned(),
            Contender::Proxy { peer, program } => Self::version(*peer, program),
        };
        Self { name: contender.name().to_owned(), version }
    }

    /// The first line that the program says of itself.
    pub fn version(peer: &dyn Peer, program: &Path) -> String {
        let output = std::process::Command::new(program).args(peer.version_arguments()).output();
        let text = output.map(|output| [output.stdout, output.stderr].concat()).unwrap_or_default();
        String::from_utf8_lossy(&text).lines().next().unwrap_or("unknown").trim().to_owned()
    }
}

impl ScenarioReport {
    pub fn new(scenario: &Scenario, runs: &[Run]) -> Self {
        let mut summaries: Vec<Summary> = Vec::new();
        for run in runs {
            if !summaries.iter().any(|summary| summary.contender == run.contender) {
                summaries.push(Summary::of(&run.contender, runs));
            }
        }
        for kind in kinds(&summaries) {
            set_ratios(kind, &mut summaries);
        }
        let name = scenario.preset.name().to_owned();
        Self { name, description: scenario.describe(), summaries, runs: runs.to_vec() }
    }

    /// The distributions of all contenders in one picture.
    pub fn svg(&self) -> String {
        fn line(summary: &Summary) -> Line<'_> {
            Line { name: &summary.contender, steps: &summary.distribution }
        }
        let lines: Vec<Line<'_>> = self.summaries.iter().map(line).collect();
        svg::draw(&format!("{}: {}", self.name, self.description), &lines)
    }

    fn markdown(&self, out: &mut String) {
        // Writing to a String cannot fail.
        let kinds = kinds(&self.summaries);
        let _ = write!(out, "\n## {}\n\n{}\n\n| |", self.name, self.description);
        kinds.iter().for_each(|kind| out.push_str(&format!(" {} |", kind.name())));
        out.push_str(" bottleneck |\n|---|");
        kinds.iter().for_each(|_| out.push_str("---:|"));
        out.push_str("---|\n");
        for summary in &self.summaries {
            let _ = match summary.failed {
                0 => write!(out, "| **{}** |", summary.contender),
                failed => write!(out, "| **{}**, {failed} failed |", summary.contender),
            };
            for kind in &kinds {
                let _ = write!(out, " {} |", summary.cell(*kind));
            }
            let runs = self.runs.iter().filter(|run| run.contender == summary.contender);
            let found: BTreeSet<&str> = runs.map(|run| run.bottleneck.describe()).collect();
            let _ = writeln!(out, " {} |", found.into_iter().collect::<Vec<_>>().join(", "));
        }
        self.runs_markdown(out);
    }

    fn runs_markdown(&self, out: &mut String) {
        // What changes from run to run and tells how far to trust it.
        let kinds: Vec<Kind> = kinds(&self.summaries).into_iter().take(SHOWN_EACH).collect();
        out.push_str("\n| round | |");
        kinds.iter().for_each(|kind| out.push_str(&format!(" {} |", kind.name())));
        out.push_str(" proxy's core | load's core | proxy waited | bottleneck | failed |\n");
        out.push_str("|---:|---|");
        kinds.iter().for_each(|_| out.push_str("---:|"));
        out.push_str("---:|---:|---:|---|---:|\n");
        for run in &self.runs {
            let percent = |share: f64| format!("{:.0} %", share * 100.0);
            let core = if run.has_proxy { percent(run.shares.proxy_core) } else { dash() };
            let _ = write!(out, "| {} | {} |", run.round, run.contender);
            for kind in &kinds {
                let figure = run.figures.get(kind).map_or_else(dash, |value| kind.show(*value));
                let _ = write!(out, " {figure} |");
            }
            let _ = writeln!(
                out,
                " {core} | {} | {} | {} | {} |",
                percent(run.shares.load_core),
                percent(run.shares.proxy_waited),
                run.bottleneck.describe(),
                run.failed,
            );
        }
        self.caveats(out);
    }

    /// What a reader must know before quoting anything.
    fn caveats(&self, out: &mut String) {
        let proxies = || self.runs.iter().filter(|run| run.has_proxy);
        if proxies().any(|run| run.bottleneck == Bottleneck::LoadSide) {
            out.push_str("\nWhere the load side was the bottleneck, requests/s are a lower bound for the proxy.\n");
        }
        if self.runs.iter().any(|run| run.failed > 0) {
            out.push_str("\n**Requests failed**: where it was more than one of a thousand, there is no ratio, and no row to quote.\n");
        }
        let waited = proxies().map(|run| run.shares.proxy_waited).fold(0.0, f64::max);
        if waited > DISTURBED {
            let _ = writeln!(
                out,
                "\n**The machine was not quiet**: a proxy waited for its core up to {:.0} % of the time. Quote ratios and CPU µs/request, not requests/s or high percentiles.",
                waited * 100.0
            );
        }
    }
}

impl Summary {
    fn of(contender: &str, runs: &[Run]) -> Self {
        let own: Vec<&Run> = runs.iter().filter(|run| run.contender == contender).collect();
        let mut all = Latencies::new();
        own.iter().for_each(|run| all.merge(&run.latency));
        let kinds: BTreeSet<Kind> =
            own.iter().flat_map(|run| run.figures.keys().copied()).collect();
        let figure = |kind: Kind| {
            let spread = Spread::of(own.iter().filter_map(|run| run.figures.get(&kind).copied()))?;
            Some(Figure { kind, spread, ratio: None })
        };
        let figures = kinds.into_iter().filter_map(figure).collect();
        let failed = own.iter().map(|run| run.failed).sum();
        let answered: u64 = own.iter().map(|run| run.answered).sum();
        Self {
            contender: contender.to_owned(),
            rounds: own.len(),
            failed,
            counts: failed * FAILED_MAX <= answered,
            figures,
            distribution: all.steps(),
        }
    }

    fn is_proxy(&self) -> bool {
        self.contender != Contender::Direct.name()
    }

    fn figure(&self, kind: Kind) -> Option<&Figure> {
        self.figures.iter().find(|figure| figure.kind == kind)
    }

    /// `median (min–max) ×ratio`
    fn cell(&self, kind: Kind) -> String {
        let Some(Figure { spread, ratio, .. }) = self.figure(kind) else { return dash() };
        let [median, min, max] = [spread.median, spread.min, spread.max].map(|v| kind.show(v));
        let ratio = ratio.map_or(String::new(), |ratio| format!(" ×{ratio:.2}"));
        format!("{median} ({min}–{max}){ratio}")
    }
}

/// One failed request of so many is the machine's doing. A refusal costs less than an answer.
const FAILED_MAX: u64 = 1000;

/// Of which any contender has a figure.
fn kinds(summaries: &[Summary]) -> BTreeSet<Kind> {
    summaries.iter().flat_map(|summary| &summary.figures).map(|figure| figure.kind).collect()
}

fn dash() -> String {
    "-".to_owned()
}

fn set_ratios(kind: Kind, summaries: &mut [Summary]) {
    let counts = |summary: &Summary| summary.is_proxy() && summary.counts;
    let proxies = summaries.iter().filter(|summary| counts(summary));
    let medians = proxies.filter_map(|summary| Some(summary.figure(kind)?.spread.median));
    let Some(best) = kind.good().and_then(|good| good.best(medians)) else { return };
    for summary in summaries.iter_mut().filter(|summary| counts(summary)) {
        for figure in summary.figures.iter_mut().filter(|figure| figure.kind == kind) {
            figure.ratio = figure.spread.ratio(best);
        }
    }
}

impl CompareReport {
    /// Markdown, which is also what a terminal shows.
    pub fn markdown(&self) -> String {
        let mut out = String::from("# Gateways side by side\n\n");
        let Machine { cpu, cpus, kernel } = &self.machine;
        let _ = writeln!(
            out,
            "{cpu}, {cpus} CPUs, Linux {kernel}. Proxy on CPU {}, load on {}, origin on {}.",
            self.proxy_cpu, self.load_cpu, self.origin_cpu
        );
        if self.urgent {
            out.push_str("Open loops, their origin and their proxy went before everything else.\n");
        }
        let _ = writeln!(
            out,
            "{} rounds, contenders taking turns, another first in each; figures are median (min–max) ×ratio to the best proxy.\n",
            self.rounds
        );
        for Contestant { name, version } in &self.contestants {
            let _ = writeln!(out, "- {name}: {version}");
        }
        for Skipped { peer, why } in &self.skipped {
            let _ = writeln!(out, "- **{peer} was skipped**: {why}");
        }
        if self.rounds < ROUNDS_MIN {
            let _ = writeln!(out, "\n**Fewer than three rounds: do not quote these figures.**");
        }
        self.scenarios.iter().for_each(|scenario| scenario.markdown(&mut out));
        out
    }
}

/// Figures of each single run that are shown; JSON has them all.
const SHOWN_EACH: usize = 5;

/// A worker with a core to itself waits for it well under this share of the time.
const DISTURBED: f64 = 0.05;

#[cfg(test)]
#[path = "compare_tests.rs"]
mod tests;
