//! Where something runs, and before whom.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::cpu::{self, Cpus};

/// Who goes first where several want one CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Urgency {
    #[default]
    Usual,
    /// Before everything usual (`SCHED_FIFO`); takes root's rights.
    First,
    /// When nobody else wants the CPU (`SCHED_IDLE`).
    Last,
}

/// What a thread takes before it works, and with it every process that it starts.
#[derive(Clone, Debug)]
pub struct Place {
    pub cpus: Cpus,
    pub urgency: Urgency,
}

impl Place {
    pub fn usual(cpus: &Cpus) -> Self {
        Self { cpus: cpus.clone(), urgency: Urgency::Usual }
    }

    /// For the calling thread.
    ///
    /// # Errors
    /// When the CPUs are not ours, or this process may not go first.
    pub fn take(&self) -> Result<()> {
        cpu::pin(&self.cpus)?;
        match self.urgency {
            Urgency::Usual => Ok(()),
            // Behind the kernel's own threads, which have 50 and more.
            Urgency::First => schedule(["--fifo", "--pid", "10"]),
            Urgency::Last => schedule(["--idle", "--pid", "0"]),
        }
    }
}

/// By util-linux: as calls of this process they would be unsafe code.
fn schedule(how: [&str; 3]) -> Result<()> {
    let thread = rustix::thread::gettid().as_raw_nonzero().to_string();
    let mut chrt = Command::new("chrt");
    let found = chrt.args(how).arg(thread).stdin(Stdio::null()).output();
    let output = found.context("cannot start chrt, which is of util-linux")?;
    let why = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "{}: not as root?", why.trim());
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn who_goes_last_is_scheduled_so() {
        let cpu = (0..1024).find(|cpu| cpu::is_allowed(*cpu)).unwrap();
        let place = Place { cpus: Cpus::one(cpu), urgency: Urgency::Last };
        let policy = std::thread::spawn(move || {
            place.take().unwrap();
            // proc(5): field 41, where 5 is SCHED_IDLE.
            let stat = fs::read_to_string("/proc/thread-self/stat").unwrap();
            let rest = stat.rsplit_once(')').unwrap().1.to_owned();
            rest.split_ascii_whitespace().nth(41 - 3).map(str::to_owned)
        });
        assert_eq!(policy.join().unwrap().as_deref(), Some("5"));
    }
}
