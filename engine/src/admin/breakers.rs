//! How breakers stand, and the operator's word about them: forced open, closed or only counting,
//! for a while.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use sluice_policy::ledger::BreakerKey;
use sluice_policy::time::Instant;
use sluice_policy::unit::Span;
use sluice_policy::world::{Force, State as Standing, View};

use super::guard::may_change;
use super::{Room, refuse};
use crate::clock::WallOffset;
use crate::control::desk::Desk;
use crate::event::event;
use crate::observe::exposition::Exposition;

/// One breaker: of an upstream, or of one of its servers.
#[derive(Debug, Serialize)]
pub(super) struct BreakerStatus {
    upstream: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<String>,
    state: &'static str,
    /// What the operator wants of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    forced: Option<&'static str>,
    /// Openings since it was last well for long: what its open time doubles by.
    openings: u8,
    /// Until it is tried again, or judges for itself again.
    #[serde(skip_serializing_if = "Option::is_none")]
    seconds_left: Option<u64>,
}

/// What an operator may ask for.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Wanted {
    upstream: String,
    /// One server of it, as written; without, the breaker of the upstream.
    server: Option<String>,
    /// `open`, `closed`, `disabled`, or `auto` to give it back its own judgement.
    state: String,
    /// For how long.
    #[serde(rename = "for")]
    time: Option<Span>,
}

pub(super) async fn list(State(room): State<Room>) -> Json<Vec<BreakerStatus>> {
    let all = standing(&room.desk).into_iter().map(|it| BreakerStatus {
        upstream: it.upstream,
        server: it.server,
        state: it.view.state.name(),
        forced: it.view.forced.map(name),
        openings: it.view.openings,
        seconds_left: it.view.left.map(|left| left.as_secs()),
    });
    Json(all.collect())
}

pub(super) async fn force(
    State(room): State<Room>,
    headers: HeaderMap,
    Json(wanted): Json<Wanted>,
) -> Response {
    if let Err((status, why)) = may_change(&room, &headers) {
        return refuse(status, why);
    }
    let now = now(&room.desk);
    let force = match (wanted.state.as_str(), wanted.time) {
        ("auto", None) => None,
        ("open", Some(time)) => Some((Force::Open, now + time.0)),
        ("closed", Some(time)) => Some((Force::Closed, now + time.0)),
        ("disabled", Some(time)) => Some((Force::Disabled, now + time.0)),
        ("open" | "closed" | "disabled", None) => {
            return refuse(StatusCode::BAD_REQUEST, "say for how long: \"for\": \"10min\"");
        }
        _ => {
            let why = "state is open, closed or disabled, with a time, or auto without one";
            return refuse(StatusCode::BAD_REQUEST, why);
        }
    };
    let fleet = room.desk.fleet();
    let plan = &fleet.generation().config.plan;
    let meant = |(upstream, server, _): &(&str, Option<&str>, BreakerKey)| {
        *upstream == wanted.upstream && *server == wanted.server.as_deref()
    };
    let Some((_, _, key)) = plan.breakers().find(meant) else {
        return refuse(StatusCode::NOT_FOUND, "there is no such breaker");
    };
    // One word for all workers: none has to be told.
    fleet.ledger().force(key, now, force);
    event!(
        "breaker_forced",
        upstream = wanted.upstream,
        server = wanted.server.unwrap_or_default(),
        state = wanted.state
    );
    StatusCode::NO_CONTENT.into_response()
}

/// Figures of every breaker of the configuration that serves.
pub(super) fn expose(text: &mut Exposition, desk: &Desk) {
    const STATE: &str = "sluice_breaker_state";
    const TRANSITIONS: &str = "sluice_breaker_transitions_total";
    let all = standing(desk);
    let label = |it: &Breaker| it.server.clone().unwrap_or_default();
    text.family(STATE, "gauge", "1 for the state that a breaker is in.");
    for it in &all {
        for state in Standing::ALL {
            let server = label(it);
            let labels =
                [("upstream", it.upstream.as_str()), ("server", &server), ("state", state.name())];
            text.sample(STATE, &labels, u8::from(it.view.state == state));
        }
    }
    text.family(TRANSITIONS, "counter", "Changes of a breaker into each state.");
    for it in &all {
        for (state, entered) in Standing::ALL.into_iter().zip(it.view.entered) {
            let server = label(it);
            let labels =
                [("upstream", it.upstream.as_str()), ("server", &server), ("to", state.name())];
            text.sample(TRANSITIONS, &labels, entered);
        }
    }
}

struct Breaker {
    upstream: String,
    server: Option<String>,
    view: View,
}

fn standing(desk: &Desk) -> Vec<Breaker> {
    let now = now(desk);
    let fleet = desk.fleet();
    let plan = &fleet.generation().config.plan;
    let seen = plan.breakers().filter_map(|(upstream, server, key)| {
        let view = fleet.ledger().breaker(key, now)?;
        Some(Breaker { upstream: upstream.to_owned(), server: server.map(str::to_owned), view })
    });
    seen.collect()
}

fn now(desk: &Desk) -> Instant {
    WallOffset::read(desk.clock).now(desk.clock.at()).at
}

const fn name(force: Force) -> &'static str {
    match force {
        Force::Open => "open",
        Force::Closed => "closed",
        Force::Disabled => "disabled",
    }
}
