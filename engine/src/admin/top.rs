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
    let mut workers = Vec::new();
    for (_, answer) in asked {
        if let Ok(Ok(snapshot)) = tokio::time::timeout(PATIENCE, answer).await {
            workers.push(snapshot.top);
        }
    }
    let wanted = wanted(&workers);
    let mut limits: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for TopKey { limit, hash, written, recent } in summed(workers.into_iter().flatten().collect()) {
        let key = (!written.is_empty()).then_some(written);
        let shown = json!({ "hash": format!("{hash:016x}"), "key": key, "recent": recent });
        let most = wanted.get(&limit).copied().unwrap_or_default();
        let keys = limits.entry(limit).or_default();
        if keys.len() < most {
            keys.push(shown);
        }
    }
    let limits = limits.into_iter().map(|(name, keys)| json!({ "name": name, "top": keys }));
    Json(json!({ "limits": limits.collect::<Vec<_>>() }))
}

/// How many keys of each limit are watched: workers that look at different moments may name
/// different ones, but each names no more than that.
fn wanted(workers: &[Vec<TopKey>]) -> BTreeMap<String, usize> {
    let mut wanted = BTreeMap::new();
    for top in workers {
        let mut of_one: BTreeMap<&String, usize> = BTreeMap::new();
        top.iter().for_each(|heavy| *of_one.entry(&heavy.limit).or_default() += 1);
        for (limit, count) in of_one {
            let most = wanted.entry(limit.clone()).or_default();
            *most = count.max(*most);
        }
    }
    wanted
}

/// Each key once, the heaviest first, as written by any worker that has seen it.
fn summed(keys: Vec<TopKey>) -> Vec<TopKey> {
    let mut all: BTreeMap<(String, u64), (u32, String)> = BTreeMap::new();
    for TopKey { limit, hash, written, recent } in keys {
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
        let seen = vec![key(1, "ip=a", 5), key(2, "", 4), key(2, "ip=b", 3), key(1, "", 1)];
        assert_eq!(summed(seen), [key(2, "ip=b", 7), key(1, "ip=a", 6)]);
        let wanted = wanted(&[vec![key(1, "", 5)], vec![key(2, "", 4)], vec![]]);
        assert_eq!(wanted, BTreeMap::from([("l".to_owned(), 1)]));
    }
}
