//! A proxy before a Redis that passes on reads and writes of keys and nothing else: it hangs up on
//! whoever asks about the server, as twemproxy does.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;

use crate::redis::Redis;

/// Lives as long as the test's process.
#[derive(Clone, Copy, Debug)]
pub struct Veil {
    addr: SocketAddr,
}

/// What is for a server and not for a key.
const HIDDEN: [&str; 5] = ["INFO", "CLIENT", "SCRIPT", "SELECT", "COMMAND"];

impl Veil {
    /// # Panics
    /// When there is no port for it.
    #[must_use]
    pub fn before(redis: &Redis) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let (addr, server) = (listener.local_addr().expect("its address"), redis.addr());
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                thread::spawn(move || drop(relay(&client, server)));
            }
        });
        Self { addr }
    }

    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }
}

fn relay(client: &TcpStream, server: SocketAddr) -> io::Result<()> {
    let mut server = TcpStream::connect(server)?;
    let (mut answers, mut back) = (server.try_clone()?, client.try_clone()?);
    thread::spawn(move || {
        drop(io::copy(&mut answers, &mut back));
        drop(back.shutdown(Shutdown::Both));
    });
    let mut asked = BufReader::new(client);
    while let Some((name, command)) = command(&mut asked)? {
        if HIDDEN.contains(&name.as_str()) {
            break;
        }
        server.write_all(&command)?;
    }
    server.shutdown(Shutdown::Both)?;
    client.shutdown(Shutdown::Both)
}

/// One command as it came, and its first word. None: the client has gone.
fn command(asked: &mut BufReader<&TcpStream>) -> io::Result<Option<(String, Vec<u8>)>> {
    let mut whole = Vec::new();
    let Some(words) = number(asked, &mut whole)? else { return Ok(None) };
    let mut name = String::new();
    for i in 0..words {
        let Some(length) = number(asked, &mut whole)? else { return Ok(None) };
        let mut word = vec![0; length + 2];
        asked.read_exact(&mut word)?;
        if i == 0 {
            name = String::from_utf8_lossy(&word[..length]).to_ascii_uppercase();
        }
        whole.append(&mut word);
    }
    Ok(Some((name, whole)))
}

/// Of a line like `*3` or `$12`.
fn number(asked: &mut BufReader<&TcpStream>, whole: &mut Vec<u8>) -> io::Result<Option<usize>> {
    let mut line = Vec::new();
    asked.read_until(b'\n', &mut line)?;
    whole.extend_from_slice(&line);
    let text = String::from_utf8_lossy(&line);
    Ok(text.get(1..).and_then(|n| n.trim().parse().ok()))
}
