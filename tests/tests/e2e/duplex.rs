//! Both directions at once: whoever stalls or leaves in one is noticed, and harms no other request.

use std::thread;
use std::time::{Duration, Instant};

use sluice_tests::wait::moment;
use sluice_tests::{Config, Gate, Origin, Response, Sluice, origin};

const CHUNKED_POST: &str =
    "POST /a HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n";
const CHUNKED: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";

/// Begins its answer with the first piece of the body, and neither reads on nor ends it.
fn half_way() -> Origin {
    Origin::new(|connection| {
        connection.read_head()?;
        connection.readable()?;
        connection.write(format!("{CHUNKED}5\r\nhello\r\n"))?;
        connection.wait_at(&Gate::new())
    })
}

#[test]
fn a_client_that_leaves_between_both_bodies_is_noticed() {
    let origin = half_way();
    let sluice = Sluice::before(&origin);
    let mut client = sluice.client();
    client.send(format!("{CHUNKED_POST}5\r\nhello\r\n"));
    assert_eq!(client.read_bodyless().status(), 200);
    assert_eq!(client.read_until("hello"), b"hello");
    drop(client);
    let line = &sluice.log_lines(1)[0];
    assert_eq!(line["finish"], "client_gone", "{line}");
    nothing_is_held(&sluice);
}

#[test]
fn a_client_that_stalls_between_both_bodies_is_given_up() {
    let origin = half_way();
    let sluice = Sluice::start(Config::to(&[origin.addr()]).server("read_timeout = \"300ms\""));
    let mut client = sluice.client();
    client.send(format!("{CHUNKED_POST}5\r\nhello\r\n"));
    assert_eq!(client.read_bodyless().status(), 200);
    assert_eq!(client.read_until("hello"), b"hello");
    assert!(client.breaks_off());
    nothing_is_held(&sluice);
}

#[test]
fn a_client_that_only_sends_is_given_up() {
    // Answers without end, and takes whatever comes.
    let origin = Origin::new(|connection| {
        connection.read_head()?;
        connection.write(CHUNKED)?;
        let piece = format!("10000\r\n{}\r\n", "a".repeat(0x10000));
        loop {
            connection.write(&piece)?;
        }
    });
    let sluice = Sluice::start(
        Config::to(&[origin.addr()])
            .server("write_timeout = \"300ms\"\nread_timeout = \"30s\"")
            .upstream("timeout = { idle = \"30s\" }"),
    );
    let mut client = sluice.client();
    client.send(CHUNKED_POST);
    // A piece a moment: each one tells that the client is still there, and none that it reads.
    let given_up = (0..150).any(|_| {
        moment();
        !client.try_send("1\r\na\r\n")
    });
    assert!(given_up, "it may go on for ever");
    nothing_is_held(&sluice);
}

#[test]
fn an_upstream_may_be_slower_to_ask_than_its_client_to_read() {
    const SIZE: u64 = 64 << 20;
    let origin = Origin::new(|connection| {
        connection.read_request()?;
        connection.write(format!("HTTP/1.1 200 OK\r\nContent-Length: {SIZE}\r\n\r\n"))?;
        // The client pauses here for longer than the gateway would wait for the upstream.
        let written = connection.write_until_blocked(SIZE)?;
        connection.write_until_blocked(SIZE - written).map(drop)?;
        connection.stall()
    });
    let config = Config::to(&[origin.addr()])
        .upstream("timeout = { idle = \"100ms\", first_byte = \"100ms\" }");
    let sluice = Sluice::start(config);
    let mut client = sluice.client();
    client.send("GET /a HTTP/1.1\r\nHost: a.example\r\n\r\n");
    origin.wait_for_heads(1);
    for _ in 0..10 {
        moment();
    }
    assert_eq!(client.read_bodyless().status(), 200);
    assert_eq!(client.count_body(), SIZE);
}

#[test]
fn an_echo_longer_than_every_buffer_comes_back_whole() {
    const PIECE: usize = 64 << 10;
    const PIECES: usize = 512;
    // Echoes chunk by chunk, reading no further than it has answered.
    let origin = Origin::new(|connection| {
        connection.read_head()?;
        connection.write(CHUNKED)?;
        while let Some(piece) = connection.read_piece()? {
            connection.write(format!("{:x}\r\n", piece.len()))?;
            connection.write(&piece)?;
            connection.write("\r\n")?;
        }
        connection.write("0\r\n\r\n")
    });
    let sluice = Sluice::before(&origin);
    let before = sluice.peak_memory();
    let mut client = sluice.client();
    thread::scope(|scope| {
        let mut sender = client.sender();
        scope.spawn(move || {
            sender.send(CHUNKED_POST);
            let piece = format!("{PIECE:x}\r\n{}\r\n", "e".repeat(PIECE));
            for _ in 0..PIECES {
                sender.send(&piece);
            }
            sender.send("0\r\n\r\n");
        });
        assert_eq!(client.read_bodyless().status(), 200);
        assert_eq!(client.count_body(), (PIECE * PIECES) as u64);
    });
    assert!(sluice.peak_memory() < before + (8 << 20), "{} bytes", sluice.peak_memory());
    nothing_is_held(&sluice);
}

#[test]
fn an_answer_before_the_body_leaves_no_connection_that_waits_for_it() {
    for fields in ["Expect: 100-continue\r\n", ""] {
        // Answers at once; would take what comes next for the body.
        let origin = Origin::new(|connection| {
            let head = connection.read_head()?;
            connection.write(origin::ok(&head.line))?;
            if head.field("content-length").is_some() {
                connection.read_body()?;
            }
            connection.read_request()?;
            connection.write(origin::ok("desynchronised"))
        });
        let sluice = Sluice::before(&origin);
        let mut client = sluice.client();
        let post = format!("POST /a HTTP/1.1\r\nHost: a.example\r\n{fields}Content-Length: 40\r\n");
        client.send(format!("{post}\r\n"));
        assert_eq!(client.read_response().text(), "POST /a HTTP/1.1");
        assert_eq!(sluice.client().get("/b").text(), "GET /b HTTP/1.1");
    }
}

/// How long an upload took a client that sends nothing before it was told to, and its answer.
fn uploads(sluice: &Sluice) -> (Duration, Response) {
    let mut client = sluice.client();
    let asked = Instant::now();
    client.send(
        "PUT /dav/a HTTP/1.1\r\nHost: a.example\r\nExpect: 100-continue\r\n\
         Content-Length: 5\r\n\r\n",
    );
    assert!(client.read_head().line.contains(" 100 "));
    client.send("hello");
    let response = client.read_response();
    (asked.elapsed(), response)
}

#[test]
fn an_upstream_that_never_says_100_gets_the_body_within_a_second_all_the_same() {
    let origin = Origin::answering(|request| origin::ok(&String::from_utf8_lossy(&request.body)));
    let config = Config::to(&[origin.addr()]).upstream("timeout = { first_byte = \"300ms\" }");
    let sluice = Sluice::start(config);
    let all: Vec<_> = (0..5).map(|_| uploads(&sluice)).collect();
    assert!(all.iter().all(|(_, response)| response.text() == "hello"), "{all:?}");
    // On a busy machine, the best of a few.
    let best = all.iter().map(|(took, _)| *took).min().unwrap_or_default();
    assert!(best < Duration::from_secs(1), "{all:?}");
}

#[test]
fn an_upstream_that_says_100_too_late_is_not_heard_twice() {
    let origin = Origin::new(|connection| {
        let request = connection.read_request()?;
        connection.write("HTTP/1.1 100 Continue\r\n\r\n")?;
        connection.write(origin::ok(&String::from_utf8_lossy(&request.body)))
    });
    let (_, response) = uploads(&Sluice::before(&origin));
    assert_eq!((response.interim.len(), response.text().as_str()), (0, "hello"));
}

#[test]
fn an_upstream_that_takes_nothing_of_a_body_is_504() {
    let origin = Origin::new(|connection| {
        connection.read_head()?;
        connection.wait_at(&Gate::new())
    });
    let config = Config::to(&[origin.addr()]).upstream("timeout = { idle = \"2s\" }");
    let sluice = Sluice::start(config);
    let mut client = sluice.client();
    let body = vec![b'a'; 64 << 20];
    let size = body.len();
    client.send(format!("POST /a HTTP/1.1\r\nHost: a.example\r\nContent-Length: {size}\r\n\r\n"));
    let mut sender = client.sender();
    thread::scope(|scope| {
        // It may still be sending when the answer comes, and find the connection closed.
        scope.spawn(move || sender.send_what_is_taken(body));
        assert_eq!(client.read_response().status(), 504);
    });
}

/// Every place that the request took has been given back.
#[track_caller]
fn nothing_is_held(sluice: &Sluice) {
    sluice.wait_for_metric("sluice_upstream_connections_open", 0.0);
    sluice.wait_for_metric("sluice_requests_in_flight", 0.0);
}
