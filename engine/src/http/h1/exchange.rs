//! An HTTP/1 connection as the exchange in progress on it.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use sluice_policy::flight::Finish;

use super::kept::Rest;
use super::{BodyState, Connection, Source};
use crate::buffer::{self, HEADROOM, SMALL};
use crate::cache::{Found, Recorder};
use crate::http::answer::{self, Page};
use crate::http::body::{self, Decoder, Encoder};
use crate::http::head::{Head, Version};
use crate::http::parse::{Framing, ResponseHead};
use crate::http::write::{self, Passport, ResponseExtras};
use crate::http::{Exchange, Pending, Sent, Told};
use crate::runtime::{Duct, End, Flow, Share};
use crate::sweep::Until;
use crate::upstream::response::{Cut, Piece, Response};
use crate::upstream::upload::UploadFault;

impl Exchange for Connection {
    fn head(&self) -> &Head {
        &self.head
    }

    fn passport(&self) -> &Passport {
        &self.passport
    }

    fn body(&self) -> Pending<'_> {
        match self.body {
            BodyState::Nothing => Pending::Nothing,
            BodyState::Whole { bytes } => {
                let from = self.head.end;
                Pending::Whole(self.head.text.get(from..from + bytes).unwrap_or_default())
            }
            BodyState::Coming => Pending::Coming,
            BodyState::Back { .. } if self.kept.is_some() => Pending::Again,
            BodyState::Away | BodyState::Back { .. } => Pending::Taken,
        }
    }

    fn take_body(&mut self, bytes_max: Option<u64>, keep: u32) -> Option<Source> {
        self.keep = keep;
        if let Some(rest) = self.kept.take() {
            return self.resume_body(rest, bytes_max);
        }
        if self.body != BodyState::Coming {
            return None;
        }
        let reader = self.reader.take()?;
        let framing = match self.head.body {
            sluice_policy::facts::Body::Empty => Framing::None,
            sluice_policy::facts::Body::Length(n) => Framing::Length(n),
            sluice_policy::facts::Body::Unknown => Framing::Chunked,
        };
        let mut first = buffer::with_headroom(self.worker.buffers.large());
        first.extend_from_slice(&self.head.text[self.head.end..]);
        self.head.text.truncate(self.head.end);
        // It came while an earlier request was in progress.
        if let Some(ahead) = self.ahead.take() {
            first.extend_from_slice(&ahead[HEADROOM..]);
            self.worker.buffers.give(ahead);
        }
        self.body = BodyState::Away;
        Some(Source::new(
            reader,
            Rc::clone(&self.watch),
            Decoder::new(framing),
            first,
            bytes_max,
            self.current.config.server.read_timeout,
            keep,
        ))
    }

    fn give_body(&mut self, source: Source) {
        self.body = BodyState::Back { received: source.received, whole: source.done };
        self.head.text.extend_from_slice(&source.excess);
        let (reader, rest) = source.part();
        self.reader = Some(reader);
        self.kept = rest;
        if self.keep == 0 {
            self.let_go();
        }
        let whole = matches!(self.body, BodyState::Back { whole: true, .. });
        self.closing |= !whole && self.kept.is_none();
    }

    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(reader) = self.reader.as_mut() else { return Poll::Pending };
        // Behind a piece that nobody takes yet, nothing can be seen.
        if self.ahead.is_some() || self.ended {
            return Poll::Pending;
        }
        let coming = match self.body {
            BodyState::Coming => true,
            BodyState::Back { whole, .. } => !whole && self.kept.is_some(),
            BodyState::Nothing | BodyState::Whole { .. } | BodyState::Away => false,
        };
        if !reader.armed() {
            // Who asked for one response alone may close its side at once and still wait: a read
            // could tell no more than that, and would be made and given up for each.
            if !coming && !self.head.keep_alive && !self.pipelined {
                self.unread = true;
                return Poll::Pending;
            }
            // A response that comes soon is sent without a look, and then a busy worker finds the
            // next request there already.
            let now = self.worker.now_cached().at;
            if self.watch.poll_waited(now, LOOK_AFTER, cx).is_pending() {
                return Poll::Pending;
            }
            // With headroom: what it brings may turn out to be a piece of the next body.
            reader.arm(buffer::with_headroom(self.worker.buffers.small()));
        }
        let Poll::Ready((result, buffer)) = reader.poll_read(cx) else { return Poll::Pending };
        match result {
            Ok(n) if n > 0 => {
                self.ahead = Some(buffer);
                Poll::Pending
            }
            // Who asked for one response alone, or for several at once, may have closed its own
            // side to say that it was all. Not so amid a body.
            Ok(_) if !coming && (!self.head.keep_alive || self.pipelined || self.has_more()) => {
                self.ended = true;
                Poll::Pending
            }
            Ok(_) | Err(_) => {
                self.ended = true;
                self.closing = true;
                Poll::Ready(())
            }
        }
    }

    async fn interim(&mut self, text: &[u8], head: &ResponseHead) -> bool {
        if self.head.version == Version::Http10 {
            return true;
        }
        let mut out = self.worker.buffers.small();
        write::interim(&mut out, text, head);
        self.send(out).await
    }

    async fn relay(
        &mut self,
        mut response: Response,
        told: Told<'_>,
        mut recorder: Option<&mut Recorder<'_>>,
    ) -> Sent {
        self.let_go();
        let old = self.head.version == Version::Http10;
        let (encoder, close) = match response.framing() {
            Framing::None | Framing::Length(_) => (Encoder::Plain, false),
            Framing::Chunked | Framing::Close if old => (Encoder::Plain, true),
            Framing::Chunked | Framing::Close => (Encoder::Chunked, false),
        };
        // A response may begin before the request has ended; whether the connection can be kept
        // is known only when both have.
        let stays = !close && (self.can_stay() || self.body == BodyState::Away && !self.closing);
        self.closing |= !stays;
        let status = response.head().status;
        let mut out = match response.text().len() {
            0..=HEAD_AND_MORE => self.worker.buffers.small(),
            _ => self.worker.buffers.large(),
        };
        let date = self.worker.date();
        let extras = ResponseExtras {
            chunked: encoder == Encoder::Chunked,
            connection: connection_option(stays, old),
            request_id: self.passport().request_id(&self.head),
            limits: told.flight.map(|flight| (flight, &self.current.limit_forms)),
            date: &date,
            edit: told.edit,
        };
        write::response(&mut out, response.text(), response.head(), &extras);
        let Ok(first) = response.first() else {
            self.worker.buffers.give(out);
            return Box::pin(self.malformed(response)).await;
        };
        let mut bytes = first.len() as u64;
        if let Some(recorder) = &mut recorder {
            recorder.push(first);
        }
        match encoder {
            Encoder::Plain => out.extend_from_slice(first),
            Encoder::Chunked => body::append_chunk(&mut out, first),
        }
        if response.done() && encoder == Encoder::Chunked {
            body::end_chunks(&mut out, response.trailers());
        }
        let mut finish = Finish::Whole;
        if !self.send(out).await {
            (bytes, finish) = (0, Finish::ClientGone);
        } else if !response.done() {
            let (more, how) = self.stream(&mut response, encoder, recorder).await;
            bytes += more;
            finish = how;
            self.worker.tick_clock();
        }
        // Whoever reads to the end of the connection takes any end for the body's.
        self.torn = close && finish == Finish::UpstreamCut;
        if response.upload.is_some() {
            Box::pin(self.settle_upload(&mut response)).await;
        }
        self.conclude(response, finish);
        Sent { status: Some(status), bytes, finish }
    }

    async fn serve(&mut self, found: &Found, told: Told<'_>) -> Sent {
        self.serve_kept(found, told).await
    }

    async fn answer(&mut self, page: &Page, told: Told<'_>) -> Sent {
        self.let_go();
        let stays = self.can_stay() && !page.close;
        self.closing |= !stays;
        let old = self.head.version == Version::Http10;
        let date = self.worker.date();
        let extras = ResponseExtras {
            chunked: false,
            connection: connection_option(stays, old),
            request_id: self.passport().request_id(&self.head),
            limits: told.flight.map(|flight| (flight, &self.current.limit_forms)),
            date: &date,
            edit: told.edit,
        };
        let bodiless = self.head.method() == "HEAD";
        let mut out = self.worker.buffers.small();
        answer::write(&mut out, page, &extras, bodiless);
        let bytes = if bodiless { 0 } else { page.body.bytes().len() as u64 };
        if self.send(out).await {
            Sent { status: Some(page.status), bytes, finish: Finish::Whole }
        } else {
            self.closing = true;
            Sent::GONE
        }
    }

    fn bytes_in(&self) -> u64 {
        match self.body {
            BodyState::Nothing | BodyState::Coming | BodyState::Away => 0,
            BodyState::Whole { bytes } => bytes as u64,
            BodyState::Back { received, .. } => received,
        }
    }
}

/// Whether the client is still there is looked at when its request has waited for this long.
const LOOK_AFTER: Duration = Duration::from_millis(20);

/// A head of up to this much, and what came with it, leave room for the fields we add in a small
/// buffer.
const HEAD_AND_MORE: usize = SMALL - 2048;

impl Connection {
    /// The body from its beginning, after it was sent in vain.
    fn resume_body(&mut self, mut rest: Rest, bytes_max: Option<u64>) -> Option<Source> {
        let reader = self.reader.take()?;
        if !rest.done
            && let Some(ahead) = self.ahead.take()
        {
            match &mut rest.first {
                Some(first) => {
                    first.extend_from_slice(&ahead[HEADROOM..]);
                    self.worker.buffers.give(ahead);
                }
                None => rest.first = Some(ahead),
            }
        }
        self.body = BodyState::Away;
        let timeout = self.current.config.server.read_timeout;
        Some(Source::resume(rest, reader, Rc::clone(&self.watch), bytes_max, timeout))
    }

    /// Pass pieces on as they come, each read only after the last was written. Returns the payload
    /// passed, and how it ended.
    async fn stream(
        &mut self,
        response: &mut Response,
        encoder: Encoder,
        mut recorder: Option<&mut Recorder<'_>>,
    ) -> (u64, Finish) {
        let worker = Rc::clone(&self.worker);
        let plain = encoder == Encoder::Plain && response.upload.is_none() && recorder.is_none();
        if plain && let Some(duct) = response.duct(&worker, &self.writer) {
            return self.splice(response, duct).await;
        }
        let mut bytes = 0;
        let mut share = Share::default();
        let mut spare = Some(worker.buffers.large());
        let finish = loop {
            let piece = match self.next_piece(response, &mut spare).await {
                Ok(Some(piece)) => piece,
                Ok(None) => break Finish::ClientGone,
                Err(Cut::Closed | Cut::Malformed | Cut::Idle) => {
                    worker.cells.upstream_cut.add(1);
                    break Finish::UpstreamCut;
                }
            };
            let (mut buffer, last) = (piece.buffer, piece.last);
            let payload = (buffer.len() - HEADROOM) as u64;
            if let Some(recorder) = &mut recorder {
                recorder.push(&buffer[HEADROOM..]);
            }
            let trailers = if last { Some(response.trailers()) } else { None };
            let from = encoder.frame(&mut buffer, HEADROOM, trailers);
            let sent = self.write(&buffer[from..]).await;
            spare = Some(buffer);
            if !sent {
                break Finish::ClientGone;
            }
            bytes += payload;
            if last {
                break Finish::Whole;
            }
            share.spend(&worker.turns, payload).await;
        };
        if let Some(spare) = spare {
            worker.buffers.give(spare);
        }
        (bytes, finish)
    }

    /// Pass the rest on unseen. Returns the payload passed, and how it ended.
    async fn splice(&mut self, response: &mut Response, mut duct: Duct) -> (u64, Finish) {
        let worker = Rc::clone(&self.worker);
        let finish = loop {
            match duct.run(&worker.turns) {
                Ok(Flow::Done) => break Finish::Whole,
                Ok(Flow::Burst) => worker.turns.pass().await,
                Ok(Flow::Waits(End::From)) => {
                    response.watch(&worker);
                    let mut ready = pin!(duct.ready(End::From));
                    let gone = poll_fn(|cx| match ready.as_mut().poll(cx) {
                        Poll::Ready(()) => Poll::Ready(false),
                        Poll::Pending => self.poll_gone(cx).map(|()| true),
                    });
                    if gone.await {
                        break Finish::ClientGone;
                    }
                    if !response.unwatch() {
                        worker.cells.upstream_cut.add(1);
                        break Finish::UpstreamCut;
                    }
                }
                Ok(Flow::Waits(End::To)) => {
                    let timeout = self.current.config.server.write_timeout;
                    self.taking.set(worker.now().at, timeout, Until::Both);
                    duct.ready(End::To).await;
                    self.taking.clear();
                }
                Err((End::From, _)) => {
                    worker.cells.upstream_cut.add(1);
                    break Finish::UpstreamCut;
                }
                Err((End::To, _)) => break Finish::ClientGone,
            }
        };
        let moved = duct.moved;
        response.passed(moved);
        worker.pipes.give(duct);
        (moved, finish)
    }

    /// None: the client has left.
    async fn next_piece(
        &mut self,
        response: &mut Response,
        spare: &mut Option<Vec<u8>>,
    ) -> Result<Option<Piece>, Cut> {
        let worker = Rc::clone(&self.worker);
        poll_fn(|cx| {
            // Whether the client is still there shows in its body, until that has come.
            if let Some(uploaded) = response.poll_upload(&worker, cx) {
                self.give_body(uploaded.source);
                if matches!(uploaded.result, Err(UploadFault::Client(_))) {
                    return Poll::Ready(Ok(None));
                }
            }
            if let Poll::Ready(next) = response.poll_next(&worker, spare, cx) {
                return Poll::Ready(next.map(Some));
            }
            self.poll_gone(cx).map(|()| Ok(None))
        })
        .await
    }

    /// Bring the connection home after a response whose upload is settled.
    fn conclude(&mut self, response: Response, finish: Finish) {
        match finish {
            Finish::Whole => response.end(&self.worker),
            Finish::ClientGone | Finish::UpstreamCut | Finish::Fault => self.closing = true,
        }
    }

    /// Bring the body home.
    async fn settle_upload(&mut self, response: &mut Response) {
        if let Some(uploaded) = response.settle_upload().await {
            self.give_body(uploaded.source);
        }
        self.worker.tick_clock();
    }

    /// The first bytes of the body are no body, and nothing of the response has been sent yet.
    async fn malformed(&mut self, mut response: Response) -> Sent {
        self.settle_upload(&mut response).await;
        self.conclude(response, Finish::UpstreamCut);
        let id = self.passport().request_id(&self.head).to_vec();
        let page = Page::problem(502, "upstream.malformed", &id);
        self.answer(&page, Told::default()).await
    }
}

/// HTTP/1.1 persists unless told otherwise, HTTP/1.0 the other way round.
pub(super) fn connection_option(stays: bool, old: bool) -> Option<&'static str> {
    match (stays, old) {
        (false, _) => Some("close"),
        (true, true) => Some("keep-alive"),
        (true, false) => None,
    }
}
