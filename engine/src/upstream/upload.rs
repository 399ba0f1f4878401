//! A request body on its way to an upstream, beside whatever comes back.
//!
//! It runs as a task of its own, because a response may come before the body has been sent, and
//! neither direction may wait for the other. The next piece is read only after the last was
//! written, so a slow upstream slows the client and nothing is stored.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::buffer::HEADROOM;
use crate::http::body::Encoder;
use crate::http::{ClientFault, Source};
use crate::runtime::{self, Duct, End, Flow, Share, Task, Writer};
use crate::sweep::{Until, Watch};
use crate::worker::Worker;

/// A body being sent. Awaiting it gives its source back.
#[derive(Debug)]
pub(crate) struct Upload {
    task: Task<Result<Uploaded, String>>,
    signal: Rc<Abandon>,
}

/// What became of it.
#[derive(Debug)]
pub(crate) struct Uploaded {
    pub(crate) source: Source,
    /// Back when the upstream still takes bytes.
    pub(crate) writer: Option<Writer>,
    pub(crate) result: Result<(), UploadFault>,
}

#[derive(Debug)]
pub(crate) enum UploadFault {
    Client(ClientFault),
    /// The upstream took no more; what it said may still be read.
    Upstream,
    Abandoned,
}

#[derive(Debug, Default)]
struct Abandon {
    told: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Upload {
    /// Send what `source` gives through `writer`.
    pub(crate) fn start(
        worker: Rc<Worker>,
        source: Source,
        writer: Writer,
        watch: Rc<Watch>,
        encoder: Encoder,
        idle: Duration,
    ) -> Self {
        let signal = Rc::new(Abandon::default());
        let told = Rc::clone(&signal);
        let task = runtime::supervised(async move {
            let mut sending = Sending { worker, source, watch, encoder, idle, told };
            let (result, writer) = sending.run(writer).await;
            Uploaded { source: sending.source, writer, result }
        });
        Self { task, signal }
    }

    /// Stop reading from the client. A write in progress ends when the upstream's socket is shut.
    pub(crate) fn abandon(&self) {
        self.signal.told.set(true);
        if let Some(waker) = self.signal.waker.take() {
            waker.wake();
        }
    }
}

impl Future for Upload {
    type Output = Uploaded;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Uploaded> {
        Pin::new(&mut self.task).poll(cx).map(|sent| match sent {
            Ok(uploaded) => uploaded,
            // The connection it belongs to is supervised too, and can't go on without its reader.
            Err(panic) => std::panic::resume_unwind(Box::new(panic)),
        })
    }
}

#[derive(Debug)]
struct Sending {
    worker: Rc<Worker>,
    source: Source,
    watch: Rc<Watch>,
    encoder: Encoder,
    idle: Duration,
    told: Rc<Abandon>,
}

impl Sending {
    async fn run(&mut self, mut writer: Writer) -> (Result<(), UploadFault>, Option<Writer>) {
        let mut spare = self.worker.buffers.large();
        let mut share = Share::default();
        loop {
            if self.encoder == Encoder::Plain
                && let Some(duct) = self.source.duct(&self.worker, &writer)
            {
                self.worker.buffers.give(spare);
                let result = self.splice(duct).await;
                let writer = result.is_ok().then_some(writer);
                return (result, writer);
            }
            // While the client is waited for, only the client's deadline counts.
            self.watch.clear();
            let piece = match self.next(spare).await {
                Ok(piece) => piece,
                Err(fault) => return (Err(fault), None),
            };
            let (mut buffer, last) = (piece.buffer, piece.last);
            let trailers = if last { Some(self.source.trailers()) } else { None };
            let from = self.encoder.frame(&mut buffer, HEADROOM, trailers);
            let Self { worker, watch, idle, .. } = self;
            let watched = || watch.set(worker.now_cached().at, *idle, Until::Both);
            let result = writer.write_all(&buffer[from..], watched).await;
            // From here on it is for who awaits this.
            watch.clear();
            if result.is_err() {
                self.worker.buffers.give(buffer);
                return (Err(UploadFault::Upstream), None);
            }
            if last {
                self.worker.buffers.give(buffer);
                return (Ok(()), Some(writer));
            }
            share.spend(&self.worker.turns, buffer.len() as u64).await;
            spare = buffer;
        }
    }

    /// Send the rest unseen.
    async fn splice(&mut self, mut duct: Duct) -> Result<(), UploadFault> {
        let result = loop {
            self.watch.clear();
            match duct.run(&self.worker.turns) {
                Ok(Flow::Done) => break Ok(()),
                Ok(Flow::Burst) => self.worker.turns.pass().await,
                Ok(Flow::Waits(End::From)) => {
                    self.source.watch(&self.worker);
                    if !self.ready(&duct).await {
                        break Err(UploadFault::Abandoned);
                    }
                    if !self.source.unwatch() {
                        break Err(UploadFault::Client(ClientFault::Slow));
                    }
                }
                Ok(Flow::Waits(End::To)) => {
                    self.watch.set(self.worker.now().at, self.idle, Until::Both);
                    duct.ready(End::To).await;
                }
                Err((End::From, _)) => break Err(UploadFault::Client(ClientFault::Gone)),
                Err((End::To, _)) => break Err(UploadFault::Upstream),
            }
            if self.told.told.get() {
                break Err(UploadFault::Abandoned);
            }
        };
        self.watch.clear();
        self.source.passed(duct.moved);
        self.worker.pipes.give(duct);
        result
    }

    /// Wait for the client. False: nobody wants the rest any more.
    async fn ready(&self, duct: &Duct) -> bool {
        let told = &self.told;
        let mut ready = pin!(duct.ready(End::From));
        poll_fn(|cx| {
            if told.told.get() {
                return Poll::Ready(false);
            }
            told.waker.replace(Some(cx.waker().clone()));
            ready.as_mut().poll(cx).map(|()| true)
        })
        .await
    }

    async fn next(&mut self, spare: Vec<u8>) -> Result<super::response::Piece, UploadFault> {
        let Self { worker, source, told, .. } = self;
        let mut spare = Some(spare);
        poll_fn(|cx| {
            if told.told.get() {
                return Poll::Ready(Err(UploadFault::Abandoned));
            }
            told.waker.replace(Some(cx.waker().clone()));
            source.poll_next(worker, &mut spare, cx).map_err(UploadFault::Client)
        })
        .await
    }
}
