//! What takes too long or grows too large ends at its bound, whatever trickles in meanwhile.

use sluice_tests::wait::moment;
use sluice_tests::{Config, Gate, Origin, Sluice, origin};

const GET: &str = "GET /a HTTP/1.1\r\nHost: a.example\r\n\r\n";

#[test]
fn an_upstream_that_trickles_never_outlasts_the_time_for_its_head() {
    // Bytes of one head, and heads that are never the final one.
    for trickle in ["X", "HTTP/1.1 103 Early Hints\r\n\r\n"] {
        let origin = Origin::new(move |connection| {
            connection.read_request()?;
            if trickle == "X" {
                connection.write("HTTP/1.1 200 OK\r\n")?;
            }
            loop {
                moment();
                connection.write(trickle)?;
            }
        });
        let config = Config::to(&[origin.addr()]).upstream("timeout = { first_byte = \"400ms\" }");
        let sluice = Sluice::start(config);
        assert_eq!(sluice.client().get("/a").status(), 504, "{trickle:?}");
    }
}

#[test]
fn a_client_that_trickles_never_outlasts_the_time_for_its_head() {
    let origin = Origin::ok("never");
    let sluice = Sluice::start(Config::to(&[origin.addr()]).server("header_timeout = \"400ms\""));
    for trickle in ["X", "\r\n"] {
        let mut client = sluice.client();
        if trickle == "X" {
            client.send("GET /a HTTP/1.1\r\n");
        }
        let given_up = (0..150).any(|_| {
            moment();
            !client.try_send(trickle)
        });
        assert!(given_up, "{trickle:?} goes on for ever");
    }
    assert_eq!(origin.connections(), 0);
}

#[test]
fn a_body_that_nobody_wants_costs_its_client_at_most_the_connection() {
    // (length, kept)
    for (length, kept) in [(1 << 10, true), (64 << 10, true), (1 << 20, false), (8 << 20, false)] {
        let origin = Origin::ok("hello");
        let config = Config::to(&[origin.addr()]).to_string().replace("\"/{*rest}\"", "\"/only\"");
        let sluice = Sluice::start(config);
        let mut client = sluice.client();
        client.send_what_is_taken(format!(
            "POST /elsewhere HTTP/1.1\r\nHost: a.example\r\nContent-Length: {length}\r\n\r\n{}",
            "a".repeat(length)
        ));
        let response = client.read_response();
        assert_eq!(response.status(), 404, "{length}");
        assert_eq!(response.field("connection"), (!kept).then_some("close"), "{length}");
        if kept {
            assert_eq!(client.get("/only").text(), "hello", "{length}");
        }
    }
}

#[test]
fn an_upstream_may_refuse_a_body_and_close() {
    for reset in [false, true] {
        let origin = Origin::new(move |connection| {
            connection.read_head()?;
            connection.write(
                "HTTP/1.1 413 Content Too Large\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno",
            )?;
            // Once the answer has been passed on, so that the kernel does not throw it away.
            moment();
            if reset { connection.reset() } else { Ok(()) }
        });
        let sluice = Sluice::before(&origin);
        let mut client = sluice.client();
        client.send_what_is_taken(
            "POST /a HTTP/1.1\r\nHost: a.example\r\nContent-Length: 9000000\r\n\r\n",
        );
        client.send_what_is_taken("a".repeat(9_000_000));
        let response = client.read_response();
        assert_eq!((response.status(), response.text().as_str()), (413, "no"));
        sluice.wait_for_metric("sluice_upstream_connections_open", 0.0);
        sluice.wait_for_metric("sluice_requests_in_flight", 0.0);
    }
}

#[test]
fn a_response_head_has_a_longest_length() {
    for (fields, status) in [(30, 200), (90, 502)] {
        let origin = Origin::answering(move |_| {
            let field = format!("X-A: {}\r\n", "a".repeat(1000));
            let head = format!("HTTP/1.1 200 OK\r\n{}", field.repeat(fields));
            format!("{head}Content-Length: 2\r\n\r\nok").into_bytes()
        });
        let sluice = Sluice::before(&origin);
        assert_eq!(sluice.client().get("/a").status(), status, "{fields} KB");
        sluice.wait_for_metric("sluice_panics_total", 0.0);
    }
}

#[test]
fn a_response_may_be_split_anywhere_in_its_head() {
    let text = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n\
                HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A: b\r\n\r\nhello";
    for size in [1, 2, 3, 7] {
        let origin = Origin::new(move |connection| {
            loop {
                connection.read_request()?;
                connection.write_in_pieces(text.as_bytes(), size)?;
            }
        });
        let sluice = Sluice::before(&origin);
        let mut client = sluice.client();
        for _ in 0..3 {
            client.send(GET);
            let response = client.read_response();
            assert_eq!((response.interim.len(), response.text().as_str()), (1, "hello"));
            assert_eq!(response.field("x-a"), Some("b"));
        }
        assert_eq!(origin.connections(), 1, "by {size}");
    }
}

#[test]
fn a_reload_that_drops_an_upstream_lets_its_last_request_end() {
    let gate = Gate::new();
    let held = gate.clone();
    let old = Origin::new(move |connection| {
        connection.read_request()?;
        connection.wait_at(&held)?;
        connection.write(origin::ok("old"))?;
        connection.stall()
    });
    let new = Origin::ok("new");
    let sluice = Sluice::before(&old);
    let mut client = sluice.client();
    client.send(GET);
    old.wait_for_heads(1);
    assert_eq!(sluice.reload(Config::to(&[new.addr()])).code, Some(0));
    gate.open();
    assert_eq!(client.read_response().text(), "old");
    old.wait_for_open(0);
    assert_eq!(client.get("/a").text(), "new");
}
