//! One proxy by itself, before an upstream that somebody else runs.

use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;

use anyhow::{Context, Result, anyhow};

use crate::cpu::Cpus;
use crate::peers::{Options, Peer, Setup, Site};
use crate::place::Place;
use crate::process::{Running, free_ports};

/// Ended when dropped.
#[derive(Debug)]
pub struct Standing {
    running: Running,
    port: u16,
}

impl Standing {
    /// # Errors
    /// When the peer is missing, or does not come up.
    pub fn start(
        peer: &'static dyn Peer,
        options: &Options,
        out: &Path,
        origin_port: u16,
    ) -> Result<Self> {
        let program = peer.find(options).map_err(|missing| anyhow!(missing.0))?;
        let folder = out.join("alone").join(peer.name());
        std::fs::create_dir_all(&folder)
            .with_context(|| format!("cannot make {}", folder.display()))?;
        let folder = std::fs::canonicalize(&folder).context("cannot find it again")?;
        let [port, admin_port] = free_ports()?;
        let setup = Setup::Plain;
        let site = Site { folder: &folder, port, admin_port, origin_port, setup };
        let mut running = Running::peer(peer, &program, &site, &Place::usual(&Cpus::one(0)))?;
        running.await_ready(|| TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok())?;
        Ok(Self { running, port })
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Whether the process has ended by itself.
    pub fn is_gone(&mut self) -> bool {
        self.running.has_ended()
    }
}
