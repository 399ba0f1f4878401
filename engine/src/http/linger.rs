//! The end of a connection whose client may still be sending.
//!
//! Closing at once would reset it, and the client would lose the answer with what it has yet to read.

use std::rc::Rc;
use std::time::Duration;

use crate::accept::Ticket;
use crate::buffer::SMALL;
use crate::runtime::{Reader, SPARE, Writer};
use crate::sweep::{Until, Watch};
use crate::worker::Worker;

/// After an answer that the client did not wait for, this much of what it still sends is thrown
/// away.
const BYTES: usize = 1 << 20;

/// And no longer than this.
const SPAN: Duration = Duration::from_secs(2);

/// What is left of a connection then. Thousands may come to this at once, so it is little.
#[derive(Debug)]
pub(crate) struct Linger {
    // The deadline goes before the descriptor it guards.
    pub(crate) watch: Rc<Watch>,
    /// None: the client sends no more.
    pub(crate) reader: Option<Reader>,
    pub(crate) writer: Writer,
    pub(crate) ticket: Ticket,
}

impl Linger {
    /// Say that no more comes, and throw away what does.
    pub(crate) async fn run(self: Box<Self>, worker: Rc<Worker>) {
        let Self { watch, reader, mut writer, ticket: _ticket } = *self;
        writer.finish().await;
        let Some(mut reader) = reader else { return };
        watch.set(worker.now_cached().at, SPAN, Until::Both);
        let mut thrown = 0;
        // Most send nothing more.
        let mut buffer = Vec::with_capacity(SPARE + 1);
        while thrown < BYTES {
            if !reader.armed() {
                reader.arm(std::mem::take(&mut buffer));
            }
            let (result, mut filled) = reader.armed_read().await;
            match result {
                Ok(n) if n > 0 => thrown += n,
                Ok(_) | Err(_) => return worker.buffers.give(filled),
            }
            if filled.capacity() < SMALL {
                filled = worker.buffers.small();
            }
            filled.clear();
            buffer = filled;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of the future that it makes.
    const fn bytes<F>(_: &impl Fn(Box<Linger>, Rc<Worker>) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn thousands_may_linger() {
        let held = bytes(&Linger::run);
        assert!(held <= 512, "{held}");
    }
}
