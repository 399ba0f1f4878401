//! Switches and drills: what is switched, and switching.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::Json;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use sluice_policy::degrade::Cause;
use sluice_policy::plan::Plan;
use sluice_policy::unit::Span;

use super::guard::may_change;
use super::{Room, refuse};
use crate::clock;
use crate::control::desk::Desk;
use crate::control::switchboard::What;
use crate::event::event;

/// What `/v1/switches` says. `sluice switch` reads it.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct SwitchesStatus {
    #[serde(default)]
    pub(crate) switches: Vec<SwitchStatus>,
    /// Every group that can be switched off, with its routes.
    #[serde(default)]
    pub(crate) groups: BTreeMap<String, Vec<String>>,
    /// Routes that live on in survival mode.
    #[serde(default)]
    pub(crate) vital: Vec<String>,
    /// Why nothing was switched.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) error: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SwitchStatus {
    /// `group`, `survival`, `drill` or `drain`.
    pub(crate) kind: String,
    /// Of the group, the route or the server.
    pub(crate) name: Option<String>,
    /// Of a drill.
    pub(crate) cause: Option<String>,
    pub(crate) since: String,
    /// None: until somebody switches back.
    pub(crate) ends_in_seconds: Option<u64>,
}

/// What is asked for, as a query.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Wish {
    kind: String,
    name: Option<String>,
    cause: Option<String>,
    /// `on` or `off`, of the routes, of survival mode, of the drill.
    state: String,
    #[serde(rename = "for")]
    span: Option<String>,
}

/// What a drill lasts, unless said otherwise, and at most: nobody means to leave one on.
const DRILL: Duration = Duration::from_secs(30);
const DRILL_MAX: Duration = Duration::from_secs(3600);

pub(super) async fn list(State(room): State<Room>) -> Json<SwitchesStatus> {
    Json(SwitchesStatus::of(&room.desk))
}

pub(super) async fn switch(
    State(room): State<Room>,
    headers: HeaderMap,
    Query(wish): Query<Wish>,
) -> Response {
    if let Err((status, why)) = may_change(&room, &headers) {
        return refuse(status, why);
    }
    let plan = std::sync::Arc::clone(&room.desk.fleet().generation().config.plan);
    let (what, set, span) = match wish.meant(&plan) {
        Ok(meant) => meant,
        Err(why) => return refuse(StatusCode::UNPROCESSABLE_ENTITY, &why),
    };
    let (kind, name) = (what.kind(), what.name().map(str::to_owned));
    {
        let now = room.desk.now().at;
        let mut board = room.desk.switchboard();
        if set {
            board.set(what, span.map(|span| now + span));
        } else {
            board.clear(&what);
        }
    }
    room.desk.switch();
    let seconds = span.map(|span| span.as_secs());
    let by = room.door.name();
    event!("switched", kind = kind, name = name, state = wish.state, seconds = seconds, by = by);
    Json(SwitchesStatus::of(&room.desk)).into_response()
}

impl Wish {
    /// What is to be switched, whether it is to be set or cleared, and for how long.
    fn meant(&self, plan: &Plan) -> Result<(What, bool, Option<Duration>), String> {
        let on = match self.state.as_str() {
            "on" => true,
            "off" => false,
            other => return Err(format!("state={other}: write on or off")),
        };
        let span = self.span.as_deref().map(str::parse::<Span>).transpose();
        let span = span.map_err(|bad| format!("for: {bad}"))?.map(|span| span.0);
        let name = || self.name.clone().ok_or_else(|| format!("{} needs a name", self.kind));
        match self.kind.as_str() {
            "group" => {
                let group = name()?;
                if !groups(plan).contains_key(&group) {
                    return Err(format!("no route is in a group named {group:?}"));
                }
                Ok((What::Off { group }, !on, span))
            }
            "survival" => Ok((What::Survival, on, span)),
            "drill" => {
                let route = name()?;
                if !plan.routes().iter().any(|known| known.name == route) {
                    return Err(format!("there is no route named {route:?}"));
                }
                let cause = self.cause.as_deref().unwrap_or("open");
                let cause = Cause::named(cause).ok_or_else(|| {
                    let known = Cause::ALL.map(Cause::name).join(", ");
                    format!("cause={cause}: there are {known}")
                })?;
                let span = span.unwrap_or(DRILL);
                if span > DRILL_MAX {
                    return Err(format!("a drill ends after at most {}", Span(DRILL_MAX)));
                }
                Ok((What::Drill { route, cause }, on, Some(span)))
            }
            "drain" => {
                let server = name()?;
                let found = server.split_once('/');
                let found = found.and_then(|(upstream, it)| plan.endpoint(upstream, it));
                let Some(endpoint) = found else {
                    return Err(format!("there is no server {server:?}: write upstream/host:port"));
                };
                Ok((What::Drain { key: endpoint.key, server }, on, span))
            }
            other => Err(format!("kind={other}: write group, survival, drill or drain")),
        }
    }
}

impl SwitchesStatus {
    fn of(desk: &Desk) -> Self {
        let now = desk.now().at;
        let plan = std::sync::Arc::clone(&desk.fleet().generation().config.plan);
        let board = desk.switchboard();
        let switches = board.all().iter().map(|switch| SwitchStatus {
            kind: switch.what.kind().to_owned(),
            name: switch.what.name().map(str::to_owned),
            cause: switch.what.cause().map(|cause| cause.name().to_owned()),
            since: clock::rfc3339(switch.since),
            ends_in_seconds: switch.until.map(|until| until.since(now).as_secs()),
        });
        let vital = plan.routes().iter().filter(|route| route.vital);
        Self {
            switches: switches.collect(),
            groups: groups(&plan),
            vital: vital.map(|route| route.name.clone()).collect(),
            error: None,
        }
    }
}

fn groups(plan: &Plan) -> BTreeMap<String, Vec<String>> {
    let mut groups: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for route in plan.routes() {
        if let Some((group, _)) = &route.group {
            groups.entry(group.clone()).or_default().push(route.name.clone());
        }
    }
    groups
}
