//! Whether a shard that another server has now came to it whole. What a planned move carries over is
//! all there; what a replica took over may lack the last writes. Only the latter is a loss.
//!
//! It is known to be whole when the server that had it still lives, as the same run and a primary
//! ever since it was met, and the one that has it was never that one's replica: then there was no
//! way but a move. Everything else counts as a loss.

use std::time::Duration;

use redis::{RedisResult, cmd};
use sluice_config::StoreServer;
use sluice_policy::keeper::{Batch, SHARDS};

use super::client::Entry;
use super::find::Found;
use super::link::{Link, Load};

/// For all of it. Until then what has moved can't be asked.
const PATIENCE: Duration = Duration::from_millis(250);

/// Of a server that can be asked.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) server: StoreServer,
    pub(super) shards: u64,
    pub(super) link: Link,
}

/// How a server stands to its replicas. `INFO replication` says it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Standing {
    primary: bool,
    /// Of what it writes: another one from when it becomes a replica, or stops being one.
    id: String,
    /// Whose replica it was before; zeros: nobody's, as far as it knows.
    before: String,
}

impl Standing {
    pub(super) fn read(told: &str) -> Self {
        let line = |name: &str| {
            let line = told.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.unwrap_or_default().trim().to_owned()
        };
        let primary = line("role") == "master";
        Self { primary, id: line("master_replid"), before: line("master_replid2") }
    }

    /// It has been a primary from then until now.
    fn lasts(&self, now: &Self) -> bool {
        self.primary && now.primary && !self.id.is_empty() && self.id == now.id
    }

    /// It took over from nobody.
    fn is_first(&self) -> bool {
        self.primary && !self.before.is_empty() && self.before.bytes().all(|b| b == b'0')
    }
}

/// Whether what went from one to the other went by a move. `met`: the other had been met before.
fn by_a_move(from: [&Standing; 2], to: [&Standing; 2], met: bool) -> bool {
    let ([from_then, from_now], [to_then, to_now]) = (from, to);
    let apart = to_now.before != from_now.id && to_now.id != from_now.id;
    let primary = to_now.is_first() || (met && to_then.lasts(to_now));
    from_then.lasts(from_now) && primary && apart
}

/// Whether a shard that was had by one, and is on its way to the other or there, is whole there.
/// `met`: the connection to the other is from before it had the shard.
pub(super) async fn carried(from: &Link, to: &Link, met: bool) -> bool {
    let asking = async {
        let [from_now, to_now] = [from.clone().stands().await?, to.clone().stands().await?];
        let (from, to) = ([&from.standing, &from_now], [&to.standing, &to_now]);
        RedisResult::Ok(by_a_move(from, to, met))
    };
    matches!(tokio::time::timeout(PATIENCE, asking).await, Ok(Ok(true)))
}

/// Tells the new holders of shards that moved, before anybody counts there.
pub(super) async fn carry_over(entry: &Entry, node: &str, held: &[Held], found: &[Found]) {
    let telling = async {
        for before in held {
            for after in found.iter().filter(|after| after.server != before.server) {
                let shards = before.shards & after.shards;
                if shards != 0 {
                    tell(entry, node, (before, held), after, shards).await;
                }
            }
        }
    };
    // What is not told in time counts as lost.
    let _ = tokio::time::timeout(PATIENCE, telling).await;
}

async fn tell(
    entry: &Entry,
    node: &str,
    (before, held): (&Held, &[Held]),
    after: &Found,
    shards: u64,
) {
    let known = held.iter().find(|held| held.server == after.server);
    let link = match known {
        Some(known) => Ok(known.link.clone()),
        None => Link::make(entry.clone(), after.server.clone(), node.to_owned()).await,
    };
    let Ok(link) = link else { return };
    if carried(&before.link, &link, known.is_some()).await {
        let from = Some(before.link.run.clone());
        let moved = (0..SHARDS).filter(|shard| shards & (1 << shard) != 0);
        let batch = |shard| Batch { id: 0, shard, keys: Vec::new() };
        let load = |shard| Load { batch: batch(shard), asking: false, from: from.clone() };
        drop(link.carry(moved.map(load).collect()).await);
    }
}

impl Link {
    async fn stands(mut self) -> RedisResult<Standing> {
        let mut asked = cmd("INFO");
        let told: String = asked.arg("replication").query_async(self.line()).await?;
        Ok(Standing::read(&told))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standing(role: &str, id: &str, before: &str) -> Standing {
        Standing::read(&format!(
            "# Replication\r\nrole:{role}\r\nconnected_slaves:0\r\nmaster_replid:{id}\r\n\
             master_replid2:{before}\r\n"
        ))
    }

    #[test]
    fn only_a_planned_move_carries_all_of_a_shard() {
        let never = "0000000000000000";
        let master = |id, before| standing("master", id, before);
        let slave = |id| standing("slave", id, never);
        let (a, b) = (master("a", never), master("b", never));
        let (late, other) = (master("b", "a"), master("b", "c"));
        // (from: then, now; to: then, now; met before; whole)
        let table = [
            ([&a, &a], [&b, &b], true, true),
            // A server that was added for it.
            ([&a, &a], [&b, &b], false, true),
            // It has taken over from a third one, but long ago.
            ([&a, &a], [&other, &other], true, true),
            ([&a, &a], [&other, &other], false, false),
            // It was the first one's replica, and that one does not know yet.
            ([&a, &a], [&late, &late], true, false),
            ([&a, &a], [&late, &late], false, false),
            // Or knows.
            ([&a, &slave("b")], [&b, &b], true, false),
            ([&a, &slave("b")], [&late, &late], false, false),
            // And is back.
            ([&a, &master("d", "b")], [&b, &b], true, false),
            // It is one yet, or was meanwhile.
            ([&a, &a], [&slave("a"), &slave("a")], true, false),
            ([&a, &a], [&b, &other], true, true),
            ([&a, &a], [&b, &master("e", "c")], true, false),
            // A server that does not say.
            ([&Standing::default(), &Standing::default()], [&b, &b], true, false),
            ([&a, &a], [&Standing::default(), &Standing::default()], true, false),
        ];
        for (from, to, met, whole) in table {
            assert_eq!(by_a_move(from, to, met), whole, "{from:?} {to:?} {met}");
        }
    }
}
