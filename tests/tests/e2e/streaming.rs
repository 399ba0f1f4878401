//! Bodies in motion: passed on as they come, whole or visibly broken, never held back.

use sluice_tests::{Gate, Origin, Sluice, origin};

/// More than all buffers between the two ends together, the kernel's included.
const LARGE: u64 = 256 << 20;
/// What those buffers may take: four sockets of at most 6 MiB each, and room.
const HELD_BACK: u64 = 64 << 20;
/// What the gateway itself may need for one request.
const HELD_MEMORY: u64 = 8 << 20;
const CHUNKED: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";

#[test]
fn events_arrive_one_by_one() {
    const EVENTS: [&str; 3] = ["data: one\n\n", "data: two\n\n", "data: three\n\n"];
    let gates: [Gate; 3] = Default::default();
    let script_gates = gates.clone();
    let origin = Origin::new(move |connection| {
        connection.read_request()?;
        connection.write(CHUNKED.replace("OK\r\n", "OK\r\nContent-Type: text/event-stream\r\n"))?;
        for (event, gate) in EVENTS.iter().zip(&script_gates) {
            connection.wait_at(gate)?;
            connection.write(format!("{:x}\r\n{event}\r\n", event.len()))?;
        }
        connection.write("0\r\n\r\n")
    });
    let sluice = Sluice::before(&origin);
    let mut client = sluice.client();
    client.send("GET /events HTTP/1.1\r\nHost: a.example\r\n\r\n");
    let response = client.read_bodyless();
    assert_eq!(response.field("content-type"), Some("text/event-stream"), "the head is not held");
    for (event, gate) in EVENTS.iter().zip(&gates) {
        gate.open();
        assert_eq!(client.read_until("\n\n"), event.as_bytes());
    }
}

#[test]
fn an_upload_reaches_the_upstream_before_it_is_complete() {
    let first = Gate::new();
    let seen = first.clone();
    let origin = Origin::new(move |connection| {
        connection.read_head()?;
        // Only the first half was sent; the test sends the rest when this arrived.
        if connection.readable()? {
            seen.open();
        }
        connection.read_body()?;
        connection.write(origin::ok("stored"))
    });
    let sluice = Sluice::before(&origin);
    let mut client = sluice.client();
    client.send("POST /a HTTP/1.1\r\nHost: a.example\r\nContent-Length: 10\r\n\r\nfirst");
    assert!(first.wait(), "the first half is held back");
    client.send("later");
    assert_eq!(client.read_response().text(), "stored");
    assert_eq!(origin.only_request().body, b"firstlater");
}

#[test]
fn large_bodies_are_equal_to_the_byte_both_ways() {
    // Larger than every buffer between the two ends, and of no regular length.
    let body: Vec<u8> =
        (0..5_000_011_u32).map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect();
    let origin = Origin::answering(|request| {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", request.body.len());
        [head.as_bytes(), &request.body].concat()
    });
    let sluice = Sluice::before(&origin);
    let mut client = sluice.client();
    for _ in 0..2 {
        client.send(format!(
            "POST /a HTTP/1.1\r\nHost: a.example\r\nContent-Length: {}\r\n\r\n",
            body.len()
        ));
        client.send(&body);
        let response = client.read_response();
        assert!(response.body == body, "{} bytes came back", response.body.len());
    }
    assert!(origin.requests().iter().all(|request| request.body == body));
}

#[test]
fn a_client_that_does_not_read_holds_its_upstream_back() {
    let blocked = Gate::new();
    let held = blocked.clone();
    let origin = Origin::new(move |connection| {
        connection.read_request()?;
        connection.write(format!("HTTP/1.1 200 OK\r\nContent-Length: {LARGE}\r\n\r\n"))?;
        let written = connection.write_until_blocked(LARGE)?;
        if written < HELD_BACK {
            held.open();
        }
        connection.write_until_blocked(LARGE - written).map(drop)
    });
    let sluice = Sluice::before(&origin);
    let before = sluice.peak_memory();
    let mut client = sluice.client();
    client.send("GET /a HTTP/1.1\r\nHost: a.example\r\n\r\n");
    assert!(blocked.wait(), "the upstream could write {HELD_BACK} bytes that nobody read");
    assert_eq!(client.read_bodyless().status(), 200);
    assert_eq!(client.count_body(), LARGE);
    assert!(sluice.peak_memory() < before + HELD_MEMORY, "{} bytes", sluice.peak_memory());
}

#[test]
fn an_upstream_that_does_not_read_holds_its_client_back() {
    let gate = Gate::new();
    let held = gate.clone();
    let origin = Origin::new(move |connection| {
        connection.read_head()?;
        connection.wait_at(&held)?;
        let count = connection.count_body()?;
        connection.write(origin::ok(&count.to_string()))
    });
    let sluice = Sluice::before(&origin);
    let before = sluice.peak_memory();
    let mut client = sluice.client();
    client.send(format!("POST /a HTTP/1.1\r\nHost: a.example\r\nContent-Length: {LARGE}\r\n\r\n"));
    let sent = client.send_until_blocked(LARGE);
    assert!(sent < HELD_BACK, "{sent} bytes were taken that nobody read");
    gate.open();
    client.send_until_blocked(LARGE - sent);
    assert_eq!(client.read_response().text(), LARGE.to_string());
    assert!(sluice.peak_memory() < before + HELD_MEMORY, "{} bytes", sluice.peak_memory());
}

#[test]
fn a_body_that_ends_with_the_connection_is_passed_on_whole() {
    let origin = Origin::new(|connection| {
        connection.read_request()?;
        connection.write("HTTP/1.1 200 OK\r\n\r\nhello")?;
        connection.write(" and goodbye")
    });
    let sluice = Sluice::before(&origin);
    let mut client = sluice.client();
    for _ in 0..2 {
        assert_eq!(client.get("/a").text(), "hello and goodbye");
    }
    let mut old = sluice.client();
    old.send("GET /a HTTP/1.0\r\n\r\n");
    assert_eq!(old.read_response().text(), "hello and goodbye");
}

#[test]
fn a_broken_off_answer_is_broken_off_for_the_client() {
    let cases = [
        ("Content-Length: 10\r\n\r\nhello", ""),
        ("Transfer-Encoding: chunked\r\n\r\n5\r\nhello", "\r\n"),
        ("Transfer-Encoding: chunked\r\n\r\n5\r\nhello", "\r\nzz\r\n0\r\n\r\n"),
        ("Transfer-Encoding: chunked\r\n\r\n5\r\nhello", "XX0\r\n\r\n"),
    ];
    for (good, bad) in cases {
        let gate = Gate::new();
        let held = gate.clone();
        let origin = Origin::new(move |connection| {
            connection.read_request()?;
            connection.write(format!("HTTP/1.1 200 OK\r\n{good}"))?;
            connection.wait_at(&held)?;
            connection.write(bad)
        });
        let sluice = Sluice::before(&origin);
        let mut client = sluice.client();
        client.send("GET /a HTTP/1.1\r\nHost: a.example\r\n\r\n");
        assert_eq!(client.read_bodyless().status(), 200);
        assert_eq!(client.read_until("hello"), b"hello");
        gate.open();
        assert!(client.breaks_off(), "passed on as complete: {good:?} {bad:?}");
    }
}

#[test]
fn a_broken_off_answer_is_no_whole_one_for_a_client_of_http_1_0() {
    let cases = [
        ("Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", false),
        ("Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", true),
        ("\r\nhello", true),
    ];
    for (rest, whole) in cases {
        let origin = Origin::new(move |connection| {
            connection.read_request()?;
            connection.write(format!("HTTP/1.1 200 OK\r\n{rest}"))
        });
        let sluice = Sluice::before(&origin);
        let mut client = sluice.client();
        client.send("GET /a HTTP/1.0\r\n\r\n");
        // No length and no chunks: the body ends with the connection, in order or with a reset.
        assert_eq!(client.read_bodyless().field("content-length"), None);
        assert_eq!(client.breaks_off(), !whole, "{rest:?}");
    }
}

#[test]
fn trailers_are_passed_on_both_ways() {
    let origin = Origin::answering(|_| {
        let head = CHUNKED.replace("OK\r\n", "OK\r\nTrailer: X-Sum\r\n");
        format!("{head}5\r\nhello\r\n0\r\nX-Sum: abc\r\n\r\n").into_bytes()
    });
    let sluice = Sluice::before(&origin);
    let mut client = sluice.client();
    client.send(
        "POST /a HTTP/1.1\r\nHost: a.example\r\nTE: trailers\r\nTrailer: X-Count\r\n\
         Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nX-Count: 1\r\n\r\n",
    );
    let response = client.read_response();
    assert_eq!(response.text(), "hello");
    assert_eq!(response.trailers, [("X-Sum".to_owned(), "abc".to_owned())]);
    assert_eq!(origin.only_request().trailers, [("X-Count".to_owned(), "1".to_owned())]);
}

#[test]
fn trailers_cannot_bring_what_belongs_in_a_head() {
    let origin = Origin::ok("hello");
    let sluice = Sluice::before(&origin);
    let mut client = sluice.client();
    client.send(
        "POST /a HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\
         Content-Length: 7\r\nX-User-Id: root\r\n\r\n",
    );
    assert!([200, 400].contains(&client.read_response().status()));
    for request in origin.requests() {
        assert!(request.trailers.is_empty(), "{:?}", request.trailers);
    }
}

#[test]
fn interim_answers_are_passed_on_before_the_final_one() {
    let gate = Gate::new();
    let held = gate.clone();
    let origin = Origin::new(move |connection| {
        connection.read_request()?;
        connection.write("HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\n\r\n")?;
        connection.wait_at(&held)?;
        connection.write(origin::ok("hello"))
    });
    let sluice = Sluice::before(&origin);
    let mut client = sluice.client();
    client.send("GET /a HTTP/1.1\r\nHost: a.example\r\n\r\n");
    let interim = client.read_head();
    assert!(interim.line.contains(" 103 "), "{interim:?}");
    assert_eq!(interim.field("link"), Some("</a.css>; rel=preload"));
    gate.open();
    assert_eq!(client.read_response().text(), "hello");
}

#[test]
fn a_client_that_waits_for_100_gets_it_and_then_its_answer() {
    let origin = Origin::new(|connection| {
        loop {
            let head = connection.read_head()?;
            if head.field("expect").is_some() {
                connection.write("HTTP/1.1 100 Continue\r\n\r\n")?;
            }
            connection.read_body()?;
            connection.write(origin::ok("stored"))?;
        }
    });
    let sluice = Sluice::before(&origin);
    let mut client = sluice.client();
    for number in 0..2 {
        client.send(
            "PUT /dav HTTP/1.1\r\nHost: a.example\r\nContent-Length: 5\r\n\
             Expect: 100-continue\r\n\r\n",
        );
        assert!(client.read_head().line.contains(" 100 "));
        client.send("hello");
        let response = client.read_response();
        assert!(response.interim.is_empty(), "only one 100: {response:?}");
        assert_eq!(response.text(), "stored");
        assert_eq!(origin.requests()[number].body, b"hello");
    }
}

#[test]
fn an_early_refusal_reaches_a_client_that_is_still_sending() {
    let origin = Origin::new(|connection| {
        connection.read_head()?;
        connection.write("HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno")?;
        connection.stall()
    });
    let sluice = Sluice::before(&origin);
    let mut client = sluice.client();
    client.send("PUT /a HTTP/1.1\r\nHost: a.example\r\nContent-Length: 100\r\n\r\nbeginning");
    let response = client.read_response();
    assert_eq!((response.status(), response.text().as_str()), (403, "no"));
}

#[test]
fn a_client_that_leaves_takes_its_upstream_request_along() {
    let origin = Origin::new(|connection| {
        connection.read_request()?;
        connection.stall()
    });
    let sluice = Sluice::before(&origin);
    let mut client = sluice.client();
    client.send("GET /a HTTP/1.1\r\nHost: a.example\r\n\r\n");
    origin.wait_for_heads(1);
    drop(client);
    origin.wait_for_open(0);
}

#[test]
fn a_client_that_wants_one_answer_and_sends_more_gets_its_answer() {
    let gate = Gate::new();
    let held = gate.clone();
    let origin = Origin::new(move |connection| {
        connection.read_request()?;
        connection.wait_at(&held)?;
        connection.write(origin::ok("hello"))
    });
    let sluice = Sluice::before(&origin);
    let mut client = sluice.client();
    client.send("GET /a HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n");
    origin.wait_for_heads(1);
    // What nobody reads would reset the connection when it is closed, and its answer with it.
    client.send("\r\n");
    gate.open();
    assert_eq!(client.read_response().text(), "hello");
    client.half_close();
    assert!(client.closes_in_order(), "it was reset");
}
