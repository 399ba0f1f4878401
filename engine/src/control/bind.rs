//! Listening sockets: one per worker and address, sharing the port among ourselves only.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};

use rustix::net::Shutdown;
use socket2::{Domain, Protocol, Socket, Type};

use crate::exit::Failure;

/// The kernel cuts this to net.core.somaxconn, whose default since 5.4 is the same 4096: at
/// 100,000 new connections a second and 16 workers it rides out 600 ms of a stalled worker.
const BACKLOG: i32 = 4096;

/// An address that is ours: as long as this lives, no other process can bind it.
///
/// Sockets with SO_REUSEPORT would join those of any other process of the same user in silence,
/// and share its connections. This one has no SO_REUSEPORT, so it fails where the address is
/// taken; and because it never listens, ours may bind beside it (SO_REUSEADDR).
#[derive(Debug)]
pub(crate) struct Claim {
    socket: Socket,
    /// With the port that the kernel chose, where 0 was asked for.
    pub(crate) address: SocketAddr,
}

impl Claim {
    /// # Errors
    /// When the address is taken, not ours to have, or not on this machine.
    pub(crate) fn new(address: SocketAddr) -> Result<Self, Failure> {
        let refused = |e: io::Error| Failure::io(format_args!("cannot listen on {address}"), &e);
        let socket = bound(address, false).map_err(refused)?;
        let actual = socket.local_addr().map_err(refused)?;
        let address = actual.as_socket().unwrap_or(address);
        Ok(Self { socket, address })
    }

    /// Listen on the claimed socket itself: for the control thread's own listeners.
    ///
    /// # Errors
    /// What the kernel says.
    pub(crate) fn listen(self) -> Result<TcpListener, Failure> {
        let listening = self.socket.listen(BACKLOG).and_then(|()| {
            self.socket.set_nonblocking(true)?;
            Ok(TcpListener::from(self.socket))
        });
        listening.map_err(|e| Failure::io(format_args!("cannot listen on {}", self.address), &e))
    }
}

/// One worker's listener on that address.
///
/// # Errors
/// What the kernel says.
pub(crate) fn share(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = bound(address, true)?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Take no more connections through this socket, whoever else holds it: it leaves the group of
/// those that share the port.
pub(crate) fn close(listener: &TcpListener) {
    // It may be closed already.
    let _ = rustix::net::shutdown(listener, Shutdown::Both);
}

/// The first address from this port on that is free, looking at a hundred.
///
/// # Errors
/// When none is.
pub(crate) fn first_free(ip: IpAddr, port: u16) -> Result<SocketAddr, Failure> {
    let mut last = None;
    for port in port..=port.saturating_add(99) {
        match Claim::new(SocketAddr::new(ip, port)) {
            Ok(claim) => return Ok(claim.address),
            Err(failure) => last = Some(failure),
        }
    }
    Err(last.unwrap_or_else(|| Failure::new(crate::exit::Exit::Failed, "no port is free")))
}

fn bound(address: SocketAddr, shared: bool) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // A restart need not wait for the connections of the process before it to be forgotten.
    socket.set_reuse_address(true)?;
    if shared {
        socket.set_reuse_port(true)?;
    }
    // Heads and small bodies leave in one write; waiting for more would only add latency. What is
    // accepted inherits it.
    socket.set_tcp_nodelay(true)?;
    if address.ip() == IpAddr::from(std::net::Ipv6Addr::UNSPECIFIED) {
        // "[::]" means every address, whatever net.ipv6.bindv6only says.
        socket.set_only_v6(false)?;
    }
    socket.bind(&address.into())?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpStream};

    use super::*;

    const ANY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

    #[test]
    fn workers_share_a_port_that_nobody_else_can_join() {
        let claim = Claim::new(ANY).unwrap();
        let listeners = [share(claim.address).unwrap(), share(claim.address).unwrap()];
        let address = claim.address;
        drop(claim);
        let refused = Claim::new(address).unwrap_err();
        assert!(refused.text.ends_with("Address already in use"), "{refused}");
        drop(listeners);
    }

    #[test]
    fn a_closed_listener_takes_no_more_connections() {
        let claim = Claim::new(ANY).unwrap();
        let dead = share(claim.address).unwrap();
        // As a dead worker's thread would, this keeps the socket open.
        let _held = dead.try_clone().unwrap();
        close(&dead);
        let heir = share(claim.address).unwrap();
        heir.set_nonblocking(true).unwrap();
        for _ in 0..32 {
            let _client = TcpStream::connect(claim.address).unwrap();
            heir.accept().expect("every connection comes to the heir");
        }
    }

    #[test]
    fn a_taken_port_is_passed_over() {
        let claim = Claim::new(ANY).unwrap();
        let taken = claim.address.port();
        let _listener = claim.listen().unwrap();
        assert!(first_free(ANY.ip(), taken).unwrap().port() > taken);
    }
}
