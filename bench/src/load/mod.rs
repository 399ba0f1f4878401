//! The load: many connections on one epoll thread, by rate (open loop) or flat out (closed loop).
//!
//! In an open loop a request's latency counts from when the schedule said it was *due*. When the
//! target stalls, the requests that should have been sent meanwhile wait here, and their wait is
//! part of what a user would have felt. Counting from the send would leave it out: that mistake
//! is called coordinated omission.

mod connection;
mod crowd;
mod drive;
mod greedy;
mod request;
mod schedule;
mod tally;
mod target;

use std::num::NonZeroU32;
use std::time::Duration;

pub use self::crowd::{Crowd, Farewell};
pub use self::drive::{Moment, run, run_looking};
pub use self::greedy::{Greed, PIPELINED, indulge};
pub use self::request::{Head, Method};
pub use self::schedule::Arrivals;
pub use self::tally::{End, Failure, Outcome};
pub use self::target::Target;

/// What to do, completely.
#[derive(Clone, Debug)]
pub struct Work {
    pub target: Target,
    pub head: Head,
    pub body_bytes: u64,
    pub connections: u32,
    pub pace: Pace,
    /// A new connection for every request instead of keep-alive.
    pub connect_each: bool,
    pub warm_up: Duration,
    pub duration: Duration,
    /// Ends the measured window early, after this many requests.
    pub requests_max: u64,
    /// From the send; then the request counts as failed and its connection is closed.
    pub timeout: Duration,
    /// How long after the window answers are still awaited.
    pub grace: Duration,
    pub seed: u64,
    /// Keeps what came of every single request, and when.
    pub keep_ends: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pace {
    /// The next request as soon as the last was answered: finds the most a target can do.
    Closed,
    /// Requests a second, whatever the target does: finds what users would feel.
    Open { rate: NonZeroU32, arrivals: Arrivals },
    /// As open, at one rate after another; the last goes on.
    Stepped { steps: Vec<Step>, arrivals: Arrivals },
}

/// A rate, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    pub rate: NonZeroU32,
    pub lasts: Duration,
}
