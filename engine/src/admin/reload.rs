//! Take up the configuration anew, and say how that went.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};

use super::guard::may_change;
use super::{Room, refuse};
use crate::exit::Exit;

/// What the page says. `sluice reload` reads it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Reloaded {
    /// The configuration that serves now.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) number: Option<u64>,
    /// Why it was refused, for people.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) error: Option<String>,
}

pub(super) async fn reload(State(room): State<Room>, headers: HeaderMap) -> Response {
    if let Err((status, why)) = may_change(&room, &headers) {
        return refuse(status, why);
    }
    match room.desk.reload().await {
        Some(Ok(number)) => Json(Reloaded { number: Some(number), error: None }).into_response(),
        Some(Err(failure)) => {
            let status = match failure.exit {
                Exit::Configuration => StatusCode::UNPROCESSABLE_ENTITY,
                Exit::Done | Exit::Failed | Exit::Usage | Exit::Permission => StatusCode::CONFLICT,
            };
            let reloaded = Reloaded { number: None, error: Some(failure.text) };
            (status, Json(reloaded)).into_response()
        }
        None => refuse(StatusCode::SERVICE_UNAVAILABLE, "the process is about to end"),
    }
}
