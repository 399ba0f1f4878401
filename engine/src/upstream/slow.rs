//! A call that takes long: put aside while policy is asked whether to hedge it, then waited for
//! again, alone or beside a second attempt.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use sluice_policy::decision::Call;
use sluice_policy::flight::Flight;
use sluice_policy::time::Instant;

use super::connection::Connection;
use super::hold::Held;
use super::response::Response;
use super::second::{Answered, Second};
use super::{Attempt, Called, failed, write_head};
use crate::http::parse::Scan;
use crate::http::{ClientFault, Exchange};
use crate::worker::Worker;

/// At least one of the two is there.
#[derive(Debug)]
pub(crate) struct Slow {
    pub(super) first: Option<First>,
    pub(super) second: Option<Second>,
}

/// An attempt whose whole request has been sent.
#[derive(Debug)]
pub(super) struct First {
    pub(super) connection: Box<Connection>,
    pub(super) call: Call,
    pub(super) asked: Instant,
    pub(super) scan: Scan,
    pub(super) held: Option<Box<Held>>,
}

impl Slow {
    /// Send the request to a second endpoint, too. False: there is no way there.
    pub(crate) fn hedge<X: Exchange>(
        &mut self,
        worker: &Rc<Worker>,
        exchange: &X,
        flight: &Flight,
        call: Call,
    ) -> bool {
        let (Some(pool), Some(route)) = (worker.pools.pool(call.endpoint), flight.route()) else {
            return false;
        };
        let request = write_head(worker, exchange, route, &pool, &call, false);
        let to_head = exchange.head().method() == "HEAD";
        let hold = flight.hold(&exchange.facts());
        self.second = Some(Second::start(worker, pool, call, request, to_head, hold));
        true
    }

    /// Wait for whichever comes first.
    pub(crate) async fn wait<X: Exchange>(
        self,
        worker: &Rc<Worker>,
        exchange: &mut X,
        flight: &Flight,
    ) -> Called {
        let Self { first, second } = self;
        match (first, second) {
            (Some(first), second) => {
                let mut attempt = Attempt::resume(worker, exchange, flight, first, second);
                let headed = attempt.head().await;
                attempt.called(headed)
            }
            (None, Some(second)) => alone(exchange, second).await,
            (None, None) => failed(exchange, sluice_policy::decision::Failure::Broken),
        }
    }
}

/// The first has failed: the second is the call.
async fn alone<X: Exchange>(exchange: &mut X, mut second: Second) -> Called {
    let ended = poll_fn(|cx| {
        if let Poll::Ready(ended) = second.poll(cx) {
            return Poll::Ready(Some(ended));
        }
        exchange.poll_gone(cx).map(|()| None)
    });
    match ended.await {
        Some(Ok(answered)) => Called::Responded(response(answered)),
        Some(Err(failure)) => failed(exchange, failure),
        None => Called::Client(ClientFault::Gone),
    }
}

pub(super) fn response(answered: Answered) -> Response {
    let Answered { connection, buffer, body_at, idle } = answered;
    Response::new(connection, buffer, body_at, None, idle)
}
