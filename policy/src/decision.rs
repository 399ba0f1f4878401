//! The conversation about one request: the engine brings an [`Event`], policy returns a
//! [`Decision`], and each decision says which event answers it.

pub use crate::recover::hold::Hold;
pub use crate::recover::idempotent;
use core::time::Duration;

use crate::cache::Lookup;
use crate::degrade::Source;
use crate::plan::{EndpointKey, ReplyId, UpstreamId};
use crate::time::Instant;

/// What happened to the request since the last decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The head has been read.
    Arrived,
    /// `Facts` now hold what `Decision::Learn` asked for.
    Learned,
    /// The endpoint answered with a final head; of a response that `Flight::hold` takes, with all of it.
    Responded { status: u16 },
    /// The attempt ended before that. `replayable`: the engine still has every byte of the
    /// request, so it could be sent again.
    Failed { failure: Failure, replayable: bool },
    /// `Call::hedge` is over, and no head has come.
    Slow,
    /// The endpoint of `Decision::Hedge` answered first. The other attempt has been ended.
    Overtaken { status: u16 },
    /// One of the two attempts of a hedged request has failed: the second, or the first. The other
    /// is under way.
    Fell { second: bool, failure: Failure },
    /// `Decision::Wait` is over.
    Woke,
    /// Nothing that is kept will do for `Decision::Serve`.
    Missed,
}

/// What the engine must do next. Relay, Answer and a found Serve are the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Decision {
    /// Find this out, put it in `Facts`. Answered by `Learned`.
    Learn(Need),
    /// Send the request there. Answered by `Responded`, `Failed` or `Slow`.
    Call(Call),
    /// Send the request there, too, and go on waiting for whichever head comes first. Answered by
    /// `Responded`, `Overtaken` or `Fell`.
    Hedge(Call),
    /// Go on waiting for the call. Answered by `Responded` or `Failed`.
    Await,
    /// Do nothing until then; of a flight that `awaits_store`, at most until the store has answered.
    /// Answered by `Woke`.
    Wait(Instant),
    /// Pass the response on.
    Relay,
    /// Reply with a copy that will do. Answered by `Missed` when there is none; a response that has
    /// come stays until then.
    Serve(Lookup),
    /// Reply ourselves.
    Answer(Answer),
}

/// A fact that costs something to find out, so it is found out only on request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Read the whole body if it has at most this many bytes, so that its length is known.
    Body { bytes_max: u32 },
}

/// One attempt. The engine stops it at the first of these bounds and reports `Failed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    pub upstream: UpstreamId,
    pub endpoint: EndpointKey,
    /// Do not reuse an idle connection: the last one was found dead.
    pub fresh: bool,
    /// Keep up to so many bytes of a body while they are sent, so that they could be sent again. A
    /// request whose stated length fits can be, whatever comes of the call.
    pub keep: u32,
    /// When every connection is in use, wait this long for one to come back.
    pub queue: Duration,
    /// Give up connecting after this long.
    pub connect: Duration,
    /// Give up when the response's head has not come this long after the request was sent.
    pub first_byte: Duration,
    /// Give up when nothing moves for this long while a body passes, either way.
    pub idle: Duration,
    /// Say so (`Slow`) when the head has not come this long after the request was sent.
    pub hedge: Option<Duration>,
    /// The request's own deadline for a response head, over all attempts; the time that a
    /// streaming upload takes does not count.
    pub deadline: Instant,
}

/// Why an attempt gave no response, and so whether the request may have had an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Every connection is in use and the pool is at its bound. Nothing was sent.
    PoolFull,
    /// No connection came about (refused, unreachable, handshake). Nothing was sent.
    Connect,
    /// No connection came about in time. Nothing was sent.
    ConnectTimeout,
    /// A reused connection was closed without one byte of response: most likely it closed
    /// before our request reached it, but nobody can know (RFC 9112 section 9.3.1).
    Stale,
    /// Closed or reset after the request, or part of it, was sent.
    Broken,
    /// What came back is not HTTP.
    Malformed,
    /// No response head in time.
    TimedOut,
    /// Closed or reset behind the head of a response that was held.
    Cut,
    /// The head of a response that was held came in time, its body did not.
    Stalled,
}

impl Failure {
    /// No byte left us, so no application can have acted.
    pub const fn unsent(self) -> bool {
        match self {
            Self::PoolFull | Self::Connect | Self::ConnectTimeout => true,
            Self::Stale
            | Self::Broken
            | Self::Malformed
            | Self::TimedOut
            | Self::Cut
            | Self::Stalled => false,
        }
    }

    /// A head had come.
    pub const fn behind_head(self) -> bool {
        matches!(self, Self::Cut | Self::Stalled)
    }
}

/// A reply of our own. `code` is stable: it is what logs, metrics and clients match on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    pub code: &'static str,
    /// Rounded up to whole seconds on the wire.
    pub retry_after: Option<Duration>,
    /// Set for what the operator wrote (redirect, fixed response, fallback); None for a problem of
    /// ours.
    pub reply: Option<ReplyId>,
    /// It stands for what could not be had. `code` says why.
    pub degraded: Option<Source>,
}

impl Answer {
    pub const fn problem(status: u16, code: &'static str) -> Self {
        Self { status, code, retry_after: None, reply: None, degraded: None }
    }
}
