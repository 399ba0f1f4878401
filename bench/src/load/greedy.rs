//! A client that takes whatever it is given, beside others.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::http::response::Reader;

/// How it is greedy, over one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Greed {
    /// One download without an end, as fast as it comes.
    Stream,
    /// [`PIPELINED`] requests at once, again and again.
    Pipeline,
}

/// So many requests are sent before the first answer is read.
pub const PIPELINED: usize = 10_000;

/// Goes on until `stop`; says how many bytes (of a stream) or answers it had. Paths begin with
/// `folder`.
///
/// # Errors
/// When the connection breaks, or an answer is not 200.
pub fn indulge(
    address: SocketAddr,
    folder: &str,
    greed: Greed,
    stop: &AtomicBool,
) -> io::Result<u64> {
    let mut had = 0;
    while !stop.load(Ordering::Relaxed) {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(STOP_CHECK))?;
        had += match greed {
            Greed::Stream => download(&stream, &request(folder, STREAM_BYTES), stop)?,
            Greed::Pipeline => pipeline(&stream, &request(folder, ANSWER_BYTES), stop)?,
        };
    }
    Ok(had)
}

fn request(folder: &str, bytes: u64) -> String {
    format!("GET {folder}?size={bytes} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
}

/// Until it has ended, or `stop`.
fn download(mut stream: &TcpStream, request: &str, stop: &AtomicBool) -> io::Result<u64> {
    stream.write_all(request.as_bytes())?;
    let (mut buffer, mut had) = (vec![0; READ_BYTES], 0);
    while had < STREAM_BYTES && !stop.load(Ordering::Relaxed) {
        match read(stream, &mut buffer)? {
            Some(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Some(length) => had += length as u64,
            None => {}
        }
    }
    Ok(had)
}

/// One batch after another until `stop`.
fn pipeline(stream: &TcpStream, request: &str, stop: &AtomicBool) -> io::Result<u64> {
    let batch = request.repeat(PIPELINED);
    let (mut reader, mut buffer, mut had) = (Reader::new(false), vec![0; READ_BYTES], 0);
    while !stop.load(Ordering::Relaxed) {
        had += thread::scope(|scope| {
            // Whoever is asked stops reading when nobody reads its answers: both at once.
            let sender = scope.spawn(|| (&*stream).write_all(batch.as_bytes()));
            let answers = batch_of_answers(stream, &mut reader, &mut buffer, stop);
            if !matches!(answers, Ok(count) if count == PIPELINED) {
                // Lets go of who still sends; the connection is of no more use.
                let _ = stream.shutdown(Shutdown::Both);
                let _ = sender.join();
            }
            answers
        })? as u64;
    }
    Ok(had)
}

fn batch_of_answers(
    stream: &TcpStream,
    reader: &mut Reader,
    buffer: &mut [u8],
    stop: &AtomicBool,
) -> io::Result<usize> {
    let mut count = 0;
    while count < PIPELINED && !stop.load(Ordering::Relaxed) {
        let Some(length) = read(stream, buffer)? else { continue };
        if length == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let mut rest = &buffer[..length];
        while let Some((answer, taken)) = reader.feed(rest).map_err(io::Error::other)? {
            if answer.status != 200 {
                return Err(io::Error::other(format!("answered {}", answer.status)));
            }
            count += 1;
            rest = &rest[taken..];
        }
    }
    Ok(count)
}

/// None when nothing came for a while.
fn read(mut stream: &TcpStream, buffer: &mut [u8]) -> io::Result<Option<usize>> {
    match stream.read(buffer) {
        Ok(length) => Ok(Some(length)),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// What an origin gives at the most.
const STREAM_BYTES: u64 = 16 << 30;
const ANSWER_BYTES: u64 = 128;
const READ_BYTES: usize = 256 * 1024;
const STOP_CHECK: Duration = Duration::from_millis(100);
