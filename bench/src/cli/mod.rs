//! The command line: one file a command.

mod brownout;
#[cfg(feature = "monoio-http")]
mod codecs;
mod compare;
mod load;
mod origin;
mod relay;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};
use clap::Parser;

/// Measures gateways: load, origin, and peers side by side.
#[derive(Debug, Parser)]
#[command(version)]
pub(crate) enum Command {
    /// Send requests, by rate or flat out, and report latencies from when each was due
    Load(load::Load),
    /// Answer HTTP/1.1 fast, with chosen size, delay and status
    Origin(origin::Origin),
    /// Move bytes to an upstream and know no HTTP: the floor of what a proxy can cost
    Relay(relay::Relay),
    /// Run Sluice and its peers on the same work, in turn, and set them side by side
    Compare(compare::Compare),
    /// Send the plain proxy's work and malformed requests through monoio-http beside our own codec
    #[cfg(feature = "monoio-http")]
    Codecs(codecs::Codecs),
    #[cfg(feature = "monoio-http")]
    #[command(hide = true)]
    CodecsProxy(codecs::CodecsProxy),
    /// Run Sluice and its peers before an origin that loses half of its servers under twice its load
    Brownout(brownout::Brownout),
}

impl Command {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let stop = stop_on_signal()?;
        match self {
            Self::Load(load) => load.run(&stop),
            Self::Origin(origin) => origin.run(&stop),
            Self::Relay(relay) => relay.run(&stop),
            Self::Compare(compare) => compare.run(&stop),
            #[cfg(feature = "monoio-http")]
            Self::Codecs(codecs) => codecs.run(&stop),
            #[cfg(feature = "monoio-http")]
            Self::CodecsProxy(proxy) => proxy.run(),
            Self::Brownout(brownout) => brownout.run(&stop),
        }
    }
}

/// INT and TERM end a run early and in order: what was measured is reported, what was started ends.
fn stop_on_signal() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))
            .context("cannot listen for signals")?;
    }
    Ok(stop)
}
