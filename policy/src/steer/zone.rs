//! Servers of the gateway's own zone first, for as long as there is enough of them.
//!
//! Each side, the own zone and all others, is taken to have 40 % more room than its weight says
//! (Envoy's overprovisioning factor). So while at least 1/1.4 of the own zone's weight is well,
//! everything stays there. Below, it keeps 1.4 times the share that is well, and the rest goes to
//! the others by their weights. When both together have too little, each gets its part of what is
//! left: nobody's servers are spared at the cost of the other's.

use crate::mechanism::rendezvous::mixed;
use crate::plan::Upstream;
use crate::steer::{Pinned, Search, Spot, Steer};
use crate::time::Instant;

/// How much of its own load each side can take.
const ROOM_PERCENT: u64 = 140;
pub(crate) const WHOLE_PPM: u32 = 1_000_000;
/// Sets the throw for a side apart from the one for a server.
const SIDES: u64 = 0x5169_6465;

/// The share of the requests that stay, in parts per million, from the weights that are well and
/// those there are, near and far.
fn near_ppm(near: (u64, u64), far: (u64, u64)) -> u32 {
    let whole = u64::from(WHOLE_PPM);
    let room = |(well, all): (u64, u64)| match all {
        0 => 0,
        all => (well * ROOM_PERCENT * 10_000 / all).min(whole),
    };
    let (near, far) = (room(near), room(far));
    let share = match near + far {
        0 => whole,
        sum if sum < whole => near * whole / sum,
        _ => near,
    };
    u32::try_from(share).unwrap_or(WHOLE_PPM)
}

impl Steer {
    /// Which side this request goes to: one of the gateway's own zone, or not. None where zones
    /// make no difference. By its key, if it has one, so that a key does not go back and forth.
    pub(super) fn side(
        &mut self,
        plan: &Pinned,
        upstream: &Upstream,
        at: usize,
        affinity: Option<u64>,
    ) -> Option<bool> {
        if !upstream.spread.zoned {
            return None;
        }
        let share = plan.turns.get(at)?.near_ppm();
        let throw = match affinity {
            _ if share >= WHOLE_PPM => return Some(true),
            Some(key) => mixed(key, SIDES) % u64::from(WHOLE_PPM),
            None => self.dice.below(WHOLE_PPM.into()),
        };
        Some(throw < share.into())
    }
}

impl Search<'_> {
    /// How much of each side is well, looked at once a tick.
    pub(super) fn survey(&self) -> u32 {
        let panics = self.panics();
        let (mut near, mut far) = ((0, 0), (0, 0));
        for (e, endpoint) in self.endpoints() {
            let side = if endpoint.near { &mut near } else { &mut far };
            let weight = u64::from(endpoint.weight);
            let spot = Spot { upstream: self.id, endpoint: e };
            let well = self.plan.is_fit(spot) && (panics || !self.is_ejected(e));
            *side = (side.0 + if well { weight } else { 0 }, side.1 + weight);
        }
        near_ppm(near, far)
    }
}

impl Pinned {
    /// Looks at the zones of every upstream that has some.
    pub(super) fn survey(&self, now: Instant) {
        for (id, turn) in (0..).zip(&self.turns) {
            if let Some(it) = Search::new(self, crate::plan::UpstreamId(id), now)
                && it.upstream.spread.zoned
            {
                turn.set_near_ppm(it.survey());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_zone_keeps_what_it_can_take() {
        for (near, far, expected) in [
            ((3, 3), (6, 6), 1_000_000),
            // 3 of 4 are above 1/1.4.
            ((3, 4), (8, 8), 1_000_000),
            ((2, 4), (8, 8), 700_000),
            ((1, 4), (8, 8), 350_000),
            ((0, 4), (8, 8), 0),
            // Too little on both sides: 0.35 and 0.35, then 0.35 and 0.14.
            ((1, 4), (2, 8), 500_000),
            ((5, 20), (1, 10), 714_285),
            ((1, 4), (0, 8), 1_000_000),
            ((0, 4), (0, 8), 1_000_000),
        ] {
            assert_eq!(near_ppm(near, far), expected, "{near:?} {far:?}");
        }
    }
}
