//! What any proxy must do: requests come through, answers come back, connections are kept.

use sluice_tests::{Client, Config, Origin, Sluice, origin};

#[test]
fn a_get_comes_through_and_its_answer_back() {
    let origin = Origin::ok("hello");
    let sluice = Sluice::before(&origin);
    let response = sluice.client().get("/a%7Eb/c?q=%41&empty=&x=y=z");
    assert_eq!((response.status(), response.text().as_str()), (200, "hello"));
    assert_eq!(origin.only_request().head.line, "GET /a%7Eb/c?q=%41&empty=&x=y=z HTTP/1.1");
}

#[test]
fn a_body_arrives_as_it_was_sent_with_exactly_one_length() {
    let origin = Origin::ok("stored");
    let sluice = Sluice::before(&origin);
    let mut client = sluice.client();
    let cases = [
        ("Content-Length: 5\r\n\r\nhello", "hello"),
        ("Content-Length: 0\r\n\r\n", ""),
        ("Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", "hello"),
        ("Transfer-Encoding: Chunked\r\n\r\n3\r\nhel\r\n002;x=y\r\nlo\r\n0\r\n\r\n", "hello"),
        ("Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", ""),
    ];
    for (number, (rest, body)) in cases.into_iter().enumerate() {
        client.send(format!("POST /a HTTP/1.1\r\nHost: a.example\r\n{rest}"));
        assert_eq!(client.read_response().text(), "stored", "{rest:?}");
        let request = &origin.requests()[number];
        assert_eq!(String::from_utf8_lossy(&request.body), body, "{rest:?}");
        let lengths = request.head.all("content-length").len();
        let codings = request.head.all("transfer-encoding").len();
        assert_eq!(lengths + codings, 1, "{:?}", request.head);
    }
}

#[test]
fn an_answer_without_a_body_ends_at_its_head() {
    const CASES: &[(&str, &str, u16)] = &[
        ("HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", 200),
        ("GET", "HTTP/1.1 204 No Content\r\n\r\n", 204),
        ("GET", "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\nETag: \"a\"\r\n\r\n", 304),
    ];
    let origin = Origin::answering(|request| {
        let number: usize = request.head.line.split(['/', ' ']).nth(2).unwrap().parse().unwrap();
        CASES[number].1.into()
    });
    let sluice = Sluice::before(&origin);
    let mut client = sluice.client();
    for (number, (method, answer, status)) in CASES.iter().enumerate() {
        client.send(format!("{method} /{number} HTTP/1.1\r\nHost: a.example\r\n\r\n"));
        let response = client.read_bodyless();
        assert_eq!(response.status(), *status, "{answer}");
        let stated = answer.contains("Content-Length").then_some("5");
        assert_eq!(response.field("content-length"), stated, "{answer}");
        assert_eq!(response.field("transfer-encoding"), None, "{answer}");
    }
    assert_eq!(origin.connections(), 1, "each answer leaves its connection usable");
}

#[test]
fn connections_are_kept_on_both_sides() {
    let origin = Origin::ok("hello");
    let sluice = Sluice::before(&origin);
    for _ in 0..2 {
        let mut client = sluice.client();
        for _ in 0..3 {
            assert_eq!(client.get("/a").status(), 200);
        }
    }
    assert_eq!((origin.requests().len(), origin.connections()), (6, 1));
}

#[test]
fn pipelined_requests_are_answered_in_their_order() {
    let origin = Origin::answering(|request| origin::ok(&request.head.line));
    let sluice = Sluice::before(&origin);
    let mut client = sluice.client();
    client.send(
        "GET /1 HTTP/1.1\r\nHost: a.example\r\n\r\n\
         POST /2 HTTP/1.1\r\nHost: a.example\r\nContent-Length: 5\r\n\r\nhello\
         GET /3 HTTP/1.1\r\nHost: a.example\r\n\r\n",
    );
    for expected in ["GET /1 HTTP/1.1", "POST /2 HTTP/1.1", "GET /3 HTTP/1.1"] {
        assert_eq!(client.read_response().text(), expected);
    }
}

#[test]
fn a_client_that_asks_to_close_is_closed_after_its_answer() {
    let origin = Origin::ok("hello");
    let sluice = Sluice::before(&origin);
    let mut client = sluice.client();
    let response = client.ask("/a", "Connection: close\r\n");
    assert_eq!(response.field("connection"), Some("close"));
    client.expect_close();
    // The client's wish is not the upstream's: its connection is kept.
    assert_eq!(sluice.client().get("/a").status(), 200);
    assert_eq!(origin.connections(), 1);
}

#[test]
fn an_http_1_0_client_gets_no_chunks_and_is_closed() {
    let origin = Origin::answering(|_| {
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n".to_vec()
    });
    let sluice = Sluice::before(&origin);
    let mut client = sluice.client();
    client.send("GET /a HTTP/1.0\r\n\r\n");
    let response = client.read_response();
    assert_eq!((response.status(), response.text().as_str()), (200, "hello"));
    assert_eq!(response.field("transfer-encoding"), None);
    client.expect_close();
    assert!(origin.only_request().head.line.ends_with("HTTP/1.1"));
}

#[test]
fn an_http_1_0_client_may_keep_its_connection() {
    let origin = Origin::ok("hello");
    let sluice = Sluice::before(&origin);
    let mut client = sluice.client();
    for _ in 0..2 {
        client.send("GET /a HTTP/1.0\r\nHost: a.example\r\nConnection: keep-alive\r\n\r\n");
        let response = client.read_response();
        assert_eq!(response.text(), "hello");
        assert_eq!(response.field("connection"), Some("keep-alive"));
    }
}

#[test]
fn a_head_may_arrive_byte_by_byte() {
    let origin = Origin::ok("hello");
    let sluice = Sluice::before(&origin);
    let mut client = sluice.client();
    for byte in b"GET /a HTTP/1.1\r\nHost: a.example\r\nX-A: b\r\n\r\n" {
        client.send([*byte]);
    }
    assert_eq!(client.read_response().text(), "hello");
    assert_eq!(origin.only_request().head.field("x-a"), Some("b"));
}

#[test]
fn empty_lines_before_a_request_are_skipped() {
    let origin = Origin::ok("hello");
    let sluice = Sluice::before(&origin);
    let mut client = sluice.client();
    client.send("\r\nGET /a HTTP/1.1\r\nHost: a.example\r\n\r\n");
    assert_eq!(client.read_response().status(), 200);
}

#[test]
fn servers_take_turns_by_round_robin_and_by_weight() {
    let (left, right) = (Origin::ok("left"), Origin::ok("right"));
    let config = Config::to(&[left.addr(), right.addr()]).upstream("balance = \"round_robin\"");
    let sluice = Sluice::start(config);
    let mut client = sluice.client();
    let first: Vec<String> = (0..4).map(|_| client.get("/a").text()).collect();
    assert_eq!(first[..2], first[2..]);
    assert_ne!(first[0], first[1]);
    assert_eq!((left.requests().len(), right.requests().len()), (2, 2));
}

#[test]
fn two_gateways_in_a_row_are_still_transparent() {
    let origin = Origin::ok("hello");
    let inner = Sluice::before(&origin);
    let outer = Sluice::start(Config::to(&[inner.addr()]));
    let mut client = Client::connect(outer.addr());
    for _ in 0..3 {
        assert_eq!(client.get("/a").text(), "hello");
    }
}
