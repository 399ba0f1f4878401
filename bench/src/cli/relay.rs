//! `sluice-bench relay`

use std::io::Write;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};
use clap::Args;
use sluice_bench::relay::{self, Means};

#[derive(Debug, Args)]
pub(crate) struct Relay {
    /// Where to listen; port 0 picks a free one. The bound address is the one line on stdout
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Where everything goes
    #[arg(long)]
    upstream: SocketAddr,
    #[arg(long, default_value = "ring", value_enum)]
    by: Means,
}

impl Relay {
    pub(super) fn run(self, stop: &AtomicBool) -> Result<ExitCode> {
        let relay = relay::Relay::bind(self.listen, self.upstream)
            .with_context(|| format!("cannot listen on {}", self.listen))?;
        let mut out = std::io::stdout();
        writeln!(out, "{}", relay.address()?)
            .and_then(|()| out.flush())
            .context("cannot write to stdout")?;
        relay.run(self.by, stop).context("the relay's loop broke")?;
        Ok(ExitCode::SUCCESS)
    }
}
