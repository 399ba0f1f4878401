//! A response that is held: its body is read on into the buffer that its head lies in, and so it is
//! in the end as if it had come whole with its head.

use std::time::Duration;

use sluice_policy::decision::{Call, Failure, Hold};
use sluice_policy::time::Instant;

use super::connection::Connection;
use super::{Attempt, Read};
use crate::http::parse::Framing;
use crate::http::{Exchange, Pending};
use crate::runtime::SPARE;
use crate::sweep::Until;
use crate::worker::Worker;

/// Where it begins and ends in its buffer, and until when it is waited for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub(super) body_at: usize,
    end: usize,
    until: Instant,
    idle: Duration,
}

/// How much of a body of stated length is still to come behind a head that ends there. Zero when it
/// is all here, or its length is not known.
pub(super) fn missing(connection: &Connection, buffer: &[u8], body_at: usize) -> u64 {
    let Framing::Length(length) = connection.head.framing else { return 0 };
    length.saturating_sub((buffer.len() - body_at) as u64)
}

impl Held {
    /// Some when this response, to a request that was sent at `asked`, is to be held.
    pub(super) fn new(
        hold: &Hold,
        connection: &Connection,
        body_at: usize,
        call: &Call,
        asked: Instant,
    ) -> Option<Self> {
        let Framing::Length(length) = connection.head.framing else { return None };
        // An upload may have outlasted the deadline: there is no time for another attempt.
        if !hold.takes(connection.head.status, length) || asked >= call.deadline {
            return None;
        }
        let until = hold.within.map_or(call.deadline, |within| call.deadline.min(asked + within));
        let end = body_at + usize::try_from(length).ok()?;
        Some(Self { body_at, end, until, idle: call.idle })
    }

    pub(super) fn is_whole(&self, buffer: &[u8]) -> bool {
        buffer.len() >= self.end
    }

    /// Read what is still to come. The buffer grows to what the response takes, and no further.
    pub(super) fn arm(&self, worker: &Worker, connection: &mut Connection, mut buffer: Vec<u8>) {
        buffer.reserve_exact(self.end + SPARE - buffer.len());
        let now = worker.now().at;
        connection.watch.set(now, self.idle.min(self.until.since(now)), Until::Both);
        connection.reader.arm(buffer);
    }
}

impl<X: Exchange> Attempt<'_, X> {
    /// A final head that ends there.
    pub(super) fn headed(&mut self, buffer: Vec<u8>, body_at: usize) -> Read {
        if missing(&self.connection, &buffer, body_at) > 0
            && let Some(held) = self.to_be_held(body_at)
        {
            self.held = Some(Box::new(held));
            return self.hold(buffer);
        }
        Read::Final { buffer, body_at }
    }

    #[cold]
    fn to_be_held(&self, body_at: usize) -> Option<Held> {
        // Whoever answers early may wait for the rest of the request, and so may the client.
        if !self.sent || self.upload.is_some() || self.exchange.body() == Pending::Taken {
            return None;
        }
        let hold = self.flight.hold(&self.exchange.facts())?;
        Held::new(&hold, &self.connection, body_at, &self.call, self.asked)
    }

    /// What has come of it so far: all, or the rest is read.
    #[cold]
    pub(super) fn hold(&mut self, buffer: Vec<u8>) -> Read {
        let Some(held) = &self.held else { return Read::Malformed };
        if held.is_whole(&buffer) {
            return Read::Final { buffer, body_at: held.body_at };
        }
        held.arm(self.worker, &mut self.connection, buffer);
        Read::More
    }
}

/// How it ended before it was whole.
pub(super) fn ended(connection: &Connection) -> Failure {
    if connection.watch.fired() { Failure::Stalled } else { Failure::Cut }
}
