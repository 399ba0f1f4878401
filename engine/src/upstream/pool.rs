//! A worker's connections to each endpoint: bounded, reused last in first out, and never trusted.
//!
//! Whatever an idle connection brings (an end, an error, bytes that nobody asked for) closes it; only
//! silence makes it fit for the next request. One that rests has a read armed by the next sweep,
//! which hears that; before, the kernel is asked, unless it has rested for no longer than [`FRESH`].

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use sluice_policy::plan::{EndpointKey, Plan};
use sluice_policy::time::Instant;

use super::connection::Connection;
use super::queue::Queue;
use crate::buffer::Buffers;
use crate::observe::cells::Cells;

/// One worker's pools.
#[derive(Debug)]
pub(crate) struct Pools {
    by_endpoint: RefCell<BTreeMap<EndpointKey, Rc<Pool>>>,
    cells: Arc<Cells>,
}

/// The connections of one worker to one endpoint.
#[derive(Debug)]
pub(crate) struct Pool {
    /// As written: `host:port`.
    pub(crate) name: String,
    /// In the order to be tried.
    pub(crate) addresses: RefCell<Vec<SocketAddr>>,
    idle: RefCell<Vec<Idle>>,
    open: Cell<u32>,
    open_max: Cell<u32>,
    keepalive: Cell<Duration>,
    /// No plan names it any more: what comes back is closed.
    retired: Cell<bool>,
    /// Counts changes of the addresses: what was connected before one is closed when it comes back.
    moved: Cell<u32>,
    /// Until then no connection is taken unasked: one was found dead on use.
    wary_until: Cell<Instant>,
    pub(super) queue: Queue,
    pub(super) cells: Arc<Cells>,
}

#[derive(Debug)]
struct Idle {
    connection: Box<Connection>,
    since: Instant,
}

/// What has served a request no longer ago than this is taken for silent: about what a turn of a busy
/// worker takes, and so what an armed read would have been heard with.
const FRESH: Duration = Duration::from_millis(1);

/// How long a pool is wary after a connection was found dead on use.
const WARY: Duration = Duration::from_secs(10);

/// The right to one connection of a pool; given back when dropped.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) pool: Rc<Pool>,
    /// [`Pool::moved`] when the place was taken.
    moved: u32,
}

impl Pools {
    pub(crate) fn new(cells: Arc<Cells>) -> Self {
        Self { by_endpoint: RefCell::default(), cells }
    }

    /// Have a pool for every endpoint of the plan. The others lose their idle connections, and go
    /// when their last request has ended.
    pub(crate) fn adopt(&self, plan: &Plan, addresses: &BTreeMap<EndpointKey, Vec<SocketAddr>>) {
        let mut pools = self.by_endpoint.borrow_mut();
        for pool in pools.values() {
            pool.retired.set(true);
        }
        for upstream in plan.upstreams() {
            for endpoint in &upstream.endpoints {
                let pool = pools
                    .entry(endpoint.key)
                    .or_insert_with(|| Rc::new(Pool::new(&endpoint.address, &self.cells)));
                pool.retired.set(false);
                pool.open_max.set(upstream.connections_max);
                pool.keepalive.set(upstream.keepalive);
                pool.queue.max.set(upstream.queue_max);
                pool.serve_queue();
                let addresses = addresses.get(&endpoint.key).cloned().unwrap_or_default();
                pool.relocate(addresses);
            }
        }
        for pool in pools.values().filter(|pool| pool.retired.get()) {
            pool.idle.borrow_mut().clear();
        }
    }

    pub(crate) fn pool(&self, key: EndpointKey) -> Option<Rc<Pool>> {
        self.by_endpoint.borrow().get(&key).cloned()
    }

    /// Close all that nobody uses at the moment.
    pub(crate) fn close_idle(&self) {
        let pools = self.by_endpoint.borrow();
        drop(pools.values().map(|pool| pool.idle.take()).collect::<Vec<_>>());
    }

    /// Close what died, was too long idle, or has no plan any more. A few times a second.
    pub(crate) fn sweep(&self, now: Instant, buffers: &Buffers) {
        let mut pools = self.by_endpoint.borrow_mut();
        for pool in pools.values() {
            pool.sweep(now, buffers);
        }
        // A flight of the old plan may still try again here as long as one is in progress.
        pools.retain(|_, pool| {
            !pool.retired.get() || pool.open.get() > 0 || Rc::strong_count(pool) > 1
        });
    }
}

impl Pool {
    fn new(name: &str, cells: &Arc<Cells>) -> Self {
        Self {
            name: name.to_owned(),
            addresses: RefCell::default(),
            idle: RefCell::default(),
            open: Cell::new(0),
            open_max: Cell::new(0),
            keepalive: Cell::new(Duration::ZERO),
            retired: Cell::new(false),
            moved: Cell::new(0),
            wary_until: Cell::default(),
            queue: Queue::default(),
            cells: Arc::clone(cells),
        }
    }

    fn relocate(&self, addresses: Vec<SocketAddr>) {
        if *self.addresses.borrow() != addresses {
            self.addresses.replace(addresses);
            self.moved.set(self.moved.get().wrapping_add(1));
            self.idle.borrow_mut().clear();
        }
    }

    /// The connection used last that is still silent. `once`: for a request that can't be sent again.
    pub(crate) fn take(&self, now: Instant, once: bool) -> Option<Box<Connection>> {
        loop {
            let Idle { mut connection, since } = self.idle.borrow_mut().pop()?;
            let unheard = !connection.reader.armed()
                && (now.since(since) > FRESH || now < self.wary_until.get());
            if connection.is_fit(once || unheard) {
                self.cells.upstream_reused.add(1);
                return Some(connection);
            }
            self.cells.upstream_idle_closed.add(1);
        }
    }

    /// One idle connection was found dead on use: those that have been idle longer are no better.
    pub(crate) fn distrust(&self, now: Instant) {
        self.wary_until.set(now + WARY);
        let idle = std::mem::take(&mut *self.idle.borrow_mut());
        self.cells.upstream_idle_closed.add(idle.len() as u64);
    }

    /// Room for one more connection; None at the bound.
    pub(crate) fn place(self: &Rc<Self>) -> Option<Place> {
        if self.open.get() >= self.open_max.get() {
            return None;
        }
        self.open.set(self.open.get() + 1);
        self.cells.upstream_connections_open.add(1);
        Some(Place { pool: Rc::clone(self), moved: self.moved.get() })
    }

    /// Keep a connection whose last response was read to its end and not a byte further.
    pub(crate) fn give_back(&self, connection: Box<Connection>, now: Instant) {
        if !self.has_use_for(&connection.place) {
            return;
        }
        if let Some(connection) = self.queue.offer(connection, now) {
            self.idle.borrow_mut().push(Idle { connection, since: now });
        }
    }

    /// Give places that have become free to those who wait.
    fn serve_queue(self: &Rc<Self>) {
        while !self.queue.is_empty() {
            let Some(place) = self.place() else { return };
            self.queue.offer_place(place);
        }
    }

    /// Whether a connection that took this place may serve another request.
    fn has_use_for(&self, place: &Place) -> bool {
        !self.retired.get() && !self.keepalive.get().is_zero() && place.moved == self.moved.get()
    }

    fn sweep(&self, now: Instant, buffers: &Buffers) {
        let keepalive = self.keepalive.get();
        let mut idle = self.idle.borrow_mut();
        let before = idle.len();
        idle.retain_mut(|idle| {
            idle.connection.listen(buffers);
            idle.connection.is_quiet()
        });
        self.cells.upstream_idle_closed.add((before - idle.len()) as u64);
        idle.retain(|idle| now.since(idle.since) < keepalive);
    }
}

#[cfg(test)]
impl Pool {
    pub(super) fn of_size(open_max: u32) -> Rc<Self> {
        let pool = Rc::new(Self::new("app:80", &Arc::default()));
        pool.open_max.set(open_max);
        pool.keepalive.set(Duration::from_secs(1));
        pool.relocate(vec![([127, 0, 0, 1], 80).into()]);
        pool
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.pool.open.set(self.pool.open.get().saturating_sub(1));
        self.pool.cells.upstream_connections_open.sub(1);
        self.pool.serve_queue();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::parse::ResponseHead;
    use crate::runtime::{self, Driver, Listener, Stop, Wanted, block_on};
    use crate::sweep::Sweeper;

    #[test]
    fn places_are_bounded_and_come_back() {
        let pool = Pool::of_size(2);
        let (first, second) = (pool.place(), pool.place());
        assert!(first.is_some() && second.is_some() && pool.place().is_none());
        drop(first);
        assert!(pool.place().is_some());
        drop(second);
        assert_eq!(pool.open.get(), 0);
    }

    #[test]
    fn what_has_spoken_or_ended_while_idle_is_not_taken() {
        use std::io::Write;
        let ran = block_on(Wanted::Only(Driver::Epoll), |driver, _| async move {
            let std = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let address = std.local_addr().unwrap();
            let listener = Listener::new(std, driver).unwrap();
            let at = |ms: u64| Instant::from_nanos(1_000_000 + ms * 1_000_000);
            let sweeper = Sweeper::new(at(0));
            // (what the other side does, milliseconds at rest, distrusted, swept, taken)
            let table: [(&[u8], u64, bool, bool, bool); 6] = [
                (b"", 500, false, false, true),
                (b"", 500, false, true, true),
                (b"", 0, true, false, true),
                (b"stray", 2, false, false, false),
                (b"stray", 0, true, false, false),
                (b"stray", 0, false, true, false),
            ];
            for (number, (says, rested, distrusted, swept, taken)) in table.into_iter().enumerate()
            {
                let pool = Pool::of_size(1);
                let mut upstream = std::net::TcpStream::connect(address).unwrap();
                let (socket, _) = listener.accept(&Stop::default()).await.unwrap().unwrap();
                if distrusted {
                    pool.distrust(at(0));
                }
                let connection = Box::new(Connection {
                    watch: Rc::new(sweeper.watch(socket.shutter)),
                    reader: socket.reader,
                    writer: Some(socket.writer),
                    head: ResponseHead::default(),
                    reused: true,
                    place: pool.place().unwrap(),
                });
                pool.give_back(connection, at(0));
                upstream.write_all(says).unwrap();
                if swept {
                    pool.sweep(at(0), &Buffers::default());
                    // Lets the driver look.
                    runtime::sleep(Duration::from_millis(1)).await;
                }
                let found = pool.take(at(rested), false).is_some();
                assert_eq!(found, taken, "row {number}");
            }
        });
        ran.unwrap();
    }

    #[test]
    fn what_was_connected_elsewhere_is_not_kept() {
        let pool = Pool::of_size(2);
        let before = pool.place().unwrap();
        pool.relocate(vec![([127, 0, 0, 1], 80).into()]);
        assert!(pool.has_use_for(&before), "the same address is no change");
        pool.relocate(vec![([127, 0, 0, 2], 80).into()]);
        assert!(!pool.has_use_for(&before));
        assert!(pool.has_use_for(&pool.place().unwrap()));
        pool.retired.set(true);
        assert!(!pool.has_use_for(&pool.place().unwrap()));
    }
}
