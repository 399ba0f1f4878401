//! An upstream as a process of its own, so that it can be killed and stopped: it answers as its mood
//! is, which it is told line by line on standard input, and says on standard output what it did.
//!
//! `moody-origin ADDRESS`. It ends with its standard input.

use std::io::{self, BufRead as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use sluice_tests::origin::ok;
use sluice_tests::wait::{eventually, moment};
use sluice_tests::wire::{Length, Wire};

/// What each does to whoever asks. The place of a name is what is stored.
const MOODS: [&str; 7] =
    ["well", "reset", "garbage", "half head", "half body", "slow head", "slow body"];

static MOOD: AtomicUsize = AtomicUsize::new(0);

fn main() -> io::Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:0".to_owned());
    // It may come back where it was a moment ago.
    let listener = eventually("the port", || TcpListener::bind(&address).ok());
    say(&format!("listening {}", listener.local_addr()?));
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || drop(serve(stream)));
        }
    });
    for line in io::stdin().lock().lines() {
        let line = line?;
        let mood =
            MOODS.iter().position(|mood| *mood == line).ok_or(io::ErrorKind::InvalidInput)?;
        MOOD.store(mood, Ordering::SeqCst);
        say(&format!("mood {line}"));
    }
    Ok(())
}

/// One line, at once: it must be out before the next moment, which may be the last.
fn say(line: &str) {
    drop(io::stdout().lock().write_all(format!("{line}\n").as_bytes()));
}

fn serve(stream: TcpStream) -> io::Result<()> {
    let mut wire = Wire::new(stream)?;
    loop {
        let head = wire.read_head()?;
        let (body, _) = wire.read_body(head.stated_length().unwrap_or(Length::Over))?;
        wire.take_record();
        if head.line.starts_with("POST ") {
            // From here on it has happened, whatever the answer.
            say(&format!("post {}", String::from_utf8_lossy(&body)));
        }
        answer(&mut wire, MOODS[MOOD.load(Ordering::SeqCst)])?;
    }
}

/// An error ends the connection.
fn answer(wire: &mut Wire, mood: &str) -> io::Result<()> {
    let whole = ok("goodnight");
    let body_at = whole.len() - "goodnight".len();
    match mood {
        "reset" => {
            rustix::net::sockopt::set_socket_linger(wire.stream(), Some(Duration::ZERO))?;
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        "garbage" => wire.write(b"\x01\x02220 mail.example ESMTP\r\n")?,
        "half head" => wire.write(&whole[..body_at / 2])?,
        "half body" => {
            say("half");
            wire.write(&whole[..body_at + 4])?;
        }
        "slow head" => return trickle(wire, &whole, 0),
        "slow body" => return trickle(wire, &whole, body_at),
        _ => return wire.write(&whole),
    }
    Err(io::ErrorKind::ConnectionAborted.into())
}

/// From `at` on, a byte at a time.
fn trickle(wire: &mut Wire, bytes: &[u8], at: usize) -> io::Result<()> {
    wire.write(&bytes[..at])?;
    bytes[at..].chunks(1).try_for_each(|byte| {
        moment();
        wire.write(byte)
    })
}
