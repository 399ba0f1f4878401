//! One strict parser: what is ambiguous is refused and nothing of it reaches an upstream.

use sluice_tests::{Config, Gate, Origin, Sluice};

const HOST: &str = "Host: a.example\r\n";

/// Field lines of a POST, after `Host`, and what follows its head.
const LENGTHS: &[(&str, u16)] = &[
    ("Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    ("Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n", 400),
    ("Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello", 400),
    ("Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!", 400),
    ("Content-Length: 5, 5\r\n\r\nhello", 400),
    ("Content-Length: +5\r\n\r\nhello", 400),
    ("Content-Length: -5\r\n\r\nhello", 400),
    ("Content-Length: 0x5\r\n\r\nhello", 400),
    ("Content-Length: 5 5\r\n\r\nhello", 400),
    ("Content-Length:\r\n\r\nhello", 400),
    ("Content-Length: 99999999999999999999999\r\n\r\nhello", 400),
    ("Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n", 400),
    ("Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 400),
    ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    ("Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n", 400),
    ("Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n", 400),
    ("Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
];

/// Whole requests.
const HEADS: &[(&str, u16)] = &[
    ("GET /a HTTP/1.1\nHost: a.example\n\n", 400),
    ("GET /a HTTP/1.1\r\nHost: a.example\nX-A: b\r\n\r\n", 400),
    ("GET /a HTTP/1.1\r\nHost: a.example\r\nX-A: b\r\n c\r\n\r\n", 400),
    ("GET /a HTTP/1.1\r\nHost: a.example\r\nX-A : b\r\n\r\n", 400),
    ("GET /a HTTP/1.1\r\nHost: a.example\r\n X-A: b\r\n\r\n", 400),
    ("GET /a HTTP/1.1\r\nHost: a.example\r\nX-A: b\0c\r\n\r\n", 400),
    ("GET /a HTTP/1.1\r\nHost: a.example\r\nX-A: b\rc\r\n\r\n", 400),
    ("GET /a HTTP/1.1\r\nHost: a.example\r\nX A: b\r\n\r\n", 400),
    ("GET /a HTTP/1.1\r\nHost: a.example\r\n: b\r\n\r\n", 400),
    ("GET /a HTTP/1.1\r\nHost: a.example\r\nX-A\r\n\r\n", 400),
    ("GET /a HTTP/1.1\r\nX-A: b\r\n\r\n", 400),
    ("GET /a HTTP/1.1\r\nHost: a.example\r\nHost: a.example\r\n\r\n", 400),
    ("GET /a HTTP/1.1\r\nHost: a.example/b\r\n\r\n", 400),
    ("GET http://b.example/a HTTP/1.1\r\nHost: a.example\r\n\r\n", 400),
    ("GE(T /a HTTP/1.1\r\nHost: a.example\r\n\r\n", 400),
    ("GET  /a HTTP/1.1\r\nHost: a.example\r\n\r\n", 400),
    ("GET /a b HTTP/1.1\r\nHost: a.example\r\n\r\n", 400),
    ("GET a HTTP/1.1\r\nHost: a.example\r\n\r\n", 400),
    ("GET /a\r\nHost: a.example\r\n\r\n", 400),
    ("GET /a HTTP/1.1 \r\nHost: a.example\r\n\r\n", 400),
    ("POST /a HTTP/1.0\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    ("GET /a HTTP/2.0\r\nHost: a.example\r\n\r\n", 505),
    ("GET /a HTTP/3.1\r\nHost: a.example\r\n\r\n", 505),
    ("\x16\x03\x01\x02\0\x01\0\x01\r\n\r\n", 400),
];

/// What follows the head of a chunked POST.
const CHUNKS: &[&str] = &[
    "zz\r\nhello\r\n0\r\n\r\n",
    "\r\nhello\r\n0\r\n\r\n",
    "5 \r\nhello\r\n0\r\n\r\n",
    "+5\r\nhello\r\n0\r\n\r\n",
    "-5\r\nhello\r\n0\r\n\r\n",
    "0x5\r\nhello\r\n0\r\n\r\n",
    "5\nhello\r\n0\r\n\r\n",
    "5\r\nhello0\r\n\r\n",
    "5\r\nhelloXX0\r\n\r\n",
    "5\r\nhello\n0\r\n\r\n",
    "5;a=b\rc\r\nhello\r\n0\r\n\r\n",
    "5;a=b\nc\r\nhello\r\n0\r\n\r\n",
    "10000000000000005\r\nhello\r\n0\r\n\r\n",
    "fffffffffffffffff\r\nhello\r\n0\r\n\r\n",
    "5\r\nhello\r\n0\r\nX-A : b\r\n\r\n",
    "5\r\nhello\r\n0\r\nX-A: b\rc\r\n\r\n",
];

#[test]
fn ambiguous_heads_are_refused_and_reach_nobody() {
    let origin = Origin::ok("never");
    let sluice = Sluice::before(&origin);
    let posts =
        LENGTHS.iter().map(|(rest, status)| (format!("POST /a HTTP/1.1\r\n{HOST}{rest}"), *status));
    let heads = HEADS.iter().map(|(text, status)| ((*text).to_owned(), *status));
    for (text, status) in posts.chain(heads) {
        refused(&sluice, &text, status);
        assert_eq!(origin.connections(), 0, "something reached the origin: {text:?}");
    }
}

#[test]
fn what_follows_an_ambiguous_head_is_not_a_request() {
    let origin = Origin::ok("never");
    let sluice = Sluice::before(&origin);
    for (rest, status) in LENGTHS {
        let smuggled = format!("GET /smuggled HTTP/1.1\r\n{HOST}\r\n");
        refused(&sluice, &format!("POST /a HTTP/1.1\r\n{HOST}{rest}{smuggled}"), *status);
    }
    assert_eq!(origin.connections(), 0);
}

#[test]
fn malformed_chunks_are_refused_and_never_complete_a_request() {
    let origin = Origin::ok("never");
    let sluice = Sluice::before(&origin);
    for chunks in CHUNKS {
        let head = format!("POST /a HTTP/1.1\r\n{HOST}Transfer-Encoding: chunked\r\n\r\n");
        refused(&sluice, &format!("{head}{chunks}"), 400);
        let requests = origin.requests();
        assert!(requests.is_empty(), "{chunks:?} completed {requests:?}");
    }
}

#[test]
fn what_is_too_large_is_refused_with_its_own_status() {
    let origin = Origin::ok("never");
    let sluice = Sluice::start(
        Config::to(&[origin.addr()]).server("header_bytes = \"16KiB\"\nheaders = 100"),
    );
    let long = "a".repeat(20 * 1024);
    let many: String = (0..101).map(|n| format!("X-{n}: a\r\n")).collect();
    let cases = [
        (format!("GET /{long} HTTP/1.1\r\n{HOST}\r\n"), 414),
        (format!("GET /a HTTP/1.1\r\n{HOST}X-A: {long}\r\n\r\n"), 431),
        (format!("GET /a HTTP/1.1\r\n{HOST}{long}: a\r\n\r\n"), 431),
        (format!("GET /a HTTP/1.1\r\n{HOST}{many}\r\n"), 431),
    ];
    for (text, status) in cases {
        refused(&sluice, &text, status);
    }
    assert_eq!(origin.connections(), 0);
}

#[test]
fn a_head_that_comes_whole_is_no_longer_than_it_may_be() {
    let origin = Origin::ok("hello");
    let sluice = Sluice::start(Config::to(&[origin.addr()]).server("header_bytes = \"1KiB\""));
    let head = |length: usize| {
        let start = format!("GET /a HTTP/1.1\r\n{HOST}X-A: ");
        let rest = length - start.len() - "\r\n\r\n".len();
        format!("{start}{}\r\n\r\n", "a".repeat(rest))
    };
    let mut client = sluice.client();
    client.send(head(1024));
    assert_eq!(client.read_response().status(), 200);
    // Right behind it, and by itself.
    client.send(head(1025));
    assert_eq!(client.read_response().status(), 431);
    for (text, status) in [
        (head(1025), 431),
        (head(8000), 431),
        (format!("GET /{} HTTP/1.1\r\n{HOST}\r\n", "a".repeat(1200)), 414),
    ] {
        refused(&sluice, &text, status);
    }
    assert_eq!(origin.requests().len(), 1);
}

#[test]
fn a_refused_client_harms_nobody_else() {
    let origin = Origin::ok("hello");
    let sluice = Sluice::before(&origin);
    let mut other = sluice.client();
    assert_eq!(other.get("/a").status(), 200);
    refused(&sluice, "GET /a HTTP/1.1\nHost: a.example\n\n", 400);
    assert_eq!(other.get("/a").status(), 200);
}

#[test]
fn a_chunked_request_may_be_split_anywhere() {
    const BODY: &str = "5\r\nhello\r\n3;x=y\r\n, w\r\n0\r\nX-Sum: 1\r\n\r\n";
    let origin = Origin::ok("stored");
    let sluice = Sluice::before(&origin);
    let mut client = sluice.client();
    for at in 0..=BODY.len() {
        let head = format!("POST /{at} HTTP/1.1\r\n{HOST}Transfer-Encoding: chunked\r\n\r\n");
        client.send(format!("{head}{}", &BODY[..at]));
        // That the head arrived proves that the gateway read the first part by itself.
        origin.wait_for_heads(at + 1);
        client.send(&BODY[at..]);
        assert_eq!(client.read_response().text(), "stored", "split at {at}");
        let request = &origin.requests()[at];
        assert_eq!(request.body, b"hello, w", "split at {at}");
    }
    assert_eq!(origin.connections(), 1, "no split costs the connection");
}

#[test]
fn a_chunked_answer_may_be_split_anywhere() {
    const HEAD: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello";
    const END: &str = "\r\n0\r\n\r\n";
    for at in 0..END.len() {
        let gate = Gate::new();
        let held = gate.clone();
        let origin = Origin::new(move |connection| {
            connection.read_request()?;
            connection.write(format!("{HEAD}{}", &END[..at]))?;
            connection.wait_at(&held)?;
            connection.write(&END[at..])?;
            connection.read_request()?;
            connection.write(format!("{HEAD}{END}"))
        });
        let sluice = Sluice::before(&origin);
        let mut client = sluice.client();
        client.send(format!("GET /a HTTP/1.1\r\n{HOST}\r\n"));
        let _ = client.read_bodyless();
        assert_eq!(client.read_until("hello"), b"hello");
        gate.open();
        assert_eq!(client.read_until_end(), b"", "split at {at}");
        assert_eq!(client.get("/a").text(), "hello", "split at {at}");
        assert_eq!(origin.connections(), 1, "split at {at} costs the connection");
    }
}

#[test]
fn an_answer_to_head_has_no_body_whatever_its_fields_say() {
    let origin = Origin::answering(|request| {
        let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        match request.head.line.starts_with("HEAD") {
            true => head.into(),
            false => format!("{head}5\r\nhello\r\n0\r\n\r\n").into_bytes(),
        }
    });
    let sluice = Sluice::before(&origin);
    let mut client = sluice.client();
    client.send(format!("HEAD /a HTTP/1.1\r\n{HOST}\r\n"));
    assert_eq!(client.read_bodyless().status(), 200);
    assert_eq!(client.get("/a").text(), "hello");
    assert_eq!(origin.connections(), 1);
}

#[test]
fn a_refused_head_request_gets_no_body_either() {
    let sluice = Sluice::before(&Origin::ok("hello"));
    let mut client = sluice.client();
    client.send("HEAD /a HTTP/1.1\r\nX-A : b\r\n\r\n");
    let text = client.read_to_close();
    assert!(text.starts_with("HTTP/1.1 400 ") && text.ends_with("\r\n\r\n"), "{text:?}");
}

#[track_caller]
fn refused(sluice: &Sluice, text: &str, status: u16) {
    let mut client = sluice.client();
    client.send_what_is_taken(text);
    let response = client.read_response();
    let shown: String = text.chars().take(200).collect();
    assert_eq!(response.status(), status, "{shown:?}");
    client.expect_close();
}
