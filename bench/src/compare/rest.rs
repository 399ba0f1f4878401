//! Connections at rest: what each holds of the proxy's memory, and what all of them cost in time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};

use super::Scenario;
use super::figures::{Figures, Kind};
use super::measure::Seen;
use super::stage::Stage;
use crate::cpu::Scheduled;
use crate::load::{Crowd, Outcome};
use crate::place::Place;
use crate::{clock, unit};

pub(super) fn run(stage: &Stage, scenario: &Scenario, stop: &AtomicBool) -> Result<Seen> {
    let text = format!("GET {} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", scenario.path());
    let crowd = gather(stage, scenario.crowd, &text, true)?;
    // Until the proxy has put them to rest.
    wait(scenario.warm_up, stop);
    let (before, from) = (stage.sample(), clock::now_ns());
    wait(scenario.duration, stop);
    let after = stage.sample();
    let window = Duration::from_nanos(clock::now_ns() - from);
    let memory = [Kind::PeakKbPerConnection, Kind::RestKbPerConnection]
        .map(|kind| stage.growth_kb(kind, scenario.crowd));
    let present = crowd.present();
    ensure!(present as u64 == u64::from(scenario.crowd), "only {present} were left");
    let outcome = Outcome { window, answered: present as u64, ..Outcome::default() };
    let shares = stage.shares((&before, &after), Scheduled::default(), window);
    Ok(Seen { outcome, figures: memory.into_iter().flatten().collect::<Figures>(), shares })
}

/// On the load's CPU, behind a load that goes before others.
pub(super) fn gather(stage: &Stage, count: u32, text: &str, answered: bool) -> Result<Crowd> {
    let gather = || {
        Place::usual(&stage.place.cpus).take()?;
        Crowd::gather(stage.address, count, text, answered)
            .with_context(|| format!("cannot hold {count} connections"))
    };
    let found = thread::scope(|scope| scope.spawn(gather).join());
    found.map_err(|_| anyhow!("the crowd's thread broke"))?
}

/// For so long, or until `stop`.
pub(super) fn wait(span: Duration, stop: &AtomicBool) {
    let until = clock::now_ns() + unit::nanoseconds(span);
    while clock::now_ns() < until && !stop.load(Ordering::Relaxed) {
        let left = Duration::from_nanos(until.saturating_sub(clock::now_ns()));
        thread::sleep(left.min(STOP_CHECK));
    }
}

const STOP_CHECK: Duration = Duration::from_millis(100);
