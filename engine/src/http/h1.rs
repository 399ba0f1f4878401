//! HTTP/1.0 and 1.1 towards clients: one connection, one request after the other.

mod arrival;
mod copy;
mod exchange;
mod kept;
mod source;

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use sluice_policy::facts::Body;
use sluice_policy::time::Instant;

use arrival::Arrival;
pub(crate) use source::Source;

use super::answer::Page;
use super::head::Head;
use super::linger::Linger;
use super::parse::BadHead;
use super::rest::Rest;
use super::write::{Passport, ResponseExtras};
use super::{ClientFault, Exchange, answer};
use crate::accept::Ticket;
use crate::proxy;
use crate::runtime::{Reader, Share, Socket, Writer};
use crate::sweep::{Until, Watch};
use crate::worker::{Current, Worker};

/// One client's connection.
#[derive(Debug)]
pub(crate) struct Connection {
    worker: Rc<Worker>,
    // The deadlines go before the descriptor they guard. Of what is to come:
    watch: Rc<Watch>,
    /// Of what is to be taken. Both directions may be in use at once.
    taking: Watch,
    /// Away while a body is being read elsewhere.
    reader: Option<Reader>,
    writer: Writer,
    peer: SocketAddr,
    ticket: Ticket,
    /// It has asked for nothing yet.
    first: bool,
    /// What is being waited for must have come by then.
    due: Option<Instant>,
    /// The configuration that the current request began under.
    current: Rc<Current>,
    head: Head,
    passport: Passport,
    body: BodyState,
    /// The body as far as it came, while it may have to be sent again; and up to what length.
    kept: Option<kept::Rest>,
    keep: u32,
    /// Bytes that came while a request was in progress, behind [`HEADROOM`]: what follows
    /// `head.text`.
    ahead: Option<Vec<u8>>,
    /// The current request came before the last was answered.
    pipelined: bool,
    /// The client sends no more.
    ended: bool,
    /// What the client sent behind its request, if anything, has not been read.
    unread: bool,
    /// Nothing may follow the current response.
    closing: bool,
    /// The response broke off, and only its connection can say so.
    torn: bool,
}

/// What became of the current request's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BodyState {
    Nothing,
    Whole { bytes: usize },
    Coming,
    Away,
    Back { received: u64, whole: bool },
}

/// Who is to be served, and how far that has come.
#[derive(Debug)]
pub(crate) struct Guest {
    ticket: Ticket,
    peer: SocketAddr,
    text: Vec<u8>,
    first: bool,
    due: Option<Instant>,
}

impl Guest {
    pub(crate) const fn new(ticket: Ticket, peer: SocketAddr) -> Self {
        Self { ticket, peer, text: Vec::new(), first: true, due: None }
    }

    pub(crate) fn of(rest: Rest) -> (OwnedFd, Self) {
        let Rest { descriptor, ticket, peer, text, first, due, .. } = rest;
        (descriptor, Self { ticket, peer, text: text.into(), first, due: Some(due) })
    }
}

/// What follows a request on its connection.
enum After {
    Next,
    /// Everything that was sent has been read: closing loses nothing.
    Close,
    Linger,
}

/// A request that came together with the one before takes so much of its connection's turn.
const PIPELINED: u64 = 4 * 1024;

/// A body that nobody wants is read to its end when no more than this is left, so that the
/// connection can be kept.
const DRAIN_BYTES: u64 = 64 * 1024;

/// What is left of a connection that is served no more, unless it is closed.
#[derive(Debug)]
pub(crate) enum Left {
    Rest(Rest),
    Linger(Box<Linger>),
}

/// Serve a connection until its end, or until it is to rest.
pub(crate) async fn serve(worker: Rc<Worker>, socket: Socket, guest: Guest) -> Option<Left> {
    let mut connection = Connection::new(worker, socket, guest);
    let mut share = Share::default();
    loop {
        match connection.arrive().await {
            Arrival::Head => {}
            Arrival::Bad(bad) => {
                Box::pin(connection.refuse(bad)).await;
                return Some(Left::Linger(connection.linger()));
            }
            Arrival::Over => return None,
            Arrival::Rest => return connection.rest().map(Left::Rest),
        }
        connection.first = false;
        let worker = Rc::clone(&connection.worker);
        proxy::serve(&worker, &mut connection).await;
        if connection.torn {
            connection.tear();
            return None;
        }
        match connection.finish().await {
            // What came together is served without waiting for anybody.
            After::Next if connection.pipelined => share.spend(&worker.turns, PIPELINED).await,
            After::Next => {}
            After::Close => {
                connection.close();
                return None;
            }
            After::Linger => return Some(Left::Linger(connection.linger())),
        }
    }
}

impl Connection {
    fn new(worker: Rc<Worker>, socket: Socket, guest: Guest) -> Self {
        let Guest { ticket, peer, text, first, due } = guest;
        let watch = Rc::new(worker.sweeper.watch(socket.shutter.clone()));
        let taking = worker.sweeper.watch(socket.shutter);
        let current = worker.current();
        let mut head = worker.heads.take();
        head.text = text;
        Self {
            worker,
            watch,
            taking,
            reader: Some(socket.reader),
            writer: socket.writer,
            peer,
            ticket,
            first,
            due,
            current,
            head,
            passport: Passport::new(peer.ip()),
            body: BodyState::Nothing,
            kept: None,
            keep: 0,
            ahead: None,
            pipelined: false,
            ended: false,
            unread: false,
            closing: false,
            torn: false,
        }
    }

    /// Take the connection apart, down to what a [`Rest`] holds.
    fn rest(self) -> Option<Rest> {
        let Self { worker, watch, taking, reader, writer, peer, ticket, first, due, head, .. } =
            self;
        // They hold on to the socket.
        drop((watch, taking));
        let descriptor = Socket::apart(reader?, writer)?;
        let text = head.text.as_slice().into();
        worker.keep(head);
        let since = worker.now_cached().at;
        Some(Rest { descriptor, ticket, peer, text, first, due: due?, since })
    }

    /// Answer a head that could not be understood. Nothing of it reached policy or an upstream.
    async fn refuse(&mut self, refused: BadHead) {
        self.closing = true;
        let id = self.worker.ids.id();
        let mut page = Page::problem(refused.status, refused.code, &id);
        page.close = true;
        let date = self.worker.date();
        let extras = ResponseExtras {
            chunked: false,
            connection: Some("close"),
            request_id: &id,
            limits: None,
            date: &date,
            edit: None,
        };
        let mut out = self.worker.buffers.small();
        // Nothing else of such a head is to be relied on, but who asks with HEAD reads no body.
        let bodiless = self.head.text.trim_ascii_start().starts_with(b"HEAD ");
        answer::write(&mut out, &page, &extras, bodiless);
        let bytes = if bodiless { 0 } else { page.body.bytes().len() as u64 };
        self.send(out).await;
        self.worker.refused(&self.current, self.peer.ip(), refused, &id, bytes);
    }

    /// Get ready for the next request, if there is to be one.
    async fn finish(&mut self) -> After {
        self.let_go();
        if self.closing || self.ended && !self.has_more() {
            return self.last();
        }
        let has_all_come = match self.body {
            BodyState::Nothing | BodyState::Whole { .. } => true,
            BodyState::Coming => Box::pin(self.drain()).await,
            BodyState::Back { whole, .. } => whole,
            BodyState::Away => false,
        };
        if !has_all_come {
            return After::Linger;
        }
        self.pipelined = self.has_more();
        self.head.forget(self.consumed());
        if self.head.text.is_empty() {
            // A connection at rest holds the buffer of its armed read, and no other.
            self.worker.buffers.give(std::mem::take(&mut self.head.text));
        }
        After::Next
    }

    /// How to close after the last response.
    fn last(&self) -> After {
        let all_came = match self.body {
            BodyState::Nothing | BodyState::Whole { .. } => true,
            BodyState::Back { whole, .. } => whole,
            BodyState::Coming | BodyState::Away => false,
        };
        // Who was not told in time, as in a drain, may have sent another request already.
        let told = !self.head.keep_alive;
        let is_read = || !self.unread || !self.taking.has_unread();
        if all_came && told && !self.has_more() && is_read() { After::Close } else { After::Linger }
    }

    /// Close at once.
    fn close(self) {
        let Self { worker, watch, taking, reader, writer, head, .. } = self;
        worker.keep(head);
        // They hold on to the socket.
        drop((watch, taking));
        if let Some(reader) = reader.filter(|reader| !reader.armed()) {
            Socket::close(reader, writer);
        }
    }

    /// What of the text is the current request's.
    fn consumed(&self) -> usize {
        match self.body {
            BodyState::Whole { bytes } => self.head.end + bytes,
            BodyState::Nothing | BodyState::Coming | BodyState::Away | BodyState::Back { .. } => {
                self.head.end
            }
        }
    }

    /// Whether something has come behind the current request.
    fn has_more(&self) -> bool {
        self.ahead.is_some() || self.head.text.len() > self.consumed()
    }

    /// Read a body that nobody took to its end, if that is not far.
    async fn drain(&mut self) -> bool {
        let Some(mut source) = self.take_body(Some(DRAIN_BYTES), 0) else { return false };
        let worker = Rc::clone(&self.worker);
        loop {
            let mut spare = Some(worker.buffers.large());
            let next = std::future::poll_fn(|cx| source.poll_next(&worker, &mut spare, cx)).await;
            match next {
                Ok(piece) => {
                    worker.buffers.give(piece.buffer);
                    if piece.last {
                        self.give_body(source);
                        return true;
                    }
                }
                Err(
                    ClientFault::BadBody
                    | ClientFault::TooLarge
                    | ClientFault::Slow
                    | ClientFault::Gone,
                ) => {
                    self.give_body(source);
                    return false;
                }
            }
        }
    }

    /// The request will not be sent again.
    fn let_go(&mut self) {
        self.keep = 0;
        if let Some(rest) = self.kept.take() {
            rest.release(&self.worker.buffers);
        }
    }

    /// Whether the connection can outlive an answer given now.
    fn can_stay(&self) -> bool {
        let body_ok = match self.body {
            BodyState::Nothing | BodyState::Whole { .. } | BodyState::Back { whole: true, .. } => {
                true
            }
            BodyState::Coming => {
                // A client that waits for 100 may or may not send: nobody can tell what follows.
                !self.head.expects && matches!(self.head.body, Body::Length(n) if n <= DRAIN_BYTES)
            }
            BodyState::Away | BodyState::Back { whole: false, .. } => false,
        };
        let goes_on = !self.ended || self.has_more();
        body_ok && goes_on && !self.closing && !self.worker.stop.stopped()
    }

    /// Send it, and keep its buffer for others. False: the client is gone, or takes nothing.
    async fn send(&mut self, bytes: Vec<u8>) -> bool {
        let sent = self.write(&bytes).await;
        self.worker.buffers.give(bytes);
        sent
    }

    /// As [`Self::send`].
    async fn write(&mut self, bytes: &[u8]) -> bool {
        let Self { worker, writer, taking, current, .. } = self;
        let timeout = current.config.server.write_timeout;
        let mut waited = false;
        let watched = || {
            waited = true;
            taking.set(worker.now_cached().at, timeout, Until::Both);
        };
        let sent = writer.write_all(bytes, watched).await.is_ok();
        if waited {
            taking.clear();
            worker.tick_clock();
        }
        sent
    }

    /// Close so that nobody takes what was sent for the whole.
    fn tear(self) {
        self.taking.reset();
    }

    /// Take the connection apart, down to what it takes to close it so that what was sent arrives
    /// even if the client is still sending.
    fn linger(self) -> Box<Linger> {
        let Self { worker, watch, reader, writer, ticket, head, ended, .. } = self;
        worker.keep(head);
        Box::new(Linger { watch, reader: reader.filter(|_| !ended), writer, ticket })
    }
}
