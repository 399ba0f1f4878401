//! The life of a request: ask policy what to do, do it, tell it what happened.
//!
//! Nothing here knows sockets or versions of HTTP, and nothing here decides.

use std::rc::Rc;

use sluice_policy::decision::{Decision, Event};
use sluice_policy::facts::{Facts, Headers};
use sluice_policy::flight::{Ending, Finish, Flight};

use crate::http::answer::Page;
use crate::http::{ClientFault, Exchange, Sent, Told};
use crate::runtime;
use crate::upstream::response::Response;
use crate::upstream::{self, Called};
use crate::worker::Worker;

/// Serve one request, from its head to its last byte.
pub(crate) async fn serve<X: Exchange>(worker: &Rc<Worker>, exchange: &mut X) {
    let mut guard = Guard::begin(worker, &exchange.facts());
    let mut event = Event::Arrived;
    let mut response = None;
    let sent = loop {
        event = match guard.decide(&exchange.facts(), event) {
            Decision::Call(call) => {
                if let Some(refused) = response.take() {
                    Response::discard(refused, worker);
                }
                match upstream::call(worker, exchange, guard.flight(), call).await {
                    Called::Responded(head) => {
                        let status = head.head().status;
                        response = Some(head);
                        Event::Responded { status }
                    }
                    Called::Failed { failure, replayable } => Event::Failed { failure, replayable },
                    Called::Client(fault) => break excuse(exchange, fault).await,
                }
            }
            Decision::Relay => {
                if let Some(response) = &response {
                    guard.settle(&exchange.facts(), response);
                }
                break relay(exchange, guard.flight(), response.take()).await;
            }
            Decision::Answer(answer) => {
                if let Some(response) = response.take() {
                    response.discard(worker);
                }
                let flight = guard.flight();
                let id = exchange.passport().request_id(exchange.head());
                let page = Page::of(&answer, flight, &exchange.facts(), id);
                break exchange.answer(&page, told(flight)).await;
            }
            Decision::Wait(until) => {
                runtime::sleep(until.since(worker.now().at)).await;
                Event::Woke
            }
            // Nothing is stored yet, and no fact is learnt later than with the head.
            Decision::Serve(_) => Event::Missed,
            Decision::Learn(_) => Event::Learned,
        };
    };
    guard.end(exchange, sent);
}

/// The client's own part failed on the way.
async fn excuse<X: Exchange>(exchange: &mut X, fault: ClientFault) -> Sent {
    let Some((status, code)) = fault.answer() else { return Sent::GONE };
    let id = exchange.passport().request_id(exchange.head());
    let mut page = Page::problem(status, code, id);
    page.close = true;
    exchange.answer(&page, Told::default()).await
}

async fn relay<X: Exchange>(exchange: &mut X, flight: &Flight, response: Option<Response>) -> Sent {
    match response {
        Some(response) => exchange.relay(response, told(flight)).await,
        None => {
            debug_assert!(false, "policy relays only what has come");
            Sent { finish: Finish::Fault, ..Sent::GONE }
        }
    }
}

fn told(flight: &Flight) -> Told<'_> {
    Told { flight: Some(flight), edit: flight.route().map(|route| &route.rewrite.response_headers) }
}

/// A flight that ends whichever way the request goes: dropped, the client has left.
struct Guard<'w> {
    worker: &'w Worker,
    flight: Option<Flight>,
}

impl<'w> Guard<'w> {
    fn begin(worker: &'w Worker, facts: &Facts<'_>) -> Self {
        Self { worker, flight: Some(worker.begin(facts)) }
    }

    fn flight(&self) -> &Flight {
        self.flight.as_ref().expect("there until the end")
    }

    fn decide(&mut self, facts: &Facts<'_>, event: Event) -> Decision {
        let flight = self.flight.as_mut().expect("there until the end");
        self.worker.decide(facts, flight, event)
    }

    fn settle(&mut self, facts: &Facts<'_>, response: &Response) {
        let flight = self.flight.as_mut().expect("there until the end");
        let head = Headers::new(response.text(), &response.head().fields);
        self.worker.settle(facts, flight, head);
    }

    fn end<X: Exchange>(mut self, exchange: &X, sent: Sent) {
        let ending = Ending {
            status: sent.status,
            bytes_in: exchange.bytes_in(),
            bytes_out: sent.bytes,
            finish: sent.finish,
        };
        if let Some(flight) = self.flight.take() {
            let record = self.worker.end(flight, ending);
            self.worker.observe(&record, exchange.head(), exchange.passport());
        }
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if let Some(flight) = self.flight.take() {
            let ending =
                Ending { status: None, bytes_in: 0, bytes_out: 0, finish: Finish::ClientGone };
            drop(self.worker.end(flight, ending));
        }
    }
}
