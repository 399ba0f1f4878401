//! The running process at a glance: what it is, what serves, how each worker does.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sluice_policy::health::{Reason, Standing, Vital, Witness, standings};
use sluice_policy::plan::EndpointKey;

use super::Room;
use super::overload::OverloadStatus;
use crate::clock;
use crate::control::desk::Desk;
use crate::control::fleet::{Fleet, State as WorkerState};
use crate::observe::process;

/// What `/v1/status` says. `sluice status` reads it.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Status {
    pub(crate) version: String,
    pub(crate) pid: u32,
    pub(crate) phase: String,
    pub(crate) started: String,
    pub(crate) uptime_seconds: u64,
    pub(crate) config: ConfigStatus,
    pub(crate) listeners: Vec<String>,
    pub(crate) admin: Option<String>,
    pub(crate) driver: Option<DriverStatus>,
    pub(crate) connections: u64,
    pub(crate) in_flight: u64,
    pub(crate) requests: u64,
    pub(crate) worker_restarts: u64,
    pub(crate) resident_bytes: Option<u64>,
    pub(crate) workers: Vec<WorkerStatus>,
    pub(crate) upstreams: Vec<EndpointStatus>,
    pub(crate) store: StoreStatus,
    pub(crate) overload: OverloadStatus,
}

/// Counts that several gateways share.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoreStatus {
    /// `off`, `connecting`, `up` or `lost`.
    pub(crate) state: String,
    /// Those that hold something.
    pub(crate) servers: Vec<String>,
    pub(crate) why: Option<String>,
    pub(crate) losses: u64,
    pub(crate) keys: u64,
    /// Tokens in hand.
    pub(crate) held: u64,
    pub(crate) answered_ms_ago: Option<u64>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ConfigStatus {
    pub(crate) number: u64,
    pub(crate) source: String,
    pub(crate) adopted: String,
    /// The last reload, when it was refused.
    pub(crate) refused: Option<RefusedStatus>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RefusedStatus {
    pub(crate) at: String,
    pub(crate) why: String,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DriverStatus {
    pub(crate) name: String,
    /// Better ones that could not be had, and why.
    pub(crate) fallen: BTreeMap<String, String>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WorkerStatus {
    pub(crate) worker: usize,
    pub(crate) cpu: Option<usize>,
    pub(crate) state: String,
    pub(crate) driver: Option<String>,
    pub(crate) connections: u64,
    pub(crate) in_flight: u64,
    pub(crate) requests: u64,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EndpointStatus {
    pub(crate) upstream: String,
    pub(crate) server: String,
    pub(crate) in_flight: u64,
    /// What its probes say: `in`, `out`, or `unasked` when nobody asks how it is.
    pub(crate) health: String,
    /// What it gets, all things considered: `in`, `slow_start`, `recovering`, `half_open`, `out` or
    /// `drained`.
    pub(crate) state: String,
    /// "out since 2026-02-28T12:03:07.000Z: 3 failed probes, last: connect refused"; every reason
    /// that there is.
    pub(crate) why: Option<String>,
}

/// A worker that does not answer by then is told without.
const PATIENCE: Duration = Duration::from_secs(1);

pub(super) async fn status(State(room): State<Room>) -> Json<Status> {
    let asked = room.desk.fleet().inspect();
    let mut busy: BTreeMap<EndpointKey, u64> = BTreeMap::new();
    let told = async {
        for (_, answer) in asked {
            for (endpoint, n) in answer.await.unwrap_or_default().endpoints {
                *busy.entry(endpoint).or_default() += u64::from(n);
            }
        }
    };
    let _ = tokio::time::timeout(PATIENCE, told).await;
    Json(Status::of(&room.desk, &busy))
}

/// The configuration that serves, by the names in it.
pub(super) async fn config(State(room): State<Room>) -> Json<Value> {
    let generation = std::sync::Arc::clone(room.desk.fleet().generation());
    let plan = &generation.config.plan;
    let upstreams: BTreeMap<_, _> = plan
        .upstreams()
        .iter()
        .map(|upstream| {
            let servers: Vec<_> = upstream
                .endpoints
                .iter()
                .map(|endpoint| {
                    let addresses = generation.addresses.get(&endpoint.key);
                    json!({
                        "server": endpoint.address,
                        "weight": endpoint.weight,
                        "labels": endpoint.labels,
                        "addresses": addresses,
                    })
                })
                .collect();
            (upstream.name.as_str(), json!({ "servers": servers }))
        })
        .collect();
    let routes: Vec<_> = plan.routes().iter().map(|route| route.name.as_str()).collect();
    let source = room.desk.standing().source.clone();
    Json(json!({
        "number": generation.number,
        "source": source,
        "routes": routes,
        "upstreams": upstreams,
    }))
}

impl Status {
    fn of(desk: &Desk, busy: &BTreeMap<EndpointKey, u64>) -> Self {
        let (fleet, standing) = (desk.fleet(), desk.standing());
        let generation = fleet.generation();
        let workers = workers(&fleet);
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            phase: standing.phase.name().to_owned(),
            started: clock::rfc3339(desk.started),
            uptime_seconds: clock::since_1970().saturating_sub(desk.started).as_secs(),
            config: ConfigStatus {
                number: generation.number,
                source: standing.source.clone(),
                adopted: clock::rfc3339(standing.adopted),
                refused: standing
                    .refused
                    .as_ref()
                    .map(|(at, why)| RefusedStatus { at: clock::rfc3339(*at), why: why.clone() }),
            },
            listeners: fleet.addresses().iter().map(ToString::to_string).collect(),
            admin: standing.admin.map(|address| address.to_string()),
            driver: driver(&fleet),
            connections: workers.iter().map(|worker| worker.connections).sum(),
            in_flight: workers.iter().map(|worker| worker.in_flight).sum(),
            requests: workers.iter().map(|worker| worker.requests).sum(),
            worker_restarts: standing.restarts,
            resident_bytes: process::resident_bytes(),
            workers,
            upstreams: endpoints(desk, &fleet, busy),
            store: store(desk),
            overload: OverloadStatus::of(&fleet),
        }
    }
}

fn store(desk: &Desk) -> StoreStatus {
    let report = desk.store.report();
    let ago = report.figures.answered_ago;
    StoreStatus {
        state: report.state.name().to_owned(),
        servers: report.servers.iter().map(ToString::to_string).collect(),
        why: report.why,
        losses: report.losses,
        keys: report.figures.keys,
        held: report.figures.held,
        answered_ms_ago: ago.map(|ago| u64::try_from(ago.as_millis()).unwrap_or(u64::MAX)),
    }
}

fn workers(fleet: &Fleet) -> Vec<WorkerStatus> {
    let status = |(worker, it): (usize, &crate::control::fleet::Worker)| WorkerStatus {
        worker,
        cpu: it.core.map(|core| core.id),
        state: it.state.name().to_owned(),
        driver: match &it.state {
            WorkerState::Running { driver, .. } => Some(driver.name().to_owned()),
            WorkerState::Starting | WorkerState::Draining | WorkerState::Ended => None,
        },
        connections: it.cells.connections_open.value(),
        in_flight: it.cells.in_flight.value(),
        requests: it.cells.all.buckets().sum(),
    };
    fleet.workers.iter().enumerate().map(status).collect()
}

fn driver(fleet: &Fleet) -> Option<DriverStatus> {
    fleet.workers.iter().find_map(|worker| match &worker.state {
        WorkerState::Running { driver, fallen } => Some(DriverStatus {
            name: driver.name().to_owned(),
            fallen: fallen
                .iter()
                .map(|step| (step.driver.name().to_owned(), step.why.clone()))
                .collect(),
        }),
        WorkerState::Starting | WorkerState::Draining | WorkerState::Ended => None,
    })
}

fn endpoints(desk: &Desk, fleet: &Fleet, busy: &BTreeMap<EndpointKey, u64>) -> Vec<EndpointStatus> {
    let (watch, drained) = (desk.watch(), desk.switchboard().drained());
    let plan = &fleet.generation().config.plan;
    let all = standings(plan, fleet.ledger(), &watch, &drained, desk.now());
    all.iter()
        .map(|it| EndpointStatus {
            upstream: it.upstream.to_owned(),
            server: it.endpoint.address.clone(),
            in_flight: busy.get(&it.endpoint.key).copied().unwrap_or(0),
            health: standing(watch.vital(it.endpoint.key)).to_owned(),
            state: it.place.name().to_owned(),
            why: why(it),
        })
        .collect()
}

const fn standing(vital: Option<&Vital>) -> &'static str {
    match vital {
        Some(Vital { out: true, .. }) => "out",
        Some(Vital { out: false, .. }) => "in",
        None => "unasked",
    }
}

fn why(standing: &Standing<'_>) -> Option<String> {
    let told = |it: &Reason| match it.since {
        Some(since) => {
            let since = clock::rfc3339(Duration::from_secs(since.0));
            format!("{} since {since}: {}", it.place, it.why)
        }
        None if it.witness == Witness::Probes => {
            format!("{} from the start: {}", it.place, it.why)
        }
        None => format!("{}: {}", it.place, it.why),
    };
    let mut all: Vec<String> = standing.reasons.iter().map(told).collect();
    if standing.panic {
        all.push("but too few servers are in, so it gets requests".to_owned());
    }
    (!all.is_empty()).then(|| all.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::fixture::{desk, fleet, obedient};
    use crate::runtime::Driver;

    #[tokio::test]
    async fn what_is_written_is_what_sluice_status_reads() {
        let (mut fleet, _heard) = fleet(2, obedient).await;
        fleet.workers[1].state = WorkerState::Running { driver: Driver::Epoll, fallen: vec![] };
        fleet.workers[1].cells.connections_open.add(2);
        fleet.workers[0].cells.connections_open.add(3);
        fleet.workers[0].cells.all.record(Duration::from_millis(1));
        let endpoint = fleet.generation().config.plan.upstreams()[0].endpoints[0].key;
        let (desk, _asked) = desk(fleet);
        desk.standing().refused = Some((Duration::ZERO, "broken".to_owned()));
        let status = Status::of(&desk, &BTreeMap::from([(endpoint, 4)]));
        let json = serde_json::to_value(&status).unwrap();
        for (pointer, expected) in [
            ("/phase", json!("starting")),
            ("/config/number", json!(1)),
            ("/config/refused/why", json!("broken")),
            ("/driver/name", json!("epoll")),
            ("/connections", json!(5)),
            ("/requests", json!(1)),
            ("/workers/0/state", json!("starting")),
            ("/workers/1/driver", json!("epoll")),
            (
                "/upstreams/0",
                json!({"upstream": "app", "server": "127.0.0.1:9",
                "in_flight": 4, "health": "unasked", "state": "in", "why": null}),
            ),
        ] {
            assert_eq!(json.pointer(pointer), Some(&expected), "{pointer}");
        }
        assert_eq!(serde_json::from_value::<Status>(json).unwrap(), status);
    }
}
