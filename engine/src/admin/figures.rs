//! Figures for machines: Prometheus' text, and percentiles.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::{Room, breakers};
use crate::clock;
use crate::control::desk::Desk;
use crate::control::fleet::State as WorkerState;
use crate::observe::cells::Cells;
use crate::observe::exposition::{self, Exposition, by_name};
use crate::observe::percentile::Latency;
use crate::observe::process;

pub(super) async fn metrics(State(room): State<Room>) -> Response {
    let cells = room.desk.fleet().cells();
    room.desk.prometheus.run_upkeep();
    let mut text = exposition::workers(&cells);
    text.push_str(&room.desk.prometheus.render());
    text.push_str(&own(&room.desk));
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

/// How the process itself stands.
fn own(desk: &Desk) -> String {
    let mut text = Exposition::new();
    let fleet = desk.fleet();
    text.family("sluice_workers", "gauge", "Workers, by state and driver.");
    let mut workers: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for worker in &fleet.workers {
        let driver = match &worker.state {
            WorkerState::Running { driver, .. } => driver.name(),
            WorkerState::Starting | WorkerState::Draining | WorkerState::Ended => "",
        };
        *workers.entry((worker.state.name(), driver)).or_default() += 1;
    }
    for ((state, driver), n) in workers {
        text.sample("sluice_workers", &[("state", state), ("driver", driver)], n);
    }
    let number = fleet.generation().number;
    text.single(
        "sluice_config_version",
        "gauge",
        "Number of the configuration that serves.",
        number,
    );
    text.family("sluice_build_info", "gauge", "Always 1; the labels tell.");
    text.sample("sluice_build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1);
    process::expose(&mut text, desk.started);
    drop(fleet);
    breakers::expose(&mut text, desk);
    text.finish()
}

/// Exact percentiles since the start.
#[derive(Debug, Serialize)]
pub(super) struct Latencies {
    overall: Latency,
    routes: BTreeMap<String, Latency>,
    uptime_seconds: u64,
}

pub(super) async fn latency(State(room): State<Room>) -> Json<Latencies> {
    let cells = room.desk.fleet().cells();
    let routes = by_name(&cells, Cells::routes);
    Json(Latencies {
        overall: Latency::of(cells.iter().map(|cells| &cells.all)),
        routes: routes
            .into_iter()
            .map(|(route, cells)| (route, Latency::of(cells.iter().map(|cells| &cells.timings))))
            .collect(),
        uptime_seconds: clock::since_1970().saturating_sub(room.desk.started).as_secs(),
    })
}
