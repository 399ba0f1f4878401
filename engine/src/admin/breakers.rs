//! How breakers stand, and the operator's word about them: forced open, closed or only counting,
//! for a while.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sluice_policy::ledger::BreakerKey;
use sluice_policy::time::Instant;
use sluice_policy::unit::{Ratio, Span};
use sluice_policy::world::{Force, State as Standing, Thresholds, View};

use super::guard::may_change;
use super::{Room, refuse};
use crate::clock::WallOffset;
use crate::control::desk::Desk;
use crate::control::switchboard::What;
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
    /// Why it is not closed.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    /// What the operator wants of its thresholds for a while.
    #[serde(skip_serializing_if = "Option::is_none")]
    thresholds: Option<Value>,
}

/// What an operator may ask for.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Wanted {
    upstream: String,
    /// One server of it, as written; without, the breaker of the upstream.
    server: Option<String>,
    /// `open`, `closed`, `disabled`, or `drained` (a server, with or without a breaker); `auto`
    /// gives it back its own judgement and takes a drained server back. None: other thresholds.
    state: Option<String>,
    /// For how long.
    #[serde(rename = "for")]
    time: Option<Span>,
    errors: Option<Ratio>,
    slow: Option<Span>,
    slow_share: Option<Ratio>,
    consecutive: Option<u32>,
    min_requests: Option<u32>,
}

pub(super) async fn list(State(room): State<Room>) -> Json<Vec<BreakerStatus>> {
    let all = standing(&room.desk).into_iter().map(|it| BreakerStatus {
        upstream: it.upstream,
        server: it.server,
        state: it.view.state.name(),
        forced: it.view.forced.map(name),
        openings: it.view.openings,
        seconds_left: it.view.left.map(|left| left.as_secs()),
        why: it.view.opened.map(|(cause, _)| cause.to_string()),
        thresholds: it.view.thresholds.map(|(it, left)| shown(&it, left)),
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
    let done = match wanted.state.as_deref() {
        Some("drained") => wanted.drain(&room.desk),
        Some(state) => wanted.force(&room.desk, state),
        None => wanted.tune(&room.desk),
    };
    if let Err((status, why)) = done {
        return refuse(status, why);
    }
    let seconds = wanted.time.map(|time| time.0.as_secs());
    event!(
        "breaker_forced",
        upstream = wanted.upstream,
        server = wanted.server.unwrap_or_default(),
        state = wanted.state.as_deref().unwrap_or("thresholds"),
        seconds = seconds,
        by = room.door.name()
    );
    StatusCode::NO_CONTENT.into_response()
}

type Done = Result<(), (StatusCode, &'static str)>;

const HOW_LONG: (StatusCode, &str) =
    (StatusCode::BAD_REQUEST, "say for how long: \"for\": \"10min\"");

impl Wanted {
    fn force(&self, desk: &Desk, state: &str) -> Done {
        let until = self.time.map(|time| now(desk) + time.0);
        let kind = match state {
            "auto" => None,
            "open" => Some(Force::Open),
            "closed" => Some(Force::Closed),
            "disabled" => Some(Force::Disabled),
            _ => {
                let why = "state is open, closed, disabled or drained, with a time, or auto";
                return Err((StatusCode::BAD_REQUEST, why));
            }
        };
        let force = match (kind, until) {
            (None, _) => None,
            (Some(kind), Some(until)) => Some((kind, until)),
            (Some(_), None) => return Err(HOW_LONG),
        };
        if self.thresholds() != Thresholds::default() {
            return Err((StatusCode::BAD_REQUEST, "a state, or thresholds, but not both"));
        }
        let returned = force.is_none() && self.undrain(desk);
        match self.key(desk) {
            // One word for all workers: none has to be told.
            Ok(key) => {
                let fleet = desk.fleet();
                fleet.ledger().force(key, now(desk), force);
                if force.is_none() {
                    fleet.ledger().tune(key, None);
                }
                Ok(())
            }
            Err(_) if returned => Ok(()),
            Err(e) => Err(e),
        }
    }

    fn tune(&self, desk: &Desk) -> Done {
        let thresholds = self.thresholds();
        if thresholds == Thresholds::default() {
            let why = "say a state, or one of errors, slow, slow_share, consecutive, min_requests";
            return Err((StatusCode::BAD_REQUEST, why));
        }
        let Some(time) = self.time else { return Err(HOW_LONG) };
        let nothing = [self.errors, self.slow_share].into_iter().flatten().any(|it| it.0 == 0);
        if nothing || self.consecutive == Some(0) || self.slow.is_some_and(|it| it.0.is_zero()) {
            return Err((StatusCode::BAD_REQUEST, "that would open it for nothing"));
        }
        let key = self.key(desk)?;
        desk.fleet().ledger().tune(key, Some((thresholds, now(desk) + time.0)));
        Ok(())
    }

    fn drain(&self, desk: &Desk) -> Done {
        let Some(time) = self.time else { return Err(HOW_LONG) };
        let Some(what) = self.drained(desk) else {
            return Err((StatusCode::NOT_FOUND, "there is no such server"));
        };
        desk.switchboard().set(what, Some(now(desk) + time.0));
        desk.switch();
        Ok(())
    }

    /// Whether there was something to take back.
    fn undrain(&self, desk: &Desk) -> bool {
        let Some(what) = self.drained(desk) else { return false };
        let was = desk.switchboard().all().len();
        desk.switchboard().clear(&what);
        let found = desk.switchboard().all().len() < was;
        if found {
            desk.switch();
        }
        found
    }

    fn drained(&self, desk: &Desk) -> Option<What> {
        let server = self.server.as_deref()?;
        let fleet = desk.fleet();
        let endpoint = fleet.generation().config.plan.endpoint(&self.upstream, server)?;
        Some(What::Drain { server: format!("{}/{server}", self.upstream), key: endpoint.key })
    }

    fn key(&self, desk: &Desk) -> Result<BreakerKey, (StatusCode, &'static str)> {
        let fleet = desk.fleet();
        let plan = &fleet.generation().config.plan;
        let meant = |(upstream, server, _): &(&str, Option<&str>, BreakerKey)| {
            *upstream == self.upstream && *server == self.server.as_deref()
        };
        let found = plan.breakers().find(meant).map(|(_, _, key)| key);
        found.ok_or((StatusCode::NOT_FOUND, "there is no such breaker"))
    }

    fn thresholds(&self) -> Thresholds {
        Thresholds {
            errors: self.errors,
            slow: self.slow.map(|slow| slow.0),
            slow_share: self.slow_share,
            consecutive: self.consecutive,
            min_requests: self.min_requests,
        }
    }
}

/// Those that are other than written.
fn shown(it: &Thresholds, left: core::time::Duration) -> Value {
    json!({
        "errors": it.errors.map(|share| share.to_string()),
        "slow": it.slow.map(|slow| Span(slow).to_string()),
        "slow_share": it.slow_share.map(|share| share.to_string()),
        "consecutive": it.consecutive,
        "min_requests": it.min_requests,
        "seconds_left": left.as_secs(),
    })
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
