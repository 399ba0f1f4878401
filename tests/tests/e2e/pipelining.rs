//! Requests sent before the last was answered: each is answered, in order, whatever its bytes did.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use sluice_tests::{Client, Config, Gate, Origin, Sluice, eventually, origin};

const GET: &str = "GET /a HTTP/1.1\r\nHost: a.example\r\n\r\n";

/// A POST whose body looks like a request, so that a body lost is a request smuggled.
const HIDDEN: &str = "GET /smuggled HTTP/1.1\r\nHost: a.example\r\n\r\n";

/// Answers with the target and the body it got, the first request only once the gate is open.
fn echoing(gate: &Gate) -> Origin {
    let gate = gate.clone();
    Origin::new(move |connection| {
        loop {
            let request = connection.read_request()?;
            if request.head.line.contains("/a ") {
                connection.wait_at(&gate)?;
            }
            let body = String::from_utf8_lossy(&request.body).into_owned();
            connection.write(origin::ok(&format!("{} {body}", request.head.line)))?;
        }
    })
}

/// The framing of a POST with this body: its field, and its bytes.
fn framings(body: &str) -> [(String, String); 2] {
    [
        (format!("Content-Length: {}\r\n", body.len()), body.to_owned()),
        (
            "Transfer-Encoding: chunked\r\n".to_owned(),
            format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len()),
        ),
    ]
}

#[test]
fn a_body_may_come_while_an_earlier_request_is_in_progress() {
    for body in ["hi", HIDDEN] {
        for (field, bytes) in framings(body) {
            let gate = Gate::new();
            let origin = echoing(&gate);
            let sluice = Sluice::before(&origin);
            let mut client = sluice.client();
            let post = format!("POST /b HTTP/1.1\r\nHost: a.example\r\n{field}\r\n");
            client.send(format!("{GET}{post}"));
            origin.wait_for_heads(1);
            // Read by the gateway while it waits for the first answer.
            client.send(&bytes);
            eventually("the body to be read", || all_read(&sluice, &client).then_some(()));
            gate.open();
            assert_eq!(client.read_response().text(), "GET /a HTTP/1.1 ");
            assert_eq!(client.read_response().text(), format!("POST /b HTTP/1.1 {body}"));
            client.send(GET);
            assert_eq!(client.read_response().text(), "GET /a HTTP/1.1 ");
        }
    }
}

#[test]
fn a_body_may_come_after_an_earlier_request_was_answered() {
    for body in ["hi", HIDDEN] {
        for (field, bytes) in framings(body) {
            let gate = Gate::new();
            gate.open();
            let origin = echoing(&gate);
            let sluice = Sluice::before(&origin);
            let mut client = sluice.client();
            let post = format!("POST /b HTTP/1.1\r\nHost: a.example\r\n{field}\r\n");
            client.send(format!("{GET}{post}"));
            assert_eq!(client.read_response().text(), "GET /a HTTP/1.1 ");
            origin.wait_for_heads(2);
            client.send(&bytes);
            assert_eq!(client.read_response().text(), format!("POST /b HTTP/1.1 {body}"));
        }
    }
}

#[test]
fn a_pipelined_body_that_stops_coming_is_408() {
    let gate = Gate::new();
    gate.open();
    let origin = echoing(&gate);
    let sluice = Sluice::start(Config::to(&[origin.addr()]).server("read_timeout = \"200ms\""));
    let mut client = sluice.client();
    client.send(format!("{GET}POST /b HTTP/1.1\r\nHost: a.example\r\nContent-Length: 9\r\n\r\n"));
    assert_eq!(client.read_response().status(), 200);
    assert_eq!(client.read_response().status(), 408);
}

#[test]
fn thousands_of_pipelined_requests_are_answered_in_order() {
    const COUNT: usize = 2_000;
    let origin = Origin::echo();
    let sluice = Sluice::before(&origin);
    let mut client = sluice.client();
    let addr = client.local();
    let mut all = String::new();
    for number in 0..COUNT {
        let body = "x".repeat(number % 7);
        all.push_str(&format!(
            "POST /{number} HTTP/1.1\r\nHost: {addr}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ));
    }
    thread::scope(|scope| {
        let mut sender = client.sender();
        scope.spawn(move || sender.send(all));
        for number in 0..COUNT {
            let text = client.read_response().text();
            assert!(text.starts_with(&format!("POST /{number} HTTP/1.1\n")), "{number}: {text}");
        }
    });
}

#[test]
fn a_client_that_says_it_sends_no_more_gets_every_answer() {
    // In one piece, and with the last request and the end in a piece of their own.
    for first in [1, 2, 3] {
        let gate = Gate::new();
        let origin = echoing(&gate);
        let sluice = Sluice::before(&origin);
        let mut client = sluice.client();
        client.send(GET.repeat(first));
        origin.wait_for_heads(1);
        client.send(GET.repeat(3 - first));
        client.half_close();
        eventually("it all to be read", || all_read(&sluice, &client).then_some(()));
        gate.open();
        for number in 0..3 {
            let response = client.try_read_response();
            assert!(response.is_some(), "{first} first: answer {number} is missing");
        }
        client.expect_close();
    }
}

/// Whether the gateway has read everything that this client sent; its end may be left.
fn all_read(sluice: &Sluice, client: &Client) -> bool {
    let table = fs::read_to_string(format!("/proc/{}/net/tcp", sluice.pid())).expect("a process");
    let (here, there) = (sluice.addr().port(), client.local().port());
    // "sl local remote st tx:rx ...", numbers in hexadecimal.
    let line = table.lines().find(|line| {
        let mut words = line.split_whitespace().skip(1);
        let mut port = || words.next()?.rsplit_once(':').map(|(_, port)| port.to_owned());
        (port(), port()) == (Some(format!("{here:04X}")), Some(format!("{there:04X}")))
    });
    let queues = line.and_then(|line| line.split_whitespace().nth(4)).expect("a connection");
    queues.ends_with(":00000000") || queues.ends_with(":00000001")
}

#[test]
fn thousands_of_requests_at_once_hold_nobody_up() {
    const MANY: usize = 50_000;
    let origin = Origin::ok("hello");
    let config = Config::to(&[origin.addr()]).respond("own", "/own", "own").access_log("off");
    let sluice = Sluice::start(config);
    let mut greedy = TcpStream::connect(sluice.addr()).expect("a connection");
    let mut sender = greedy.try_clone().expect("another handle");
    let (begun, seen) = (Gate::new(), AtomicUsize::new(0));
    thread::scope(|scope| {
        let get = "GET /own HTTP/1.1\r\nHost: a.example\r\n\r\n";
        let last = "GET /own HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n";
        scope.spawn(move || sender.write_all(format!("{}{last}", get.repeat(MANY)).as_bytes()));
        scope.spawn(|| {
            // As fast as it can: who reads slowly makes the gateway wait, and lets others in.
            let mut space = [0; 64 * 1024];
            while let Ok(count @ 1..) = greedy.read(&mut space) {
                seen.fetch_add(count, Ordering::SeqCst);
                begun.open();
            }
        });
        assert!(begun.wait());
        let mut modest = sluice.client();
        assert!((0..3).all(|_| modest.get("/a").text() == "hello"));
        let before = seen.load(Ordering::SeqCst);
        eventually("the last answer", || (answered_itself(&sluice) > MANY as f64).then_some(()));
        eventually("all bytes", || (seen.load(Ordering::SeqCst) > MANY * 100).then_some(()));
        let all = seen.load(Ordering::SeqCst);
        assert!(before < all / 2, "{before} of {all} bytes were sent first");
    });
}

/// Requests to the route that asks nobody.
fn answered_itself(sluice: &Sluice) -> f64 {
    let own = |(name, count): (&String, &f64)| {
        let of_route = name.starts_with("sluice_requests_total{") && name.contains("\"own\"");
        if of_route { *count } else { 0.0 }
    };
    sluice.metrics().iter().map(own).sum()
}
