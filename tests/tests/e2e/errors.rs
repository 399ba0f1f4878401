//! Every refusal is reachable, well formed, and says nothing of what lies behind the gateway.

use sluice_tests::{Client, Config, Gate, Origin, Refusing, Response, Sluice, origin};

const GET: &str = "GET /a HTTP/1.1\r\nHost: a.example\r\n\r\n";

/// Answers that are no HTTP, or cannot be framed in one way only.
const GARBAGE: &[&str] = &[
    "hello\r\n\r\n",
    "HTTP/1.1 abc OK\r\nContent-Length: 0\r\n\r\n",
    "HTTP/1.1 99 Low\r\nContent-Length: 0\r\n\r\n",
    "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nabc",
    "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\nab",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    "HTTP/1.1 200 OK\r\nX-A: b\0\r\nContent-Length: 0\r\n\r\n",
    "HTTP/1.1 200 OK\r\nX-A : b\r\nContent-Length: 0\r\n\r\n",
    "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
    "HTTP/1.1 200 OK\r\nContent-Le",
    "",
];

#[test]
fn a_request_without_a_route_is_404() {
    let origin = Origin::ok("never");
    let config = Config::to(&[origin.addr()]).to_string().replace("\"/{*rest}\"", "\"/only\"");
    let sluice = Sluice::start(config);
    let mut client = sluice.client();
    well_formed(&client.get("/elsewhere"), 404);
    well_formed(&client.get("/elsewhere"), 404);
    assert_eq!(origin.connections(), 0);
}

#[test]
fn a_head_that_does_not_come_in_time_is_408() {
    let origin = Origin::ok("never");
    let sluice = Sluice::start(Config::to(&[origin.addr()]).server("header_timeout = \"200ms\""));
    let mut client = sluice.client();
    client.send("GET /a HTTP/1.1\r\nHost: a.ex");
    well_formed(&client.read_response(), 408);
    client.expect_close();
}

#[test]
fn a_connection_that_stays_idle_is_closed_without_a_word() {
    let origin = Origin::ok("hello");
    let sluice = Sluice::start(Config::to(&[origin.addr()]).server("idle_timeout = \"200ms\""));
    let mut client = sluice.client();
    assert_eq!(client.get("/a").status(), 200);
    client.expect_close();
}

#[test]
fn a_body_that_stops_coming_is_408() {
    let origin = Origin::ok("never");
    let sluice = Sluice::start(Config::to(&[origin.addr()]).server("read_timeout = \"200ms\""));
    let mut client = sluice.client();
    client.send("POST /a HTTP/1.1\r\nHost: a.example\r\nContent-Length: 10\r\n\r\nhalf");
    well_formed(&client.read_response(), 408);
    client.expect_close();
    assert!(origin.requests().is_empty());
}

#[test]
fn a_body_over_its_bound_is_413() {
    let origin = Origin::ok("stored");
    let sluice = Sluice::start(Config::to(&[origin.addr()]).route("size = { body = \"1KiB\" }"));
    let (fits, large) = ("a".repeat(1024), "a".repeat(1025));
    let sized = |body: &str| format!("Content-Length: {}\r\n\r\n{body}", body.len());
    let chunked = |body: &str| {
        format!("Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n", body.len())
    };
    let cases = [
        (sized(&fits), true),
        (chunked(&fits), true),
        (sized(&large), false),
        (chunked(&large), false),
    ];
    for (number, (rest, accepted)) in cases.iter().enumerate() {
        let mut client = sluice.client();
        client.send_what_is_taken(format!("POST /a HTTP/1.1\r\nHost: a.example\r\n{rest}"));
        let response = client.read_response();
        match accepted {
            true => assert_eq!(response.status(), 200, "case {number}"),
            false => well_formed(&response, 413),
        }
    }
    assert_eq!(origin.requests().len(), 2, "what is too large never becomes a request");
}

#[test]
fn an_upstream_that_refuses_is_502() {
    let refusing = Refusing::new();
    let sluice = Sluice::start(Config::to(&[refusing.addr()]));
    let mut client = sluice.client();
    well_formed(&client.get("/a"), 502);
    well_formed(&client.get("/a"), 502);
}

#[test]
fn an_upstream_that_talks_nonsense_is_502() {
    for garbage in GARBAGE {
        let origin = Origin::new(move |connection| {
            connection.read_request()?;
            connection.write(garbage)
        });
        let sluice = Sluice::before(&origin);
        let response = sluice.client().get("/a");
        assert_eq!(response.status(), 502, "{garbage:?}");
        assert!(response.interim.is_empty(), "passed on: {:?}", response.interim);
        well_formed(&response, 502);
    }
}

#[test]
fn a_request_that_finds_the_pool_full_is_503_at_once() {
    let gate = Gate::new();
    let origin = Origin::behind(&gate, "hello");
    let sluice = Sluice::start(Config::to(&[origin.addr()]).upstream("connections = 1"));
    let mut first = sluice.client();
    first.send(GET);
    origin.wait_for_heads(1);
    well_formed(&sluice.client().get("/a"), 503);
    gate.open();
    assert_eq!(first.read_response().status(), 200);
    assert_eq!(sluice.client().get("/a").status(), 200, "the place is free again");
}

#[test]
fn a_request_over_its_routes_concurrency_is_refused_at_once() {
    let gate = Gate::new();
    let origin = Origin::behind(&gate, "hello");
    let config = Config::to(&[origin.addr()]).route("concurrency = { max = 1 }").workers(2);
    let sluice = Sluice::start(config);
    let mut first = sluice.client();
    first.send(GET);
    origin.wait_for_heads(1);
    for _ in 0..8 {
        well_formed(&sluice.client().get("/a"), 503);
    }
    gate.open();
    assert_eq!(first.read_response().status(), 200);
    assert_eq!(sluice.client().get("/a").status(), 200, "the place is free again");
}

#[test]
fn a_client_that_left_gives_its_place_back() {
    let origin = Origin::new(|connection| {
        loop {
            match connection.read_request()?.head.line.contains("/hold") {
                true => connection.stall()?,
                false => connection.write(origin::ok("hello"))?,
            }
        }
    });
    let sluice = Sluice::start(Config::to(&[origin.addr()]).route("concurrency = { max = 1 }"));
    let mut first = sluice.client();
    first.send(GET.replace("/a", "/hold"));
    origin.wait_for_heads(1);
    drop(first);
    origin.wait_for_open(0);
    assert_eq!(sluice.client().get("/a").status(), 200);
}

#[test]
fn an_upstream_that_does_not_answer_in_time_is_504() {
    for timeout in ["upstream: timeout = { first_byte = \"200ms\" }", "route: timeout = \"200ms\""]
    {
        let origin = Origin::new(|connection| {
            connection.read_request()?;
            connection.stall()
        });
        let config = Config::to(&[origin.addr()]);
        let (place, line) = timeout.split_once(": ").unwrap();
        let config = if place == "route" { config.route(line) } else { config.upstream(line) };
        let sluice = Sluice::start(config);
        well_formed(&sluice.client().get("/a"), 504);
        origin.wait_for_open(0);
        assert_eq!(origin.requests().len(), 1, "{timeout}: sent once only");
    }
}

#[test]
fn an_answer_that_stops_coming_is_broken_off() {
    let origin = Origin::new(|connection| {
        connection.read_request()?;
        connection.write("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")?;
        connection.stall()
    });
    let config = Config::to(&[origin.addr()]).upstream("timeout = { idle = \"200ms\" }");
    let sluice = Sluice::start(config);
    let mut client = sluice.client();
    client.send(GET);
    assert_eq!(client.read_bodyless().status(), 200);
    assert!(client.breaks_off());
}

#[test]
fn an_address_that_is_not_allowed_is_403() {
    let lists = [
        ("addresses = { deny = [\"127.0.0.0/8\"] }", 403),
        ("addresses = { allow = [\"10.0.0.0/8\"] }", 403),
        ("addresses = { allow = [\"127.0.0.0/8\"], deny = [\"127.0.0.1\"] }", 403),
        ("addresses = { allow = [\"127.0.0.0/8\"] }", 200),
    ];
    for (list, status) in lists {
        let origin = Origin::ok("hello");
        let sluice = Sluice::start(Config::to(&[origin.addr()]).route(list));
        let response = sluice.client().ask("/a", "X-Forwarded-For: 10.0.0.1\r\n");
        assert_eq!(response.status(), status, "{list}");
        if status == 403 {
            well_formed(&response, 403);
            assert_eq!(origin.connections(), 0, "{list}");
        }
    }
}

#[test]
fn a_refusal_keeps_the_connection_where_the_request_was_whole() {
    let refusing = Refusing::new();
    let sluice = Sluice::start(Config::to(&[refusing.addr()]).respond("here", "/here", "here"));
    let mut client = Client::connect(sluice.addr());
    assert_eq!(client.get("/a").status(), 502);
    assert_eq!(client.get("/here").text(), "here");
}

#[track_caller]
fn well_formed(response: &Response, status: u16) {
    assert_eq!(response.status(), status, "{}", response.text());
    assert_eq!(response.field("content-type"), Some("application/problem+json"));
    assert!(response.field("x-request-id").is_some(), "{:?}", response.head);
    assert_eq!(response.json()["status"], status);
    let text = format!("{:?}{}", response.head, response.text()).to_lowercase();
    // Nothing of what lies behind: no address, upstream, route, file or library.
    for internal in ["127.0.0.1", "\"app\"", "\"all\"", "sluice.toml", ".rs", "os error", "refused"]
    {
        assert!(!text.contains(internal), "{internal} shows in {text}");
    }
}
