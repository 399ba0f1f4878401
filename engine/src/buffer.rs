//! Buffers that connections take when bytes flow and give back when they rest.

use std::cell::RefCell;

/// Room kept free in front of a body piece, for a chunk's size line.
pub(crate) const HEADROOM: usize = 16;

/// For heads and small messages.
pub(crate) const SMALL: usize = 16 * 1024;

/// For bulk: one read takes this much at the most.
pub(crate) const LARGE: usize = 256 * 1024;

/// Spare buffers kept for the next taker, of each size.
const SPARES_MAX: [usize; 2] = [256, 16];

/// One worker's spare buffers.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    small: RefCell<Vec<Vec<u8>>>,
    large: RefCell<Vec<Vec<u8>>>,
}

impl Buffers {
    /// Empty, for at least [`SMALL`] bytes.
    pub(crate) fn small(&self) -> Vec<u8> {
        self.small.borrow_mut().pop().unwrap_or_else(|| Vec::with_capacity(SMALL))
    }

    /// Empty, for at least [`LARGE`] bytes.
    pub(crate) fn large(&self) -> Vec<u8> {
        self.large.borrow_mut().pop().unwrap_or_else(|| Vec::with_capacity(LARGE))
    }

    /// Keep no more spare buffers than a few connections need.
    pub(crate) fn release(&self) {
        self.small.borrow_mut().truncate(SPARES_MAX[0] / 16);
        self.large.borrow_mut().truncate(SPARES_MAX[1] / 16);
    }

    /// Give a buffer back. One that grew to an odd size is let go.
    pub(crate) fn give(&self, mut buffer: Vec<u8>) {
        let (shelf, spares_max) = match buffer.capacity() {
            SMALL => (&self.small, SPARES_MAX[0]),
            LARGE => (&self.large, SPARES_MAX[1]),
            _ => return,
        };
        let mut shelf = shelf.borrow_mut();
        if shelf.len() < spares_max {
            buffer.clear();
            shelf.push(buffer);
        }
    }
}

/// A large buffer with [`HEADROOM`] in front, to read a piece of a body into.
pub(crate) fn with_headroom(mut buffer: Vec<u8>) -> Vec<u8> {
    buffer.clear();
    buffer.resize(HEADROOM, 0);
    buffer
}
