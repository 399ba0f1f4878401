//! A request's body that is kept as far as it came, so that it can be sent a second time.

use crate::buffer::{Buffers, LARGE, SMALL};
use crate::http::body::Decoder;

/// The payload so far, in a buffer of the worker's, taken when there is something to keep.
#[derive(Debug)]
pub(super) struct Kept {
    bytes: Vec<u8>,
    bytes_max: usize,
}

/// What is left of a body's source when its reading side is given back: enough to begin again.
#[derive(Debug)]
pub(super) struct Rest {
    pub(super) decoder: Decoder,
    pub(super) kept: Kept,
    /// Read, and not looked at yet.
    pub(super) first: Option<Vec<u8>>,
    pub(super) received: u64,
    pub(super) done: bool,
}

impl Kept {
    pub(super) fn new(bytes_max: u32) -> Self {
        Self { bytes: Vec::new(), bytes_max: (bytes_max as usize).min(LARGE / 2) }
    }

    /// Keep this too. False: that would be too much, and what there was is no use any more.
    pub(super) fn push(&mut self, buffers: &Buffers, payload: &[u8]) -> bool {
        let all = self.bytes.len() + payload.len();
        if all > self.bytes_max {
            return false;
        }
        if all > self.bytes.capacity() {
            let mut room = if all <= SMALL { buffers.small() } else { buffers.large() };
            room.extend_from_slice(&self.bytes);
            buffers.give(std::mem::replace(&mut self.bytes, room));
        }
        self.bytes.extend_from_slice(payload);
        true
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn release(self, buffers: &Buffers) {
        buffers.give(self.bytes);
    }
}

impl Rest {
    pub(super) fn release(self, buffers: &Buffers) {
        self.kept.release(buffers);
        if let Some(first) = self.first {
            buffers.give(first);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_is_kept_in_order_up_to_the_bound() {
        let buffers = Buffers::default();
        let mut kept = Kept::new(64 << 10);
        let payload: Vec<u8> = (0..64 << 10).map(|i: u32| i.to_le_bytes()[0]).collect();
        for piece in payload.chunks(5000) {
            assert!(kept.push(&buffers, piece));
        }
        assert_eq!(kept.bytes(), payload);
        assert!(!kept.push(&buffers, b"x"), "a byte more than may be kept");
        kept.release(&buffers);
    }
}
