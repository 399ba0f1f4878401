//! One gateway's run: its origin, itself, the load, and somebody who takes servers away on time.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};

use super::{Brownout, Contender};
use crate::load::{self, Arrivals, Head, Moment, Outcome, Pace, Target, Work};
use crate::peers::{Peer, Setup, Site};
use crate::place::Place;
use crate::process::{Running, answers, free_ports};
use crate::unit::nanoseconds;
use crate::{clock, cpu};

pub(super) fn run(
    brownout: &Brownout,
    contender: Contender,
    peer: &'static dyn Peer,
    program: &Path,
    stop: &AtomicBool,
) -> Result<Outcome> {
    let folder = run_folder(brownout, contender)?;
    let options = [
        format!("--servers={}", brownout.servers),
        format!("--delay={}us", brownout.service.as_micros()),
        format!("--connections={ORIGIN_CONNECTIONS}"),
    ];
    let (mut origin, origin_address) =
        Running::origin(&folder, &Place::usual(&brownout.origin_cpu), &options)?;
    let origin_port = origin_address.port();
    origin.await_ready(|| answers(origin_port, PATH, BODY_BYTES))?;
    let [port, admin_port] = free_ports()?;
    let setup = Setup::Guarded(brownout.guard(contender));
    let site = Site { folder: &folder, port, admin_port, origin_port, setup };
    let mut proxy = Running::peer(peer, program, &site, &Place::usual(&brownout.proxy_cpu))?;
    proxy.await_ready(|| answers(port, PATH, BODY_BYTES))?;
    let work = work(brownout, port)?;
    let turns: Vec<_> = brownout.times.spans().map(|(phase, from, _)| (from, phase)).collect();
    thread::scope(|scope| {
        let (sender, moments) = mpsc::channel();
        let (work, cpus) = (&work, &brownout.load_cpu);
        let load = scope.spawn(move || {
            cpu::pin(cpus)?;
            load::run(work, stop, &mut |moment| {
                // A watcher that has gone misses nothing that matters.
                let _ = sender.send(moment);
            })
        });
        let mut turned = Ok(());
        if moments.iter().any(|moment| moment == Moment::Measuring) {
            let start_ns = clock::now_ns();
            for (from, phase) in turns {
                let at_ns = start_ns + nanoseconds(from);
                if !wait(&moments, at_ns) {
                    break;
                }
                let path = format!("/?servers={}&size=0", phase.servers(brownout.servers));
                if !answers(origin_port, &path, 0) {
                    turned = Err(anyhow!("the origin does not take {path}"));
                }
            }
        }
        let outcome = load.join().map_err(|_| anyhow!("the load's thread broke"))??;
        turned.map(|()| outcome)
    })
}

/// Until then; false when the load has ended before.
fn wait(moments: &mpsc::Receiver<Moment>, at_ns: u64) -> bool {
    loop {
        let left = Duration::from_nanos(at_ns.saturating_sub(clock::now_ns()));
        match moments.recv_timeout(left) {
            Ok(_) if left.is_zero() => return true,
            Ok(_) => {}
            Err(mpsc::RecvTimeoutError::Timeout) => return true,
            Err(mpsc::RecvTimeoutError::Disconnected) => return false,
        }
    }
}

fn work(brownout: &Brownout, port: u16) -> Result<Work> {
    let steps = brownout.times.steps(brownout.capacity());
    let most = steps.iter().map(|step| step.rate.get()).max().unwrap_or_default();
    // Whoever waits holds one, and nobody may wait for one.
    let connections = f64::from(most) * brownout.patience.as_secs_f64() * 1.25;
    ensure!(connections < CONNECTIONS_MAX, "clients that wait so long would be too many");
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is between 0 and a bound"
    )]
    let connections = connections as u32 + 64;
    cpu::allow_files(u64::from(connections) + FILES_MORE);
    Ok(Work {
        target: Target::resolve(&format!("http://127.0.0.1:{port}{PATH}"), false)?,
        head: Head { method: "GET".parse().map_err(anyhow::Error::msg)?, headers: Vec::new() },
        body_bytes: 0,
        connections,
        pace: Pace::Stepped { steps, arrivals: Arrivals::Poisson },
        connect_each: false,
        warm_up: brownout.times.warm_up,
        duration: brownout.times.whole(),
        requests_max: u64::MAX,
        timeout: brownout.patience,
        grace: brownout.patience,
        seed: brownout.seed,
        keep_ends: true,
    })
}

fn run_folder(brownout: &Brownout, contender: Contender) -> Result<PathBuf> {
    let folder = brownout.folder.join("runs").join(contender.name.replace(' ', "-"));
    if folder.exists() {
        fs::remove_dir_all(&folder)
            .with_context(|| format!("cannot clear {}", folder.display()))?;
    }
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    fs::canonicalize(&folder).with_context(|| format!("cannot find {}", folder.display()))
}

const BODY_BYTES: u64 = 128;
const PATH: &str = "/bench?size=128";
const CONNECTIONS_MAX: f64 = 10_000.0;
/// The origin's; then connections wait with the kernel, as they do before most servers.
const ORIGIN_CONNECTIONS: u32 = 4096;
/// Descriptors besides those of the load's connections.
const FILES_MORE: u64 = 256;
