//! An origin that moves onto the load's own thread.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result, anyhow};

use crate::origin::{Origin, Settings};

/// Serves on a thread of its own until the load takes it; ended when dropped.
#[derive(Debug)]
pub(super) struct Lodger {
    leave: Arc<AtomicBool>,
    serving: Mutex<Option<JoinHandle<Result<Origin>>>>,
}

impl Lodger {
    /// Says where it listens.
    pub(super) fn start() -> Result<(Self, SocketAddr)> {
        let mut origin = Origin::bind((Ipv4Addr::LOCALHOST, 0).into(), Settings::default())
            .context("the origin cannot listen")?;
        let address = origin.address();
        let leave = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&leave);
        let serving = thread::spawn(move || {
            origin.run(&told).context("the origin's event loop broke")?;
            Ok(origin)
        });
        Ok((Self { leave, serving: Mutex::new(Some(serving)) }, address))
    }

    /// From now on the caller serves.
    pub(super) fn take(&self) -> Result<Origin> {
        self.leave.store(true, Ordering::Relaxed);
        let serving = self.serving.lock().unwrap_or_else(PoisonError::into_inner).take();
        let serving = serving.context("the origin was taken already")?;
        serving.join().map_err(|_| anyhow!("the origin's thread broke"))?
    }
}

impl Drop for Lodger {
    fn drop(&mut self) {
        self.leave.store(true, Ordering::Relaxed);
    }
}
