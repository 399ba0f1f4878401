//! From a listening socket to a connection's task.

use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use crate::http::h1::{self, Guest, Left};
use crate::http::rest::Rest;
use crate::runtime::{self, Listener, Share, Socket};
use crate::worker::Worker;

/// Descriptors or memory ran out: the kernel keeps the connection, and trying again at once would
/// only spin.
const BREATHER: Duration = Duration::from_millis(20);

/// A new connection takes so much of a listener's turn: thousands may wait at once.
const WELCOME: u64 = 4 * 1024;

/// Accept until the worker is told to stop.
pub(crate) async fn accept(worker: Rc<Worker>, listener: Rc<Listener>) {
    let mut share = Share::default();
    // As many as accept at once have their turns at once.
    let welcomes = WELCOME * listener.accepts() as u64;
    loop {
        match listener.accept(&worker.stop).await {
            Ok(Some((socket, peer))) => {
                welcome(&worker, socket, peer);
                share.spend(&worker.turns, welcomes).await;
            }
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
    serve(worker, socket, Guest::new(ticket, peer));
}

/// Wake a connection that has been at rest.
pub(crate) fn go_on(worker: &Rc<Worker>, rest: Rest) {
    let (descriptor, guest) = Guest::of(rest);
    // It can't be registered with the driver: then it is closed.
    if let Ok(socket) = Socket::again(descriptor) {
        serve(worker, socket, guest);
    }
}

fn serve(worker: &Rc<Worker>, socket: Socket, guest: Guest) {
    let serving = Box::pin(h1::serve(Rc::clone(worker), socket, guest));
    let worker = Rc::clone(worker);
    drop(runtime::spawn(async move {
        worker.tick_clock();
        match watch(&worker, serving).await {
            Some(Left::Rest(rest)) => worker.resting.take(&worker, rest),
            Some(Left::Linger(linger)) => {
                let lingering = Box::pin(linger.run(Rc::clone(&worker)));
                watch(&worker, lingering).await;
            }
            None => {}
        }
    }));
}

/// Serve one connection to its end, or its rest. A panic ends that connection and is counted; the
/// worker and everybody else's connections go on.
async fn watch<T: Default, F>(worker: &Worker, serving: Pin<Box<F>>) -> T
where
    F: Future<Output = T>,
{
    runtime::caught(serving).await.unwrap_or_else(|_| {
        worker.cells.panics.add(1);
        T::default()
    })
}

/// One connection's place among the worker's and its address's.
#[derive(Debug)]
pub(crate) struct Ticket {
    worker: Rc<Worker>,
    client: Option<IpAddr>,
}

impl Ticket {
    /// None at either bound.
    pub(crate) fn take(worker: &Rc<Worker>, client: IpAddr) -> Option<Self> {
        let current = worker.current();
        if worker.cells.connections_open.value() >= u64::from(current.split.clients) {
            return None;
        }
        let bound = current.config.server.connections_per_client;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::fixture::fleet;
    use crate::runtime::Wanted;
    use crate::worker::{News, Seat};

    /// Serves two connections, the first of which meets a bug of ours.
    fn unlucky(seat: Seat) {
        let (news, worker) = (seat.news.clone(), seat.index);
        let ran = runtime::block_on(Wanted::Auto, |driver, fallen| async move {
            let worker = Worker::new(seat);
            let bug = async { std::panic::resume_unwind(Box::new("a bug")) };
            let _: Option<()> = watch(&worker, Box::pin(bug)).await;
            let served = Rc::clone(&worker);
            let next = async move { served.cells.connections_total.add(1) };
            let next = async {
                next.await;
                Some(())
            };
            watch(&worker, Box::pin(next)).await;
            (driver, fallen)
        });
        let Ok((driver, fallen)) = ran else { return };
        let _ = news.send(News::Started { worker, driver, fallen });
    }

    #[tokio::test]
    async fn a_connection_that_panics_is_counted_and_the_next_is_served() {
        let (fleet, mut heard) = fleet(1, unlucky).await;
        let news = heard.recv().await;
        assert!(matches!(news, Some(News::Started { .. })), "the worker lives on: {news:?}");
        let cells = &fleet.workers[0].cells;
        assert_eq!((cells.panics.value(), cells.connections_total.value()), (1, 1));
    }
}
