//! `sluice-bench origin`

use std::io::Write;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use sluice_bench::cpu::{self, Cpus};
use sluice_bench::http::request::Wish;
use sluice_bench::{origin, unit};

#[derive(Debug, Args)]
pub(crate) struct Origin {
    /// Where to listen; port 0 picks a free one. The bound address is the one line on stdout
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Body of an answer, unless the request says ?size=BYTES
    #[arg(long, default_value = "128", value_parser = unit::bytes)]
    size: u64,
    /// Wait before an answer, unless the request says ?delay_ms=N
    #[arg(long, default_value = "0s", value_parser = unit::span)]
    delay: Duration,
    /// Status of an answer, unless the request says ?status=N
    #[arg(long, default_value = "200", value_parser = clap::value_parser!(u16).range(200..600))]
    status: u16,
    /// Every Nth request waits for --stall more; 0 is never
    #[arg(long, default_value = "0", value_name = "N")]
    stall_every: u64,
    #[arg(long, default_value = "100ms", value_parser = unit::span)]
    stall: Duration,
    /// Work on so many requests at once, each for its delay; the rest waits. ?servers=N changes it
    #[arg(long, value_name = "N")]
    servers: Option<NonZeroU32>,
    /// Hold so many connections; more wait with the kernel
    #[arg(long, default_value = "16384", value_name = "N")]
    connections: usize,
    /// Run on this CPU only, or these (0,1)
    #[arg(long, value_name = "CPU")]
    pin: Option<Cpus>,
}

impl Origin {
    pub(super) fn run(self, stop: &AtomicBool) -> Result<ExitCode> {
        if let Some(cpus) = &self.pin {
            cpu::pin(cpus)?;
        }
        let settings = origin::Settings {
            wish: Wish {
                body_bytes: self.size,
                delay: self.delay,
                status: self.status,
                servers: None,
            },
            stall_every: self.stall_every,
            stall: self.stall,
            servers: self.servers,
            connections: self.connections,
        };
        let mut origin = origin::Origin::bind(self.listen, settings)
            .with_context(|| format!("cannot listen on {}", self.listen))?;
        let mut out = std::io::stdout();
        writeln!(out, "{}", origin.address())
            .and_then(|()| out.flush())
            .context("cannot write to stdout")?;
        origin.run(stop).context("the origin's event loop broke")?;
        Ok(ExitCode::SUCCESS)
    }
}
