//! One HTTP/1.1 connection to an endpoint.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rustix::io::Errno;
use sluice_policy::decision::{Call, Failure};

use super::pool::{Place, Pool};
use super::queue::{self, Given};
use crate::buffer::{self, Buffers, HEADROOM, SMALL};
use crate::http::parse::{self, ResponseHead, Scan, Scanned};
use crate::runtime::{self, Reader, SPARE, Socket, Writer};
use crate::sweep::Watch;
use crate::worker::Worker;

/// A closed descriptor is free once the driver has seen its read end.
const CLOSING: Duration = Duration::from_millis(5);

/// Connect. When there is no descriptor left, those of idle connections are better used here.
async fn reach(worker: &Worker, address: SocketAddr, within: Duration) -> io::Result<Socket> {
    let result = runtime::connect(address, within).await;
    let Err(e) = &result else { return result };
    let none_left = matches!(Errno::from_io_error(e), Some(Errno::MFILE | Errno::NFILE));
    if !none_left {
        return result;
    }
    // Another request may have closed them just now.
    worker.pools.close_idle();
    runtime::sleep(CLOSING).await;
    runtime::connect(address, within).await
}

/// A connection that waits in the pool.
pub(super) fn at_hand(
    worker: &Worker,
    pool: &Pool,
    call: &Call,
    once: bool,
) -> Option<Box<Connection>> {
    let now = worker.now_cached().at;
    if call.fresh {
        pool.distrust(now);
        return None;
    }
    pool.take(now, once)
}

/// A new connection, or the next that is given back to a full pool.
pub(super) async fn connect(
    worker: &Worker,
    pool: &Rc<Pool>,
    call: Call,
    once: bool,
) -> Result<Box<Connection>, Failure> {
    let place = match pool.place() {
        Some(place) => place,
        None => match queue::wait(worker, pool, call.queue).await.ok_or(Failure::PoolFull)? {
            Given::Place(place) => place,
            // It has come from its last response straight here.
            Given::Connection(mut connection, _) => match connection.is_fit(once) && !call.fresh {
                true => return Ok(connection),
                false => connection.into_place(),
            },
        },
    };
    let left = call.deadline.since(worker.now().at).min(call.connect);
    Connection::open(worker, place, left).await.map_err(|e| match e.kind() {
        io::ErrorKind::TimedOut => Failure::ConnectTimeout,
        _ => Failure::Connect,
    })
}

/// Lives in a pool, or in the request that uses it; in one box all its life, because it changes
/// hands several times a request. Dropped: closed.
#[derive(Debug)]
pub(crate) struct Connection {
    // The deadline goes before the descriptor it guards.
    pub(crate) watch: Rc<Watch>,
    pub(crate) reader: Reader,
    /// Away while a body is being sent.
    pub(crate) writer: Option<Writer>,
    /// Memory for response heads, used again and again.
    pub(crate) head: ResponseHead,
    /// It has served a request before: it may have been closed in the meantime.
    pub(crate) reused: bool,
    pub(crate) place: Place,
}

/// What the bytes so far are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    More,
    /// It ends there.
    Head(usize),
    Malformed,
}

/// A response head may be this long.
const HEAD_BYTES_MAX: usize = 64 * 1024;

impl Connection {
    /// Connect to the first address that answers.
    ///
    /// # Errors
    /// The last address's error; `TimedOut` when the time is up.
    pub(crate) async fn open(
        worker: &Worker,
        place: Place,
        within: Duration,
    ) -> io::Result<Box<Self>> {
        let addresses = place.pool.addresses.borrow().clone();
        let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
        let until = worker.now().at + within;
        for address in addresses {
            let left = until.since(worker.now().at);
            if left.is_zero() {
                last = io::ErrorKind::TimedOut.into();
                break;
            }
            match reach(worker, address, left).await {
                Ok(socket) => {
                    worker.cells.upstream_connections_total.add(1);
                    let watch = Rc::new(worker.sweeper.watch(socket.shutter));
                    return Ok(Box::new(Self {
                        watch,
                        reader: socket.reader,
                        writer: Some(socket.writer),
                        head: ResponseHead::default(),
                        reused: false,
                        place,
                    }));
                }
                Err(e) => last = e,
            }
        }
        worker.cells.upstream_connects_failed.add(1);
        Err(last)
    }

    /// Have a read waiting, so that an end is heard.
    pub(crate) fn listen(&mut self, buffers: &Buffers) {
        if !self.reader.armed() {
            self.reader.arm(buffer::with_headroom(buffers.small()));
        }
    }

    /// Have a read waiting for the response to what has been sent.
    pub(crate) fn expect(&mut self, buffers: &Buffers) {
        if !self.reader.armed() {
            self.reader.arm_late(buffer::with_headroom(buffers.small()));
        }
    }

    /// Whether the other side has said nothing: no bytes, no end, no error. Only where a read is
    /// waiting can it be heard.
    pub(crate) fn is_quiet(&mut self) -> bool {
        // Nobody is to be woken: who takes the connection polls again, with a waker.
        let mut nobody = Context::from_waker(Waker::noop());
        !self.reader.armed() || self.reader.poll_read(&mut nobody).is_pending()
    }

    /// Whether it may carry a request. `certain`: as of now, and not as of when the ring was last
    /// looked at.
    pub(crate) fn is_fit(&mut self, certain: bool) -> bool {
        self.is_quiet() && (!certain || self.watch.is_silent())
    }

    /// Close it, and keep its place in the pool.
    pub(crate) fn into_place(self) -> Place {
        self.place
    }

    /// The armed read. The buffer holds [`HEADROOM`] in front.
    pub(crate) fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<(io::Result<usize>, Vec<u8>)> {
        self.reader.poll_read(cx)
    }

    /// Whether what has come is a head, parsed into [`Self::head`]; when not, there is room for more.
    pub(crate) fn understand(
        &mut self,
        buffer: &mut Vec<u8>,
        scan: &mut Scan,
        to_head: bool,
    ) -> Step {
        if scan.is_fresh()
            && let Some(end) = self.read_head(buffer, to_head)
        {
            return Step::Head(end);
        }
        match scan.run(&buffer[HEADROOM..]) {
            Scanned::Head(_) => {}
            Scanned::More if buffer.len() < HEAD_BYTES_MAX => {
                if buffer.capacity() - buffer.len() <= SPARE {
                    buffer.reserve(SMALL);
                }
                return Step::More;
            }
            // Too long, or no head.
            Scanned::More | Scanned::BareLf => return Step::Malformed,
        }
        *scan = Scan::default();
        self.read_head(buffer, to_head).map_or(Step::Malformed, Step::Head)
    }

    /// Where the head ends that has come whole and is in order.
    fn read_head(&mut self, buffer: &[u8], to_head: bool) -> Option<usize> {
        let end = parse::response(&mut self.head, buffer, HEADROOM, to_head).ok()?;
        // Nobody asked to switch protocols: `Upgrade` is not passed on.
        (end - HEADROOM <= HEAD_BYTES_MAX && self.head.status != 101).then_some(end)
    }

    /// Done with an interim head that ends there.
    pub(crate) fn skip(&self, buffer: &mut Vec<u8>, end: usize) {
        buffer.drain(HEADROOM..end);
    }

    /// Whether a buffer holds no byte of a response.
    pub(crate) fn is_empty(buffer: &[u8]) -> bool {
        buffer.len() <= HEADROOM
    }
}
