//! `sluice-bench load`

use std::io::{IsTerminal, Write};
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use sluice_bench::cpu::{self, Cpus};
use sluice_bench::load::{self, Arrivals, Head, Method, Moment, Pace, Target, Work};
use sluice_bench::report::load::LoadReport;
use sluice_bench::report::svg::{self, Line};
use sluice_bench::{report, unit};

#[derive(Debug, Args)]
pub(crate) struct Load {
    /// http://HOST[:PORT]/PATH on this machine
    url: String,
    /// Connections; each carries one request at a time
    #[arg(short, long, default_value = "64", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    connections: u32,
    /// Requests a second, whatever the target does (open loop); without it, flat out (closed loop)
    #[arg(short, long, value_parser = rate)]
    rate: Option<NonZeroU32>,
    /// How an open loop spreads its requests
    #[arg(long, default_value = "constant", value_enum)]
    arrivals: Arrivals,
    /// A new connection for every request
    #[arg(long)]
    connect_each: bool,
    /// How long to measure
    #[arg(short, long, default_value = "10s", value_parser = unit::span)]
    duration: Duration,
    /// How long to load before measuring
    #[arg(short, long, default_value = "2s", value_parser = unit::span)]
    warm_up: Duration,
    /// Stop after this many measured requests
    #[arg(long, default_value = "100000000", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    requests: u64,
    /// Upload this much with every request
    #[arg(long, default_value = "0", value_parser = unit::bytes)]
    body_bytes: u64,
    /// `Name: value`, may be given several times
    #[arg(short = 'H', long = "header", value_parser = Head::header)]
    headers: Vec<(String, String)>,
    /// GET, or POST with an upload
    #[arg(short = 'X', long)]
    method: Option<Method>,
    /// Give a request up so long after it was sent
    #[arg(long, default_value = "10s", value_parser = unit::span)]
    timeout: Duration,
    /// Wait so long for late answers after the measured time
    #[arg(long, default_value = "5s", value_parser = unit::span)]
    grace: Duration,
    /// Run on this CPU only, or these (0,1)
    #[arg(long, value_name = "CPU")]
    pin: Option<Cpus>,
    /// Write load.json, load.md and latency.svg into this folder
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Decides upload bytes and Poisson arrivals
    #[arg(long, default_value = "1")]
    seed: u64,
    /// Allow a target on another machine
    #[arg(long)]
    allow_remote: bool,
}

impl Load {
    pub(super) fn run(self, stop: &AtomicBool) -> Result<ExitCode> {
        let out = self.out.clone();
        if let Some(cpus) = &self.pin {
            cpu::pin(cpus)?;
        }
        let work = self.work()?;
        let outcome = load::run(&work, stop, &mut progress())?;
        let report = LoadReport::new(&work, &outcome);
        let text = report.markdown();
        std::io::stdout().write_all(text.as_bytes()).context("cannot write to stdout")?;
        if let Some(folder) = out {
            let line = Line { name: &report.url, steps: &report.distribution };
            report::write(&folder, "load.json", &report::json(&report)?)?;
            report::write(&folder, "load.md", &text)?;
            report::write(&folder, "latency.svg", &svg::draw("Latency", &[line]))?;
        }
        Ok(if report.answered == 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }

    fn work(self) -> Result<Work> {
        let usual = if self.body_bytes > 0 { "POST" } else { "GET" };
        let method = self.method.map_or_else(|| usual.parse().map_err(anyhow::Error::msg), Ok)?;
        let pace = match self.rate {
            Some(rate) => Pace::Open { rate, arrivals: self.arrivals },
            None => Pace::Closed,
        };
        Ok(Work {
            target: Target::resolve(&self.url, self.allow_remote)?,
            head: Head { method, headers: self.headers },
            body_bytes: self.body_bytes,
            connections: self.connections,
            pace,
            connect_each: self.connect_each,
            warm_up: self.warm_up,
            duration: self.duration,
            requests_max: self.requests,
            timeout: self.timeout,
            grace: self.grace,
            seed: self.seed,
            keep_ends: false,
        })
    }
}

/// Requests a second, at most a million: one epoll thread does not do more.
pub(super) fn rate(text: &str) -> Result<NonZeroU32, String> {
    let rate: u32 =
        text.parse().map_err(|_| "a rate is a number of requests a second".to_owned())?;
    NonZeroU32::new(rate)
        .filter(|rate| rate.get() <= 1_000_000)
        .ok_or_else(|| "from 1 to 1000000".to_owned())
}

/// A line a second on a terminal, nothing elsewhere.
fn progress() -> impl FnMut(Moment) {
    let terminal = std::io::stderr().is_terminal();
    move |moment| match moment {
        Moment::Second { warming, answered, failed } if terminal => {
            let what = if warming { "warming up" } else { "measuring" };
            eprintln!("{what}: {answered} answered/s, {failed} failed/s");
        }
        Moment::Second { .. } | Moment::Measuring | Moment::Measured => {}
    }
}
