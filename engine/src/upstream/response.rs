//! A response whose head has come: what is left of it arrives in pieces.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use super::connection::Connection;
use super::upload::{Upload, Uploaded};
use crate::buffer::{self, HEADROOM};
use crate::http::body::{Decoder, SPLICE_MIN};
use crate::http::parse::{Framing, ResponseHead};
use crate::runtime::{self, Duct, Writer};
use crate::sweep::Until;
use crate::worker::Worker;

/// Dropped before its end: the connection is closed, for nobody knows what is still to come.
#[derive(Debug)]
pub(crate) struct Response {
    connection: Box<Connection>,
    /// The head, and what came with it.
    buffer: Vec<u8>,
    body_at: usize,
    decoder: Decoder,
    /// A request body that is still being sent.
    pub(crate) upload: Option<Upload>,
    idle: Duration,
    done: bool,
    /// More came than the response holds.
    excess: bool,
}

/// Payload in a buffer of its own, with [`HEADROOM`] in front.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) buffer: Vec<u8>,
    /// The body ends with this piece.
    pub(crate) last: bool,
}

/// The response broke off, or its framing is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    Closed,
    Malformed,
    /// Nothing came for too long.
    Idle,
}

impl Response {
    /// `buffer` holds a head that ends at `body_at`, parsed into `connection.head`.
    pub(crate) fn new(
        connection: Box<Connection>,
        buffer: Vec<u8>,
        body_at: usize,
        upload: Option<Upload>,
        idle: Duration,
    ) -> Self {
        let decoder = Decoder::new(connection.head.framing);
        let done = connection.head.framing == Framing::None;
        Self { connection, buffer, body_at, decoder, upload, idle, done, excess: false }
    }

    pub(crate) fn head(&self) -> &ResponseHead {
        &self.connection.head
    }

    /// The buffer that the head lies in.
    pub(crate) fn text(&self) -> &[u8] {
        &self.buffer
    }

    pub(crate) fn framing(&self) -> Framing {
        self.connection.head.framing
    }

    /// The payload that came with the head: decoded once, empty the second time.
    pub(crate) fn first(&mut self) -> Result<&[u8], Cut> {
        let bytes = self.buffer.get_mut(self.body_at..).unwrap_or_default();
        let all = bytes.len();
        let mut payload = 0;
        let mut consumed = 0;
        if !self.done && all > 0 {
            let decoded = self.decoder.decode(bytes).map_err(|_| Cut::Malformed)?;
            (payload, consumed, self.done) = (decoded.payload, decoded.consumed, decoded.done);
        }
        self.excess = consumed < all;
        let from = self.body_at;
        self.body_at = self.buffer.len();
        Ok(self.buffer.get(from..from + payload).unwrap_or_default())
    }

    pub(crate) fn done(&self) -> bool {
        self.done
    }

    pub(crate) fn trailers(&self) -> &[u8] {
        self.decoder.trailers()
    }

    /// The next payload, read into `spare`, which must be there when no read is under way. May be
    /// called again with another context; not after the last piece or a cut.
    pub(crate) fn poll_next(
        &mut self,
        worker: &Worker,
        spare: &mut Option<Vec<u8>>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Piece, Cut>> {
        debug_assert!(!self.done, "the last piece has come");
        let connection = &mut self.connection;
        loop {
            if !connection.reader.armed() {
                let spare = spare.take().unwrap_or_else(|| worker.buffers.large());
                connection.watch.set(worker.now().at, self.idle, Until::Both);
                connection.reader.arm(buffer::with_headroom(spare));
            }
            let (result, mut buffer) = ready!(connection.poll_read(cx));
            match result {
                // How long the client takes over this is no fault of the upstream.
                Ok(n) if n > 0 => connection.watch.clear(),
                Ok(_) | Err(_) if connection.watch.fired() => return Poll::Ready(Err(Cut::Idle)),
                Ok(_) if self.decoder.ends_with_connection() => {
                    self.done = true;
                    return Poll::Ready(Ok(Piece { buffer, last: true }));
                }
                Ok(_) | Err(_) => return Poll::Ready(Err(Cut::Closed)),
            }
            let bytes = &mut buffer[HEADROOM..];
            let all = bytes.len();
            let Ok(decoded) = self.decoder.decode(bytes) else {
                return Poll::Ready(Err(Cut::Malformed));
            };
            self.excess |= decoded.consumed < all;
            self.done = decoded.done;
            buffer.truncate(HEADROOM + decoded.payload);
            if decoded.payload > 0 || decoded.done {
                return Poll::Ready(Ok(Piece { buffer, last: decoded.done }));
            }
            *spare = Some(buffer);
        }
    }

    /// A way for the rest of the body to `to` without reading it, where that is worth it.
    pub(crate) fn duct(&self, worker: &Worker, to: &Writer) -> Option<Duct> {
        let left = self.decoder.plain().filter(|left| *left >= SPLICE_MIN)?;
        self.connection.reader.duct(to, &worker.pipes, left)
    }

    /// The next bytes are waited for elsewhere.
    pub(crate) fn watch(&self, worker: &Worker) {
        self.connection.watch.set(worker.now().at, self.idle, Until::Both);
    }

    /// They have come. False: too late.
    pub(crate) fn unwatch(&self) -> bool {
        let fired = self.connection.watch.fired();
        self.connection.watch.clear();
        !fired
    }

    /// So much of the body went by [`Self::duct`]. One that broke off takes its connection along.
    pub(crate) fn passed(&mut self, bytes: u64) {
        self.done = self.decoder.skip(bytes);
        if !self.done {
            self.connection.watch.shut();
        }
    }

    /// The response is over. The connection goes back to its pool when everything about it was
    /// clean; the buffers go back to the worker.
    pub(crate) fn end(self, worker: &Worker) {
        let Self { mut connection, buffer, done, excess, upload, .. } = self;
        worker.buffers.give(buffer);
        let clean = done
            && !excess
            && upload.is_none()
            && connection.head.keep_alive
            && connection.writer.is_some();
        if clean && !worker.stop.stopped() {
            connection.watch.clear();
            connection.reused = true;
            let pool = std::rc::Rc::clone(&connection.place.pool);
            pool.give_back(connection, worker.now_cached().at);
        }
    }

    /// Nobody wants it. One that came whole with its head leaves its connection fit for more.
    pub(crate) fn discard(mut self, worker: &Worker) {
        if self.first().is_ok() && self.done {
            self.end(worker);
        }
    }

    /// The request's body, once it has been sent or has come to nothing.
    pub(crate) fn poll_upload(
        &mut self,
        worker: &Worker,
        cx: &mut Context<'_>,
    ) -> Option<Uploaded> {
        let upload = Pin::new(self.upload.as_mut()?);
        let Poll::Ready(mut uploaded) = upload.poll(cx) else { return None };
        self.upload = None;
        self.connection.writer = uploaded.writer.take();
        // From here on only the response is waited for.
        self.connection.watch.set(worker.now_cached().at, self.idle, Until::Both);
        Some(uploaded)
    }

    /// The request's body has been sent, or is given up now. Gives its source back.
    pub(crate) async fn settle_upload(&mut self) -> Option<Uploaded> {
        let mut upload = self.upload.take()?;
        // Who answers has usually read all there was, and then this is ready already.
        let settled = runtime::within(SETTLE, &mut upload).await;
        if let Some(mut uploaded) = settled {
            self.connection.writer = uploaded.writer.take();
            return Some(uploaded);
        }
        self.connection.watch.shut();
        upload.abandon();
        Some(upload.await)
    }
}

/// After a whole response, the end of the request's body is waited for this long.
const SETTLE: Duration = Duration::from_millis(100);
