//! Numbers of its own for one key of a shared limit, for all gateways at once.

use axum::Json;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::json;

use super::guard::may_change;
use super::{Room, refuse};
use crate::event::event;

/// What is asked for, as a query.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Wish {
    limit: String,
    key: String,
    /// None: the limit's own again.
    rate: Option<String>,
    burst: Option<u32>,
}

pub(super) async fn set(
    State(room): State<Room>,
    headers: HeaderMap,
    Query(wish): Query<Wish>,
) -> Response {
    if let Err((status, why)) = may_change(&room, &headers) {
        return refuse(status, why);
    }
    let field = format!("{}/{}", wish.limit, wish.key);
    let value = wish.rate.map(|rate| match wish.burst {
        Some(burst) => format!("{rate} {burst}"),
        None => rate,
    });
    let plan = std::sync::Arc::clone(&room.desk.fleet().generation().config.plan);
    // A key may be taken away whose limit is gone.
    if let Some(value) = &value
        && let Err(why) = plan.override_of(&field, value)
    {
        return refuse(StatusCode::UNPROCESSABLE_ENTITY, &why);
    }
    let done = room.desk.store.clone().set_override(field.clone(), value.clone()).await;
    if let Err(why) = done {
        return refuse(StatusCode::SERVICE_UNAVAILABLE, &why);
    }
    event!("limit_override", limit = wish.limit, value = value, by = room.door.name());
    Json(json!({ "override": field, "value": value })).into_response()
}
