//! Signals, as what they mean.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sign {
    /// TERM or INT: finish what runs and end; the second time, end now.
    Stop,
    /// HUP
    Reload,
    /// USR1
    ReopenLogs,
    /// USR2: there is nothing that it does yet, but its default is death.
    Upgrade,
}

#[derive(Debug)]
pub(crate) struct Ears {
    term: Signal,
    int: Signal,
    hup: Signal,
    usr1: Signal,
    usr2: Signal,
}

impl Ears {
    /// From here on these signals no longer end the process.
    ///
    /// # Errors
    /// When a handler can't be set.
    pub(crate) fn open() -> io::Result<Self> {
        Ok(Self {
            term: signal(SignalKind::terminate())?,
            int: signal(SignalKind::interrupt())?,
            hup: signal(SignalKind::hangup())?,
            usr1: signal(SignalKind::user_defined1())?,
            usr2: signal(SignalKind::user_defined2())?,
        })
    }

    /// Heeds nothing but the wish to stop: there is nothing yet that could be reloaded.
    pub(crate) async fn stop(&mut self) {
        while self.next().await != Sign::Stop {}
    }

    pub(crate) async fn next(&mut self) -> Sign {
        tokio::select! {
            _ = self.term.recv() => Sign::Stop,
            _ = self.int.recv() => Sign::Stop,
            _ = self.hup.recv() => Sign::Reload,
            _ = self.usr1.recv() => Sign::ReopenLogs,
            _ = self.usr2.recv() => Sign::Upgrade,
        }
    }
}
