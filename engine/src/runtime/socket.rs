//! Sockets with owned buffers. A read, once begun, is never dropped: it lives in its [`Reader`].

use std::cell::UnsafeCell;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use monoio::io::{AsyncWriteRent, OwnedReadHalf};
use monoio::net::TcpStream;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::Driver;
use super::polled::{Direction, Polled, Polls};
use super::pump::{Pump, Slot};
use super::splice::{Duct, Pipes};

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
    half: Half,
    /// What can be spliced from; a bell can't.
    stream: Option<Stream>,
}

enum Half {
    Pumped(Pump),
    Polled(Rc<Polled>, Option<Vec<u8>>),
}

/// The sending direction.
#[derive(Debug)]
pub(crate) struct Writer {
    stream: Stream,
}

/// One connection, held by both its directions.
#[derive(Clone, Debug)]
pub(super) enum Stream {
    /// One of the driver's: on a ring.
    Driver(Rc<UnsafeCell<TcpStream>>),
    /// On epoll.
    Polled(Rc<Polled>),
}

/// Ends a connection from outside: pending reads and writes return at once.
#[derive(Clone, Debug)]
pub(crate) struct Shutter {
    /// None on epoll, which needs none to have a read given up.
    slot: Option<Rc<Slot>>,
    /// Keeps the descriptor open, so that its number can't have become another socket's.
    stream: Stream,
    fd: RawFd,
}

/// Connect within `span`.
///
/// # Errors
/// What the kernel says; `TimedOut` when the time is up.
pub(crate) async fn connect(address: SocketAddr, span: Duration) -> io::Result<Socket> {
    // The one operation that may be dropped: nothing was read, and the descriptor dies with it.
    let connected = match Polls::here() {
        None => monoio::time::timeout(span, TcpStream::connect_addr(address)).await.map(|made| {
            let tcp = made?;
            Ok(Socket::driven(tcp.as_raw_fd(), tcp, Pump::new))
        }),
        Some(polls) => monoio::time::timeout(span, Polled::connect(polls, address))
            .await
            .map(|made| made.map(Socket::polled)),
    };
    let socket = connected.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    // As on our listeners, whose connections inherit it. An error means the peer is gone already,
    // which the first read will say.
    let _ = rustix::net::sockopt::set_tcp_nodelay(socket.shutter.descriptor(), true);
    Ok(socket)
}

impl Socket {
    /// A connection that the driver has accepted.
    pub(super) fn accepted(tcp: TcpStream) -> Self {
        Self::driven(tcp.as_raw_fd(), tcp, Pump::giving_up)
    }

    /// An accepted connection, perhaps one that had been taken apart; on epoll it does not block.
    ///
    /// # Errors
    /// When the descriptor can't be registered with the driver.
    pub(crate) fn again(descriptor: OwnedFd) -> io::Result<Self> {
        match Polls::here() {
            Some(polls) => Ok(Self::polled(Polled::new(polls, descriptor)?)),
            None => {
                let tcp = TcpStream::from_std(std::net::TcpStream::from(descriptor))?;
                Ok(Self::accepted(tcp))
            }
        }
    }

    /// Take apart a connection with no read armed, down to its descriptor. None while a shutter of
    /// it is left.
    pub(crate) fn apart(reader: Reader, writer: Writer) -> Option<OwnedFd> {
        debug_assert!(!reader.armed(), "its read holds on to it");
        drop(reader);
        match writer.stream {
            Stream::Driver(tcp) => {
                let tcp = Rc::try_unwrap(tcp).ok()?.into_inner();
                // SAFETY: the stream owned it and has just let go of it.
                Some(unsafe { OwnedFd::from_raw_fd(tcp.into_raw_fd()) })
            }
            Stream::Polled(polled) => Rc::try_unwrap(polled).ok().map(Polled::into_descriptor),
        }
    }

    /// Close a connection with no read armed: by one direct call, where a ring would be given two
    /// errands.
    pub(crate) fn close(reader: Reader, writer: Writer) {
        match &writer.stream {
            Stream::Driver(_) => drop(Self::apart(reader, writer)),
            // Dropped, and with it closed.
            Stream::Polled(_) => {}
        }
    }

    fn driven(
        fd: RawFd,
        tcp: TcpStream,
        pump: impl FnOnce(RawFd, OwnedReadHalf<TcpStream>) -> Pump,
    ) -> Self {
        let tcp = Rc::new(UnsafeCell::new(tcp));
        let pump = pump(fd, OwnedReadHalf(Rc::clone(&tcp)));
        let (slot, stream) = (Some(pump.slot()), Stream::Driver(tcp));
        Self::of(fd, slot, Half::Pumped(pump), stream)
    }

    fn polled(polled: Polled) -> Self {
        let (fd, polled) = (polled.as_fd().as_raw_fd(), Rc::new(polled));
        let half = Half::Polled(Rc::clone(&polled), None);
        Self::of(fd, None, half, Stream::Polled(polled))
    }

    fn of(fd: RawFd, slot: Option<Rc<Slot>>, half: Half, stream: Stream) -> Self {
        Self {
            shutter: Shutter { slot, stream: stream.clone(), fd },
            reader: Reader { half, stream: Some(stream.clone()) },
            writer: Writer { stream },
        }
    }
}

impl Reader {
    /// Pass the next `bytes` on to `writer` without reading them. None while a read is armed, or
    /// when there is no pipe to be had.
    pub(crate) fn duct(&self, writer: &Writer, pipes: &Pipes, bytes: u64) -> Option<Duct> {
        let from = self.stream.as_ref().filter(|_| !self.armed())?;
        pipes.duct(from.clone(), writer.stream.clone(), bytes)
    }

    /// Begin to read into the free capacity of `buffer`, behind what it holds. The last [`SPARE`]
    /// bytes are left free, so that a piece can be ended without growing the buffer.
    pub(crate) fn arm(&mut self, buffer: Vec<u8>) {
        debug_assert!(!self.armed(), "one read at a time");
        debug_assert!(buffer.capacity() > buffer.len() + SPARE, "nowhere to read to");
        match &mut self.half {
            Half::Pumped(pump) => pump.arm(buffer),
            Half::Polled(_, wanted) => *wanted = Some(buffer),
        }
    }

    /// As [`Self::arm`], for what can be here in a moment, but not yet.
    pub(crate) fn arm_late(&mut self, buffer: Vec<u8>) {
        match &mut self.half {
            Half::Pumped(pump) => pump.arm_late(buffer),
            Half::Polled(..) => self.arm(buffer),
        }
    }

    pub(crate) fn armed(&self) -> bool {
        match &self.half {
            Half::Pumped(pump) => pump.armed(),
            Half::Polled(_, wanted) => wanted.is_some(),
        }
    }

    /// The armed read: how many bytes came (0: the peer sends no more) and the buffer.
    pub(crate) fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<(io::Result<usize>, Vec<u8>)> {
        debug_assert!(self.armed(), "arm first");
        match &mut self.half {
            Half::Pumped(pump) => pump.poll(cx),
            Half::Polled(polled, wanted) => {
                let Some(buffer) = wanted else { return Poll::Pending };
                let result = ready!(polled.poll_recv(cx, buffer));
                Poll::Ready((result, wanted.take().unwrap_or_default()))
            }
        }
    }

    /// Wait for the armed read. May be dropped: the read stays armed.
    pub(crate) async fn armed_read(&mut self) -> (io::Result<usize>, Vec<u8>) {
        poll_fn(|cx| self.poll_read(cx)).await
    }

    /// Arm and wait.
    #[cfg(test)]
    pub(crate) async fn read(&mut self, buffer: Vec<u8>) -> (io::Result<usize>, Vec<u8>) {
        self.arm(buffer);
        self.armed_read().await
    }
}

/// What a read leaves free at the end of its buffer: room for `\r\n0\r\n\r\n` and more.
pub(crate) const SPARE: usize = 32;

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").field("armed", &self.armed()).finish_non_exhaustive()
    }
}

impl Writer {
    /// Send all of `bytes`, by direct calls: what is sent is copied at once, and a ring would only be
    /// told to make the same call later. `waits` is told whenever the peer is to take something
    /// first, so that a slow peer can be told from one that takes nothing.
    pub(crate) async fn write_all(
        &mut self,
        mut bytes: &[u8],
        mut waits: impl FnMut(),
    ) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.stream.send(bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) if n == bytes.len() => return Ok(()),
                Ok(n) => bytes = &bytes[n..],
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => {}
                Err(e) => return Err(e.into()),
            }
            self.stream.waits(Direction::Write);
            waits();
            self.stream.ready(Direction::Write).await;
        }
        Ok(())
    }

    /// Say that no more comes; what was written is still delivered.
    pub(crate) async fn finish(&mut self) {
        // The peer may be gone already, and then there is nobody left to tell.
        let _ = match &self.stream {
            Stream::Driver(tcp) => driven(tcp).shutdown().await,
            Stream::Polled(polled) => {
                rustix::net::shutdown(polled, rustix::net::Shutdown::Write).map_err(Into::into)
            }
        };
    }
}

/// For writing. Not monoio's own half: that one makes a system call when it is dropped.
#[expect(clippy::mut_from_ref, reason = "one operation at a time uses it")]
fn driven(tcp: &UnsafeCell<TcpStream>) -> &mut TcpStream {
    // SAFETY: as monoio's halves do. The reader uses the read side of the same stream and nothing
    // else; an operation takes its own hold on the descriptor when it is made and keeps no other
    // part of the stream; both live on one thread.
    unsafe { &mut *tcp.get() }
}

impl Stream {
    /// Wait until it can go on. May be dropped: it holds nothing but the wait.
    pub(super) async fn ready(&self, direction: Direction) {
        let tcp = match self {
            Self::Polled(polled) => {
                return poll_fn(|cx| polled.poll_ready(direction, cx)).await;
            }
            // SAFETY: the stream is not moved, and waiting for readiness uses its descriptor alone.
            Self::Driver(tcp) => unsafe { &*tcp.get() },
        };
        // An error is one of the socket: what is moved next says which.
        let _ = match direction {
            Direction::Read => tcp.readable(false).await,
            Direction::Write => tcp.writable(false).await,
        };
    }

    /// What there is room for, without waiting.
    fn send(&self, bytes: &[u8]) -> Result<usize, Errno> {
        rustix::net::send(self, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
    }

    /// A call made directly has found it not ready.
    pub(super) fn waits(&self, direction: Direction) {
        match self {
            Self::Polled(polled) => polled.forget(direction),
            // It asks the kernel each time.
            Self::Driver(_) => {}
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Polled(polled) => polled.as_fd(),
            // SAFETY: only the number is read; the stream keeps the descriptor open for as long as
            // it is borrowed.
            Self::Driver(tcp) => unsafe { BorrowedFd::borrow_raw((*tcp.get()).as_raw_fd()) },
        }
    }
}

/// What a call has received.
pub(super) struct Received {
    pub(super) bytes: usize,
    /// There may be more.
    pub(super) full: bool,
}

/// Receive behind what `buffer` holds, and leave [`SPARE`] bytes free.
pub(super) fn receive(
    from: impl AsFd,
    buffer: &mut Vec<u8>,
    flags: RecvFlags,
) -> Result<Received, Errno> {
    let held = buffer.len();
    let room = buffer.capacity().saturating_sub(held + SPARE);
    let spare = &mut buffer.spare_capacity_mut()[..room];
    let (_, bytes) = rustix::net::recv(from, spare, flags)?;
    // SAFETY: the kernel has written so many bytes behind what was held.
    unsafe { buffer.set_len(held + bytes) };
    Ok(Received { bytes, full: bytes == room })
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
        match (&self.stream, &self.slot) {
            (Stream::Polled(polled), _) => polled.give_up_read(),
            (Stream::Driver(_), Some(slot)) => slot.give_up(),
            (Stream::Driver(_), None) => {}
        }
    }

    /// Whether something is there to be read; an end is not.
    pub(crate) fn has_unread(&self) -> bool {
        let look = RecvFlags::PEEK | RecvFlags::DONTWAIT;
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
        let look = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let seen = rustix::net::recv(self.descriptor(), &mut [0_u8; 1], look);
        matches!(seen, Err(Errno::AGAIN))
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: `stream` keeps the descriptor open for as long as this value lives.
        unsafe { BorrowedFd::borrow_raw(self.fd) }
    }
}

/// Whether nothing can be read from this socket any more.
pub(crate) fn has_ended(descriptor: &OwnedFd) -> bool {
    let look = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    match rustix::net::recv(descriptor, &mut [0_u8; 1], look) {
        Ok((_, n)) => n == 0,
        Err(Errno::AGAIN | Errno::INTR) => false,
        Err(_) => true,
    }
}

/// Whether a read failed because it was to be given up.
pub(crate) fn given_up(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::CANCELED.raw_os_error())
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
        let fd = end.as_raw_fd();
        let half = Half::Pumped(Pump::new(fd, monoio::net::UnixStream::from_std(end)?));
        Ok(Self { reader: Reader { half, stream: None } })
    }

    /// Hear it from here on.
    pub(super) fn listen(&mut self, cx: &mut Context<'_>) {
        if !self.reader.armed() {
            self.reader.arm(Vec::with_capacity(SPARE + 64));
            // What it brings at once is that the other end is gone, which the next one brings too.
            let _ = self.reader.poll_read(cx);
        }
    }

    /// Wait until it was rung; any number of rings since the last time count as one. False: the
    /// other end is gone.
    pub(crate) async fn rung(&mut self) -> bool {
        if !self.reader.armed() {
            self.reader.arm(Vec::with_capacity(SPARE + 64));
        }
        let (result, _) = self.reader.armed_read().await;
        matches!(result, Ok(n) if n > 0)
    }
}

#[cfg(test)]
mod tests;
