//! A client that sends exactly the bytes it is given and shows exactly what came back.

use std::net::{SocketAddr, TcpStream};

use crate::wait::LIMIT;
use crate::wire::{Fields, Head, Length, Wire};

/// One connection. Everything panics with what was seen so far: a test wants no errors to handle.
#[derive(Debug)]
pub struct Client {
    wire: Wire,
    body: Length,
}

/// A response as received: spelling, order, and every 1xx head before it.
#[derive(Clone, Debug, Default)]
pub struct Response {
    pub interim: Vec<Head>,
    pub head: Head,
    pub body: Vec<u8>,
    pub trailers: Fields,
}

impl Client {
    #[track_caller]
    #[must_use]
    pub fn connect(addr: SocketAddr) -> Self {
        Self::try_connect(addr).unwrap_or_else(|error| panic!("connect to {addr}: {error}"))
    }

    /// # Errors
    /// When nobody listens there.
    pub fn try_connect(addr: SocketAddr) -> std::io::Result<Self> {
        let wire = Wire::new(TcpStream::connect_timeout(&addr, LIMIT)?)?;
        Ok(Self { wire, body: Length::Over })
    }

    /// The address the gateway sees as the client's.
    #[track_caller]
    #[must_use]
    pub fn local(&self) -> SocketAddr {
        self.wire.stream().local_addr().expect("a connected socket has an address")
    }

    /// Another handle to the same connection, to send with while this one reads.
    #[track_caller]
    #[must_use]
    pub fn sender(&self) -> Self {
        let stream = self.wire.stream().try_clone().expect("another handle");
        Self { wire: Wire::new(stream).expect("a socket with options"), body: Length::Over }
    }

    #[track_caller]
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.wire.write(bytes.as_ref()).expect("send");
    }

    /// Sends; `false` when the gateway has closed.
    pub fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        self.wire.write(bytes.as_ref()).is_ok()
    }

    /// Sends as much as the peer takes. For requests that are refused before they were read.
    pub fn send_what_is_taken(&mut self, bytes: impl AsRef<[u8]>) {
        drop(self.wire.write(bytes.as_ref()));
    }

    /// Sends `a`s until the gateway takes no more for a moment, or `most` are out; how many are.
    #[track_caller]
    pub fn send_until_blocked(&mut self, most: u64) -> u64 {
        self.wire.write_until_blocked(most).expect("send")
    }

    /// `GET target` with the plainest head there is, and its response.
    #[track_caller]
    pub fn get(&mut self, target: &str) -> Response {
        self.ask(target, "")
    }

    /// `GET target` with more field lines, each ended by CRLF.
    #[track_caller]
    pub fn ask(&mut self, target: &str, fields: &str) -> Response {
        self.ask_host("test.example", target, fields)
    }

    /// `GET target` of that host.
    #[track_caller]
    pub fn ask_host(&mut self, host: &str, target: &str, fields: &str) -> Response {
        self.send(format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n"));
        self.read_response()
    }

    /// One whole response to a request that is answered with a body.
    #[track_caller]
    pub fn read_response(&mut self) -> Response {
        let mut response = self.read_bodyless();
        let length = std::mem::replace(&mut self.body, Length::Over);
        let (body, trailers) = self.wire.read_body(length).unwrap_or_else(|error| {
            panic!("the body of {:?} broke off: {error}", response.head);
        });
        response.body = body;
        response.trailers = trailers;
        response
    }

    /// A response without its body: for HEAD, or to read the body in pieces with
    /// [`Client::read_until`].
    #[track_caller]
    pub fn read_bodyless(&mut self) -> Response {
        let mut interim = Vec::new();
        loop {
            let head = self.read_head();
            if head.line.split(' ').nth(1).is_some_and(|status| status.starts_with('1')) {
                interim.push(head);
                continue;
            }
            let response = Response { interim, head, ..Response::default() };
            self.body = match response.status() {
                204 | 304 => Length::Over,
                _ => response.head.stated_length().unwrap_or(Length::UntilClose),
            };
            return response;
        }
    }

    /// The next head, be it interim or final.
    #[track_caller]
    pub fn read_head(&mut self) -> Head {
        self.wire.read_head().unwrap_or_else(|error| panic!("no response head: {error}"))
    }

    /// Body bytes as they come, until they end with `end`. Only what has arrived is waited for.
    #[track_caller]
    pub fn read_until(&mut self, end: &str) -> Vec<u8> {
        let mut seen = Vec::new();
        while !seen.ends_with(end.as_bytes()) {
            let piece = self.wire.read_piece(&mut self.body);
            match piece {
                Ok(Some(piece)) => seen.extend_from_slice(&piece),
                Ok(None) => panic!("the body ended after {:?}", String::from_utf8_lossy(&seen)),
                Err(error) => panic!("no {end:?} came: {error}"),
            }
        }
        seen
    }

    /// The rest of the body, trailers thrown away.
    #[track_caller]
    pub fn read_until_end(&mut self) -> Vec<u8> {
        let length = std::mem::replace(&mut self.body, Length::Over);
        match self.wire.read_body(length) {
            Ok((body, _)) => body,
            Err(error) => panic!("the body broke off: {error}"),
        }
    }

    /// Reads the body to its end without keeping it; how long it was.
    #[track_caller]
    pub fn count_body(&mut self) -> u64 {
        let mut count = 0;
        loop {
            match self.wire.skip_piece(&mut self.body) {
                Ok(0) => return count,
                Ok(more) => count += more,
                Err(error) => panic!("the body broke off after {count}: {error}"),
            }
        }
    }

    /// What comes until the gateway closes, as text.
    #[track_caller]
    pub fn read_to_close(&mut self) -> String {
        let rest = self.wire.read_to_close().expect("the connection to be closed");
        String::from_utf8_lossy(&rest).into_owned()
    }

    /// The next response, or `None` when the gateway closes instead.
    #[track_caller]
    pub fn try_read_response(&mut self) -> Option<Response> {
        self.wire.readable().unwrap_or(false).then(|| self.read_response())
    }

    /// Sends a plain GET; `false` when the gateway has closed already.
    pub fn try_send_get(&mut self, target: &str) -> bool {
        let text = format!("GET {target} HTTP/1.1\r\nHost: test.example\r\n\r\n");
        self.wire.write(text.as_bytes()).is_ok()
    }

    /// Says that nothing more will be sent, and goes on reading.
    #[track_caller]
    pub fn half_close(&mut self) {
        self.wire.half_close().expect("half close");
    }

    /// Waits until the gateway closes; `false` when it resets the connection instead.
    pub fn closes_in_order(&mut self) -> bool {
        matches!(self.wire.readable(), Ok(false))
    }

    /// Waits until the gateway closes, and holds that it sent nothing more before that.
    #[track_caller]
    pub fn expect_close(&mut self) {
        let rest = self.wire.read_to_close().expect("the connection to be closed");
        assert!(
            rest.is_empty(),
            "more came before the close: {:?}",
            String::from_utf8_lossy(&rest)
        );
    }

    /// Whether the gateway closes without finishing the body it began.
    #[track_caller]
    #[must_use]
    pub fn breaks_off(&mut self) -> bool {
        let length = std::mem::replace(&mut self.body, Length::Over);
        self.wire.read_body(length).is_err()
    }
}

impl Response {
    /// # Panics
    /// When the status line has no number.
    #[track_caller]
    #[must_use]
    pub fn status(&self) -> u16 {
        let code = self.head.line.split(' ').nth(1).and_then(|code| code.parse().ok());
        code.unwrap_or_else(|| panic!("no status in {:?}", self.head.line))
    }

    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    #[must_use]
    pub fn field(&self, name: &str) -> Option<&str> {
        self.head.field(name)
    }

    /// The body as JSON.
    #[track_caller]
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("no JSON ({error}): {}", self.text()))
    }
}
