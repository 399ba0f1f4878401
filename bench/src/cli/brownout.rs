//! `sluice-bench brownout`

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use sluice_bench::brownout::{self, Brownout as Plan, Times};
use sluice_bench::cpu::Cpus;
use sluice_bench::peers::Options;
use sluice_bench::{report, unit};

#[derive(Debug, Args)]
pub(crate) struct Brownout {
    /// Of the origin; half of them go and come back
    #[arg(long, default_value = "32", value_parser = clap::value_parser!(u32).range(2..=1_000))]
    servers: u32,
    /// How long one of them works on a request
    #[arg(long, default_value = "20ms", value_parser = unit::span)]
    service: Duration,
    /// How long clients wait
    #[arg(long, default_value = "1s", value_parser = unit::span)]
    patience: Duration,
    /// Half of what the origin can do is asked for, unreported at first
    #[arg(long, default_value = "2s", value_parser = unit::span)]
    warm_up: Duration,
    #[arg(long, default_value = "8s", value_parser = unit::span)]
    quiet: Duration,
    /// Twice of it is asked for
    #[arg(long, default_value = "12s", value_parser = unit::span)]
    over: Duration,
    /// And half of the servers are gone
    #[arg(long, default_value = "16s", value_parser = unit::span)]
    half: Duration,
    /// And they are back
    #[arg(long, default_value = "10s", value_parser = unit::span)]
    back: Duration,
    /// Only these, by the beginnings of their names
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    only: Vec<String>,
    /// The sluice binary; the one beside this program when not given
    #[arg(long, value_name = "PATH")]
    sluice: Option<PathBuf>,
    #[arg(long, default_value = "0", value_name = "CPU")]
    proxy_cpu: Cpus,
    #[arg(long, default_value = "1", value_name = "CPU")]
    load_cpu: Cpus,
    /// As --load-cpu when not given
    #[arg(long, value_name = "CPU")]
    origin_cpu: Option<Cpus>,
    /// Where brownout.json, .csv, .md, .svg and the runs' logs go
    #[arg(long, value_name = "DIR", default_value = "bench-out/brownout")]
    out: PathBuf,
    #[arg(long, default_value = "1")]
    seed: u64,
}

impl Brownout {
    pub(super) fn run(self, stop: &AtomicBool) -> Result<ExitCode> {
        let plan = Plan {
            servers: self.servers,
            service: self.service,
            patience: self.patience,
            times: Times {
                warm_up: self.warm_up,
                phases: [self.quiet, self.over, self.half, self.back],
            },
            only: self.only,
            options: Options { sluice: self.sluice },
            proxy_cpu: self.proxy_cpu,
            origin_cpu: self.origin_cpu.unwrap_or_else(|| self.load_cpu.clone()),
            load_cpu: self.load_cpu,
            seed: self.seed,
            folder: self.out,
        };
        let found = brownout::run(&plan, stop, &mut |line| eprintln!("{line}"))?;
        let text = found.markdown();
        std::io::stdout().write_all(text.as_bytes()).context("cannot write to stdout")?;
        report::write(&plan.folder, "brownout.json", &report::json(&found)?)?;
        report::write(&plan.folder, "brownout.csv", &found.csv())?;
        report::write(&plan.folder, "brownout.md", &text)?;
        report::write(&plan.folder, "brownout.svg", &found.svg())?;
        Ok(if found.skipped.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}
