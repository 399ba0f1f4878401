//! Buffers that the kernel picks from when something comes (`IORING_REGISTER_PBUF_RING`).

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::io;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::IoUring;
use io_uring::types::BufRingEntry;

#[derive(Debug)]
pub(super) struct Buffers {
    entries: *mut BufRingEntry,
    memory: Vec<u8>,
    tail: u16,
}

/// A power of two.
const COUNT: u16 = 256;
const SIZE: u32 = 2048;
const PAGE: usize = 4096;

impl Buffers {
    pub(super) const GROUP: u16 = 0;

    /// All of them for the kernel.
    pub(super) fn register(ring: &IoUring) -> io::Result<Self> {
        // SAFETY: the layout is not empty.
        let entries = unsafe { alloc_zeroed(layout()) }.cast::<BufRingEntry>();
        if entries.is_null() {
            handle_alloc_error(layout());
        }
        let memory = vec![0; usize::from(COUNT) * SIZE as usize];
        let mut buffers = Self { entries, memory, tail: 0 };
        // SAFETY: the entries live as long as the ring is used: both are dropped together.
        unsafe { ring.submitter().register_buf_ring(entries as u64, COUNT, Self::GROUP) }?;
        (0..COUNT).for_each(|buffer| buffers.give(buffer));
        Ok(buffers)
    }

    pub(super) fn at(&self, buffer: u16) -> *const u8 {
        &raw const self.memory[usize::from(buffer) * SIZE as usize]
    }

    /// The kernel may fill it again.
    pub(super) fn give(&mut self, buffer: u16) {
        let address = self.at(buffer) as u64;
        // SAFETY: the index is below the count, and the kernel reads an entry only once the tail
        // has passed it.
        let entry = unsafe { &mut *self.entries.add(usize::from(self.tail & (COUNT - 1))) };
        entry.set_addr(address);
        entry.set_len(SIZE);
        entry.set_bid(buffer);
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: it points into the entries; the kernel reads it atomically, as this writes it.
        let tail = unsafe { &*BufRingEntry::tail(self.entries).cast::<AtomicU16>() };
        tail.store(self.tail, Ordering::Release);
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        // SAFETY: allocated so, and the ring is not used any more.
        unsafe { dealloc(self.entries.cast(), layout()) };
    }
}

fn layout() -> Layout {
    let bytes = usize::from(COUNT) * size_of::<BufRingEntry>();
    Layout::from_size_align(bytes, PAGE).expect("a page's alignment is a power of two")
}
