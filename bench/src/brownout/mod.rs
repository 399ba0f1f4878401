//! A brown-out, once before each gateway: an origin that can do so much and no more, clients that
//! ask for twice that, and of a sudden half of its servers are gone.

mod phase;
mod run;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, bail, ensure};

pub use self::phase::{Phase, Times};
use crate::cpu::Cpus;
use crate::peers::{Guard, Missing, Options, PEERS, Peer};
use crate::report::brownout::{BrownoutReport, RunReport, Setting};
use crate::report::compare::{Contestant, Machine, Skipped};

/// What to do, completely.
#[derive(Clone, Debug)]
pub struct Brownout {
    /// Of the origin, while it has all of them.
    pub servers: u32,
    /// How long each works on a request.
    pub service: Duration,
    /// How long clients wait; an answer after that is for nobody.
    pub patience: Duration,
    pub times: Times,
    /// Who takes part, by the beginnings of their names; all when empty.
    pub only: Vec<String>,
    pub options: Options,
    pub proxy_cpu: Cpus,
    pub load_cpu: Cpus,
    pub origin_cpu: Cpus,
    pub seed: u64,
    /// Configurations and logs of every run are kept below it.
    pub folder: PathBuf,
}

/// A gateway and what it is told.
#[derive(Clone, Copy, Debug)]
struct Contender {
    name: &'static str,
    peer: &'static str,
    /// It is told how many servers the origin has when all is well.
    told: bool,
    how: &'static str,
}

const CONTENDERS: [Contender; 4] = [
    Contender { name: "sluice", peer: "sluice", told: false, how: "adaptive = \"on\"" },
    Contender {
        name: "nginx",
        peer: "nginx",
        told: false,
        how: "timeouts as long as clients wait",
    },
    Contender {
        name: "nginx max_conns",
        peer: "nginx",
        told: true,
        how: "and max_conns = the origin's servers",
    },
    Contender {
        name: "haproxy",
        peer: "haproxy",
        told: true,
        how: "maxconn = the origin's servers, timeout queue of half of what clients wait, \
              abortonclose",
    },
];

impl Brownout {
    /// What the origin can do with all of its servers, in requests a second.
    pub fn capacity(&self) -> f64 {
        f64::from(self.servers) / self.service.as_secs_f64()
    }

    fn guard(&self, contender: Contender) -> Guard {
        Guard { servers: contender.told.then_some(self.servers), patience: self.patience }
    }
}

/// Runs one after another and says, line by line to `tell`, what happens. Who is missing or fails
/// is left out aloud. `stop` drops the run under way and ends.
pub fn run(
    brownout: &Brownout,
    stop: &AtomicBool,
    tell: &mut dyn FnMut(&str),
) -> Result<BrownoutReport> {
    for cpus in [&brownout.proxy_cpu, &brownout.load_cpu, &brownout.origin_cpu] {
        if let Some(cpu) = cpus.foreign() {
            bail!("CPU {cpu} is not ours to use: --proxy-cpu, --load-cpu, --origin-cpu");
        }
    }
    let (mut runs, mut skipped, mut contestants) = (Vec::new(), Vec::new(), Vec::new());
    let asked = |contender: &Contender| {
        let only = &brownout.only;
        only.is_empty() || only.iter().any(|name| contender.name.starts_with(name.as_str()))
    };
    for contender in CONTENDERS.into_iter().filter(asked) {
        if stop.load(Ordering::Relaxed) {
            continue;
        }
        match one(brownout, contender, stop) {
            Ok((run, contestant)) if !stop.load(Ordering::Relaxed) => {
                tell(&run.line());
                runs.push(run);
                contestants.push(contestant);
            }
            Ok(_) => tell("stopped; what was finished before is reported"),
            Err(error) => {
                let why = format!("{error:#}");
                tell(&format!("SKIPPED {}: {why}", contender.name));
                skipped.push(Skipped { peer: contender.name.to_owned(), why });
            }
        }
    }
    let setting = Setting::of(brownout);
    Ok(BrownoutReport { machine: Machine::this(), setting, contestants, skipped, runs })
}

fn one(
    brownout: &Brownout,
    contender: Contender,
    stop: &AtomicBool,
) -> Result<(RunReport, Contestant)> {
    let peer: Option<&&dyn Peer> = PEERS.iter().find(|peer| peer.name() == contender.peer);
    let Some(&peer) = peer else { anyhow::bail!("no such peer") };
    let program = peer.find(&brownout.options).map_err(|Missing(hint)| anyhow::Error::msg(hint))?;
    let version = Contestant::version(peer, &program);
    let outcome = run::run(brownout, contender, peer, &program, stop)?;
    ensure!(outcome.answered > 0, "no request was answered: {:?}", outcome.failures);
    let run = RunReport::new(brownout, contender.name, contender.how, &outcome);
    Ok((run, Contestant { name: contender.name.to_owned(), version }))
}
