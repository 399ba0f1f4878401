//! Short responses are held until they are whole, where a request could be sent again: one that
//! breaks off behind its head is a failed attempt like any other then, and not half a response.
//!
//! What is not known to be short (chunked, or up to the end of its connection) is a stream, perhaps,
//! and never held. Nor is the response to what may not be sent twice: holding it would help nobody,
//! and even half of it tells the client that its request has arrived.

use core::time::Duration;

use super::{idempotent, is_kept};
use crate::draft::breaker::Failures;
use crate::facts::Facts;
use crate::flight::Flight;

/// Which responses to one attempt are held, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    bytes_max: u32,
    /// Statuses that are tried again at their head, whatever becomes of the body.
    refused: Failures,
    /// From the request sent until the response is whole. None: what the request has left.
    pub within: Option<Duration>,
}

impl Hold {
    /// Whether a response with that status and a body of that stated length is held.
    pub fn takes(&self, status: u16, length: u64) -> bool {
        length <= u64::from(self.bytes_max) && !self.refused.status(status)
    }
}

impl Flight {
    /// None: no response to it is held.
    pub fn hold(&self, facts: &Facts<'_>) -> Option<Hold> {
        let retry = &self.route()?.retry;
        if retry.hold == 0 || !retry.repeats() || !idempotent(facts.method) {
            return None;
        }
        // The last attempt, too: an error that says so is better than half a response.
        let again = self.tries.retries < retry.max && is_kept(self, facts.body);
        let refused = if again { retry.on } else { Failures::NONE };
        Some(Hold { bytes_max: retry.hold, refused, within: retry.per_try })
    }
}
