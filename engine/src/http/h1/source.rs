//! A request's body as it comes over an HTTP/1 connection.

use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use super::kept::{Kept, Rest};
use crate::buffer::{self, HEADROOM};
use crate::http::ClientFault;
use crate::http::body::{Decoder, SPLICE_MIN};
use crate::runtime::{Duct, Reader, Writer};
use crate::sweep::{Until, Watch};
use crate::upstream::response::Piece;
use crate::worker::Worker;

/// Holds the connection's reading side until the body has come, or is given up.
#[derive(Debug)]
pub(crate) struct Source {
    pub(super) reader: Reader,
    pub(super) watch: Rc<Watch>,
    decoder: Decoder,
    /// What came with the head, with room in front.
    first: Option<Vec<u8>>,
    /// What has been passed on, as long as it may have to be a second time.
    kept: Option<Kept>,
    /// What is kept comes first.
    again: bool,
    bytes_max: Option<u64>,
    read_timeout: Duration,
    /// The deadline of the next piece is set.
    watched: bool,
    /// Payload so far.
    pub(super) received: u64,
    /// What came after the body.
    pub(super) excess: Vec<u8>,
    pub(super) done: bool,
}

impl Source {
    pub(super) fn new(
        reader: Reader,
        watch: Rc<Watch>,
        decoder: Decoder,
        first: Vec<u8>,
        bytes_max: Option<u64>,
        read_timeout: Duration,
        keep: u32,
    ) -> Self {
        Self {
            reader,
            watch,
            decoder,
            first: Some(first),
            kept: (keep > 0).then(|| Kept::new(keep)),
            again: false,
            bytes_max,
            read_timeout,
            watched: false,
            received: 0,
            excess: Vec::new(),
            done: false,
        }
    }

    /// From its beginning again: what was kept, and then what is still to come.
    pub(super) fn resume(
        rest: Rest,
        reader: Reader,
        watch: Rc<Watch>,
        bytes_max: Option<u64>,
        read_timeout: Duration,
    ) -> Self {
        let Rest { decoder, kept, first, received, done } = rest;
        Self {
            reader,
            watch,
            decoder,
            first,
            kept: Some(kept),
            again: true,
            bytes_max,
            read_timeout,
            watched: false,
            received,
            excess: Vec::new(),
            done,
        }
    }

    /// The reading side, and what it takes to begin again, if every byte is still here.
    pub(super) fn part(self) -> (Reader, Option<Rest>) {
        let Self { reader, decoder, kept, first, received, done, .. } = self;
        (reader, kept.map(|kept| Rest { decoder, kept, first, received, done }))
    }

    /// Trailer lines, once the last piece has come.
    pub(crate) fn trailers(&self) -> &[u8] {
        self.decoder.trailers()
    }

    /// The next payload, read into `spare`, which must be there when no read is under way. May be
    /// called again with another context; not after the last piece or a fault.
    pub(crate) fn poll_next(
        &mut self,
        worker: &Worker,
        spare: &mut Option<Vec<u8>>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Piece, ClientFault>> {
        if std::mem::take(&mut self.again)
            && let Some(kept) = &self.kept
            && (self.done || !kept.bytes().is_empty())
        {
            let mut buffer =
                buffer::with_headroom(spare.take().unwrap_or_else(|| worker.buffers.large()));
            buffer.extend_from_slice(kept.bytes());
            return Poll::Ready(Ok(Piece { buffer, last: self.done }));
        }
        loop {
            let buffer = match self.first.take() {
                Some(first) if first.len() > HEADROOM => first,
                first => {
                    if let Some(first) = first {
                        worker.buffers.give(first);
                    }
                    ready!(self.poll_read(worker, spare, cx))?
                }
            };
            let piece = self.decode(buffer)?;
            if let Some(kept) = &mut self.kept
                && !kept.push(&worker.buffers, &piece.buffer[HEADROOM..])
                && let Some(kept) = self.kept.take()
            {
                kept.release(&worker.buffers);
            }
            if piece.buffer.len() > HEADROOM || piece.last {
                self.watch.clear();
                self.watched = false;
                if let Some(unused) = spare.take() {
                    worker.buffers.give(unused);
                }
                return Poll::Ready(Ok(piece));
            }
            *spare = Some(piece.buffer);
        }
    }

    /// A way for the rest of the body to `to` without reading it, where that is worth it.
    pub(crate) fn duct(&self, worker: &Worker, to: &Writer) -> Option<Duct> {
        let left = self.decoder.plain().filter(|left| *left >= SPLICE_MIN)?;
        let bounded = self.bytes_max.is_none_or(|max| self.received + left <= max);
        if !bounded || self.first.is_some() || self.kept.is_some() || self.watched {
            return None;
        }
        self.reader.duct(to, &worker.pipes, left)
    }

    /// The next bytes are waited for elsewhere.
    pub(crate) fn watch(&self, worker: &Worker) {
        self.watch.set(worker.now().at, self.read_timeout, Until::Read);
    }

    /// They have come. False: too late.
    pub(crate) fn unwatch(&self) -> bool {
        let fired = self.watch.fired();
        self.watch.clear();
        !fired
    }

    /// So much of the body went by [`Self::duct`].
    pub(crate) fn passed(&mut self, bytes: u64) {
        self.received += bytes;
        self.done = self.decoder.skip(bytes);
    }

    fn poll_read(
        &mut self,
        worker: &Worker,
        spare: &mut Option<Vec<u8>>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Vec<u8>, ClientFault>> {
        // A read may be armed since an earlier request.
        if !self.reader.armed() {
            let spare = spare.take().unwrap_or_else(|| worker.buffers.large());
            self.reader.arm(buffer::with_headroom(spare));
        }
        if !self.watched {
            self.watched = true;
            self.watch.set(worker.now().at, self.read_timeout, Until::Read);
        }
        let (result, buffer) = ready!(self.reader.poll_read(cx));
        Poll::Ready(match result {
            // Even when bytes came with the deadline: no more can be read.
            Ok(_) | Err(_) if self.watch.fired() => Err(ClientFault::Slow),
            Ok(n) if n > 0 => Ok(buffer),
            Ok(_) | Err(_) => Err(ClientFault::Gone),
        })
    }

    fn decode(&mut self, mut buffer: Vec<u8>) -> Result<Piece, ClientFault> {
        let bytes = &mut buffer[HEADROOM..];
        let decoded = self.decoder.decode(bytes).map_err(|_| ClientFault::BadBody)?;
        self.received += decoded.payload as u64;
        if self.bytes_max.is_some_and(|max| self.received > max) {
            return Err(ClientFault::TooLarge);
        }
        if decoded.done {
            self.done = true;
            self.excess.extend_from_slice(&bytes[decoded.consumed..]);
        }
        buffer.truncate(HEADROOM + decoded.payload);
        Ok(Piece { buffer, last: decoded.done })
    }
}
