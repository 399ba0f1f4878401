//! Bounds of time and size that a route, an upstream or the server sets.

use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use rustix::net::{AddressFamily, SocketType};
use sluice_tests::wait::LIMIT;
use sluice_tests::{Config, Gate, Origin, Sluice};

#[test]
fn a_server_that_cannot_be_reached_in_time_is_504() {
    let (addr, _full) = unreachable();
    let config = Config::to(&[addr]).upstream("timeout = { connect = \"200ms\" }");
    let sluice = Sluice::start(config);
    let asked = Instant::now();
    let response = sluice.client().get("/a");
    assert_eq!(response.status(), 504, "{}", response.text());
    assert!(asked.elapsed() < LIMIT / 2, "{:?}", asked.elapsed());
    let lines = sluice.log_lines(1);
    assert_eq!(lines[0]["code"], "upstream.connect_timeout", "{lines:?}");
}

#[test]
fn a_server_that_cannot_be_reached_is_passed_over() {
    let (addr, _full) = unreachable();
    let good = Origin::ok("hello");
    let config = Config::to(&[addr, good.addr()]).upstream("timeout = { connect = \"100ms\" }");
    let sluice = Sluice::start(config);
    for _ in 0..4 {
        // Nothing was sent, so that even this may be tried elsewhere.
        let mut client = sluice.client();
        client.send("POST /a HTTP/1.1\r\nHost: a.example\r\nContent-Length: 2\r\n\r\nhi");
        assert_eq!(client.read_response().text(), "hello");
    }
}

#[test]
fn a_client_that_takes_nothing_is_let_go_and_its_upstream_with_it() {
    const LARGE: usize = 256 << 20;
    let origin = Origin::new(|connection| {
        connection.read_request()?;
        connection.write(format!("HTTP/1.1 200 OK\r\nContent-Length: {LARGE}\r\n\r\n"))?;
        connection.write_until_blocked(LARGE as u64)?;
        connection.stall()
    });
    let sluice = Sluice::start(Config::to(&[origin.addr()]).server("write_timeout = \"300ms\""));
    let mut client = sluice.client();
    client.send("GET /a HTTP/1.1\r\nHost: a.example\r\n\r\n");
    origin.wait_for_heads(1);
    origin.wait_for_open(0);
    assert_eq!(client.read_bodyless().status(), 200);
    assert!(client.breaks_off());
}

#[test]
fn a_route_bounds_the_parts_of_a_request() {
    let origin = Origin::ok("hello");
    let config = Config::to(&[origin.addr()])
        .route("size = { uri = \"64B\", head = \"512B\" }")
        .respond("free", "/free/{*rest}", "free");
    let sluice = Sluice::start(config);
    let long = "a".repeat(100);
    let fields = |count: usize| format!("X-Filler: {}\r\n", "a".repeat(count));
    let cases = [
        ("/a".to_owned(), String::new(), 200),
        (format!("/{long}"), String::new(), 414),
        (format!("/a?{long}"), String::new(), 414),
        ("/a".to_owned(), fields(100), 200),
        ("/a".to_owned(), fields(600), 431),
        (format!("/free/{long}"), fields(600), 200),
    ];
    for (target, fields, status) in cases {
        let response = sluice.client().ask(&target, &fields);
        assert_eq!(response.status(), status, "{target} {}", fields.len());
    }
    assert_eq!(origin.requests().len(), 2);
}

#[test]
fn concurrency_is_counted_apart_by_its_key() {
    let gate = Gate::new();
    let origin = Origin::behind(&gate, "hello");
    let config = Config::to(&[origin.addr()])
        .route("concurrency = { max = 1, key = [\"header:x-who\"] }")
        .workers(2);
    let sluice = Sluice::start(config);
    let request = |who: &str| format!("GET /a HTTP/1.1\r\nHost: a.example\r\nX-Who: {who}\r\n\r\n");
    let mut first = [sluice.client(), sluice.client()];
    for (client, who) in first.iter_mut().zip(["a", "b"]) {
        client.send(request(who));
    }
    origin.wait_for_heads(2);
    for who in ["a", "b"] {
        let mut second = sluice.client();
        second.send(request(who));
        assert_eq!(second.read_response().status(), 503, "{who}");
    }
    gate.open();
    for client in &mut first {
        assert_eq!(client.read_response().status(), 200);
    }
}

/// An address whose queue is full: the kernel answers no more handshakes there.
fn unreachable() -> (SocketAddr, (std::os::fd::OwnedFd, Vec<TcpStream>)) {
    let socket =
        rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).expect("socket");
    let any: SocketAddr = ([127, 0, 0, 1], 0).into();
    rustix::net::bind(&socket, &any).expect("a free port");
    rustix::net::listen(&socket, 0).expect("a listener");
    let addr = rustix::net::getsockname(&socket).expect("an address");
    let addr: SocketAddr = addr.try_into().expect("an internet address");
    let mut waiting = Vec::new();
    let moment = std::time::Duration::from_millis(200);
    while let Ok(stream) = TcpStream::connect_timeout(&addr, moment) {
        waiting.push(stream);
        assert!(waiting.len() < 64, "the queue is never full");
    }
    (addr, (socket, waiting))
}
