//! The limits in force: what each promises, what it decided, and how full the node's table is.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};
use sluice_policy::keeper::RuleFigures;
use sluice_policy::ledger::Figures;

use super::Room;
use crate::observe::cells::{Cell, Cells, LimitCells};
use crate::observe::exposition::by_name;

pub(super) async fn limits(State(room): State<Room>) -> Json<Value> {
    let fleet = room.desk.fleet();
    let (cells, ledger) = (fleet.cells(), fleet.ledger());
    let store = room.desk.store.report();
    let counted = by_name(&cells, Cells::limits);
    let rule = |promise: sluice_policy::admit::bound::Promise| {
        let cells = counted.get(&promise.name).map(Vec::as_slice).unwrap_or_default();
        let sum =
            |read: fn(&LimitCells) -> &Cell| cells.iter().map(|c| read(c).value()).sum::<u64>();
        json!({
            "name": promise.name,
            "kind": promise.kind,
            "key": promise.key,
            "rate": promise.rate,
            "quota": promise.quota,
            "window_seconds": promise.window_seconds,
            "shadow": promise.shadow,
            "default": promise.default,
            "bound": promise.bound,
            "over_max": promise.over_max,
            "over_max_per_minute_while_lost": promise.lost_per_minute,
            "store": store.rules.iter().find(|rule| rule.name == promise.name).map(shared),
            "allowed": sum(|c| &c.allowed),
            "refused": sum(|c| &c.refused),
            "shadow_refused": sum(|c| &c.shadow_refused),
        })
    };
    let plan = &fleet.generation().config.plan;
    let rules: Vec<_> = plan.promises().map(rule).collect();
    let places = |promise: sluice_policy::admit::bound::PlacesPromise| {
        let name = format!("route.{}", promise.route);
        json!({
            "route": promise.route,
            "key": promise.key,
            "max": promise.max,
            "bound": promise.bound,
            "over_max_while_lost": promise.over_max,
            "store": store.rules.iter().find(|rule| rule.name == name).map(shared),
        })
    };
    let places: Vec<_> = plan.places().map(places).collect();
    let own = |(field, value): (&String, &String)| json!({ "key": field, "value": value, "error": store.unread.get(field) });
    let overrides: Vec<_> = store.overrides.iter().map(own).collect();
    let tables: BTreeMap<_, _> =
        ledger.tables().map(|(table, figures)| (table, full(figures))).collect();
    Json(json!({
        "limits": rules,
        "concurrency": places,
        "tables": tables,
        "overrides": overrides,
        "in_progress": ledger.permits(),
    }))
}

/// How full one of the node's tables is.
fn full(figures: Figures) -> Value {
    json!({
        "held": figures.held,
        "room": figures.capacity,
        "forgotten": figures.forgotten,
        "full": figures.full,
    })
}

/// What a store of shared counts has to do with it, as this node sees it.
fn shared(rule: &RuleFigures) -> Value {
    json!({
        "keys": rule.keys,
        "tokens_held": rule.held,
        "messages": rule.messages,
        "parked": rule.parked,
        "degraded_allowed": rule.degraded_allowed,
        "degraded_refused": rule.degraded_refused,
    })
}
