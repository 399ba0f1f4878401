//! The report of a brown-out: phase by phase what clients got of what the origin could do.

use std::fmt::Write;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::compare::{Contestant, Machine, Skipped};
use super::timeline;
use crate::brownout::{Brownout, Phase};
use crate::load::{End, Failure, Outcome};

/// A brown-out, as JSON keeps it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BrownoutReport {
    pub machine: Machine,
    pub setting: Setting,
    pub contestants: Vec<Contestant>,
    pub skipped: Vec<Skipped>,
    pub runs: Vec<RunReport>,
}

/// What was the same for all.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Setting {
    pub servers: u32,
    pub service_ms: f64,
    pub patience_ms: f64,
    pub capacity_per_s: f64,
    pub seed: u64,
}

/// One gateway's run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RunReport {
    pub contender: String,
    pub how: String,
    /// Share of the time that the load's thread was on a CPU: near 1 it measures itself.
    pub load_cpu_share: f64,
    /// Share of the time that it was ready while others had its CPU: what disturbed the run.
    pub load_waited_share: f64,
    pub phases: Vec<PhaseReport>,
    /// A quarter of a second each.
    pub points: Vec<Tally>,
}

/// One phase: all of it, and its first second apart from the rest.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PhaseReport {
    pub phase: Phase,
    pub whole: Tally,
    pub first_second: Tally,
    pub rest: Tally,
}

/// What was seen from one moment to another. Asked for counts by when requests were due, the
/// rest by when they ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tally {
    pub from_s: f64,
    pub to_s: f64,
    /// The requests that the origin could have answered.
    pub can: f64,
    pub asked: u64,
    /// Answered with 200, in time.
    pub good: u64,
    /// Answered with anything else.
    pub refused: u64,
    /// Not answered while the client waited.
    pub late: u64,
    /// Connections that could not be made or broke.
    pub broken: u64,
    /// Of what was good.
    pub p50_ms: f64,
    pub p99_ms: f64,
}

impl Setting {
    pub fn of(brownout: &Brownout) -> Self {
        Self {
            servers: brownout.servers,
            service_ms: brownout.service.as_secs_f64() * 1e3,
            patience_ms: brownout.patience.as_secs_f64() * 1e3,
            capacity_per_s: brownout.capacity(),
            seed: brownout.seed,
        }
    }
}

impl RunReport {
    pub fn new(brownout: &Brownout, contender: &str, how: &str, outcome: &Outcome) -> Self {
        let per_s = |phase: Phase| {
            f64::from(phase.servers(brownout.servers)) / brownout.service.as_secs_f64()
        };
        let tally = |phase, from: Duration, to: Duration| {
            Tally::of(&outcome.ends, (from, to), per_s(phase), brownout.patience)
        };
        let mut points = Vec::new();
        let phases = brownout.times.spans().map(|(phase, from, to)| {
            let mut at = from;
            while at < to {
                points.push(tally(phase, at, to.min(at + POINT)));
                at += POINT;
            }
            let second = to.min(from + Duration::from_secs(1));
            PhaseReport {
                phase,
                whole: tally(phase, from, to),
                first_second: tally(phase, from, second),
                rest: tally(phase, second, to),
            }
        });
        let phases = phases.collect();
        let window_s = outcome.window.as_secs_f64().max(1e-9);
        Self {
            contender: contender.to_owned(),
            how: how.to_owned(),
            load_cpu_share: outcome.load_share(),
            load_waited_share: outcome.load_cpu.waited.as_secs_f64() / window_s,
            phases,
            points,
        }
    }

    /// What the quiet origin's slowest of a hundred took.
    pub fn quiet_p99_ms(&self) -> f64 {
        self.phases.first().map_or(0.0, |quiet| quiet.whole.p99_ms)
    }

    /// The run on one line of progress.
    pub fn line(&self) -> String {
        let (busy, waited) = (self.load_cpu_share * 100.0, self.load_waited_share * 100.0);
        let mut line = format!("{:<16}", self.contender);
        for PhaseReport { phase, whole, .. } in &self.phases {
            let (name, share) = (phase.name(), whole.share() * 100.0);
            let _ = write!(line, " {name} {share:.0} % P99 {};", ms(whole.p99_ms));
        }
        let _ = write!(line, " the load ran {busy:.0} % of the time and waited {waited:.0} %");
        line
    }
}

impl Tally {
    fn of(ends: &[End], (from, to): (Duration, Duration), per_s: f64, patience: Duration) -> Self {
        let within = |at: Duration| (from..to).contains(&at);
        let can = per_s * (to - from).as_secs_f64();
        let (from_s, to_s) = (from.as_secs_f64(), to.as_secs_f64());
        let mut tally = Self { from_s, to_s, can, ..Self::default() };
        let mut took = Vec::new();
        for end in ends {
            tally.asked += u64::from(within(end.due));
            if !within(end.ended) {
                continue;
            }
            let waited = end.ended.saturating_sub(end.due);
            match end.came {
                Ok(200) if waited <= patience => {
                    tally.good += 1;
                    took.push(waited);
                }
                Ok(200) => tally.late += 1,
                Ok(_) => tally.refused += 1,
                Err(Failure::Timeout | Failure::Unanswered | Failure::Unsent) => tally.late += 1,
                Err(Failure::Connect | Failure::Reset | Failure::Closed | Failure::Malformed) => {
                    tally.broken += 1
                }
            }
        }
        took.sort_unstable();
        let at = |percent: usize| {
            let at = took.get((took.len() * percent / 100).min(took.len().saturating_sub(1)));
            at.map_or(0.0, |took| took.as_secs_f64() * 1e3)
        };
        Self { p50_ms: at(50), p99_ms: at(99), ..tally }
    }

    /// What was good, of what could have been: of what the origin can do, or of what was asked
    /// for, when that is less.
    #[expect(clippy::cast_precision_loss, reason = "counts of a short run")]
    pub fn share(&self) -> f64 {
        let could = self.can.min(self.asked as f64);
        if could > 0.0 { self.good as f64 / could } else { 0.0 }
    }
}

impl BrownoutReport {
    pub fn markdown(&self) -> String {
        let mut out = String::new();
        let Setting { servers, service_ms, patience_ms, capacity_per_s, .. } = self.setting;
        // Writing to a String cannot fail.
        let _ = write!(
            out,
            "# Brown-out\n\nAn origin of {servers} servers that take {service_ms:.0} ms for a \
             request ({capacity_per_s:.0}/s); clients that come by chance and wait {patience_ms:.0} \
             ms. Goodput is what was answered with 200 in time, of what the origin could do.\n\n{}, \
             {} CPUs, Linux {}\n\n",
            self.machine.cpu, self.machine.cpus, self.machine.kernel
        );
        for (run, contestant) in self.runs.iter().zip(&self.contestants) {
            let _ = writeln!(out, "- **{}** ({}): {}", run.contender, contestant.version, run.how);
        }
        for Skipped { peer, why } in &self.skipped {
            let _ = writeln!(out, "- **{peer}** was SKIPPED: {why}");
        }
        out.push_str(
            "\n| | phase | goodput | P50 | P99 | of quiet | refused | late | broken | first \
             second: goodput | P99 | after it: goodput | P99 | of quiet |\n\
             |---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n",
        );
        for run in &self.runs {
            for phase in &run.phases {
                let PhaseReport { phase, whole, first_second, rest } = phase;
                let quiet = run.quiet_p99_ms();
                let _ = writeln!(
                    out,
                    "| **{}** | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
                    run.contender,
                    phase.name(),
                    percent(whole.share()),
                    ms(whole.p50_ms),
                    ms(whole.p99_ms),
                    times(whole.p99_ms, quiet),
                    whole.refused,
                    whole.late,
                    whole.broken,
                    percent(first_second.share()),
                    ms(first_second.p99_ms),
                    percent(rest.share()),
                    ms(rest.p99_ms),
                    times(rest.p99_ms, quiet),
                );
            }
        }
        out
    }

    /// A line for each quarter of a second of each run.
    pub fn csv(&self) -> String {
        let mut out = String::from(
            "contender,from_s,to_s,can,asked,good,refused,late,broken,p50_ms,p99_ms\n",
        );
        for run in &self.runs {
            for point in &run.points {
                let Tally { from_s, to_s, can, asked, good, .. } = point;
                let Tally { refused, late, broken, p50_ms, p99_ms, .. } = point;
                let _ = writeln!(
                    out,
                    "{},{from_s:.2},{to_s:.2},{can:.0},{asked},{good},{refused},{late},{broken},\
                     {p50_ms:.2},{p99_ms:.2}",
                    run.contender
                );
            }
        }
        out
    }

    pub fn svg(&self) -> String {
        timeline::draw(self)
    }
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn times(of: f64, quiet: f64) -> String {
    if quiet > 0.0 && of > 0.0 { format!("{:.2}x", of / quiet) } else { "-".to_owned() }
}

fn ms(time: f64) -> String {
    match time {
        0.0 => "-".to_owned(),
        time if time < 100.0 => format!("{time:.1} ms"),
        time => format!("{time:.0} ms"),
    }
}

const POINT: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_came_in_time_is_good() {
        let ms = Duration::from_millis;
        let end = |due, ended, came| End { due: ms(due), ended: ms(ended), came };
        let ends = [
            end(0, 20, Ok(200)),
            end(10, 40, Ok(200)),
            end(20, 21, Ok(503)),
            end(30, 1_031, Ok(200)),
            end(900, 1_010, Ok(200)),
            end(40, 1_040, Err(Failure::Timeout)),
            end(50, 51, Err(Failure::Reset)),
        ];
        let whole = Tally::of(&ends, (ms(0), ms(2_000)), 4.0, ms(1_000));
        assert_eq!((whole.asked, whole.good, whole.refused), (7, 3, 1));
        assert_eq!((whole.late, whole.broken, whole.can), (2, 1, 8.0));
        assert_eq!((whole.p50_ms, whole.p99_ms), (30.0, 110.0));
        // Of seven that were asked for, though it could have done eight.
        assert!((whole.share() - 3.0 / 7.0).abs() < 1e-9);
        let first = Tally::of(&ends, (ms(0), ms(1_000)), 4.0, ms(1_000));
        assert_eq!((first.asked, first.good, first.late), (7, 2, 0));
        assert_eq!(first.share(), 0.5);
        let none = Tally::of(&[], (ms(0), ms(1_000)), 4.0, ms(1_000));
        assert_eq!((none.share(), none.p99_ms), (0.0, 0.0));
    }
}
