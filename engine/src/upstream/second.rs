//! The second attempt of a hedged request: a task of its own, beside the first attempt.
//!
//! Whoever answers first wins. The loser's socket is shut, which ends what it waits for, and its
//! connection is closed with it: nobody knows what is still to come over it. Nothing is dropped
//! half-way.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use sluice_policy::decision::{Call, Failure, Hold};

use super::connection::{Connection, Step, at_hand, connect};
use super::hold::{self, Held};
use super::pool::Pool;
use crate::http::parse::Scan;
use crate::runtime::{self, Task};
use crate::sweep::{Until, Watch};
use crate::worker::Worker;

/// Dropped: ended.
#[derive(Debug)]
pub(crate) struct Second {
    task: Task<Result<Result<Answered, Failure>, String>>,
    end: Rc<End>,
}

/// A final head, parsed into its connection's; of a response that is held, all of it.
#[derive(Debug)]
pub(super) struct Answered {
    pub(super) connection: Box<Connection>,
    pub(super) buffer: Vec<u8>,
    pub(super) body_at: usize,
    /// How long the rest may pause.
    pub(super) idle: Duration,
}

/// How the one who waits ends the task.
#[derive(Debug, Default)]
struct End {
    told: Cell<bool>,
    waker: RefCell<Option<Waker>>,
    watch: RefCell<Option<Rc<Watch>>>,
}

impl Second {
    /// Send `request`, a whole one, which asks with HEAD or not.
    pub(super) fn start(
        worker: &Rc<Worker>,
        pool: Rc<Pool>,
        call: Call,
        request: Vec<u8>,
        to_head: bool,
        hold: Option<Hold>,
    ) -> Self {
        let end = Rc::new(End::default());
        let (worker, told) = (Rc::clone(worker), Rc::clone(&end));
        let run = async move { run(&worker, &pool, call, request, (to_head, hold), &told).await };
        Self { task: runtime::supervised(run), end }
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Answered, Failure>> {
        Pin::new(&mut self.task).poll(cx).map(|ended| ended.unwrap_or(Err(Failure::Broken)))
    }
}

impl Drop for Second {
    fn drop(&mut self) {
        self.end.told.set(true);
        if let Some(watch) = self.end.watch.take() {
            watch.shut();
        }
        if let Some(waker) = self.end.waker.take() {
            waker.wake();
        }
    }
}

async fn run(
    worker: &Worker,
    pool: &Rc<Pool>,
    call: Call,
    request: Vec<u8>,
    (to_head, hold): (bool, Option<Hold>),
    end: &End,
) -> Result<Answered, Failure> {
    let mut connection = match at_hand(worker, pool, &call, false) {
        Some(connection) => connection,
        None => until_told(end, connect(worker, pool, call, false)).await?,
    };
    end.watch.replace(Some(Rc::clone(&connection.watch)));
    let Some(mut writer) = connection.writer.take() else { return Err(Failure::Broken) };
    let watch = Rc::clone(&connection.watch);
    let watched = || watch.set(worker.now_cached().at, call.idle, Until::Both);
    // What the upstream said before it closed may still be there to be read.
    let _ = writer.write_all(&request, watched).await;
    worker.buffers.give(request);
    connection.writer = Some(writer);
    let asked = worker.now().at;
    watch.set(asked, call.first_byte.min(call.deadline.since(asked)), Until::Both);
    let mut scan = Scan::default();
    connection.expect(&worker.buffers);
    loop {
        let (result, mut buffer) = poll_fn(|cx| connection.poll_read(cx)).await;
        if !matches!(result, Ok(n) if n > 0) {
            return Err(match watch.fired() {
                true => Failure::TimedOut,
                false if connection.reused && Connection::is_empty(&buffer) => Failure::Stale,
                false => Failure::Broken,
            });
        }
        loop {
            match connection.understand(&mut buffer, &mut scan, to_head) {
                Step::More => {
                    connection.reader.arm(buffer);
                    break;
                }
                Step::Malformed => return Err(Failure::Malformed),
                // The client hears of interim heads from the first attempt alone.
                Step::Head(at) if connection.head.status < 200 => connection.skip(&mut buffer, at),
                Step::Head(body_at) => {
                    let missing = hold::missing(&connection, &buffer, body_at) > 0;
                    let hold = hold.as_ref().filter(|_| missing);
                    let held = hold.and_then(|h| Held::new(h, &connection, body_at, &call, asked));
                    if let Some(held) = held {
                        buffer = whole(worker, &mut connection, held, buffer).await?;
                    }
                    watch.clear();
                    return Ok(Answered { connection, buffer, body_at, idle: call.idle });
                }
            }
        }
    }
}

/// Read a response that is held to its end.
async fn whole(
    worker: &Worker,
    connection: &mut Connection,
    held: Held,
    mut buffer: Vec<u8>,
) -> Result<Vec<u8>, Failure> {
    while !held.is_whole(&buffer) {
        held.arm(worker, connection, buffer);
        let (result, read) = poll_fn(|cx| connection.poll_read(cx)).await;
        if !matches!(result, Ok(n) if n > 0) {
            return Err(hold::ended(connection));
        }
        buffer = read;
    }
    Ok(buffer)
}

/// A connect, which may be dropped, unless the race is over first.
async fn until_told(
    end: &End,
    connect: impl Future<Output = Result<Box<Connection>, Failure>>,
) -> Result<Box<Connection>, Failure> {
    let mut connect = pin!(connect);
    poll_fn(|cx| {
        if end.told.get() {
            return Poll::Ready(Err(Failure::Connect));
        }
        end.waker.replace(Some(cx.waker().clone()));
        connect.as_mut().poll(cx)
    })
    .await
}
