//! What stands during one run: an origin or two, perhaps a proxy before them; and what they use.

use std::collections::HashMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::figures::Kind;
use super::lodger::Lodger;
use super::scenario::{Act, Beside};
use super::verdict::{Shares, Usage};
use super::{Comparison, Contender, Preset, Scenario};
use crate::cpu::{self, Cpus, Scheduled};
use crate::load::{self, Moment, Outcome, Work};
use crate::memory;
use crate::peers::{Setup, Site};
use crate::place::{Place, Urgency};
use crate::process::{Running, answers, free_ports};

/// Ended when dropped, the proxy first.
#[derive(Debug)]
pub(super) struct Stage {
    proxy: Option<Running>,
    origin: Origin,
    _greedy_origin: Option<Running>,
    /// Where the load goes.
    pub(super) address: SocketAddr,
    /// Where who stands beside the load goes: the same proxy, another origin.
    pub(super) greedy_address: SocketAddr,
    /// The load's.
    pub(super) place: Place,
    /// Of who stands beside it.
    pub(super) greedy_place: Place,
    /// Of the proxy, before it had anything to do.
    empty_kb: u64,
    /// Its processes then.
    proxy_pids: Vec<u32>,
    one_load_core: bool,
}

/// Who answers.
#[derive(Debug)]
pub(super) enum Origin {
    Process(Running),
    /// On the load's thread, from when it begins.
    Lodger(Lodger),
}

/// What had been used at one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Sample {
    /// Of the proxy's tree, with children that have come and gone.
    pub(super) proxy_cpu: Duration,
    proxy: HashMap<u32, Scheduled>,
    origin: HashMap<u32, Scheduled>,
}

impl Stage {
    pub(super) fn set(
        comparison: &Comparison,
        scenario: &Scenario,
        contender: &Contender,
        round: u32,
    ) -> Result<Self> {
        let folder = run_folder(comparison, scenario, contender, round)?;
        let at = |cpus: &Cpus, urgency| Place { cpus: cpus.clone(), urgency };
        let is_timed = comparison.urgent && scenario.preset.is_timed();
        let urgency = if is_timed { Urgency::First } else { Urgency::Usual };
        // Behind the load either way.
        let last = if is_timed { Urgency::Usual } else { Urgency::Last };
        let greedy_place = at(&comparison.load_cpu, last);
        let (origin, address) = match scenario.is_together() {
            true => {
                let (lodger, address) = Lodger::start()?;
                (Origin::Lodger(lodger), address)
            }
            false => {
                let place = at(&comparison.origin_cpu, urgency);
                let (mut origin, address) = Running::origin(&folder, &place, &[])?;
                origin.await_ready(|| answers(address.port(), SMALL, SMALL_BYTES))?;
                (Origin::Process(origin), address)
            }
        };
        let greedy_origin = match scenario.preset.act() {
            Act::Beside(Beside::Greed(_)) => {
                let below = folder.join("greedy");
                fs::create_dir_all(&below).context("cannot make a folder")?;
                Some(Running::origin(&below, &at(&comparison.origin_cpu, last), &[])?)
            }
            Act::Load | Act::Rest | Act::Beside(Beside::Halves) => None,
        };
        let greedy_address = greedy_origin.as_ref().map_or(address, |(_, address)| *address);
        let [port, admin_port] = free_ports()?;
        let (origin_port, setup) = (address.port(), setup(scenario, greedy_address.port()));
        let site = Site { folder: &folder, port, admin_port, origin_port, setup };
        let mut stage = Self {
            proxy: None,
            origin,
            _greedy_origin: greedy_origin.map(|(origin, _)| origin),
            address,
            greedy_address,
            place: at(&comparison.load_cpu, urgency),
            greedy_place,
            empty_kb: 0,
            proxy_pids: Vec::new(),
            one_load_core: comparison.load_cpu == comparison.origin_cpu,
        };
        if let Contender::Proxy { peer, program } = contender {
            let place = at(&comparison.proxy_cpu, urgency);
            let mut proxy = Running::peer(*peer, program, &site, &place)?;
            proxy.await_ready(|| answers(port, SMALL, SMALL_BYTES))?;
            let tree = cpu::tree(proxy.pid());
            stage.empty_kb = memory::resident_kb(&tree);
            stage.proxy_pids = tree.into_keys().collect();
            stage.proxy = Some(proxy);
            stage.address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            stage.greedy_address = stage.address;
        }
        let (path, size) = (scenario.path(), scenario.answer_bytes());
        ensure!(answers(stage.address.port(), &path, size), "{path} is not answered in whole");
        Ok(stage)
    }

    pub(super) fn sample(&self) -> Sample {
        let proxy = self.proxy.as_ref().map(|proxy| cpu::tree(proxy.pid())).unwrap_or_default();
        let origin = match &self.origin {
            Origin::Process(origin) => cpu::tasks(&cpu::tree(origin.pid())),
            // Part of the load.
            Origin::Lodger(_) => HashMap::new(),
        };
        Sample { proxy_cpu: cpu::used(&proxy), proxy: cpu::tasks(&proxy), origin }
    }

    /// A sample by the load's own thread, if it never sleeps: nobody else may get a CPU at that
    /// moment. Only of processes that are known, which takes less than a tenth of a millisecond.
    pub(super) fn glance(&self) -> Option<Sample> {
        let Origin::Lodger(_) = &self.origin else { return None };
        let proxy = cpu::among(&self.proxy_pids);
        let origin = HashMap::new();
        Some(Sample { proxy_cpu: cpu::used(&proxy), proxy: cpu::tasks(&proxy), origin })
    }

    /// The load itself, on this thread, and the origin with it where they share one.
    pub(super) fn load(
        &self,
        work: &Work,
        stop: &AtomicBool,
        watch: &mut dyn FnMut(Moment),
    ) -> Result<Outcome> {
        let lodger = match &self.origin {
            Origin::Process(_) => None,
            Origin::Lodger(lodger) => Some(lodger.take()?),
        };
        self.place.take()?;
        match lodger {
            None => load::run(work, stop, watch),
            Some(mut origin) => load::run_looking(work, &mut origin, stop, watch),
        }
    }

    pub(super) fn has_proxy(&self) -> bool {
        self.proxy.is_some()
    }

    /// What the proxy's memory has grown by, at its peak or now, for each of so many connections.
    pub(super) fn growth_kb(&self, kind: Kind, connections: u32) -> Option<(Kind, f64)> {
        let tree = cpu::tree(self.proxy.as_ref()?.pid());
        let is_peak = kind == Kind::PeakKbPerConnection;
        let kb = if is_peak { memory::peak_kb(&tree) } else { memory::resident_kb(&tree) };
        #[expect(clippy::cast_precision_loss, reason = "kilobytes of one machine's memory")]
        Some((kind, (kb as f64 - self.empty_kb as f64) / f64::from(connections)))
    }

    /// Who had how much of the CPUs between two samples.
    pub(super) fn shares(
        &self,
        (before, after): (&Sample, &Sample),
        load: Scheduled,
        window: Duration,
    ) -> Shares {
        let usage = Usage {
            window,
            proxy: between(&before.proxy, &after.proxy),
            load,
            origin: between(&before.origin, &after.origin),
            one_load_core: self.one_load_core,
        };
        usage.shares()
    }
}

fn setup(scenario: &Scenario, greedy_port: u16) -> Setup {
    match (scenario.preset, scenario.preset.act()) {
        (Preset::Limit, _) => Setup::Limited,
        (Preset::Down | Preset::Up, _) => Setup::Long,
        (_, Act::Beside(Beside::Greed(_))) => Setup::Shared(greedy_port),
        (_, Act::Beside(Beside::Halves)) => Setup::Crowded(scenario.duration),
        (_, Act::Load | Act::Rest) => Setup::Plain,
    }
}

fn run_folder(
    comparison: &Comparison,
    scenario: &Scenario,
    contender: &Contender,
    round: u32,
) -> Result<PathBuf> {
    let name = format!("{}-{round}-{}", scenario.preset.name(), contender.name());
    let folder = comparison.folder.join("runs").join(name);
    let told = |folder: &Path| folder.display().to_string();
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("cannot clear {}", told(&folder)))?;
    }
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", told(&folder)))?;
    fs::canonicalize(&folder).with_context(|| format!("cannot find {}", told(&folder)))
}

/// What each task used between two samples; one that came to be meanwhile, all of it.
fn between(before: &HashMap<u32, Scheduled>, after: &HashMap<u32, Scheduled>) -> Vec<Scheduled> {
    let earlier = |id| before.get(id).copied().unwrap_or_default();
    after.iter().map(|(id, now)| now.since(earlier(id))).collect()
}

/// What shows that it answers, and moves no memory.
const SMALL: &str = "/bench?size=128";
const SMALL_BYTES: u64 = 128;
