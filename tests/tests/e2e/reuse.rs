//! Connections to upstreams are reused, and no request ever pays for it.

use sluice_tests::{Client, Config, Gate, Origin, Sluice, origin};

const POST: &str = "POST /a HTTP/1.1\r\nHost: a.example\r\nContent-Length: 5\r\n\r\nhello";

#[test]
fn a_request_that_met_a_closing_connection_is_sent_again() {
    // The first connection dies exactly when its second request arrives: the close race.
    let origin = Origin::new(|connection| {
        connection.read_request()?;
        connection.write(origin::ok("hello"))?;
        if connection.number == 0 {
            connection.readable()?;
            return connection.reset();
        }
        connection.read_request()?;
        connection.write(origin::ok("hello"))
    });
    let sluice = Sluice::before(&origin);
    let mut client = sluice.client();
    for _ in 0..3 {
        assert_eq!(client.get("/a").status(), 200);
    }
    assert_eq!((origin.requests().len(), origin.connections()), (3, 2));
}

#[test]
fn a_closed_idle_connection_is_not_used() {
    let origin = Origin::new(|connection| {
        connection.read_request()?;
        connection.write(origin::ok("hello"))
    });
    let sluice = Sluice::before(&origin);
    let mut client = sluice.client();
    for number in 1..=20 {
        client.send(POST);
        assert_eq!(client.read_response().status(), 200, "request {number}");
        // Closed by the upstream right after its answer, as at its keep-alive timeout.
        origin.wait_for_open(0);
    }
    assert_eq!((origin.requests().len(), origin.connections()), (20, 20));
}

#[test]
fn an_upstream_that_says_close_is_believed() {
    let origin = Origin::new(|connection| {
        connection.read_request()?;
        connection.write("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")?;
        connection.stall()
    });
    let sluice = Sluice::before(&origin);
    let mut client = sluice.client();
    for number in 1..=3 {
        client.send(POST);
        let response = client.read_response();
        assert_eq!(response.status(), 200);
        assert_ne!(response.field("connection"), Some("close"), "that was for one hop");
        assert_eq!(origin.connections(), number);
    }
}

#[test]
fn what_may_have_been_acted_upon_is_never_sent_twice() {
    // Answered once, so that the second request goes out on a reused connection.
    let origin = Origin::new(|connection| {
        if connection.number == 0 {
            connection.read_request()?;
            connection.write(origin::ok("hello"))?;
        }
        connection.read_request()?;
        connection.reset()
    });
    let sluice = Sluice::start(Config::to(&[origin.addr()]).route("retries = 3"));
    let mut client = sluice.client();
    assert_eq!(client.get("/a").status(), 200);
    client.send(POST);
    assert_eq!(client.read_response().status(), 502);
    let posts = origin.requests().iter().filter(|r| r.head.line.starts_with("POST")).count();
    assert_eq!(posts, 1, "the upstream has acted on it already");
}

#[test]
fn a_retry_never_draws_a_second_stale_connection() {
    const POOL: usize = 3;
    let gate = Gate::new();
    let held = gate.clone();
    // The first connections answer once, all together; what comes after that kills them.
    let origin = Origin::new(move |connection| {
        if connection.number < POOL {
            connection.read_request()?;
            connection.wait_at(&held)?;
            connection.write(origin::ok("old"))?;
            connection.readable()?;
            return connection.reset();
        }
        loop {
            connection.read_request()?;
            connection.write(origin::ok("new"))?;
        }
    });
    let sluice = Sluice::before(&origin);
    let mut clients: Vec<Client> = (0..POOL).map(|_| sluice.client()).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        client.send("GET /a HTTP/1.1\r\nHost: a.example\r\n\r\n");
        origin.wait_for_heads(number + 1);
    }
    gate.open();
    for client in &mut clients {
        assert_eq!(client.read_response().text(), "old");
    }
    for _ in 0..4 {
        assert_eq!(clients[0].get("/a").text(), "new");
    }
    assert_eq!(origin.connections(), POOL + 1, "one fresh connection served them all");
    origin.wait_for_open(1);
}

#[test]
fn after_a_silent_death_the_other_idle_connections_are_dropped() {
    const POOL: usize = 3;
    let gate = Gate::new();
    let held = gate.clone();
    // A firewall forgot them: no end, no reset, no answer.
    let origin = Origin::new(move |connection| {
        if connection.number < POOL {
            connection.read_request()?;
            connection.wait_at(&held)?;
            connection.write(origin::ok("old"))?;
            return connection.stall();
        }
        loop {
            connection.read_request()?;
            connection.write(origin::ok("new"))?;
        }
    });
    let config = Config::to(&[origin.addr()]).upstream("timeout = { first_byte = \"300ms\" }");
    let sluice = Sluice::start(config);
    let mut clients: Vec<Client> = (0..POOL).map(|_| sluice.client()).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        client.send("GET /a HTTP/1.1\r\nHost: a.example\r\n\r\n");
        origin.wait_for_heads(number + 1);
    }
    gate.open();
    for client in &mut clients {
        assert_eq!(client.read_response().text(), "old");
    }
    let first = clients[0].get("/a");
    assert!([200, 504].contains(&first.status()), "{}", first.status());
    origin.wait_for_open(if first.status() == 200 { 1 } else { 0 });
    for _ in 0..POOL {
        assert_eq!(clients[0].get("/a").text(), "new", "one failure is enough");
    }
}

#[test]
fn stray_bytes_on_an_idle_connection_reach_nobody() {
    const STRAY: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nstray";
    let gate = Gate::new();
    let held = gate.clone();
    let origin = Origin::new(move |connection| {
        connection.read_request()?;
        connection.write(origin::ok(&format!("own {}", connection.number)))?;
        if connection.number == 0 {
            connection.wait_at(&held)?;
            connection.write(STRAY)?;
        }
        connection.stall()
    });
    let sluice = Sluice::before(&origin);
    let mut client = sluice.client();
    assert_eq!(client.get("/a").text(), "own 0");
    gate.open();
    // The gateway closes it when the bytes come, not when somebody wants to use it.
    origin.wait_for_open(0);
    assert_eq!(client.get("/a").text(), "own 1");
}

#[test]
fn bytes_after_an_answer_poison_its_connection() {
    let origin = Origin::new(|connection| {
        connection.read_request()?;
        let own = origin::ok(&format!("own {}", connection.number));
        connection.write([own, origin::ok("stray")].concat())?;
        connection.stall()
    });
    let sluice = Sluice::before(&origin);
    for number in 0..3 {
        assert_eq!(sluice.client().get("/a").text(), format!("own {number}"));
    }
}

#[test]
fn an_upstream_that_always_hangs_up_is_asked_a_bounded_number_of_times() {
    let origin = Origin::new(|connection| {
        connection.read_request()?;
        connection.reset()
    });
    let sluice = Sluice::start(Config::to(&[origin.addr()]).route("retries = 1"));
    assert_eq!(sluice.client().get("/a").status(), 502);
    assert!(origin.requests().len() <= 2, "{} times", origin.requests().len());
}

#[test]
fn what_was_never_sent_is_tried_at_another_server() {
    let refusing = sluice_tests::Refusing::new();
    let origin = Origin::ok("hello");
    let servers = [refusing.addr(), origin.addr()];
    let sluice = Sluice::start(Config::to(&servers).route("retries = 1"));
    let mut client = sluice.client();
    for _ in 0..4 {
        client.send(POST);
        assert_eq!(client.read_response().status(), 200);
    }
    assert_eq!(origin.requests().len(), 4);
}
