//! Waiting for a request's head, and understanding it.

use sluice_policy::facts::Body;

use super::{BodyState, Connection};
use crate::buffer::{Buffers, HEADROOM, SMALL};
use crate::http::parse::{self, BadHead, Scan, Scanned};
use crate::http::rest::REST_AFTER;
use crate::http::{deadline, forward};
use crate::runtime::{SPARE, given_up};
use crate::sweep::Until;

/// What reading a head came to.
pub(super) enum Arrival {
    Head,
    Bad(BadHead),
    /// Nothing more comes: closed, or silent for too long between requests.
    Over,
    /// Nothing has come for a while, but may.
    Rest,
}

/// What came of waiting for bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Came {
    Some,
    Nothing,
    /// The wait was given up.
    NotYet,
}

impl Connection {
    /// Wait for a whole head and understand it.
    pub(super) async fn arrive(&mut self) -> Arrival {
        let mut scan = Scan::default();
        // Behind what came together more comes: it keeps the buffer that it has.
        let alone = self.head.text.is_empty();
        if !alone {
            // Pipelined: it was here before there was anything to wait for.
            self.current = self.worker.current();
        }
        loop {
            if let Some(arrival) = self.look(&mut scan) {
                return arrival;
            }
            let empty = self.head.text.is_empty();
            let Some(until) = self.watch_for_more() else { return bad(408, "request.slow") };
            let came = self.read_on(alone).await;
            // Also when the last bytes came with the deadline: nothing can be read after it.
            if until == Until::Read && self.watch.fired() {
                return bad(408, "request.slow");
            }
            match came {
                Came::Some => {}
                Came::Nothing => return Arrival::Over,
                Came::NotYet => return Arrival::Rest,
            }
            if empty {
                // The first byte starts the head's own clock.
                self.due = None;
                self.current = self.worker.current();
            }
        }
    }

    /// Whether what has come is a head, or can't become one.
    fn look(&mut self, scan: &mut Scan) -> Option<Arrival> {
        // More than a head may be is only looked through at first: to judge it could take long.
        let may_be_one = (1..=self.current.head_bytes).contains(&self.head.text.len());
        let read = (scan.is_fresh() && may_be_one).then(|| self.read());
        if let Some(Ok(())) = read {
            return Some(self.understood());
        }
        match scan.run(&self.head.text) {
            Scanned::Head(end) if end <= self.current.head_bytes => {
                Some(match read.unwrap_or_else(|| self.read()) {
                    Ok(()) => self.understood(),
                    Err(bad) => {
                        self.watch.clear();
                        Arrival::Bad(bad)
                    }
                })
            }
            Scanned::BareLf => Some(bad(400, "request.malformed")),
            // Too long: which part of it says which status.
            Scanned::Head(_) => Some(self.too_long()),
            Scanned::More if self.head.text.len() >= self.current.head_bytes => {
                Some(self.too_long())
            }
            Scanned::More => {
                if read.is_some() {
                    self.head.shed();
                }
                None
            }
        }
    }

    /// Read the head that the text begins with.
    fn read(&mut self) -> Result<(), BadHead> {
        parse::request(&mut self.head, self.current.head_rules())
    }

    /// Set the deadline for what comes next. None: it has passed while a head was coming.
    fn watch_for_more(&mut self) -> Option<Until> {
        let now = self.worker.now_cached().at;
        let server = &self.current.config.server;
        let empty = self.head.text.is_empty();
        let due = *self.due.get_or_insert_with(|| {
            // A client that has said nothing yet may be one that never will.
            now + if empty && !self.first { server.idle_timeout } else { server.header_timeout }
        });
        let left = due.since(now);
        if left.is_zero() && !empty {
            return None;
        }
        let (span, until) = match empty {
            _ if left > REST_AFTER && self.worker.resting.open() => (REST_AFTER, Until::Rest),
            true => (left, Until::Idle),
            false => (left, Until::Read),
        };
        self.watch.set(now, span, until);
        Some(until)
    }

    fn too_long(&self) -> Arrival {
        let line = self.head.text.iter().position(|b| *b == b'\n').unwrap_or(self.head.text.len());
        match line < self.current.head_bytes {
            true => bad(431, "request.head"),
            false => bad(414, "request.target"),
        }
    }

    /// Append what comes next to the head's text. `alone`: nothing was here before that head.
    async fn read_on(&mut self, alone: bool) -> Came {
        if let Some(ahead) = self.ahead.take() {
            self.append(ahead);
            return Came::Some;
        }
        let Some(reader) = self.reader.as_mut().filter(|_| !self.ended) else {
            return Came::Nothing;
        };
        // Armed already: to notice that the client leaves, into a buffer of its own.
        let apart = reader.armed();
        if !apart {
            let text = std::mem::take(&mut self.head.text);
            let buffer = room_for_more(text, alone, &self.worker.buffers);
            // Who has been answered asks again soon, or not for long.
            match self.first {
                true => reader.arm(buffer),
                false => reader.arm_late(buffer),
            }
        }
        let (result, buffer) = reader.armed_read().await;
        let came = match result {
            Ok(n) if n > 0 => Came::Some,
            Err(e) if given_up(&e) => Came::NotYet,
            Ok(_) | Err(_) => Came::Nothing,
        };
        self.ended = came == Came::Nothing;
        match apart {
            true => self.append(buffer),
            false => self.head.text = buffer,
        }
        self.worker.tick_clock();
        came
    }

    /// Append what a read apart brought.
    fn append(&mut self, mut buffer: Vec<u8>) {
        if self.head.text.is_empty() {
            buffer.drain(..HEADROOM);
            std::mem::swap(&mut self.head.text, &mut buffer);
        } else {
            self.head.text.extend_from_slice(&buffer[HEADROOM..]);
        }
        self.worker.buffers.give(buffer);
    }

    /// A head has been read.
    fn understood(&mut self) -> Arrival {
        self.watch.clear();
        self.due = None;
        let here = self.head.text.len() - self.head.end;
        self.body = match self.head.body {
            Body::Empty => BodyState::Nothing,
            Body::Length(n) if n <= here as u64 => {
                BodyState::Whole { bytes: usize::try_from(n).unwrap_or(here) }
            }
            Body::Length(_) | Body::Unknown => BodyState::Coming,
        };
        self.closing = !self.head.keep_alive;
        self.current.strip_identity(&mut self.head);
        if let Some(header) = &self.current.config.server.deadline_header {
            deadline::read(&mut self.head, header);
        }
        let trusted = &self.current.config.server.trusted_proxies;
        let from = forward::client(self.peer.ip(), self.head.headers(), trusted);
        self.passport.stamp(&self.worker.ids, &self.head, from);
        Arrival::Head
    }
}

/// The text with room behind it. A head that comes in pieces may never end, and waits for the next in
/// a buffer as small as it is itself.
fn room_for_more(mut text: Vec<u8>, alone: bool, buffers: &Buffers) -> Vec<u8> {
    match (text.len(), text.capacity()) {
        (0, 0) => buffers.small(),
        (1..AMPLE, SMALL) if alone => {
            let mut piece = Vec::with_capacity(text.len() + PIECE.max(text.len()) + SPARE);
            piece.extend_from_slice(&text);
            buffers.give(text);
            piece
        }
        _ => {
            text.reserve(SPARE + 1);
            text
        }
    }
}

/// The least room for the next piece of a head.
const PIECE: usize = 128;

/// A head so long keeps the buffer that it has.
const AMPLE: usize = SMALL / 4;

fn bad(status: u16, code: &'static str) -> Arrival {
    Arrival::Bad(BadHead { status, code })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_in_pieces_waits_in_a_buffer_as_small_as_itself_unless_others_were_ahead_of_it() {
        let buffers = Buffers::default();
        let held = |length: usize| {
            let mut text = Vec::with_capacity(SMALL);
            text.resize(length, b'a');
            text
        };
        let room = |length: usize, alone| room_for_more(held(length), alone, &buffers);
        assert_eq!(room_for_more(Vec::new(), true, &buffers).capacity(), SMALL);
        for length in [1, 30, 1000, AMPLE - 1] {
            let text = room(length, true);
            assert_eq!(text, held(length));
            // More than what a read leaves free, and no more than the text again or a piece.
            let free = text.capacity() - length;
            assert!(free > SPARE && free <= length.max(PIECE) + SPARE, "{length}: {free}");
        }
        assert_eq!(room(30, false).capacity(), SMALL, "more comes behind what came together");
        assert_eq!(room(AMPLE, true).capacity(), SMALL);
        let full = room(SMALL, true);
        assert!(full.capacity() > full.len() + SPARE, "nowhere to read to");
    }
}
