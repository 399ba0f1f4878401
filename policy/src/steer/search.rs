//! The endpoints of one upstream, as a worker sees them when it looks for one.

use core::cell::Cell;
use core::sync::atomic::Ordering::Relaxed;

use crate::mechanism::breaker::Mutant;
use crate::plan::{Endpoint, Upstream, UpstreamId};
use crate::steer::guard::{Eject, Guard};
use crate::steer::zone::WHOLE_PPM;
use crate::steer::{Pinned, Seats, Turn};
use crate::time::Instant;

/// What is looked for, and among what.
#[derive(Clone, Copy)]
pub(super) struct Search<'a> {
    pub(super) plan: &'a Pinned,
    pub(super) id: UpstreamId,
    pub(super) upstream: &'a Upstream,
    pub(super) now: Instant,
    /// What the request is known by, where that decides where it goes.
    pub(super) affinity: Option<u64>,
    /// Among the servers of the gateway's own zone, or among all others; None: among all.
    pub(super) near: Option<bool>,
}

impl<'a> Search<'a> {
    pub(super) fn new(plan: &'a Pinned, id: UpstreamId, now: Instant) -> Option<Self> {
        let upstream = plan.upstream(id)?;
        Some(Self { plan, id, upstream, now, affinity: None, near: None })
    }

    /// Every endpoint that has a share, with its place.
    pub(super) fn endpoints(&self) -> impl Iterator<Item = (u16, &'a Endpoint)> {
        (0_u16..).zip(&self.upstream.endpoints).filter(|(_, endpoint)| endpoint.weight > 0)
    }

    pub(super) fn is_near(&self, endpoint: u16) -> bool {
        self.upstream.endpoints.get(usize::from(endpoint)).is_some_and(|it| it.near)
    }

    /// Round robin goes its own way on each side.
    pub(super) fn cursor(&self) -> Option<&'a Cell<usize>> {
        let turn = self.plan.turns.get(self.id.index())?;
        Some(if self.near == Some(false) { &turn.far } else { &turn.at })
    }

    /// This worker's requests under way there.
    pub(super) fn taken(&self, endpoint: u16) -> u32 {
        self.seats(endpoint).map_or(0, |seats| seats.taken.get())
    }

    pub(super) fn cost_ns(&self, endpoint: u16, half_life_ns: u64) -> u64 {
        self.seats(endpoint).map_or(0, |seats| seats.pace.cost_ns(self.now, half_life_ns))
    }

    /// The whole node's requests under way there, where they are counted.
    pub(super) fn load_of(&self, endpoint: u16) -> u32 {
        self.guard(endpoint).map_or(0, |guard| guard.load().load(Relaxed))
    }

    pub(super) fn load_of_all(&self) -> u32 {
        self.plan.guard(self.id).map_or(0, |guard| guard.load().load(Relaxed))
    }

    pub(super) fn guard(&self, endpoint: u16) -> Option<&'a Guard> {
        self.plan.wards.get(self.place(endpoint))?.as_deref()
    }

    pub(super) fn eject(&self) -> Option<&'a Eject> {
        self.upstream.resilience.eject.as_ref()
    }

    pub(super) fn is_ejected(&self, endpoint: u16) -> bool {
        let ejects = self.eject().is_some();
        ejects && self.guard(endpoint).is_some_and(|guard| guard.board().is_out(self.now))
    }

    /// Whether one more may be taken out.
    pub(super) fn may_eject(&self, endpoint: u16) -> bool {
        let Some(eject) = self.eject() else { return false };
        let more = usize::from(eject.breaker.rule.errs(Mutant::OneMoreOut));
        self.out(Some(endpoint)) < eject.out_max + more
    }

    /// So few are left that nobody knows any better.
    pub(super) fn panics(&self) -> bool {
        let Some(eject) = self.eject() else { return false };
        let all = self.upstream.endpoints.len() as u64;
        let sound = all - self.out(None) as u64;
        !eject.breaker.rule.errs(Mutant::NoPanic)
            && sound * 1_000_000 < all * u64::from(eject.panic.0)
    }

    /// How many are out, for whatever reason.
    fn out(&self, besides: Option<u16>) -> usize {
        let endpoints = (0_u16..).zip(&self.upstream.endpoints).map(|(e, _)| e);
        let others = endpoints.filter(|e| Some(*e) != besides);
        let unwell =
            |e: u16| self.seats(e).is_some_and(|seats| seats.out.get() || seats.drained.get());
        others.filter(|e| unwell(*e) || self.is_ejected(*e)).count()
    }

    fn seats(&self, endpoint: u16) -> Option<&'a Seats> {
        self.plan.seats.get(self.place(endpoint)).map(std::rc::Rc::as_ref)
    }

    fn place(&self, endpoint: u16) -> usize {
        self.upstream.spread.first + usize::from(endpoint)
    }
}

impl Turn {
    pub(super) fn near_ppm(&self) -> u32 {
        WHOLE_PPM - self.far_ppm.get()
    }

    pub(super) fn set_near_ppm(&self, near_ppm: u32) {
        self.far_ppm.set(WHOLE_PPM.saturating_sub(near_ppm));
    }
}
