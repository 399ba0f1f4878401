//! The life of a request: ask policy what to do, do it, tell it what happened.
//!
//! Nothing here knows sockets or versions of HTTP, and nothing here decides. What is rare has a box
//! of its own: a request's task is as large as the largest of its parts, and is moved about.

use std::rc::Rc;

use sluice_policy::decision::{Call, Decision, Event, Failure};
use sluice_policy::facts::{Facts, Headers};
use sluice_policy::flight::{Ending, Finish, Flight};

use crate::cache::Recorder;
use crate::http::answer::Page;
use crate::http::{ClientFault, Exchange, Sent, Told, while_there};
use crate::upstream::response::Response;
use crate::upstream::slow::Slow;
use crate::upstream::{self, Called};
use crate::worker::Worker;

/// Serve one request, from its head to its last byte.
pub(crate) async fn serve<X: Exchange>(worker: &Rc<Worker>, exchange: &mut X) {
    let facts = exchange.facts();
    // It is large, and never moved.
    let mut flight = worker.begin(&facts);
    let mut guard = Guard { worker, flight: &mut flight, relayed: false, ended: false };
    let mut decision = guard.decide(&facts, Event::Arrived);
    let (mut response, mut slow) = (None, None);
    let sent = loop {
        let event = match decision {
            Decision::Call(call) => {
                if let Some(refused) = response.take() {
                    Box::pin(discard(worker, exchange, refused)).await;
                }
                let called = upstream::call(worker, exchange, guard.flight(), call).await;
                match heard(called, &mut response, &mut slow) {
                    Ok(event) => event,
                    Err(fault) => break Box::pin(excuse(exchange, fault)).await,
                }
            }
            Decision::Hedge(_) | Decision::Await => {
                let second = if let Decision::Hedge(call) = decision { Some(call) } else { None };
                let waiting = wait(worker, exchange, guard.flight(), slow.take(), second);
                let called = Box::pin(waiting).await;
                match heard(called, &mut response, &mut slow) {
                    Ok(event) => event,
                    Err(fault) => break Box::pin(excuse(exchange, fault)).await,
                }
            }
            Decision::Relay => break relay(exchange, &mut guard, response.take()).await,
            Decision::Answer(answer) => {
                if let Some(refused) = response.take() {
                    Box::pin(discard(worker, exchange, refused)).await;
                }
                let flight = guard.flight();
                let id = exchange.passport().request_id(exchange.head());
                let page = Page::of(&answer, flight, &exchange.facts(), id);
                break exchange.answer(&page, told(flight)).await;
            }
            Decision::Wait(until) => {
                let over = worker.wait(until, guard.flight().awaits_store());
                match while_there(exchange, over).await {
                    Some(()) => Event::Woke,
                    None => break Sent::GONE,
                }
            }
            Decision::Serve(lookup) => {
                let now = worker.now_cached().at;
                match worker.cache.find(&lookup, exchange.head().headers(), now) {
                    Some(found) => {
                        if let Some(refused) = response.take() {
                            Box::pin(discard(worker, exchange, refused)).await;
                        }
                        break exchange.serve(&found, told(guard.flight())).await;
                    }
                    None => Event::Missed,
                }
            }
            // No fact is learnt later than with the head.
            Decision::Learn(_) => Event::Learned,
        };
        decision = guard.decide(&exchange.facts(), event);
    };
    guard.end(exchange, sent);
}

/// What policy is told of it; what is kept for later goes where it is kept.
fn heard(
    called: Called,
    response: &mut Option<Response>,
    slow: &mut Option<Box<Slow>>,
) -> Result<Event, ClientFault> {
    let mut keep = |head: Response| {
        let status = head.head().status;
        *response = Some(head);
        status
    };
    Ok(match called {
        Called::Responded(head) => Event::Responded { status: keep(head) },
        Called::Overtaken(head) => Event::Overtaken { status: keep(head) },
        Called::Failed { failure, replayable } => Event::Failed { failure, replayable },
        Called::Slow(call) => {
            *slow = Some(call);
            Event::Slow
        }
        Called::Fell { second, failure, rest } => {
            *slow = Some(rest);
            Event::Fell { second, failure }
        }
        Called::Client(fault) => return Err(fault),
    })
}

/// Wait on for a call that takes long, and for a second one if there is to be one.
async fn wait<X: Exchange>(
    worker: &Rc<Worker>,
    exchange: &mut X,
    flight: &Flight,
    slow: Option<Box<Slow>>,
    second: Option<Call>,
) -> Called {
    let Some(mut slow) = slow else {
        debug_assert!(false, "policy waits only for what is under way");
        return Called::Failed { failure: Failure::Broken, replayable: false };
    };
    if let Some(call) = second
        && !slow.hedge(worker, exchange, flight, call)
    {
        return Called::Fell { second: true, failure: Failure::Connect, rest: slow };
    }
    slow.wait(worker, exchange, flight).await
}

/// The client's own part failed on the way.
async fn excuse<X: Exchange>(exchange: &mut X, fault: ClientFault) -> Sent {
    let Some((status, code)) = fault.answer() else { return Sent::GONE };
    let id = exchange.passport().request_id(exchange.head());
    let mut page = Page::problem(status, code, id);
    page.close = true;
    exchange.answer(&page, Told::default()).await
}

/// Nobody wants that response. What is still being sent for it comes home.
async fn discard<X: Exchange>(worker: &Worker, exchange: &mut X, mut refused: Response) {
    if let Some(uploaded) = refused.settle_upload().await {
        exchange.give_body(uploaded.source);
    }
    refused.discard(worker);
}

async fn relay<X: Exchange>(
    exchange: &mut X,
    guard: &mut Guard<'_>,
    response: Option<Response>,
) -> Sent {
    let Some(response) = response else {
        debug_assert!(false, "policy relays only what has come");
        return Sent { finish: Finish::Fault, ..Sent::GONE };
    };
    guard.settle(exchange, &response);
    guard.relayed = true;
    let (worker, flight) = (guard.worker, guard.flight());
    let (asked, now) = (exchange.head().headers(), worker.now_cached());
    let mut recorder = Recorder::begin(&worker.cache, flight, asked, &response, now);
    let sent = exchange.relay(response, told(flight), recorder.as_deref_mut()).await;
    if sent.finish == Finish::Whole
        && let Some(recorder) = recorder
    {
        worker.cache.keep(*recorder);
    }
    sent
}

fn told(flight: &Flight) -> Told<'_> {
    Told { flight: Some(flight), edit: flight.route().map(|route| &route.rewrite.response_headers) }
}

/// A flight that ends whichever way the request goes: dropped, the client has left.
struct Guard<'w> {
    worker: &'w Worker,
    flight: &'w mut Flight,
    relayed: bool,
    ended: bool,
}

impl Guard<'_> {
    fn flight(&self) -> &Flight {
        self.flight
    }

    fn decide(&mut self, facts: &Facts<'_>, event: Event) -> Decision {
        self.worker.decide(facts, self.flight, event)
    }

    fn settle<X: Exchange>(&mut self, exchange: &X, response: &Response) {
        if self.flight.plan().follows() {
            let head = Headers::new(response.text(), &response.head().fields);
            self.worker.settle(&exchange.facts(), self.flight, head);
        }
    }

    fn end<X: Exchange>(mut self, exchange: &X, sent: Sent) {
        let ending = Ending {
            status: sent.status,
            bytes_in: exchange.bytes_in(),
            bytes_out: sent.bytes,
            finish: sent.finish,
        };
        self.ended = true;
        // Who relays has read the clock after whatever it waited for last.
        if !self.relayed {
            self.worker.tick_clock();
        }
        let record = self.worker.end(self.flight, ending);
        self.worker.observe(&record, exchange.head(), exchange.passport());
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.worker.tick_clock();
            let ending =
                Ending { status: None, bytes_in: 0, bytes_out: 0, finish: Finish::ClientGone };
            drop(self.worker.end(self.flight, ending));
        }
    }
}
