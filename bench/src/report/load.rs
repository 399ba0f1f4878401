//! The report of one load.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::{Deserialize, Serialize};

use crate::histogram::{Percentiles, Step, human_us};
use crate::load::{Failure, Outcome, Pace, Work};
use crate::report::grouped;

/// One load, as JSON keeps it. Latencies are microseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoadReport {
    pub url: String,
    pub connections: u32,
    /// Requests a second of an open loop; absent in a closed one.
    pub rate: Option<u32>,
    pub connect_each: bool,
    pub upload_bytes: u64,
    pub seed: u64,
    pub window_s: f64,
    pub requests_per_second: f64,
    pub download_bytes_per_second: f64,
    pub answered: u64,
    pub failed: u64,
    pub statuses: BTreeMap<u16, u64>,
    pub failures: BTreeMap<Failure, u64>,
    /// From when a request was due.
    pub latency_us: Percentiles,
    /// From when it was sent; smaller than the above by the wait for a free connection.
    pub service_us: Percentiles,
    /// Share of the window that the load's own thread was busy: near 1 it measures itself.
    pub load_cpu_share: f64,
    pub distribution: Vec<Step>,
}

impl LoadReport {
    pub fn new(work: &Work, outcome: &Outcome) -> Self {
        let rate = match &work.pace {
            Pace::Closed | Pace::Stepped { .. } => None,
            Pace::Open { rate, .. } => Some(rate.get()),
        };
        let window_s = outcome.window.as_secs_f64();
        Self {
            url: format!("http://{}{}", work.target.authority, work.target.path),
            connections: work.connections,
            rate,
            connect_each: work.connect_each,
            upload_bytes: work.body_bytes,
            seed: work.seed,
            window_s,
            requests_per_second: outcome.requests_per_second(),
            download_bytes_per_second: bytes_per_second(outcome.body_bytes, window_s),
            answered: outcome.answered,
            failed: outcome.failed(),
            statuses: outcome.statuses.clone(),
            failures: outcome.failures.clone(),
            latency_us: outcome.latency.percentiles(),
            service_us: outcome.service.percentiles(),
            load_cpu_share: outcome.load_share(),
            distribution: outcome.latency.steps(),
        }
    }

    /// Markdown, which is also what a terminal shows.
    pub fn markdown(&self) -> String {
        let mut out = String::new();
        let pace = self.rate.map_or_else(
            || "closed loop".to_owned(),
            |rate| format!("open loop at {}/s", grouped(rate.into())),
        );
        let reuse = if self.connect_each { "a new one for each request" } else { "kept alive" };
        // Writing to a String cannot fail.
        let _ = writeln!(out, "# {}\n", self.url);
        let _ = writeln!(
            out,
            "{pace}, {} connections, {reuse}, {:.1} s measured\n",
            self.connections, self.window_s
        );
        let _ = writeln!(out, "| latency | from due | from sent |\n|---|---:|---:|");
        for ((name, due), (_, sent)) in
            self.latency_us.rows().into_iter().zip(self.service_us.rows())
        {
            let _ = writeln!(out, "| {name} | {} | {} |", human_us(due), human_us(sent));
        }
        let _ = writeln!(
            out,
            "\n| | |\n|---|---:|\n| requests/s | {} |",
            grouped(self.requests_per_second)
        );
        let mebibytes = self.download_bytes_per_second / f64::from(1 << 20);
        let _ = writeln!(out, "| MiB/s down | {mebibytes:.1} |\n| answered | {} |", self.answered);
        for (status, count) in &self.statuses {
            let _ = writeln!(out, "| status {status} | {count} |");
        }
        let _ = writeln!(out, "| errors | {} |", self.failed);
        for (failure, count) in &self.failures {
            let _ = writeln!(out, "| error: {} | {count} |", failure.name());
        }
        let _ = writeln!(out, "| load's own CPU | {:.0} % |", self.load_cpu_share * 100.0);
        if self.load_cpu_share > LOAD_SHARE_WARN {
            let _ = writeln!(
                out,
                "\n**The load side was busy all the time: these figures measure it, not the target.**"
            );
        }
        out
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "bytes of a bounded run; a digit in 2^53 is no loss"
)]
fn bytes_per_second(bytes: u64, window_s: f64) -> f64 {
    if window_s > 0.0 { bytes as f64 / window_s } else { 0.0 }
}

const LOAD_SHARE_WARN: f64 = 0.93;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn report() -> LoadReport {
        let mut outcome = Outcome {
            answered: 3,
            in_window: 3,
            window: Duration::from_secs(2),
            ..Outcome::default()
        };
        outcome.statuses.insert(200, 3);
        outcome.failures.insert(Failure::Timeout, 1);
        outcome.latency.record_ns(2_000_000);
        outcome.service.record_ns(1_000_000);
        outcome.load_cpu.ran = Duration::from_millis(1_900);
        let work = Work {
            target: crate::load::Target::resolve("http://127.0.0.1:1/x", false).unwrap(),
            head: crate::load::Head { method: "GET".parse().unwrap(), headers: Vec::new() },
            body_bytes: 0,
            connections: 1,
            pace: Pace::Closed,
            connect_each: false,
            warm_up: Duration::ZERO,
            duration: Duration::from_secs(2),
            requests_max: 10,
            timeout: Duration::from_secs(1),
            grace: Duration::ZERO,
            seed: 1,
            keep_ends: false,
        };
        LoadReport::new(&work, &outcome)
    }

    #[test]
    fn markdown_names_what_happened_and_warns_of_itself() {
        let text = report().markdown();
        for expected in [
            "| P50 | 2.00 ms | 1.00 ms |",
            "| status 200 | 3 |",
            "| error: timeout | 1 |",
            "| requests/s | 2 |",
            "measure it, not the target",
        ] {
            assert!(text.contains(expected), "no `{expected}` in\n{text}");
        }
    }

    #[test]
    fn json_reads_back_as_it_was() {
        let report = report();
        let text = crate::report::json(&report).unwrap();
        assert_eq!(serde_json::from_str::<LoadReport>(&text).unwrap(), report);
    }
}
