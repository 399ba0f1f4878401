//! HTTP as bytes: heads to facts, bodies in pieces, answers. The versions live side by side; what
//! they share is what `proxy` knows.

pub(crate) mod answer;
pub(crate) mod body;
pub(crate) mod chunk;
pub(crate) mod deadline;
pub(crate) mod fields;
pub(crate) mod forward;
pub(crate) mod h1;
pub(crate) mod head;
pub(crate) mod limit;
pub(crate) mod linger;
pub(crate) mod parse;
pub(crate) mod rest;
mod target;
pub(crate) mod write;

use std::future::{Future, poll_fn};
use std::task::{Context, Poll};

use sluice_policy::facts::Facts;
use sluice_policy::flight::{Finish, Flight};
use sluice_policy::plan::HeaderEdit;

use crate::cache::{Found, Recorder};
use crate::upstream::response::Response;
use answer::Page;
use head::Head;
use parse::ResponseHead;
use write::Passport;

pub(crate) use h1::Source;

/// One request and the way back to whoever sent it, whichever version of HTTP it came by.
///
/// `proxy` drives it and knows nothing below: neither sockets nor framing.
pub(crate) trait Exchange {
    fn head(&self) -> &Head;

    fn passport(&self) -> &Passport;

    fn facts(&self) -> Facts<'_> {
        let passport = self.passport();
        self.head().facts(passport.peer, passport.client)
    }

    /// What is there of the body, and so whether the request can be sent a second time.
    fn body(&self) -> Pending<'_>;

    /// The body as it comes; None when it has been taken already or there is none to come. Up to
    /// `keep` bytes of it are kept, until a response or an answer is passed on.
    fn take_body(&mut self, bytes_max: Option<u64>, keep: u32) -> Option<Source>;

    /// What `take_body` gave, after use.
    fn give_body(&mut self, source: Source);

    /// Ready when the client has left. Looks at the connection without losing what it brings.
    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()>;

    /// Pass a 1xx on. False: the client is gone.
    async fn interim(&mut self, text: &[u8], head: &ResponseHead) -> bool;

    /// Pass a response on, to its end.
    async fn relay(
        &mut self,
        response: Response,
        told: Told<'_>,
        recorder: Option<&mut Recorder<'_>>,
    ) -> Sent;

    /// Reply with a response that was kept.
    async fn serve(&mut self, found: &Found, told: Told<'_>) -> Sent;

    /// Reply with something of our own.
    async fn answer(&mut self, page: &Page, told: Told<'_>) -> Sent;

    /// Bytes of body that came.
    fn bytes_in(&self) -> u64;
}

/// Wait for `future` as long as the client is there; None when it has left. The future is dropped
/// then, so it must be one that can be: a connect, a timer, or a wait that holds no operation.
pub(crate) async fn while_there<X: Exchange, F: Future>(
    exchange: &mut X,
    future: F,
) -> Option<F::Output> {
    let mut future = std::pin::pin!(future);
    poll_fn(|cx| {
        if let Poll::Ready(output) = future.as_mut().poll(cx) {
            return Poll::Ready(Some(output));
        }
        exchange.poll_gone(cx).map(|()| None)
    })
    .await
}

/// A request's body before it is sent on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pending<'a> {
    Nothing,
    /// All of it, and it stays here.
    Whole(&'a [u8]),
    /// Not all of it has come.
    Coming,
    /// It was taken, all or in part, and what came of it was kept: it can be taken again.
    Again,
    /// It was taken: the request can't be sent again.
    Taken,
}

/// What the client is told besides the response.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Told<'a> {
    /// Whose limits.
    pub(crate) flight: Option<&'a Flight>,
    pub(crate) edit: Option<&'a HeaderEdit>,
}

/// What reached the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sent {
    /// None: it left before the head was sent.
    pub(crate) status: Option<u16>,
    /// Of body.
    pub(crate) bytes: u64,
    pub(crate) finish: Finish,
}

impl Sent {
    pub(crate) const GONE: Self = Self { status: None, bytes: 0, finish: Finish::ClientGone };
}

/// The client's part of an exchange failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientFault {
    /// Its body is not framed as it said.
    BadBody,
    /// Its body grew past the route's bound.
    TooLarge,
    /// Nothing came for too long.
    Slow,
    Gone,
}

impl ClientFault {
    /// The answer it deserves; None: nobody is there to read one.
    pub(crate) const fn answer(self) -> Option<(u16, &'static str)> {
        match self {
            Self::BadBody => Some((400, "request.body")),
            Self::TooLarge => Some((413, "size.body")),
            Self::Slow => Some((408, "request.slow")),
            Self::Gone => None,
        }
    }
}
