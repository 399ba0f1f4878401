//! The servers of an origin that can do so much and no more, with one queue before them.
//!
//! As with most servers, a request that was read is worked on when its turn comes, whether
//! anybody still waits for it or not.

use std::collections::VecDeque;

/// `T` is what waits for its turn.
#[derive(Debug)]
pub(super) struct Servers<T> {
    /// None: as many as are asked for.
    count: Option<usize>,
    busy: usize,
    queue: VecDeque<Waiting<T>>,
}

#[derive(Debug)]
struct Waiting<T> {
    what: T,
    since_ns: u64,
    takes_ns: u64,
}

impl<T> Servers<T> {
    pub(super) fn new(count: Option<usize>) -> Self {
        Self { count, busy: 0, queue: VecDeque::new() }
    }

    /// When it will be done, if a server is free; otherwise it waits.
    pub(super) fn arrive(&mut self, now_ns: u64, what: T, takes_ns: u64) -> Option<(u64, T)> {
        self.queue.push_back(Waiting { what, since_ns: now_ns, takes_ns });
        self.next(now_ns)
    }

    /// A server was done then. The next it takes, and when that will be done: it went on at once,
    /// however late we are told.
    pub(super) fn done(&mut self, at_ns: u64) -> Option<(u64, T)> {
        self.busy = self.busy.saturating_sub(1);
        self.next(at_ns)
    }

    /// From now on there are so many. Who is at work finishes; ask [`Self::next`] until nobody
    /// more begins.
    pub(super) fn resize(&mut self, count: usize) {
        self.count = Some(count);
    }

    pub(super) fn next(&mut self, free_ns: u64) -> Option<(u64, T)> {
        if self.count.is_some_and(|count| self.busy >= count) {
            return None;
        }
        let Waiting { what, since_ns, takes_ns } = self.queue.pop_front()?;
        self.busy += 1;
        Some((free_ns.max(since_ns).saturating_add(takes_ns), what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_work_at_once_and_the_rest_waits_in_order() {
        let mut servers = Servers::new(Some(2));
        assert_eq!(servers.arrive(100, 'a', 10), Some((110, 'a')));
        assert_eq!(servers.arrive(101, 'b', 10), Some((111, 'b')));
        assert_eq!(servers.arrive(102, 'c', 10), None);
        assert_eq!(servers.arrive(117, 'd', 10), None);
        // Told late, it went on at once; but nobody begins before it has come.
        assert_eq!(servers.done(110), Some((120, 'c')));
        assert_eq!(servers.done(111), Some((127, 'd')));
        assert_eq!(servers.done(120), None);
        assert_eq!(servers.arrive(130, 'e', 10), Some((140, 'e')));
    }

    #[test]
    fn servers_go_when_they_have_finished_and_come_back_at_once() {
        let mut servers = Servers::new(Some(4));
        for what in 0..4 {
            assert!(servers.arrive(0, what, 10).is_some());
        }
        for what in 4..10 {
            assert_eq!(servers.arrive(1, what, 10), None);
        }
        servers.resize(2);
        assert_eq!(
            [10, 10, 10, 10].map(|at| servers.done(at).is_some()),
            [false, false, true, true]
        );
        servers.resize(4);
        assert_eq!((servers.next(12), servers.next(12)), (Some((22, 6)), Some((22, 7))));
        assert_eq!(servers.next(12), None);
        let mut any = Servers::new(None);
        assert!((0..1_000).all(|what| any.arrive(0, what, 10).is_some()));
    }
}
