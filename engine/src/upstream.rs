//! One attempt at one endpoint: a connection, the request, and the head of what comes back.

pub(crate) mod connection;
mod hold;
pub(crate) mod pool;
mod queue;
pub(crate) mod response;
mod second;
pub(crate) mod slow;
pub(crate) mod upload;

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use sluice_policy::decision::{Call, Failure, idempotent};
use sluice_policy::facts::Body;
use sluice_policy::flight::Flight;
use sluice_policy::plan::Route;
use sluice_policy::time::Instant;

use crate::http::body::Encoder;
use crate::http::parse::{ResponseHead, Scan};
use crate::http::{ClientFault, Exchange, Pending, while_there, write};
use crate::runtime::{self, Sleep};
use crate::sweep::Until;
use crate::worker::Worker;
use connection::{Connection, Step, at_hand, connect};
use hold::Held;
use pool::Pool;
use response::Response;
use second::{Answered, Second};
use slow::{First, Slow};
use upload::{Upload, UploadFault, Uploaded};

/// How an attempt went.
#[derive(Debug)]
pub(crate) enum Called {
    /// A final head has come; of a response that is held, all of it.
    Responded(Response),
    /// `replayable`: every byte of the request is still here.
    Failed { failure: Failure, replayable: bool },
    /// No head has come for longer than such calls take.
    Slow(Box<Slow>),
    /// The second attempt has brought a final head first.
    Overtaken(Response),
    /// One of two attempts has failed.
    Fell { second: bool, failure: Failure, rest: Box<Slow> },
    /// The client's own part failed; the request is over.
    Client(ClientFault),
}

/// A client that asked for `100 Continue` is told to go on after this long, whether the upstream
/// said so or not (RFC 9110 section 10.1.1 asks for patience, not for more). Before clients in use
/// send unasked: the hastiest of them waits for 350 ms.
const EXPECT_WAIT: Duration = Duration::from_millis(300);

/// Carry out one [`Call`].
pub(crate) async fn call<X: Exchange>(
    worker: &Rc<Worker>,
    exchange: &mut X,
    flight: &Flight,
    call: Call,
) -> Called {
    let Some(pool) = worker.pools.pool(call.endpoint) else {
        return failed(exchange, Failure::Connect);
    };
    // It can't be sent again when the connection turns out to be dead.
    let kept = match exchange.head().body {
        Body::Empty => true,
        Body::Length(n) => n <= u64::from(call.keep),
        Body::Unknown => false,
    };
    let once = !idempotent(exchange.head().method()) || exchange.body() == Pending::Coming && !kept;
    let connection = match at_hand(worker, &pool, &call, once) {
        Some(connection) => connection,
        // In a box: it is large, and rare.
        None => match while_there(exchange, Box::pin(connect(worker, &pool, call, once))).await {
            Some(Ok(connection)) => connection,
            Some(Err(failure)) => return failed(exchange, failure),
            None => return Called::Client(ClientFault::Gone),
        },
    };
    let Some(route) = flight.route() else {
        return failed(exchange, Failure::Connect);
    };
    let body_bytes_max = flight.body_bytes_max();
    let mut attempt = Attempt {
        worker,
        exchange,
        flight,
        connection,
        call,
        upload: None,
        sent: false,
        asked: Instant::default(),
        body_bytes_max,
        expecting: None,
        scan: Scan::default(),
        held: None,
        timer: None,
        second: None,
    };
    attempt.send(route, &pool).await;
    match attempt.head().await {
        // The usual way, without moving what is done with.
        Headed::Final { buffer, body_at } => {
            let Attempt { connection, upload, call, sent, .. } = attempt;
            responded(connection, upload, call.idle, sent, buffer, body_at)
        }
        headed => attempt.called(headed),
    }
}

fn responded(
    mut connection: Box<Connection>,
    upload: Option<Upload>,
    idle: Duration,
    sent: bool,
    buffer: Vec<u8>,
    body_at: usize,
) -> Called {
    if !sent && upload.is_none() {
        // It may take the next request for this one's body.
        connection.head.keep_alive = false;
    }
    // It has kept its time; how fast the client takes the head is not its fault.
    connection.watch.clear();
    Called::Responded(Response::new(connection, buffer, body_at, upload, idle))
}

fn failed<X: Exchange>(exchange: &X, failure: Failure) -> Called {
    Called::Failed { failure, replayable: exchange.body() != Pending::Taken }
}

/// The head as the upstream is to see it.
fn write_head<X: Exchange>(
    worker: &Worker,
    exchange: &X,
    route: &Route,
    pool: &Pool,
    call: &Call,
    expects: bool,
) -> Vec<u8> {
    let mut out = worker.buffers.small();
    let left = call.deadline.since(worker.now_cached().at).min(call.first_byte);
    let current = worker.current();
    let deadline = current.config.server.deadline_header.as_ref().map(|header| (header, left));
    let (head, passport) = (exchange.head(), exchange.passport());
    write::request(&mut out, head, passport, &route.rewrite, &pool.name, expects, deadline);
    out
}

/// A request on its way.
struct Attempt<'a, X> {
    worker: &'a Rc<Worker>,
    exchange: &'a mut X,
    flight: &'a Flight,
    connection: Box<Connection>,
    call: Call,
    upload: Option<Upload>,
    /// The upstream has been given all that the request's head announces.
    sent: bool,
    /// Since when it owes a response.
    asked: Instant,
    body_bytes_max: Option<u64>,
    /// The client waits for `100 Continue`; when this is over it is told to go on.
    expecting: Option<Sleep>,
    scan: Scan,
    /// The head has come, and its response is held.
    held: Option<Box<Held>>,
    /// When this is over, the call takes long.
    timer: Option<Sleep>,
    second: Option<Second>,
}

/// What waiting for a head brought.
enum Arrived {
    Bytes(io::Result<usize>, Vec<u8>),
    /// The body has been sent, or not. Some: the client's own fault.
    Uploaded(Option<ClientFault>),
    ClientGone,
    /// The patience with `Expect` is over.
    GoOn,
    /// It takes longer than such calls do.
    Slow,
    /// The second attempt has a head, or has failed.
    Second(Answered),
    Fallen(Failure),
}

/// How the wait for a head ended.
enum Headed {
    Final { buffer: Vec<u8>, body_at: usize },
    Slow,
    Second(Answered),
    Fallen(Failure),
    Failed(Failure),
    Client(ClientFault),
}

impl<'a, X: Exchange> Attempt<'a, X> {
    /// Go on waiting for a head.
    fn resume(
        worker: &'a Rc<Worker>,
        exchange: &'a mut X,
        flight: &'a Flight,
        first: First,
        second: Option<Second>,
    ) -> Self {
        let First { connection, call, asked, scan, held } = first;
        Self {
            worker,
            exchange,
            flight,
            connection,
            call,
            upload: None,
            sent: true,
            asked,
            // Only what has no body is hedged.
            body_bytes_max: None,
            expecting: None,
            scan,
            held,
            timer: None,
            second,
        }
    }

    /// Send the head, and the body as far as it is here; start the rest on its way.
    async fn send(&mut self, route: &Route, pool: &Pool) {
        let pending = self.exchange.body();
        let head = self.exchange.head();
        let expects = head.expects && pending == Pending::Coming;
        let mut out = write_head(self.worker, self.exchange, route, pool, &self.call, expects);
        if let Pending::Whole(body) = pending {
            out.extend_from_slice(body);
        }
        let coming = matches!(pending, Pending::Coming | Pending::Again);
        let Some(mut writer) = self.connection.writer.take() else { return };
        let Self { worker, connection, call, .. } = self;
        let watched = || connection.watch.set(worker.now_cached().at, call.idle, Until::Both);
        let result = writer.write_all(&out, watched).await;
        self.worker.buffers.give(out);
        self.connection.writer = Some(writer);
        if result.is_err() {
            // What the upstream said before it closed may still be there to be read; if not, the
            // read tells how it ended.
            return;
        }
        self.sent = !coming;
        if expects {
            // The request is not sent yet, so the head's time has not begun.
            self.expecting = Some(runtime::sleep(EXPECT_WAIT));
            self.connection.watch.clear();
        } else if coming {
            self.start_upload();
        } else {
            self.watch_for_head();
            self.timer = self.call.hedge.map(runtime::sleep);
        }
    }

    fn start_upload(&mut self) {
        let encoder = match self.exchange.head().body {
            Body::Empty | Body::Length(_) => Encoder::Plain,
            Body::Unknown => Encoder::Chunked,
        };
        let Some(source) = self.exchange.take_body(self.body_bytes_max, self.call.keep) else {
            return;
        };
        let Some(writer) = self.connection.writer.take() else {
            self.exchange.give_body(source);
            return;
        };
        self.upload = Some(Upload::start(
            Rc::clone(self.worker),
            source,
            writer,
            Rc::clone(&self.connection.watch),
            encoder,
            self.call.idle,
        ));
    }

    /// The request has been sent: from here on the response's head is awaited.
    fn watch_for_head(&mut self) {
        let now = self.worker.now_cached().at;
        self.asked = now;
        let left = self.call.deadline.since(now);
        // An upload may have outlasted the deadline, which does not count it.
        let span =
            if left.is_zero() { self.call.first_byte } else { self.call.first_byte.min(left) };
        self.connection.watch.set(now, span, Until::Both);
    }

    async fn head(&mut self) -> Headed {
        self.connection.expect(&self.worker.buffers);
        loop {
            let (result, buffer) = match self.arrived().await {
                Arrived::Bytes(result, buffer) => (result, buffer),
                Arrived::Uploaded(None) => continue,
                Arrived::Uploaded(Some(fault)) => return Headed::Client(fault),
                Arrived::ClientGone => return self.give_up(ClientFault::Gone).await,
                Arrived::Slow => return Headed::Slow,
                Arrived::Second(answered) => return Headed::Second(answered),
                Arrived::Fallen(failure) => return Headed::Fallen(failure),
                Arrived::GoOn => {
                    let go_on = ResponseHead { status: 100, reason: (0, 8), ..Default::default() };
                    if !self.exchange.interim(b"Continue", &go_on).await {
                        return self.give_up(ClientFault::Gone).await;
                    }
                    self.start_upload();
                    continue;
                }
            };
            if !matches!(result, Ok(n) if n > 0) {
                let failure = self.ended(&buffer);
                return self.fail(failure).await;
            }
            match self.read(buffer).await {
                Read::More => {}
                Read::Final { buffer, body_at } => return Headed::Final { buffer, body_at },
                Read::Malformed => return self.fail(Failure::Malformed).await,
                Read::ClientGone => return self.give_up(ClientFault::Gone).await,
            }
        }
    }

    /// What is left of the attempt then.
    fn called(self, headed: Headed) -> Called {
        match headed {
            Headed::Final { buffer, body_at } => {
                let Self { connection, upload, call, sent, .. } = self;
                responded(connection, upload, call.idle, sent, buffer, body_at)
            }
            Headed::Second(answered) => self.overtaken(answered),
            Headed::Slow => Called::Slow(self.slow()),
            Headed::Fallen(failure) => Called::Fell { second: true, failure, rest: self.slow() },
            Headed::Failed(failure) => match self.second {
                Some(second) => {
                    let rest = Box::new(Slow { first: None, second: Some(second) });
                    Called::Fell { second: false, failure, rest }
                }
                None => failed(self.exchange, failure),
            },
            Headed::Client(fault) => Called::Client(fault),
        }
    }

    fn slow(self) -> Box<Slow> {
        let Self { connection, call, asked, scan, held, second, .. } = self;
        Box::new(Slow { first: Some(First { connection, call, asked, scan, held }), second })
    }

    async fn arrived(&mut self) -> Arrived {
        poll_fn(|cx| {
            if let Some(upload) = &mut self.upload
                && let Poll::Ready(uploaded) = Pin::new(upload).poll(cx)
            {
                self.upload = None;
                return Poll::Ready(Arrived::Uploaded(self.uploaded(uploaded)));
            }
            if let Poll::Ready((result, buffer)) = self.connection.poll_read(cx) {
                return Poll::Ready(Arrived::Bytes(result, buffer));
            }
            if let Some(patience) = &mut self.expecting
                && patience.as_mut().poll(cx).is_ready()
            {
                self.expecting = None;
                return Poll::Ready(Arrived::GoOn);
            }
            if let Some(second) = &mut self.second
                && let Poll::Ready(ended) = second.poll(cx)
            {
                self.second = None;
                return Poll::Ready(match ended {
                    Ok(answered) => Arrived::Second(answered),
                    Err(failure) => Arrived::Fallen(failure),
                });
            }
            if let Some(timer) = &mut self.timer
                && timer.as_mut().poll(cx).is_ready()
            {
                self.timer = None;
                return Poll::Ready(Arrived::Slow);
            }
            self.exchange.poll_gone(cx).map(|()| Arrived::ClientGone)
        })
        .await
    }

    /// Understand what has come so far: interim heads are passed on, a final one ends it.
    async fn read(&mut self, mut buffer: Vec<u8>) -> Read {
        if self.held.is_some() {
            return self.hold(buffer);
        }
        let to_head = self.exchange.head().method() == "HEAD";
        loop {
            let end = match self.connection.understand(&mut buffer, &mut self.scan, to_head) {
                Step::Head(end) => end,
                Step::More => {
                    self.connection.reader.arm(buffer);
                    return Read::More;
                }
                Step::Malformed => return Read::Malformed,
            };
            match self.connection.head.status {
                100 => {
                    if self.expecting.take().is_some() {
                        if !self.exchange.interim(&buffer, &self.connection.head).await {
                            return Read::ClientGone;
                        }
                        self.start_upload();
                    }
                }
                101..=199 => {
                    if !self.exchange.interim(&buffer, &self.connection.head).await {
                        return Read::ClientGone;
                    }
                }
                _ => return self.headed(buffer, end),
            }
            self.connection.skip(&mut buffer, end);
        }
    }

    /// The other attempt has answered: this one is ended, and its connection closed.
    fn overtaken(self, answered: Answered) -> Called {
        self.connection.watch.shut();
        Called::Overtaken(slow::response(answered))
    }

    /// The body has been sent, or not. Some: the client's own fault.
    fn uploaded(&mut self, uploaded: Uploaded) -> Option<ClientFault> {
        self.connection.writer = uploaded.writer;
        self.exchange.give_body(uploaded.source);
        self.worker.tick_clock();
        self.sent = uploaded.result.is_ok();
        match uploaded.result {
            Err(UploadFault::Client(fault)) => return Some(fault),
            // It may have answered before it stopped reading: what it said is yet to be read.
            Ok(()) | Err(UploadFault::Upstream | UploadFault::Abandoned) => {}
        }
        // Out of time already: what is read next says so.
        if !self.connection.watch.fired() {
            self.watch_for_head();
        }
        None
    }

    /// The upstream closed, reset or ran out of time before the response was there.
    fn ended(&self, buffer: &[u8]) -> Failure {
        if self.held.is_some() {
            hold::ended(&self.connection)
        } else if self.connection.watch.fired() {
            Failure::TimedOut
        } else if self.connection.reused && Connection::is_empty(buffer) {
            Failure::Stale
        } else {
            Failure::Broken
        }
    }

    async fn fail(&mut self, failure: Failure) -> Headed {
        if self.second.is_none() {
            self.stop_upload().await;
        }
        Headed::Failed(failure)
    }

    async fn give_up(&mut self, fault: ClientFault) -> Headed {
        self.stop_upload().await;
        Headed::Client(fault)
    }

    async fn stop_upload(&mut self) {
        if let Some(upload) = self.upload.take() {
            self.connection.watch.shut();
            upload.abandon();
            self.exchange.give_body(upload.await.source);
        }
    }
}

/// What the bytes so far are.
enum Read {
    More,
    Final { buffer: Vec<u8>, body_at: usize },
    Malformed,
    ClientGone,
}
