//! The same load alone, and with somebody beside it who is greedy or says half of what is due.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};

use super::Scenario;
use super::figures::{Figures, Kind};
use super::measure::{Driven, Seen, drive};
use super::rest::{gather, wait};
use super::scenario::Beside;
use super::stage::Stage;
use crate::load::{Greed, Work, indulge};

pub(super) fn run(
    stage: &Stage,
    scenario: &Scenario,
    what: Beside,
    stop: &AtomicBool,
) -> Result<Seen> {
    let work = scenario.work(stage.address.port())?;
    let alone = drive(&work, stage, stop)?.outcome.latency.percentiles();
    let (driven, mut figures) = match what {
        Beside::Greed(greed) => beside_greed(&work, stage, greed, stop)?,
        Beside::Halves => beside_halves(&work, stage, scenario, stop)?,
    };
    let Driven { outcome, before, after } = driven;
    let beside = outcome.latency.percentiles();
    figures.extend([
        (Kind::P50Alone, alone.p50),
        (Kind::P99Alone, alone.p99),
        (Kind::P50Beside, beside.p50),
        (Kind::P99Beside, beside.p99),
        (Kind::P99Raised, if alone.p99 > 0.0 { beside.p99 / alone.p99 } else { 0.0 }),
    ]);
    let shares = stage.shares((&before, &after), outcome.load_cpu, outcome.window);
    Ok(Seen { outcome, figures, shares })
}

fn beside_greed(
    work: &Work,
    stage: &Stage,
    greed: Greed,
    stop: &AtomicBool,
) -> Result<(Driven, Figures)> {
    let over = AtomicBool::new(false);
    let had = || {
        stage.greedy_place.take()?;
        let begun = crate::clock::now_ns();
        let had = indulge(stage.greedy_address, "/greedy/", greed, &over)
            .context("the greedy client broke")?;
        let lasted = Duration::from_nanos(crate::clock::now_ns() - begun);
        #[expect(clippy::cast_precision_loss, reason = "bytes of one run fit a double's 53 bits")]
        Ok::<_, anyhow::Error>(had as f64 / lasted.as_secs_f64())
    };
    let (driven, had) = thread::scope(|scope| {
        let greedy = scope.spawn(had);
        wait(HEAD_START, stop);
        let driven = drive(work, stage, stop);
        over.store(true, Ordering::Relaxed);
        (driven, greedy.join())
    });
    let had = had.map_err(|_| anyhow!("the greedy client's thread broke"))??;
    let had = match greed {
        Greed::Stream => (Kind::GreedyMbPerSecond, had / 1e6),
        Greed::Pipeline => (Kind::GreedyRequestsPerSecond, had),
    };
    Ok((driven?, Figures::from([had])))
}

/// The window ends when all half heads have, and is never shorter than the scenario says.
fn beside_halves(
    work: &Work,
    stage: &Stage,
    scenario: &Scenario,
    stop: &AtomicBool,
) -> Result<(Driven, Figures)> {
    let over = AtomicBool::new(false);
    let longest = 2 * scenario.duration + PATIENCE;
    let work = Work { duration: 2 * longest, ..work.clone() };
    let text = format!("GET {} HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Half: ", scenario.path());
    let crowd = || {
        wait(scenario.warm_up, stop);
        let crowd = gather(stage, scenario.crowd, &text, false)?;
        wait(scenario.duration / 4, stop);
        let memory = stage.growth_kb(Kind::RestKbPerConnection, scenario.crowd);
        let farewells = crowd.see_off(longest, stop).context("cannot watch half heads")?;
        anyhow::Ok((farewells, memory))
    };
    let (driven, seen) = thread::scope(|scope| {
        let load = scope.spawn(|| drive(&work, stage, &over));
        let seen = crowd();
        over.store(true, Ordering::Relaxed);
        (load.join(), seen)
    });
    let (farewells, memory) = seen?;
    let driven = driven.map_err(|_| anyhow!("the load's watcher broke"))??;
    // The origin closes nobody for being slow.
    ensure!(
        !stage.has_proxy() || farewells.len() as u64 == u64::from(scenario.crowd),
        "only {} of {} half heads were given up",
        farewells.len(),
        scenario.crowd
    );
    let closed = || farewells.iter().map(|farewell| farewell.after.as_secs_f64());
    let answered = farewells.iter().filter(|farewell| farewell.status == Some(408)).count();
    let mut figures = Figures::new();
    if stage.has_proxy() {
        #[expect(clippy::cast_precision_loss, reason = "some thousands")]
        figures.insert(Kind::Answered408, answered as f64);
        figures.insert(Kind::FirstClosed, closed().fold(f64::INFINITY, f64::min));
        figures.insert(Kind::LastClosed, closed().fold(0.0, f64::max));
    }
    figures.extend(memory);
    figures.extend(stage.growth_kb(Kind::PeakKbPerConnection, scenario.crowd));
    Ok((driven, figures))
}

/// What stands beside is under way when the load begins.
const HEAD_START: Duration = Duration::from_millis(300);
/// A head that is not given up after twice its time and so long more, never is.
const PATIENCE: Duration = Duration::from_secs(2);
