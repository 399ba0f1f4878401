//! A client that takes what comes: it keeps its connection while it can, and panics at nothing.

use std::io;
use std::net::{SocketAddr, TcpStream};

use sluice_tests::wire::{Length, Wire};

/// How a request ended.
#[derive(Debug)]
pub(crate) enum Got {
    /// 200, with all of its body.
    Whole,
    /// 200, and a body that was visibly broken off.
    Cut,
    /// Anything else: a status with its body, or an error.
    Other(#[expect(dead_code, reason = "read by who reads the failure")] String),
}

#[derive(Debug)]
pub(crate) struct Guest {
    gateway: SocketAddr,
    wire: Option<Wire>,
}

impl Guest {
    pub(crate) fn new(gateway: SocketAddr) -> Self {
        Self { gateway, wire: None }
    }

    pub(crate) fn get(&mut self, target: &str) -> Got {
        self.ask(&format!("GET {target} HTTP/1.1\r\nHost: a.example\r\n\r\n"))
    }

    pub(crate) fn post(&mut self, target: &str, body: &str) -> Got {
        self.ask(&format!(
            "POST {target} HTTP/1.1\r\nHost: a.example\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ))
    }

    fn ask(&mut self, request: &str) -> Got {
        let kept = self.wire.take();
        self.exchange(kept, request).unwrap_or_else(|error| Got::Other(error.to_string()))
    }

    fn exchange(&mut self, kept: Option<Wire>, request: &str) -> io::Result<Got> {
        let mut wire = match kept {
            Some(wire) => wire,
            None => Wire::new(TcpStream::connect(self.gateway)?)?,
        };
        wire.write(request.as_bytes())?;
        let head = wire.read_head()?;
        let Ok((body, _)) = wire.read_body(head.stated_length().unwrap_or(Length::UntilClose))
        else {
            return Ok(Got::Cut);
        };
        wire.take_record();
        if head.field("connection") != Some("close") {
            self.wire = Some(wire);
        }
        if head.line.starts_with("HTTP/1.1 200 ") && body == b"goodnight" {
            return Ok(Got::Whole);
        }
        Ok(Got::Other(format!("{} {}", head.line, String::from_utf8_lossy(&body))))
    }
}
