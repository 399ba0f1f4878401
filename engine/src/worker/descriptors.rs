//! How many descriptors a worker may spend on clients, so that some are left to serve them with.
//!
//! A client that is let in needs a second descriptor as soon as it asks for something: its
//! connection to an upstream. Without a reserve, clients take all there are, and nobody is served.

use sluice_policy::plan::Plan;

/// What one worker may open while it serves, clients and upstreams together. A share of the
/// process's limit (RLIMIT_NOFILE), fixed at start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share(u32);

/// How a share is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Split {
    /// Client connections at the most.
    pub(crate) clients: u32,
    /// Pipes at the most, to splice bodies through; without one they are copied.
    pub(crate) pipes: u32,
}

impl Share {
    /// `limit`: what the process may open, None for any number; `open`: what it has open before
    /// its workers start.
    pub(crate) fn of(limit: Option<u64>, open: u64, workers: usize, listeners: usize) -> Self {
        let Some(limit) = limit else { return Self(u32::MAX) };
        let workers = (workers as u64).max(1);
        let fixed = WORKER + LISTENER * listeners as u64;
        let left = limit.saturating_sub(open + SPARE + workers * fixed);
        Self(u32::try_from(left / workers).unwrap_or(u32::MAX))
    }

    /// What is asked for in clients, if that leaves enough for all connections to upstreams, and
    /// half of the share in any case.
    pub(crate) fn split(self, asked: u32, plan: &Plan) -> Split {
        let upstreams = plan.upstreams().iter().map(|upstream| {
            let servers = u32::try_from(upstream.endpoints.len()).unwrap_or(u32::MAX);
            upstream.connections_max.saturating_mul(servers)
        });
        self.beside(asked, upstreams.fold(0, u32::saturating_add))
    }

    fn beside(self, asked: u32, upstreams: u32) -> Split {
        // A connection to an upstream, and a pipe between it and its client.
        let reserve = upstreams.saturating_mul(3).min(self.0 / 2);
        // One at least: a gateway that lets nobody in can't even be asked what is wrong.
        let clients = asked.min(self.0 - reserve).max(1);
        // A client's request is under way to two servers at the most.
        let used = clients.saturating_add(upstreams.min(clients.saturating_mul(2)));
        let left = self.0.saturating_sub(used);
        Split { clients, pipes: left / 2 }
    }

    /// Clients there is room for whatever the configuration.
    pub(crate) fn sure(self) -> u32 {
        self.beside(u32::MAX, u32::MAX).clients
    }
}

/// A worker's own: the ring or epoll, the bell and its other end, the watch over resting
/// connections.
const WORKER: u64 = 10;

/// A listening socket, as the worker, its runtime and the control thread hold it.
const LISTENER: u64 = 3;

/// For the control thread: the admin API, health checks, files, name lookups.
const SPARE: u64 = 24;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_has_its_share_of_what_is_left() {
        for (limit, open, workers, listeners, expected) in [
            (None, 10, 4, 1, u32::MAX),
            (Some(128), 11, 1, 1, 80),
            (Some(128), 11, 2, 1, 33),
            (Some(1024), 20, 4, 2, 229),
            (Some(1_048_576), 20, 16, 1, 65_520),
            (Some(20), 11, 1, 1, 0),
            (Some(u64::MAX), 0, 1, 1, u32::MAX),
        ] {
            let share = Share::of(limit, open, workers, listeners);
            assert_eq!(share, Share(expected), "{limit:?} {workers}");
        }
    }

    #[test]
    fn clients_leave_room_for_their_upstreams() {
        // (share, asked, upstreams, clients, pipes)
        for (share, asked, upstreams, clients, pipes) in [
            (80, 16_384, 64, 40, 0),
            (80, 16_384, 10, 50, 10),
            (80, 20, 64, 20, 10),
            (65_520, 16_384, 128, 16_384, 24_504),
            (10_000, 16_384, 128, 9_616, 128),
            (0, 16_384, 64, 1, 0),
            (u32::MAX, u32::MAX, 0, u32::MAX, 0),
        ] {
            let split = Share(share).beside(asked, upstreams);
            assert_eq!(split, Split { clients, pipes }, "{share} {asked} {upstreams}");
        }
        assert_eq!(Share(81).sure(), 41);
    }
}
