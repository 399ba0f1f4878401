//! Kept responses: how many there are, and forgetting them.

use axum::Json;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};
use sluice_policy::plan::RouteKey;

use super::guard::may_change;
use super::{Room, refuse};
use crate::event::event;

/// What is to be forgotten, as a query.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Purge {
    /// None: of all routes.
    route: Option<String>,
}

pub(super) async fn list(State(room): State<Room>) -> Json<Value> {
    let fleet = room.desk.fleet();
    let server = &fleet.generation().config.server;
    let workers = fleet.workers.iter().enumerate().map(|(worker, it)| {
        let cells = &it.cells.cache;
        json!({
            "worker": worker,
            "keys": cells.keys.value(),
            "bytes": cells.bytes.value(),
            "stored": cells.stored.value(),
            "evicted": cells.evicted.value(),
        })
    });
    let workers: Vec<_> = workers.collect();
    let plan = &fleet.generation().config.plan;
    let routes: Vec<_> = plan.cache_editions().map(|(route, _)| route).collect();
    Json(json!({
        "bytes_max_per_worker": server.cache_memory,
        "routes": routes,
        "workers": workers,
    }))
}

pub(super) async fn purge(
    State(room): State<Room>,
    headers: HeaderMap,
    Query(wish): Query<Purge>,
) -> Response {
    if let Err((status, why)) = may_change(&room, &headers) {
        return refuse(status, why);
    }
    let fleet = room.desk.fleet();
    if let Some(route) = &wish.route {
        let plan = &fleet.generation().config.plan;
        if !plan.cache_editions().any(|(name, _)| name == route) {
            let why = format!("there is no route named {route:?} with a cache");
            return refuse(StatusCode::NOT_FOUND, &why);
        }
    }
    fleet.purge(wish.route.as_ref().map(|route| RouteKey::of(&[route])));
    event!("cache_purged", route = wish.route, by = room.door.name());
    StatusCode::NO_CONTENT.into_response()
}
