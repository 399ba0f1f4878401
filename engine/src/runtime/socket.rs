//! Sockets with owned buffers. A read, once begun, is never dropped: it lives in its [`Reader`].

use std::cell::{Cell, RefCell, UnsafeCell};
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use monoio::buf::{IoBuf, IoBufMut};
use monoio::io::{
    AsyncReadRent, AsyncWriteRent, CancelHandle, CancelableAsyncReadRent, Canceller, OwnedReadHalf,
};
use monoio::net::{TcpListener, TcpStream};

use super::Driver;
use super::splice::{Duct, Pipes};

/// A bound socket that this worker accepts from.
#[derive(Debug)]
pub(crate) struct Listener {
    tcp: TcpListener,
    /// The same socket, for emptying its queue at the end.
    std: std::net::TcpListener,
    driver: Driver,
}

/// Ends the accept loops of one worker: an accept must not be dropped, only cancelled.
#[derive(Default)]
pub(crate) struct Stop {
    stopped: Cell<bool>,
    canceller: RefCell<Canceller>,
}

/// Both directions of a connection, and a way to end it from outside.
#[derive(Debug)]
pub(crate) struct Socket {
    pub(crate) reader: Reader,
    pub(crate) writer: Writer,
    pub(crate) shutter: Shutter,
}

/// The receiving direction. Holds at most one read; the read outlives whoever waits for it, so
/// waiting can be given up and taken up again without losing a byte, on every driver.
pub(crate) struct Reader {
    pump: Pin<Box<dyn Future<Output = ()>>>,
    slot: Rc<Slot>,
    /// What can be spliced from; a bell can't.
    tcp: Option<Stream>,
}

/// The sending direction.
#[derive(Debug)]
pub(crate) struct Writer {
    tcp: Stream,
}

/// One connection, held by both its directions.
pub(super) type Stream = Rc<UnsafeCell<TcpStream>>;

/// Ends a connection from outside: pending reads and writes return at once.
#[derive(Clone, Debug)]
pub(crate) struct Shutter {
    slot: Rc<Slot>,
    /// Keeps the descriptor open, so that its number can't have become another socket's.
    _alive: Stream,
    fd: RawFd,
}

/// Where a reader and its pump meet.
#[derive(Default)]
struct Slot {
    /// Handed to the pump: read into this.
    wanted: Cell<Option<Vec<u8>>>,
    /// Handed back by the pump.
    done: Cell<Option<(io::Result<usize>, Vec<u8>)>>,
    armed: Cell<bool>,
    /// The right to have the pending read given up.
    giving_up: RefCell<Option<Canceller>>,
}

const ACCEPTS: usize = 8;

impl Listener {
    /// # Errors
    /// When the descriptor can't be registered with the driver.
    pub(crate) fn new(listener: std::net::TcpListener, driver: Driver) -> io::Result<Self> {
        // A ring answers EAGAIN at once for a non-blocking descriptor instead of waiting.
        listener.set_nonblocking(driver == Driver::Epoll)?;
        let std = listener.try_clone()?;
        Ok(Self { tcp: TcpListener::from_std(listener)?, std, driver })
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
        Some((Socket::new(TcpStream::from_std(tcp).ok()?, Reads::CanBeGivenUp), peer))
    }

    /// The next connection, or None once stopped.
    pub(crate) async fn accept(&self, stop: &Stop) -> io::Result<Option<(Socket, SocketAddr)>> {
        if stop.stopped.get() {
            return Ok(None);
        }
        let handle = stop.canceller.borrow().handle();
        match self.tcp.cancelable_accept(handle).await {
            Ok((tcp, peer)) => Ok(Some((Socket::new(tcp, Reads::CanBeGivenUp), peer))),
            Err(_) if stop.stopped.get() => Ok(None),
            Err(e) => Err(e),
        }
    }
}

impl Stop {
    pub(crate) fn stop(&self) {
        self.stopped.set(true);
        drop(self.canceller.take().cancel());
    }

    pub(crate) fn stopped(&self) -> bool {
        self.stopped.get()
    }
}

impl fmt::Debug for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stop").field("stopped", &self.stopped).finish_non_exhaustive()
    }
}

/// Connect within `span`.
///
/// # Errors
/// What the kernel says; `TimedOut` when the time is up.
pub(crate) async fn connect(address: SocketAddr, span: Duration) -> io::Result<Socket> {
    // The one operation that may be dropped: nothing was read, and the descriptor dies with it.
    match monoio::time::timeout(span, TcpStream::connect_addr(address)).await {
        Ok(connected) => connected.map(|tcp| Socket::new(tcp, Reads::Stay)),
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}

/// What may become of a read that is pending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reads {
    Stay,
    /// At the price of keeping a list of them.
    CanBeGivenUp,
}

impl Socket {
    fn new(tcp: TcpStream, reads: Reads) -> Self {
        if reads == Reads::Stay {
            // As on our listeners, whose connections inherit it. An error means the peer is gone
            // already, which the first read will say.
            let _ = tcp.set_nodelay(true);
        }
        Self::of(tcp, reads)
    }

    /// A connection of this worker that had been taken apart.
    ///
    /// # Errors
    /// When the descriptor can't be registered with the driver.
    pub(crate) fn again(descriptor: OwnedFd) -> io::Result<Self> {
        let tcp = TcpStream::from_std(std::net::TcpStream::from(descriptor))?;
        Ok(Self::of(tcp, Reads::CanBeGivenUp))
    }

    /// Take apart a connection with no read armed, down to its descriptor. None while a shutter of
    /// it is left.
    pub(crate) fn apart(reader: Reader, writer: Writer) -> Option<OwnedFd> {
        debug_assert!(!reader.armed(), "its read holds on to it");
        drop(reader);
        let tcp = Rc::try_unwrap(writer.tcp).ok()?.into_inner();
        // SAFETY: the stream owned it and has just let go of it.
        Some(unsafe { OwnedFd::from_raw_fd(tcp.into_raw_fd()) })
    }

    fn of(tcp: TcpStream, reads: Reads) -> Self {
        let fd = tcp.as_raw_fd();
        let tcp = Rc::new(UnsafeCell::new(tcp));
        let read = OwnedReadHalf(Rc::clone(&tcp));
        let slot = Rc::new(Slot::default());
        let shutter = Shutter { slot: Rc::clone(&slot), _alive: Rc::clone(&tcp), fd };
        let reader = match reads {
            Reads::Stay => Reader::new(pump(read, Rc::clone(&slot)), slot),
            Reads::CanBeGivenUp => {
                slot.giving_up.replace(Some(Canceller::new()));
                Reader::new(pump_given_up(read, Rc::clone(&slot)), slot)
            }
        };
        let reader = Reader { tcp: Some(Rc::clone(&tcp)), ..reader };
        Self { reader, writer: Writer { tcp }, shutter }
    }
}

impl Reader {
    fn new(pump: impl Future<Output = ()> + 'static, slot: Rc<Slot>) -> Self {
        Self { pump: Box::pin(pump), slot, tcp: None }
    }

    /// Pass the next `bytes` on to `writer` without reading them. None while a read is armed, or
    /// when there is no pipe to be had.
    pub(crate) fn duct(&self, writer: &Writer, pipes: &Pipes, bytes: u64) -> Option<Duct> {
        let from = self.tcp.as_ref().filter(|_| !self.armed())?;
        pipes.duct(Rc::clone(from), Rc::clone(&writer.tcp), bytes)
    }

    /// Begin to read into the free capacity of `buffer`, behind what it holds. The last [`SPARE`]
    /// bytes are left free, so that a piece can be ended without growing the buffer.
    pub(crate) fn arm(&mut self, buffer: Vec<u8>) {
        debug_assert!(!self.slot.armed.get(), "one read at a time");
        debug_assert!(buffer.capacity() > buffer.len() + SPARE, "nowhere to read to");
        self.slot.armed.set(true);
        self.slot.wanted.set(Some(buffer));
    }

    pub(crate) fn armed(&self) -> bool {
        self.slot.armed.get()
    }

    /// The armed read: how many bytes came (0: the peer sends no more) and the buffer.
    pub(crate) fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<(io::Result<usize>, Vec<u8>)> {
        debug_assert!(self.slot.armed.get(), "arm first");
        if self.pump.as_mut().poll(cx).is_ready() {
            debug_assert!(false, "the pump never ends");
        }
        match self.slot.done.take() {
            Some(done) => {
                self.slot.armed.set(false);
                Poll::Ready(done)
            }
            None => Poll::Pending,
        }
    }

    /// Wait for the armed read. May be dropped: the read stays armed.
    pub(crate) async fn armed_read(&mut self) -> (io::Result<usize>, Vec<u8>) {
        poll_fn(|cx| self.poll_read(cx)).await
    }

    /// Arm and wait.
    pub(crate) async fn read(&mut self, buffer: Vec<u8>) -> (io::Result<usize>, Vec<u8>) {
        self.arm(buffer);
        self.armed_read().await
    }
}

/// What a read leaves free at the end of its buffer: room for `\r\n0\r\n\r\n` and more.
pub(crate) const SPARE: usize = 32;

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").field("armed", &self.slot.armed).finish_non_exhaustive()
    }
}

/// One box for the life of the connection instead of one for each read.
async fn pump<H: AsyncReadRent>(mut half: H, slot: Rc<Slot>) {
    loop {
        let buffer = slot.wanted().await;
        let (from, to) = (buffer.len(), buffer.capacity().saturating_sub(SPARE));
        let (result, part) = half.read(buffer.slice_mut(from..to)).await;
        slot.done.set(Some((result, part.into_inner())));
    }
}

/// As [`pump`], for reads that can be given up.
async fn pump_given_up<H: CancelableAsyncReadRent>(mut half: H, slot: Rc<Slot>) {
    loop {
        let buffer = slot.wanted().await;
        let Some(handle) = slot.handle() else { return };
        let (from, to) = (buffer.len(), buffer.capacity().saturating_sub(SPARE));
        let (result, part) = half.cancelable_read(buffer.slice_mut(from..to), handle).await;
        slot.done.set(Some((result, part.into_inner())));
    }
}

impl Slot {
    async fn wanted(&self) -> Vec<u8> {
        poll_fn(|_| match self.wanted.take() {
            Some(buffer) => Poll::Ready(buffer),
            // Nobody waits here: whoever arms also polls.
            None => Poll::Pending,
        })
        .await
    }

    fn handle(&self) -> Option<CancelHandle> {
        self.giving_up.borrow().as_ref().map(Canceller::handle)
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot").field("armed", &self.armed).finish_non_exhaustive()
    }
}

impl Writer {
    /// Send `bytes[from..]`, all of it. `waits` is told whenever the peer is to take something, so
    /// that a slow peer can be told from one that takes nothing.
    pub(crate) async fn write_all(
        &mut self,
        mut bytes: Vec<u8>,
        mut from: usize,
        waits: impl Fn(),
    ) -> (io::Result<()>, Vec<u8>) {
        while from < bytes.len() {
            waits();
            let (result, part) = self.stream().write(bytes.slice(from..)).await;
            bytes = part.into_inner();
            match result {
                Ok(0) => return (Err(io::ErrorKind::WriteZero.into()), bytes),
                Ok(n) => from += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return (Err(e), bytes),
            }
        }
        (Ok(()), bytes)
    }

    /// Say that no more comes; what was written is still delivered.
    pub(crate) async fn finish(&mut self) {
        // The peer may be gone already, and then there is nobody left to tell.
        let _ = self.stream().shutdown().await;
    }

    /// Not monoio's own half: that one makes a system call when it is dropped.
    fn stream(&mut self) -> &mut TcpStream {
        // SAFETY: as monoio's halves do. The reader uses the read side of the same stream and
        // nothing else; an operation takes its own hold on the descriptor when it is made and
        // keeps no other part of the stream; both live on one thread.
        unsafe { &mut *self.tcp.get() }
    }
}

/// For system calls made directly.
pub(super) fn descriptor(stream: &Stream) -> BorrowedFd<'_> {
    // SAFETY: only the number is read; the stream keeps the descriptor open for as long as it is
    // borrowed.
    unsafe { BorrowedFd::borrow_raw((*stream.get()).as_raw_fd()) }
}

impl Shutter {
    pub(crate) fn shut(&self, how: Shutdown) {
        let how = match how {
            Shutdown::Read => rustix::net::Shutdown::Read,
            Shutdown::Write => rustix::net::Shutdown::Write,
            Shutdown::Both => rustix::net::Shutdown::Both,
        };
        // Not connected any more: then it is shut already.
        let _ = rustix::net::shutdown(self.descriptor(), how);
    }

    /// Have a pending read of an accepted connection given up: it fails with [`given_up`], or
    /// brings what had come. Nothing is lost, and the connection stays.
    pub(crate) fn give_up_read(&self) {
        let mut giving_up = self.slot.giving_up.borrow_mut();
        if let Some(canceller) = giving_up.take() {
            *giving_up = Some(canceller.cancel());
        }
    }

    /// Whether something is there to be read; an end is not.
    pub(crate) fn has_unread(&self) -> bool {
        let look = rustix::net::RecvFlags::PEEK | rustix::net::RecvFlags::DONTWAIT;
        let seen = rustix::net::recv(self.descriptor(), &mut [0_u8; 1], look);
        matches!(seen, Ok((_, 1..)))
    }

    /// Reset the connection: the peer learns that what it got is not all. (Closing would end it in
    /// order, as if that were all.)
    pub(crate) fn reset(&self) {
        // Not connected any more: then the peer has ended it.
        let _ = rustix::net::connect_unspec(self.descriptor());
    }

    /// Whether nothing is there to be read, by asking the kernel: with some rings a completion
    /// comes later than what came after it.
    pub(crate) fn is_silent(&self) -> bool {
        let look = rustix::net::RecvFlags::PEEK | rustix::net::RecvFlags::DONTWAIT;
        let seen = rustix::net::recv(self.descriptor(), &mut [0_u8; 1], look);
        matches!(seen, Err(rustix::io::Errno::AGAIN))
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: `_alive` keeps the descriptor open for as long as this value lives.
        unsafe { BorrowedFd::borrow_raw(self.fd) }
    }
}

/// Whether nothing can be read from this socket any more.
pub(crate) fn has_ended(descriptor: &OwnedFd) -> bool {
    let look = rustix::net::RecvFlags::PEEK | rustix::net::RecvFlags::DONTWAIT;
    match rustix::net::recv(descriptor, &mut [0_u8; 1], look) {
        Ok((_, n)) => n == 0,
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => false,
        Err(_) => true,
    }
}

/// Whether a read failed because it was to be given up.
pub(crate) fn given_up(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::CANCELED.raw_os_error())
}

/// A bell that another thread can ring for this worker, without waking cost when it is silent.
#[derive(Debug)]
pub(crate) struct Bell {
    reader: Reader,
}

impl Bell {
    /// # Errors
    /// When the descriptor can't be registered with the driver.
    pub(crate) fn new(end: std::os::unix::net::UnixStream, driver: Driver) -> io::Result<Self> {
        end.set_nonblocking(driver == Driver::Epoll)?;
        let (end, slot) = (monoio::net::UnixStream::from_std(end)?, Rc::new(Slot::default()));
        Ok(Self { reader: Reader::new(pump(end, Rc::clone(&slot)), slot) })
    }

    /// Wait until it was rung; any number of rings since the last time count as one. False: the
    /// other end is gone.
    pub(crate) async fn rung(&mut self) -> bool {
        let (result, _) = self.reader.read(Vec::with_capacity(SPARE + 64)).await;
        matches!(result, Ok(n) if n > 0)
    }
}

#[cfg(test)]
mod tests;
