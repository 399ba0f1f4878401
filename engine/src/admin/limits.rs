//! The limits in force: what each promises, what it decided, and how full the node's table is.

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use super::Room;
use crate::observe::cells::{Cell, Cells, LimitCells};
use crate::observe::exposition::by_name;

pub(super) async fn limits(State(room): State<Room>) -> Json<Value> {
    let fleet = room.desk.fleet();
    let (cells, ledger) = (fleet.cells(), fleet.ledger());
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
            "over_max": 0,
            "allowed": sum(|c| &c.allowed),
            "refused": sum(|c| &c.refused),
            "shadow_refused": sum(|c| &c.shadow_refused),
        })
    };
    let rules: Vec<_> = fleet.generation().config.plan.promises().map(rule).collect();
    Json(json!({
        "limits": rules,
        "keys": { "held": ledger.keys(), "room": ledger.capacity() },
        "window_blocks": ledger.blocks(),
        "in_progress": ledger.permits(),
    }))
}
