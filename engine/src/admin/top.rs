//! The heaviest keys of the limits that watch them, over all workers.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};
use sluice_policy::admit::heavy::TopKey;

use super::Room;

/// A worker that is busier than that is left out.
const PATIENCE: Duration = Duration::from_secs(1);

pub(super) async fn top(State(room): State<Room>) -> Json<Value> {
    let asked = room.desk.fleet().inspect();
    let mut seen = Vec::new();
    for (_, answer) in asked {
        if let Ok(Ok(snapshot)) = tokio::time::timeout(PATIENCE, answer).await {
            seen.push(snapshot.top);
        }
    }
    let mut limits: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for TopKey { limit, hash, written, recent } in summed(seen) {
        let key = (!written.is_empty()).then_some(written);
        let shown = json!({ "hash": format!("{hash:016x}"), "key": key, "recent": recent });
        limits.entry(limit).or_default().push(shown);
    }
    let limits = limits.into_iter().map(|(name, keys)| json!({ "name": name, "top": keys }));
    Json(json!({ "limits": limits.collect::<Vec<_>>() }))
}

/// Each key once, the heaviest first, as written by any worker that has seen it. Of each limit as
/// many as a worker has: one that looked earlier may know others.
fn summed(seen: Vec<Vec<TopKey>>) -> Vec<TopKey> {
    let mut room: BTreeMap<String, usize> = BTreeMap::new();
    for keys in &seen {
        for key in keys {
            let own = keys.iter().filter(|other| other.limit == key.limit).count();
            let most = room.entry(key.limit.clone()).or_default();
            *most = own.max(*most);
        }
    }
    let mut all: BTreeMap<(String, u64), (u32, String)> = BTreeMap::new();
    for TopKey { limit, hash, written, recent } in seen.into_iter().flatten() {
        let (sum, known) = all.entry((limit, hash)).or_default();
        *sum = sum.saturating_add(recent);
        if known.is_empty() {
            *known = written;
        }
    }
    let whole = all.into_iter();
    let mut all: Vec<_> = whole
        .map(|((limit, hash), (recent, written))| TopKey { limit, hash, written, recent })
        .collect();
    all.sort_by_key(|heavy| std::cmp::Reverse(heavy.recent));
    all.retain(|heavy| {
        let left = room.get_mut(&heavy.limit).filter(|left| **left > 0);
        left.map(|left| *left -= 1).is_some()
    });
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_workers_saw_is_added_up_and_the_heaviest_comes_first() {
        let key = |hash, written: &str, recent| {
            let (limit, written) = ("l".to_owned(), written.to_owned());
            TopKey { limit, hash, written, recent }
        };
        let early = vec![key(1, "ip=a", 5), key(2, "", 4)];
        let late = vec![key(2, "ip=b", 3), key(1, "", 1)];
        assert_eq!(summed(vec![early, late]), [key(2, "ip=b", 7), key(1, "ip=a", 6)]);
        // They do not agree which is the heaviest one.
        assert_eq!(summed(vec![vec![key(1, "", 5)], vec![key(2, "", 6)]]), [key(2, "", 6)]);
    }
}
