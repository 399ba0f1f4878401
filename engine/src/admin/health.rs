//! Whether the process lives, and whether it should be sent requests.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Serialize;
use serde_json::{Value, json};

use super::Room;
use crate::clock;
use crate::control::desk::{Desk, Phase};
use crate::control::fleet::State as WorkerState;

pub(super) async fn alive() -> Json<Value> {
    Json(json!({ "status": "alive" }))
}

pub(super) async fn ready(State(room): State<Room>) -> (StatusCode, Json<Readiness>) {
    let readiness = Readiness::of(&room.desk);
    let status = if readiness.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(readiness))
}

/// Each thing that serving depends on, with its state.
#[derive(Debug, Serialize)]
pub(super) struct Readiness {
    ready: bool,
    phase: &'static str,
    workers: Vec<WorkerReadiness>,
    config: ConfigReadiness,
    /// Where counts are that several gateways share: `off`, `connecting`, `up` or `lost`. Each
    /// limit says what to do without, so this is no reason to take the process out of service.
    store: &'static str,
}

#[derive(Debug, Serialize)]
struct WorkerReadiness {
    worker: usize,
    state: &'static str,
}

#[derive(Debug, Serialize)]
struct ConfigReadiness {
    /// `current`, or `last-known-good` when the source holds something that was refused. That one
    /// serves well: it is no reason to take this process out of service.
    state: &'static str,
    number: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    refused_at: Option<String>,
}

impl Readiness {
    fn of(desk: &Desk) -> Self {
        let (fleet, standing) = (desk.fleet(), desk.standing());
        let workers = fleet.workers.iter().enumerate();
        let workers: Vec<_> = workers
            .map(|(worker, it)| (worker, &it.state))
            .map(|(worker, state)| WorkerReadiness { worker, state: state.name() })
            .collect();
        let running =
            fleet.workers.iter().all(|it| matches!(it.state, WorkerState::Running { .. }));
        let refused_at = standing.refused.as_ref().map(|(at, _)| clock::rfc3339(*at));
        let state = if refused_at.is_some() { "last-known-good" } else { "current" };
        Self {
            ready: running && standing.phase == Phase::Serving,
            phase: standing.phase.name(),
            workers,
            config: ConfigReadiness { state, number: fleet.generation().number, refused_at },
            store: desk.store.report().state.name(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::fixture::{desk, fleet, obedient};
    use crate::runtime::Driver;

    #[tokio::test]
    async fn ready_means_that_every_worker_serves() {
        let (fleet, _heard) = fleet(2, obedient).await;
        let (desk, _asked) = desk(fleet);
        let running = || WorkerState::Running { driver: Driver::Epoll, fallen: vec![] };
        desk.fleet().workers[0].state = running();
        desk.standing().phase = Phase::Serving;
        assert!(!Readiness::of(&desk).ready, "one has not started");
        desk.fleet().workers[1].state = running();
        assert!(Readiness::of(&desk).ready);
        desk.standing().refused = Some((std::time::Duration::ZERO, "broken".to_owned()));
        let readiness = Readiness::of(&desk);
        assert_eq!((readiness.ready, readiness.config.state), (true, "last-known-good"));
        desk.standing().phase = Phase::Draining;
        assert!(!Readiness::of(&desk).ready);
    }
}
