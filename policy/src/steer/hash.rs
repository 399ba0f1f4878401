//! The same key to the same server, as long as that one has room: consistent hashing with bounded
//! loads (Mirrokni, Thorup and Zadimoghaddam, 2016) over rendezvous hashing.
//!
//! With m requests under way, this one counted, a server of weight w takes no more than
//! max(4, ⌈(1 + headroom) · m · w / W⌉) of them, W being the weight of all that are open. One that is
//! full passes a key on to the key's next choice, which is another server for every key: what spills
//! over spreads, where a ring would push it all to one neighbour. Requests are counted over the
//! whole node, because a worker by itself has too few to tell whether a server has too many.

use crate::admit::key::Key;
use crate::facts::Facts;
use crate::mechanism::rendezvous::Claim;
use crate::plan::{Plan, Route, Target};
use crate::steer::Search;
use crate::steer::balance::Rule;

/// For so many requests every server has room. A share of a handful says nothing about load, and a
/// request whose answer is out, but which is not off the books yet, would move its successor.
const ROOM_MIN: u32 = 4;

/// What belongs together, and how far above its share a server may be.
#[derive(Debug)]
pub(crate) struct Affinity {
    pub(crate) key: Key,
    pub(crate) headroom_ppm: u32,
}

/// What this request is known by where it goes; None where that makes no difference, and for a
/// request that has nothing of what the operator named.
pub(crate) fn affinity(plan: &Plan, route: &Route, facts: &Facts<'_>) -> Option<u64> {
    let Target::Upstream(id) = route.target else { return None };
    match &plan.upstream(id)?.spread.balance {
        Rule::Hash(affinity) => affinity.key.stable(facts, route.key),
        Rule::RoundRobin | Rule::P2c | Rule::Weighted | Rule::PeakEwma { .. } => None,
    }
}

/// The key's first choice among those that are open and have room.
pub(super) fn first_choice(
    it: &Search<'_>,
    affinity: &Affinity,
    key: u64,
    open: &dyn Fn(u16) -> bool,
) -> Option<u16> {
    let best = favourite(it, key, open)?;
    let open_weight: u64 =
        it.endpoints().filter(|(e, _)| open(*e)).map(|(_, it)| u64::from(it.weight)).sum();
    let requests = u64::from(it.load_of_all()) + 1;
    let factor = u64::from(affinity.headroom_ppm) + 1_000_000;
    let has_room = |e: u16| {
        let Some(endpoint) = it.upstream.endpoints.get(usize::from(e)) else { return false };
        let taken = it.load_of(e);
        // load < (1 + headroom) · requests · weight / open weight, without dividing.
        let scaled = u128::from(taken) * u128::from(open_weight) * 1_000_000;
        taken < ROOM_MIN
            || scaled < u128::from(factor) * u128::from(requests) * u128::from(endpoint.weight)
    };
    if has_room(best) {
        return Some(best);
    }
    let roomy = |e: u16| open(e) && has_room(e);
    // Somebody has room, unless other workers have just taken it.
    favourite(it, key, &roomy).or(Some(best))
}

fn favourite(it: &Search<'_>, key: u64, open: &dyn Fn(u16) -> bool) -> Option<u16> {
    let open = it.endpoints().filter(|(e, _)| open(*e));
    let claims = open.map(|(e, endpoint)| (e, Claim::new(key, endpoint.key.0, endpoint.weight)));
    claims.reduce(|best, next| if next.1.beats(best.1) { next } else { best }).map(|(e, _)| e)
}
