//! From a listening socket to a connection's task.

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use crate::http::h1;
use crate::runtime::{self, Listener, Socket};
use crate::worker::Worker;

/// Descriptors or memory ran out: the kernel keeps the connection, and trying again at once would
/// only spin.
const BREATHER: Duration = Duration::from_millis(20);

/// Accept until the worker is told to stop.
pub(crate) async fn accept(worker: Rc<Worker>, listener: Listener) {
    loop {
        match listener.accept(&worker.stop).await {
            Ok(Some((socket, peer))) => welcome(&worker, socket, peer),
            Ok(None) => {
                while let Some((socket, peer)) = listener.accept_waiting() {
                    welcome(&worker, socket, peer);
                }
                return;
            }
            Err(_) => {
                worker.cells.accept_errors.add(1);
                runtime::sleep(BREATHER).await;
            }
        }
    }
}

fn welcome(worker: &Rc<Worker>, socket: Socket, peer: SocketAddr) {
    let Some(ticket) = Ticket::take(worker, peer.ip().to_canonical()) else {
        worker.cells.connections_refused.add(1);
        // Dropped: closed. A reply would cost what the bound is there to save.
        return;
    };
    let worker = Rc::clone(worker);
    drop(runtime::spawn(async move {
        worker.tick_clock();
        let serving = h1::serve(Rc::clone(&worker), socket, peer);
        let mut task = runtime::supervised(serving);
        if (&mut task).await.is_err() {
            worker.cells.panics.add(1);
        }
        drop(ticket);
    }));
}

/// One connection's place among the worker's and its address's.
struct Ticket {
    worker: Rc<Worker>,
    client: Option<IpAddr>,
}

impl Ticket {
    /// None at either bound.
    fn take(worker: &Rc<Worker>, client: IpAddr) -> Option<Self> {
        let current = worker.current();
        let server = &current.config.server;
        if worker.cells.connections_open.value() >= u64::from(server.connections) {
            return None;
        }
        let bound = server.connections_per_client;
        // Without a bound nothing is kept by address.
        let client = (bound > 0).then_some(client);
        if let Some(client) = client {
            let mut clients = worker.clients.borrow_mut();
            let count = clients.entry(client).or_insert(0);
            if *count >= bound {
                return None;
            }
            *count += 1;
        }
        worker.cells.connections_open.add(1);
        worker.cells.connections_total.add(1);
        Some(Self { worker: Rc::clone(worker), client })
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.worker.cells.connections_open.sub(1);
        let Some(client) = self.client else { return };
        let mut clients = self.worker.clients.borrow_mut();
        if let Some(count) = clients.get_mut(&client) {
            *count -= 1;
            if *count == 0 {
                clients.remove(&client);
            }
        }
    }
}
