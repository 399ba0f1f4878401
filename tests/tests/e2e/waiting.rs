//! Requests that wait, for a connection or for their turn, and clients that do not wait for them.

use std::time::{Duration, Instant};

use sluice_tests::{Client, Config, Gate, Origin, Response, Sluice, origin};

const GET: &str = "GET /a HTTP/1.1\r\nHost: a.example\r\n\r\n";
const WAITING: &str = "sluice_pool_waiting";

/// Answers with the request's target once the gate is open.
fn holding(gate: &Gate) -> Origin {
    let held = gate.clone();
    Origin::new(move |connection| {
        loop {
            let request = connection.read_request()?;
            connection.wait_at(&held)?;
            let target = request.head.line.split(' ').nth(1).unwrap_or_default().to_owned();
            connection.write(origin::ok(&target))?;
        }
    })
}

fn asking(sluice: &Sluice, target: &str) -> Client {
    let mut client = sluice.client();
    client.send(GET.replace("/a", target));
    client
}

fn code(response: &Response) -> String {
    response.json()["code"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn a_full_pool_lets_a_few_wait_and_serves_them_in_the_order_they_came() {
    let gate = Gate::new();
    let origin = holding(&gate);
    let queue = "connections = 1\nqueue = { max = 2, wait = \"9s\" }";
    let sluice = Sluice::start(Config::to(&[origin.addr()]).upstream(queue));
    let mut held = asking(&sluice, "/held");
    origin.wait_for_heads(1);
    let mut first = asking(&sluice, "/first");
    sluice.wait_for_metric(WAITING, 1.0);
    let mut second = asking(&sluice, "/second");
    sluice.wait_for_metric(WAITING, 2.0);
    let refused = sluice.client().get("/refused");
    assert_eq!((refused.status(), code(&refused).as_str()), (503, "upstream.pool_full"));
    gate.open();
    for (client, text) in [(&mut held, "/held"), (&mut first, "/first"), (&mut second, "/second")] {
        assert_eq!(client.read_response().text(), text);
    }
    let asked: Vec<String> = origin.requests().iter().map(|r| r.head.line.clone()).collect();
    assert!(asked[1].contains("/first") && asked[2].contains("/second"), "{asked:?}");
    assert_eq!(origin.connections(), 1);
    for (name, count) in [
        ("sluice_pool_waits_total", 2.0),
        (WAITING, 0.0),
        ("sluice_pool_waits_timed_out_total", 0.0),
    ] {
        sluice.wait_for_metric(name, count);
    }
}

#[test]
fn a_wait_at_a_full_pool_is_short() {
    let gate = Gate::new();
    let origin = holding(&gate);
    let queue = "connections = 1\nqueue = { wait = \"100ms\" }";
    let sluice = Sluice::start(Config::to(&[origin.addr()]).upstream(queue));
    let mut held = asking(&sluice, "/held");
    origin.wait_for_heads(1);
    let began = Instant::now();
    let refused = sluice.client().get("/late");
    assert_eq!((refused.status(), code(&refused).as_str()), (503, "upstream.pool_full"));
    assert!(began.elapsed() >= Duration::from_millis(100));
    sluice.wait_for_metric("sluice_pool_waits_timed_out_total", 1.0);
    gate.open();
    assert_eq!(held.read_response().status(), 200);
}

#[test]
fn a_client_that_leaves_the_queue_makes_room_for_the_next() {
    let gate = Gate::new();
    let origin = holding(&gate);
    let queue = "connections = 1\nqueue = { max = 1, wait = \"9s\" }";
    let sluice = Sluice::start(Config::to(&[origin.addr()]).upstream(queue));
    let mut held = asking(&sluice, "/held");
    origin.wait_for_heads(1);
    let leaving = asking(&sluice, "/leaving");
    sluice.wait_for_metric(WAITING, 1.0);
    drop(leaving);
    sluice.wait_for_metric(WAITING, 0.0);
    let mut next = asking(&sluice, "/next");
    sluice.wait_for_metric(WAITING, 1.0);
    gate.open();
    assert_eq!(held.read_response().text(), "/held");
    assert_eq!(next.read_response().text(), "/next");
    assert_eq!(origin.requests().len(), 2, "nothing was sent for a client that left");
}

#[test]
fn a_connection_that_closes_makes_room_for_who_waits() {
    let gate = Gate::new();
    let held = gate.clone();
    let origin = Origin::new(move |connection| {
        connection.read_request()?;
        connection.wait_at(&held)?;
        connection.write("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
    });
    let queue = "connections = 1\nqueue = { wait = \"9s\" }";
    let sluice = Sluice::start(Config::to(&[origin.addr()]).upstream(queue));
    let mut clients: Vec<Client> = (0..4).map(|_| asking(&sluice, "/a")).collect();
    sluice.wait_for_metric(WAITING, 3.0);
    gate.open();
    for client in &mut clients {
        assert_eq!(client.read_response().status(), 200);
    }
    assert_eq!(origin.connections(), 4);
}

#[test]
fn a_client_that_leaves_ends_its_wait_at_once() {
    let origin = Origin::ok("hello");
    let config = Config::to(&[origin.addr()])
        .route("limits = [\"slow\"]\nconcurrency = { max = 2 }")
        .more("[limit.slow]\nkind = \"leaky\"\nrate = \"2/min\"\nmax_wait = \"60s\"\n");
    let sluice = Sluice::start(config);
    assert_eq!(sluice.client().get("/a").status(), 200);
    let body = "PUT /a HTTP/1.1\r\nHost: a.example\r\nContent-Length: 9000\r\n\r\nbegun";
    for text in [GET, body] {
        let mut client = sluice.client();
        client.send(text);
        sluice.wait_for_metric("sluice_requests_in_flight", 1.0);
        drop(client);
        sluice.wait_for_metric("sluice_requests_in_flight", 0.0);
    }
    assert_eq!(origin.requests().len(), 1);
}
