//! The way of log lines from workers to the file: whole blocks through a bounded channel. A worker
//! never waits; what does not fit is counted and dropped.

use crossbeam::channel::{Receiver, Sender, TrySendError, bounded};

/// A worker's end: lines are gathered and handed over in blocks.
#[derive(Clone, Debug)]
pub(crate) struct JournalSender {
    blocks: Sender<Block>,
    empties: Receiver<Vec<u8>>,
}

/// Whole lines.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) bytes: Vec<u8>,
    pub(crate) lines: u32,
}

/// The writer's end.
#[derive(Debug)]
pub(crate) struct JournalReceiver {
    pub(crate) blocks: Receiver<Block>,
    /// Give written blocks back here, so that workers need not allocate new ones.
    pub(crate) empties: Sender<Vec<u8>>,
}

/// Blocks that may wait for the writer; with 64 KiB each, 16 MiB at the most.
const BLOCKS_MAX: usize = 256;

pub(crate) fn journal() -> (JournalSender, JournalReceiver) {
    let (blocks_in, blocks) = bounded(BLOCKS_MAX);
    let (empties, empties_out) = bounded(BLOCKS_MAX);
    (JournalSender { blocks: blocks_in, empties: empties_out }, JournalReceiver { blocks, empties })
}

impl JournalSender {
    /// Hand over, never wait.
    ///
    /// # Errors
    /// The block itself, when the writer is behind or gone.
    pub(crate) fn send(&self, block: Block) -> Result<(), Block> {
        self.blocks.try_send(block).map_err(|e| match e {
            TrySendError::Full(block) | TrySendError::Disconnected(block) => block,
        })
    }

    /// A buffer to gather the next block in.
    pub(crate) fn buffer(&self) -> Vec<u8> {
        let mut buffer = self.empties.try_recv().unwrap_or_default();
        buffer.clear();
        buffer
    }
}
