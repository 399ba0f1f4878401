//! Listening sockets, and how accepting ends.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll, Waker};

use monoio::io::Canceller;
use monoio::net::TcpListener;

use super::polled::{Polled, Polls};
use super::{Driver, Socket};

/// A bound socket that this worker accepts from.
#[derive(Debug)]
pub(crate) struct Listener {
    door: Door,
    /// The same socket, for emptying its queue at the end.
    std: std::net::TcpListener,
    driver: Driver,
}

#[derive(Debug)]
enum Door {
    Driver(TcpListener),
    Polled(Polled),
}

/// Ends the accept loops of one worker: an accept must not be dropped, only cancelled.
#[derive(Default)]
pub(crate) struct Stop {
    stopped: Cell<bool>,
    canceller: RefCell<Canceller>,
    /// Those who accept on epoll.
    waiting: RefCell<Vec<Waker>>,
}

const ACCEPTS: usize = 8;

impl Listener {
    /// # Errors
    /// When the descriptor can't be registered with the driver.
    pub(crate) fn new(listener: std::net::TcpListener, driver: Driver) -> io::Result<Self> {
        let std = listener.try_clone()?;
        let polls = Polls::here();
        // A ring answers EAGAIN at once for a non-blocking descriptor instead of waiting.
        listener.set_nonblocking(polls.is_some())?;
        let door = match polls {
            Some(polls) => Door::Polled(Polled::new(polls, listener.into())?),
            None => Door::Driver(TcpListener::from_std(listener)?),
        };
        Ok(Self { door, std, driver })
    }

    /// How many accepts are to be under way at once. A ring takes them together, where each alone
    /// would cost a system call; epoll wakes one waiter a direction.
    pub(crate) fn accepts(&self) -> usize {
        match self.driver {
            Driver::Epoll => 1,
            Driver::UringDefer | Driver::UringCoop | Driver::UringPlain => ACCEPTS,
        }
    }

    /// One that was waiting when accepting was stopped: closing the socket would reset those that
    /// the kernel has accepted already. None when there are no more.
    pub(crate) fn accept_waiting(&self) -> Option<(Socket, SocketAddr)> {
        self.std.set_nonblocking(true).ok()?;
        let (tcp, peer) = self.std.accept().ok()?;
        tcp.set_nonblocking(self.driver == Driver::Epoll).ok()?;
        Some((Socket::again(tcp.into()).ok()?, peer))
    }

    /// The next connection, or None once stopped.
    pub(crate) async fn accept(&self, stop: &Stop) -> io::Result<Option<(Socket, SocketAddr)>> {
        if stop.stopped.get() {
            return Ok(None);
        }
        let tcp = match &self.door {
            Door::Driver(tcp) => tcp,
            Door::Polled(polled) => return poll_fn(|cx| poll_accept(polled, stop, cx)).await,
        };
        let handle = stop.canceller.borrow().handle();
        match tcp.cancelable_accept(handle).await {
            Ok((tcp, peer)) => Ok(Some((Socket::accepted(tcp), peer))),
            Err(_) if stop.stopped.get() => Ok(None),
            Err(e) => Err(e),
        }
    }
}

fn poll_accept(
    polled: &Polled,
    stop: &Stop,
    cx: &mut Context<'_>,
) -> Poll<io::Result<Option<(Socket, SocketAddr)>>> {
    if stop.stopped.get() {
        return Poll::Ready(Ok(None));
    }
    let Poll::Ready(accepted) = polled.poll_accept(cx) else {
        stop.waits(cx.waker());
        return Poll::Pending;
    };
    let (descriptor, peer) = accepted?;
    let peer = peer.and_then(|peer| peer.try_into().ok());
    let peer = peer.ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected))?;
    Poll::Ready(Socket::again(descriptor).map(|socket| Some((socket, peer))))
}

impl Stop {
    pub(crate) fn stop(&self) {
        self.stopped.set(true);
        drop(self.canceller.take().cancel());
        for waker in self.waiting.take() {
            waker.wake();
        }
    }

    pub(crate) fn stopped(&self) -> bool {
        self.stopped.get()
    }

    fn waits(&self, waker: &Waker) {
        let mut waiting = self.waiting.borrow_mut();
        if !waiting.iter().any(|known| known.will_wake(waker)) {
            waiting.push(waker.clone());
        }
    }
}

impl fmt::Debug for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stop").field("stopped", &self.stopped).finish_non_exhaustive()
    }
}
