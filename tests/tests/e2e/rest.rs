//! Connections that say nothing cost next to nothing, and nobody notices.

use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use sluice_tests::{Config, Origin, Signal, Sluice};

fn resting(sluice: &Sluice, count: u32) {
    sluice.wait_for_metric("sluice_connections_resting", count.into());
}

#[test]
fn a_connection_goes_on_after_its_rest() {
    let origin = Origin::ok("hello");
    let sluice = Sluice::before(&origin);
    let mut clients: Vec<_> = (0..3).map(|_| sluice.client()).collect();
    for round in 0..2 {
        for client in &mut clients {
            assert_eq!(client.get("/a").text(), "hello", "round {round}");
        }
        // One that asks while the others rest.
        resting(&sluice, 3);
    }
    assert_eq!(clients[1].get("/a").text(), "hello");
    // Two at once, and the end right behind.
    clients[2].send("GET /a HTTP/1.1\r\nHost: a\r\n\r\nGET /b HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(clients[2].read_response().text(), "hello");
    assert_eq!(clients[2].read_response().text(), "hello");
    drop(clients);
    sluice.wait_for_metric("sluice_connections_open", 0.0);
    resting(&sluice, 0);
}

#[test]
fn a_head_may_come_in_pieces_with_long_rests_between() {
    let origin = Origin::ok("hello");
    let sluice = Sluice::before(&origin);
    let mut client = sluice.client();
    for piece in ["GET /a HT", "TP/1.1\r\nHost: a.example\r", "\nX-Long: ", "a\r\n\r"] {
        client.send(piece);
        resting(&sluice, 1);
    }
    client.send("\n");
    assert_eq!(client.read_response().text(), "hello");
    let heads = origin.requests();
    let raw = String::from_utf8_lossy(&heads[0].raw);
    assert!(raw.contains("X-Long: a"), "{raw}");
}

#[test]
fn a_head_that_rests_too_long_is_408_in_time() {
    let origin = Origin::ok("hello");
    let config = Config::to(&[origin.addr()]).server("header_timeout = \"1500ms\"");
    let sluice = Sluice::start(config);
    let began = Instant::now();
    let (mut slow, mut silent) = (sluice.client(), sluice.client());
    slow.send("GET /a HTTP/1.1\r\nHo");
    resting(&sluice, 2);
    assert_eq!(slow.read_response().status(), 408);
    slow.expect_close();
    assert!(began.elapsed() >= Duration::from_millis(1400), "not before its time");
    // One that has said nothing is told nothing.
    silent.expect_close();
    assert_eq!(sluice.client().get("/a").status(), 200);
}

#[test]
fn who_asks_while_hundreds_are_told_that_their_time_is_up_does_not_wait_for_them() {
    const CROWD: u32 = 400;
    let origin = Origin::ok("hello");
    let config = Config::to(&[origin.addr()]).server("header_timeout = \"1500ms\"");
    let sluice = Sluice::start(config);
    let mut client = sluice.client();
    assert_eq!(client.get("/a").text(), "hello");
    let is_told = |stream: &&TcpStream| stream.peek(&mut [0]).is_ok();
    // A test whose own turn comes late may see nobody left; not every time.
    let told = (0..3).map(|_| {
        let crowd: Vec<_> = (0..CROWD)
            .map(|_| {
                let mut stream = TcpStream::connect(sluice.addr()).unwrap();
                stream.write_all(b"GET /a HTTP/1.1\r\nHo").unwrap();
                stream.set_nonblocking(true).unwrap();
                stream
            })
            .collect();
        let late = Instant::now() + Duration::from_secs(20);
        while !crowd.iter().any(|stream| is_told(&stream)) {
            assert!(Instant::now() < late, "nobody is told");
        }
        assert_eq!(client.get("/a").text(), "hello");
        let told = crowd.iter().filter(is_told).count();
        while crowd.iter().filter(is_told).count() < crowd.len() {
            assert!(Instant::now() < late, "not all are told");
        }
        told
    });
    let told: Vec<_> = told.collect();
    assert!(told.iter().any(|told| *told < CROWD as usize / 2), "{told:?} were told before it");
}

#[test]
fn a_drain_ends_those_at_rest() {
    let origin = Origin::ok("hello");
    let mut sluice = Sluice::before(&origin);
    let mut client = sluice.client();
    assert_eq!(client.get("/a").status(), 200);
    resting(&sluice, 1);
    sluice.signal(Signal::TERM);
    client.expect_close();
    assert_eq!(sluice.wait(), Some(0));
}
