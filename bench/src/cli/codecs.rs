//! `sluice-bench codecs`

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use sluice_bench::codecs::{self, INPUTS, Recorder};
use sluice_bench::compare::{self, Comparison, Preset, Scenario, Standing};
use sluice_bench::cpu::Cpus;
use sluice_bench::peers::{Options, PEERS, Peer};
use sluice_bench::unit;

#[derive(Debug, Args)]
pub(crate) struct Codecs {
    /// Turns for each
    #[arg(long, default_value = "3", value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: u32,
    /// How long to measure in each run
    #[arg(short, long, default_value = "3s", value_parser = unit::span)]
    duration: Duration,
    /// The sluice binary; the one beside this program when not given
    #[arg(long, value_name = "PATH")]
    sluice: Option<PathBuf>,
    /// Where the runs' logs go
    #[arg(long, value_name = "DIR", default_value = "bench-out/codecs")]
    out: PathBuf,
}

/// Used by `codecs` itself.
#[derive(Debug, Args)]
pub(crate) struct CodecsProxy {
    #[arg(long)]
    listen: SocketAddr,
    #[arg(long)]
    upstream: SocketAddr,
}

impl CodecsProxy {
    pub(super) fn run(self) -> Result<ExitCode> {
        codecs::serve(self.listen, self.upstream)?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Codecs {
    pub(super) fn run(self, stop: &AtomicBool) -> Result<ExitCode> {
        let options = Options { sluice: self.sluice };
        let named = |name: &&&dyn Peer| ["sluice-bare", "monoio-http"].contains(&name.name());
        let peers: Vec<&'static dyn Peer> = PEERS.iter().filter(named).copied().collect();
        let comparison = Comparison {
            scenarios: vec![Scenario {
                preset: Preset::Plain,
                rate: std::num::NonZeroU32::MIN,
                crowd: 1,
                warm_up: Duration::from_secs(1),
                duration: self.duration,
                seed: 1,
                together: true,
            }],
            peers: peers.clone(),
            options: options.clone(),
            rounds: self.rounds,
            proxy_cpu: Cpus::one(0),
            load_cpu: Cpus::one(1),
            origin_cpu: Cpus::one(1),
            urgent: false,
            folder: self.out.clone(),
        };
        let found = compare::run(&comparison, stop, &mut |line| eprintln!("{line}"))?;
        println!("{}", found.markdown());
        println!("{}", malformed(&peers, &options, &self.out)?);
        Ok(ExitCode::SUCCESS)
    }
}

/// Every input through every proxy, as a table.
fn malformed(
    peers: &[&'static dyn Peer],
    options: &Options,
    out: &std::path::Path,
) -> Result<String> {
    let recorder = Recorder::start()?;
    let mut text = String::from("## Malformed requests\n\n| what is sent |");
    for peer in peers {
        let _ = write!(text, " {} |", peer.name());
    }
    text += "\n|---|";
    text += &"---|".repeat(peers.len());
    text += "\n";
    for input in INPUTS {
        let _ = write!(text, "| {} |", input.name);
        for peer in peers {
            // A process of its own for each: some do not survive theirs.
            let mut standing = Standing::start(*peer, options, out, recorder.port())
                .with_context(|| format!("cannot run {}", peer.name()))?;
            let mut outcome = input.try_on(standing.port(), &recorder);
            outcome.died |= standing.is_gone();
            let _ = write!(text, " {} |", outcome.describe());
        }
        text += "\n";
    }
    Ok(text)
}
