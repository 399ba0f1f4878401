//! Upstreams whose every byte is scripted, and who remember every byte they got.

use std::collections::BTreeMap;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketType};

use crate::wait::{Gate, Watched};
use crate::wire::{Fields, Head, Length, Wire};

/// A listener that runs one script for each connection it accepts.
///
/// A script is a closure over a [`Connection`]; when it returns, the connection is closed. An
/// error ends it silently: the gateway left, which is often what the test is about.
#[derive(Debug)]
pub struct Origin {
    addr: SocketAddr,
    shared: Arc<Shared>,
}

/// A request as the gateway sent it.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Which connection it came on, counted from 0.
    pub connection: usize,
    pub head: Head,
    pub body: Vec<u8>,
    pub trailers: Fields,
    /// Head and body byte for byte, chunk framing included.
    pub raw: Vec<u8>,
}

/// The scripted side of one accepted connection.
#[derive(Debug)]
pub struct Connection {
    /// Counted from 0, in order of acceptance.
    pub number: usize,
    wire: Option<Wire>,
    pending: Request,
    /// How far a body that is read in pieces still reaches.
    left: Option<Length>,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    stopped: AtomicBool,
    seen: Watched<Seen>,
    closing: Gate,
}

#[derive(Debug, Default)]
struct Seen {
    requests: Vec<Request>,
    heads: usize,
    connections: usize,
    open: BTreeMap<usize, TcpStream>,
}

impl Origin {
    #[must_use]
    pub fn new<F>(script: F) -> Self
    where
        F: Fn(&mut Connection) -> io::Result<()> + Send + Sync + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let addr = listener.local_addr().expect("a bound socket has an address");
        let shared = Arc::new(Shared::default());
        let (accepting, script) = (Arc::clone(&shared), Arc::new(script));
        thread::spawn(move || accepting.accept(&listener, &script));
        Self { addr, shared }
    }

    /// Answers every request with 200 and this body.
    #[must_use]
    pub fn ok(body: &str) -> Self {
        let answer = ok(body);
        Self::answering(move |_| answer.clone())
    }

    /// Answers every request with 200 and this body, once the gate is open.
    #[must_use]
    pub fn behind(gate: &Gate, body: &str) -> Self {
        let (gate, answer) = (gate.clone(), ok(body));
        Self::new(move |connection| {
            loop {
                connection.read_request()?;
                connection.wait_at(&gate)?;
                connection.write(&answer)?;
            }
        })
    }

    /// Answers every request with the head it got as the body.
    #[must_use]
    pub fn echo() -> Self {
        Self::answering(|request| {
            let mut text = format!("{}\n", request.head.line);
            for (name, value) in &request.head.fields {
                text.push_str(&format!("{name}: {value}\n"));
            }
            ok(&text)
        })
    }

    /// Reads requests and answers each with the bytes `answer` makes, on kept connections.
    #[must_use]
    pub fn answering<F>(answer: F) -> Self
    where
        F: Fn(&Request) -> Vec<u8> + Send + Sync + 'static,
    {
        Self::new(move |connection| {
            loop {
                let request = connection.read_request()?;
                connection.write(answer(&request))?;
            }
        })
    }

    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The requests that arrived whole, so far.
    #[must_use]
    pub fn requests(&self) -> Vec<Request> {
        self.shared.seen.read(|seen| seen.requests.clone())
    }

    /// The only request that came.
    #[track_caller]
    #[must_use]
    pub fn only_request(&self) -> Request {
        let mut requests = self.requests();
        assert_eq!(requests.len(), 1, "requests at the origin: {requests:?}");
        requests.remove(0)
    }

    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.seen.read(|seen| seen.connections)
    }

    /// Connections that neither side has closed yet, as far as this side has noticed.
    #[must_use]
    pub fn open_connections(&self) -> usize {
        self.shared.seen.read(|seen| seen.open.len())
    }

    /// Request heads that were read so far.
    #[must_use]
    pub fn heads(&self) -> usize {
        self.shared.seen.read(|seen| seen.heads)
    }

    /// Waits until `count` request heads were read in all.
    #[track_caller]
    pub fn wait_for_heads(&self, count: usize) {
        let found = self.shared.seen.until(|seen| (seen.heads >= count).then_some(()));
        assert!(found.is_some(), "waited in vain for {count} heads at the origin");
    }

    /// Waits until only `count` connections are open.
    #[track_caller]
    pub fn wait_for_open(&self, count: usize) {
        let found = self.shared.seen.until(|seen| (seen.open.len() == count).then_some(()));
        assert!(found.is_some(), "{} connections are open, not {count}", self.open_connections());
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        self.shared.closing.open();
        drop(TcpStream::connect(self.addr));
        self.shared.seen.change(|seen| {
            for stream in seen.open.values() {
                drop(stream.shutdown(Shutdown::Both));
            }
        });
    }
}

impl Shared {
    fn accept<F>(self: Arc<Self>, listener: &TcpListener, script: &Arc<F>)
    where
        F: Fn(&mut Connection) -> io::Result<()> + Send + Sync + 'static,
    {
        for stream in listener.incoming() {
            if self.stopped.load(Ordering::SeqCst) {
                return;
            }
            let Ok(stream) = stream else { continue };
            let (shared, script) = (Arc::clone(&self), Arc::clone(script));
            let Ok(mut connection) = Connection::new(stream, shared) else { continue };
            thread::spawn(move || drop(script(&mut connection)));
        }
    }
}

impl Connection {
    fn new(stream: TcpStream, shared: Arc<Shared>) -> io::Result<Self> {
        let kept = stream.try_clone()?;
        let number = shared.seen.change(|seen| {
            let number = seen.connections;
            seen.connections += 1;
            seen.open.insert(number, kept);
            number
        });
        let wire = Some(Wire::new(stream)?);
        Ok(Self { number, wire, pending: Request::default(), left: None, shared })
    }

    /// Reads one request whole and records it.
    ///
    /// # Errors
    /// When the gateway leaves before its end.
    pub fn read_request(&mut self) -> io::Result<Request> {
        self.read_head()?;
        self.read_body()
    }

    /// Reads only a head. The request is recorded once [`Connection::read_body`] got the rest.
    ///
    /// # Errors
    /// When the gateway leaves before its end.
    pub fn read_head(&mut self) -> io::Result<Head> {
        let head = self.wire()?.read_head()?;
        self.left = None;
        self.pending =
            Request { connection: self.number, head: head.clone(), ..Request::default() };
        self.shared.seen.change(|seen| seen.heads += 1);
        Ok(head)
    }

    /// # Errors
    /// When the gateway leaves before its end.
    pub fn read_body(&mut self) -> io::Result<Request> {
        let mut request = std::mem::take(&mut self.pending);
        let length = request.head.stated_length().unwrap_or(Length::Over);
        let wire = self.wire()?;
        (request.body, request.trailers) = wire.read_body(length)?;
        request.raw = wire.take_record();
        self.shared.seen.change(|seen| seen.requests.push(request.clone()));
        Ok(request)
    }

    /// # Errors
    /// When the gateway left.
    pub fn write(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.wire()?.write(bytes.as_ref())
    }

    /// Writes each byte run in a packet of its own.
    ///
    /// # Errors
    /// When the gateway left.
    pub fn write_in_pieces(&mut self, bytes: &[u8], size: usize) -> io::Result<()> {
        bytes.chunks(size).try_for_each(|piece| self.write(piece))
    }

    /// Writes `a`s until the gateway takes no more for a moment, or `most` are out; how many are.
    ///
    /// # Errors
    /// When the gateway left.
    pub fn write_until_blocked(&mut self, most: u64) -> io::Result<u64> {
        self.wire()?.write_until_blocked(most)
    }

    /// The next piece of a body as it comes, neither kept nor recorded; `None` at its end.
    ///
    /// # Errors
    /// When the gateway leaves before its end.
    pub fn read_piece(&mut self) -> io::Result<Option<Vec<u8>>> {
        let length = self
            .left
            .get_or_insert_with(|| self.pending.head.stated_length().unwrap_or(Length::Over));
        self.wire.as_mut().ok_or(io::ErrorKind::NotConnected)?.read_piece(length)
    }

    /// Reads a body without keeping or recording it; how long it was.
    ///
    /// # Errors
    /// When the gateway leaves before its end.
    pub fn count_body(&mut self) -> io::Result<u64> {
        let mut length = self.pending.head.stated_length().unwrap_or(Length::Over);
        let wire = self.wire()?;
        let mut count = 0;
        loop {
            match wire.skip_piece(&mut length)? {
                0 => return Ok(count),
                more => count += more,
            }
        }
    }

    /// Stands at a gate that the test opens.
    ///
    /// # Errors
    /// When it stays shut too long.
    pub fn wait_at(&self, gate: &Gate) -> io::Result<()> {
        if gate.wait() { Ok(()) } else { Err(io::ErrorKind::TimedOut.into()) }
    }

    /// Says nothing until the gateway gives up. What it sends meanwhile is thrown away.
    ///
    /// # Errors
    /// When it never gives up.
    pub fn stall(&mut self) -> io::Result<()> {
        self.wire()?.read_to_close().map(drop)
    }

    /// Waits until the gateway sent something or left; `true` for something.
    ///
    /// # Errors
    /// When neither happens for too long.
    pub fn readable(&mut self) -> io::Result<bool> {
        self.wire()?.readable()
    }

    /// Closes with a reset instead of an end.
    ///
    /// # Errors
    /// When the socket is gone already.
    pub fn reset(&mut self) -> io::Result<()> {
        let wire = self.wire()?;
        rustix::net::sockopt::set_socket_linger(wire.stream(), Some(Duration::ZERO))?;
        self.close();
        Ok(())
    }

    /// Says that nothing more will be written.
    ///
    /// # Errors
    /// When the socket is gone already.
    pub fn half_close(&mut self) -> io::Result<()> {
        self.wire()?.half_close()
    }

    /// Closes now. Bytes still unread make the kernel send a reset, as for any program.
    pub fn close(&mut self) {
        self.wire = None;
        // Inside, so that who waits for it finds the socket really closed.
        self.shared.seen.change(|seen| drop(seen.open.remove(&self.number)));
    }

    fn wire(&mut self) -> io::Result<&mut Wire> {
        self.wire.as_mut().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.close();
    }
}

/// An address that refuses every connection for as long as this lives: bound, never listening.
#[derive(Debug)]
pub struct Refusing {
    _socket: OwnedFd,
    addr: SocketAddr,
}

impl Refusing {
    #[must_use]
    pub fn new() -> Self {
        let socket =
            rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
        let any: SocketAddr = ([127, 0, 0, 1], 0).into();
        rustix::net::bind(&socket, &any).expect("a free port");
        let addr = rustix::net::getsockname(&socket).expect("a bound socket has an address");
        let addr = addr.try_into().expect("an internet address");
        Self { _socket: socket, addr }
    }

    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }
}

impl Default for Refusing {
    fn default() -> Self {
        Self::new()
    }
}

/// A 200 with this body and its length.
#[must_use]
pub fn ok(body: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
}
