//! Connections at rest: no task and no buffers, only a descriptor in the worker's readiness set.
//!
//! A client that says nothing for [`REST_AFTER`] is put here, between requests or amid a head, and
//! goes on where it was as soon as it says more or its time is up.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use sluice_policy::time::Instant;

use crate::accept::{self, Ticket};
use crate::runtime::{self, Readiness, has_ended};
use crate::sys;
use crate::worker::Worker;

/// Long enough that a busy connection never pays for coming and going, short enough that many that
/// say nothing do not pile up.
pub(crate) const REST_AFTER: Duration = Duration::from_millis(500);

/// Places are looked at in this order of time; see [`Resting::sweep`].
const SWEEP_EVERY: Duration = Duration::from_millis(250);

/// So many are told or closed together when their time is up; thousands may come to it at once, and
/// the others have their turn between.
const TOGETHER: usize = 8;

/// When so many have come to rest, their memory is given back to the system. Fewer hold too little
/// to be worth a look.
const CROWD: usize = 64;

/// Nobody has come to rest for so long: the crowd is there.
const SETTLED_AFTER: Duration = Duration::from_millis(125);

/// And not again before so much time has passed, unless as many have come as [`MANY`].
const GIVE_BACK_EVERY: Duration = Duration::from_secs(10);

/// A crowd that paused on its way in.
const MANY: usize = 1024;

/// All connections of one worker that are at rest.
#[derive(Debug, Default)]
pub(crate) struct Resting {
    ready: RefCell<Option<Rc<Readiness>>>,
    places: RefCell<Places>,
    swept: Cell<Instant>,
    /// Since freed memory was last given back; and when the last one did.
    rested: Cell<usize>,
    last: Cell<Instant>,
    given_back: Cell<Option<Instant>>,
}

#[derive(Debug, Default)]
struct Places {
    taken: Vec<Option<Rest>>,
    free: Vec<u32>,
    /// Nobody's time is up before, and so nobody needs to be looked at. None: nobody rests.
    soonest: Option<Instant>,
}

/// What is left of a connection while nothing happens on it.
#[derive(Debug)]
pub(crate) struct Rest {
    pub(crate) descriptor: OwnedFd,
    pub(crate) ticket: Ticket,
    pub(crate) peer: SocketAddr,
    /// What of a head has come.
    pub(crate) text: Box<[u8]>,
    /// It has asked for nothing yet.
    pub(crate) first: bool,
    /// What it was waiting for must have come by then.
    pub(crate) due: Instant,
    pub(crate) since: Instant,
}

/// Their time is up: who has begun to say something is told so, and the others are closed.
async fn end(worker: Rc<Worker>, late: Vec<Rest>) {
    for (ended, rest) in late.into_iter().enumerate() {
        if ended % TOGETHER == TOGETHER - 1 {
            worker.turns.pass().await;
        }
        match rest.text.is_empty() {
            true => drop(rest),
            false => accept::go_on(&worker, rest),
        }
    }
}

impl Resting {
    /// From now on connections can rest, and the caller has them go on that `ready` tells.
    pub(crate) fn start(&self, ready: &Rc<Readiness>) {
        self.ready.replace(Some(Rc::clone(ready)));
    }

    /// Whether connections can rest here.
    pub(crate) fn open(&self) -> bool {
        self.ready.borrow().is_some()
    }

    /// Put one to rest. If the kernel can't watch it, it is closed.
    pub(crate) fn take(&self, worker: &Worker, rest: Rest) {
        let Some(ready) = self.ready.borrow().clone() else { return };
        let mut places = self.places.borrow_mut();
        let place = places.free.pop().unwrap_or_else(|| {
            places.taken.push(None);
            u32::try_from(places.taken.len() - 1).unwrap_or(u32::MAX)
        });
        match ready.watch(&rest.descriptor, place.into()) {
            Ok(()) => {
                self.rested.set(self.rested.get() + 1);
                self.last.set(worker.now_cached().at);
                places.put(place, rest);
                worker.cells.connections_resting.set(places.resting());
            }
            Err(_) => places.free.push(place),
        }
    }

    /// These have something to be read.
    pub(crate) fn wake(&self, worker: &Rc<Worker>, tokens: &mut Vec<u64>) {
        for place in tokens.drain(..).filter_map(|token| u32::try_from(token).ok()) {
            let mut places = self.places.borrow_mut();
            let rest = places.leave(place);
            worker.cells.connections_resting.set(places.resting());
            drop(places);
            // One that has left leaves without waking anybody.
            if let Some(rest) = rest.filter(|rest| !has_ended(&rest.descriptor)) {
                accept::go_on(worker, rest);
            }
        }
    }

    /// For so long nobody is due.
    pub(crate) fn rest(&self, now: Instant) -> Duration {
        self.places.borrow().soonest.map_or(Duration::MAX, |soonest| soonest.since(now))
    }

    /// Those whose time is up are closed, or told so if a head has begun to come. `drain`: so are
    /// those that have been silent for so long.
    pub(crate) fn sweep(&self, worker: &Rc<Worker>, now: Instant, drain: Option<Duration>) {
        self.give_back(worker, now);
        if now < self.swept.get() + SWEEP_EVERY {
            return;
        }
        self.swept.set(now);
        let mut places = self.places.borrow_mut();
        if drain.is_none() && places.resting() > 0 && places.soonest > Some(now) {
            return;
        }
        let late = places.late(now, drain);
        worker.cells.connections_resting.set(places.resting());
        places.shrink();
        drop(places);
        if !late.is_empty() {
            drop(runtime::spawn(end(Rc::clone(worker), late)));
        }
    }
}

impl Resting {
    /// Give memory back when a crowd has come to rest and nobody else does. Everybody waits for the
    /// C library meanwhile: some 2 µs for each connection that has come to rest.
    fn give_back(&self, worker: &Worker, now: Instant) {
        let soon = self.given_back.get().is_some_and(|last| now < last + GIVE_BACK_EVERY);
        if is_settled_crowd(self.rested.get(), now.since(self.last.get()), soon) {
            self.given_back.set(Some(now));
            self.rested.set(0);
            worker.buffers.release();
            sys::trim();
        }
    }
}

/// `rested`: how many since memory was last given back, the last of them so long ago; `soon`: that
/// was not long ago.
fn is_settled_crowd(rested: usize, ago: Duration, soon: bool) -> bool {
    rested >= if soon { MANY } else { CROWD } && ago >= SETTLED_AFTER
}

impl Places {
    fn put(&mut self, place: u32, rest: Rest) {
        self.due(rest.due);
        self.taken[place as usize] = Some(rest);
    }

    /// Take out those whose time is up.
    fn late(&mut self, now: Instant, drain: Option<Duration>) -> Vec<Rest> {
        let mut late = Vec::new();
        self.soonest = None;
        for place in 0..self.taken.len() {
            let Some(rest) = &self.taken[place] else { continue };
            let leaves = rest.text.is_empty() && drain.is_some_and(|span| rest.since + span <= now);
            let due = rest.due;
            match due <= now || leaves {
                true => late.extend(self.leave(u32::try_from(place).unwrap_or(u32::MAX))),
                false => self.due(due),
            }
        }
        late
    }

    fn due(&mut self, due: Instant) {
        self.soonest = Some(self.soonest.map_or(due, |soonest| soonest.min(due)));
    }

    fn leave(&mut self, place: u32) -> Option<Rest> {
        let rest = self.taken.get_mut(place as usize)?.take()?;
        self.free.push(place);
        Some(rest)
    }

    fn resting(&self) -> u64 {
        (self.taken.len() - self.free.len()) as u64
    }

    /// The memory of a crowd goes with it.
    fn shrink(&mut self) {
        if self.free.len() == self.taken.len() && !self.taken.is_empty() {
            *self = Self::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::control::fixture::fleet;
    use crate::runtime::Wanted;
    use crate::worker::{News, Seat};

    const SECOND: Duration = Duration::from_secs(1);

    /// One that rests since the beginning of time.
    fn rest(worker: &Rc<Worker>, due: Instant) -> Rest {
        let address = Ipv4Addr::LOCALHOST.into();
        Rest {
            descriptor: UnixStream::pair().unwrap().0.into(),
            ticket: Ticket::take(worker, address).unwrap(),
            peer: (address, 1).into(),
            text: Box::default(),
            first: false,
            due,
            since: Instant::default(),
        }
    }

    /// Ends without saying so where an assertion fails.
    fn who_is_due(seat: Seat) {
        let (news, index) = (seat.news.clone(), seat.index);
        let ran = runtime::block_on(Wanted::Auto, |driver, fallen| async move {
            let worker = Worker::new(seat);
            let resting = Resting::default();
            let at = |seconds: u32| Instant::default() + SECOND * seconds;
            assert_eq!(resting.rest(at(1)), Duration::MAX, "nobody rests");
            for due in [5, 3, 9] {
                let mut places = resting.places.borrow_mut();
                places.taken.push(None);
                let place = places.taken.len() - 1;
                places.put(u32::try_from(place).unwrap(), rest(&worker, at(due)));
            }
            assert_eq!(resting.rest(at(1)), 2 * SECOND);
            let late = |now, drain| {
                let late = resting.places.borrow_mut().late(at(now), drain);
                late.into_iter().map(|rest| rest.due).collect::<Vec<_>>()
            };
            assert_eq!(late(2, None), []);
            assert_eq!(resting.rest(at(2)), SECOND);
            assert_eq!(late(3, None), [at(3)]);
            assert_eq!(resting.rest(at(3)), 2 * SECOND, "the next who is due");
            assert_eq!(late(4, Some(5 * SECOND)), []);
            assert_eq!(late(5, Some(5 * SECOND)), [at(5), at(9)], "silent for so long");
            assert_eq!(resting.rest(at(5)), Duration::MAX);
            (driver, fallen)
        });
        let Ok((driver, fallen)) = ran else { return };
        let _ = news.send(News::Started { worker: index, driver, fallen });
    }

    #[tokio::test]
    async fn who_is_due_next_is_known_whoever_has_left() {
        let (_fleet, mut heard) = fleet(1, who_is_due).await;
        let news = heard.recv().await;
        assert!(matches!(news, Some(News::Started { .. })), "{news:?}");
    }

    #[test]
    fn memory_is_given_back_when_a_crowd_has_come_and_not_at_every_step_of_it() {
        let (settled, coming) = (SETTLED_AFTER, Duration::ZERO);
        // (rested, the last so long ago, given back not long ago, so now)
        let table = [
            (CROWD, settled, false, true),
            (CROWD - 1, settled, false, false),
            (CROWD, coming, false, false),
            (MANY, coming, false, false),
            (MANY - 1, settled, true, false),
            // It had paused on its way in.
            (MANY, settled, true, true),
            (MANY, coming, true, false),
        ];
        for (rested, ago, soon, expected) in table {
            let found = is_settled_crowd(rested, ago, soon);
            assert_eq!(found, expected, "{rested}, {ago:?} ago, {soon}");
        }
    }
}
