//! An upstream that counts the heads it is sent, in whatever shape they come.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::{Context, Result};

/// Serves on threads of its own until the process ends.
#[derive(Debug)]
pub struct Recorder {
    port: u16,
    heads: Arc<AtomicUsize>,
}

impl Recorder {
    /// # Errors
    /// When there is no port to listen on.
    pub fn start() -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free port")?;
        let port = listener.local_addr().context("a listener without an address")?.port();
        let heads = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&heads);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let heads = Arc::clone(&counted);
                // A connection that breaks off is the proxy's affair.
                thread::spawn(move || drop(answer(stream, &heads)));
            }
        });
        Ok(Self { port, heads })
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn heads(&self) -> usize {
        self.heads.load(Ordering::SeqCst)
    }
}

fn answer(mut stream: TcpStream, heads: &AtomicUsize) -> std::io::Result<()> {
    let (mut seen, mut answered, mut space) = (String::new(), 0, [0; 4096]);
    loop {
        let count = stream.read(&mut space)?;
        if count == 0 {
            return Ok(());
        }
        seen.push_str(&String::from_utf8_lossy(&space[..count]));
        let all = seen.matches(" HTTP/1.1\r\n").count();
        while answered < all {
            answered += 1;
            heads.fetch_add(1, Ordering::SeqCst);
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")?;
        }
    }
}
