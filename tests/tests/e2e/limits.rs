//! Rate limits as clients and operators see them.

use std::thread;

use sluice_tests::{Config, Origin, Response, Sluice, eventually};

#[test]
fn a_refusal_says_when_to_come_back() {
    let origin = Origin::ok("hello");
    let config =
        Config::to(&[origin.addr()]).limit("fair", "ip", "2/min", 2).route("limits = [\"fair\"]");
    let sluice = Sluice::start(config);
    let mut client = sluice.client();
    for left in ["r=1", "r=0"] {
        let admitted = client.get("/a");
        assert_eq!(admitted.status(), 200);
        let stated = admitted.field("ratelimit").expect("a RateLimit field");
        assert!(stated.replace(' ', "").contains(left), "{stated}");
    }
    for _ in 0..5 {
        let refused = client.get("/a");
        assert_eq!(refused.status(), 429, "after the limit every request is refused");
        let wait: u64 =
            refused.field("retry-after").expect("Retry-After").parse().expect("seconds");
        assert!((1..=30).contains(&wait), "a token comes every 30 s, not in {wait}");
        assert!(refused.field("ratelimit").is_some_and(|field| field.contains("r=0")));
        assert!(refused.field("ratelimit-policy").is_some_and(|field| field.contains("q=2")));
        assert_eq!(refused.field("content-type"), Some("application/problem+json"));
        assert_eq!(refused.json()["status"], 429);
    }
    assert_eq!(origin.requests().len(), 2);
}

#[test]
fn one_a_minute_admits_one_whatever_the_number_of_workers() {
    const CLIENTS: usize = 32;
    let origin = Origin::ok("hello");
    let config = Config::to(&[origin.addr()])
        .workers(4)
        .limit("once", "ip", "1/min", 1)
        .route("limits = [\"once\"]");
    let sluice = Sluice::start(config);
    let ask = || sluice.client().get("/a").status();
    let statuses: Vec<u16> = thread::scope(|scope| {
        let asking: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(ask)).collect();
        asking.into_iter().map(|client| client.join().expect("a status")).collect()
    });
    let count = |status| statuses.iter().filter(|got| **got == status).count();
    assert_eq!((count(200), count(429)), (1, CLIENTS - 1));
    assert_eq!(origin.requests().len(), 1);
}

#[test]
fn each_value_of_a_key_has_its_own_count() {
    let cases = [
        ("ip", ["GET /a", "POST /b"], ["", "X-Api-Key: b\r\n"], 429),
        ("ip/24", ["GET /a", "POST /b"], ["", ""], 429),
        ("header:x-api-key", ["GET /a", "GET /a"], ["X-Api-Key: a\r\n", "x-api-key: b\r\n"], 200),
        ("header:x-api-key", ["GET /a", "GET /a"], ["X-Api-Key: a\r\n", "x-api-key: a\r\n"], 429),
        ("path", ["GET /a", "GET /b"], ["", ""], 200),
        ("path", ["GET /a?x=1", "GET /a?x=2"], ["", ""], 429),
        ("method", ["GET /a", "POST /a"], ["", ""], 200),
        ("route", ["GET /a", "GET /b"], ["", ""], 429),
        ("route", ["GET /a", "GET /other"], ["", ""], 200),
    ];
    for (key, requests, fields, second) in cases {
        let origin = Origin::ok("hello");
        let config = Config::to(&[origin.addr()])
            .limit("once", key, "1/min", 1)
            .route("limits = [\"once\"]")
            .more("[route.other]\nmatch = \"/other\"\nto = \"app\"\nlimits = [\"once\"]\n");
        let sluice = Sluice::start(config);
        let mut client = sluice.client();
        for (request, (fields, status)) in
            requests.iter().zip([(fields[0], 200), (fields[1], second)])
        {
            client.send(format!("{request} HTTP/1.1\r\nHost: a.example\r\n{fields}\r\n"));
            assert_eq!(client.read_response().status(), status, "{key}: {request} {fields}");
        }
    }
}

#[test]
fn a_forged_address_does_not_change_the_key() {
    let origin = Origin::ok("hello");
    let config =
        Config::to(&[origin.addr()]).limit("once", "ip", "1/min", 1).route("limits = [\"once\"]");
    let sluice = Sluice::start(config);
    let mut client = sluice.client();
    assert_eq!(client.ask("/a", "X-Forwarded-For: 10.0.0.1\r\n").status(), 200);
    assert_eq!(client.ask("/a", "X-Forwarded-For: 10.0.0.2\r\n").status(), 429);
}

#[test]
fn a_refused_request_consumes_from_no_rule() {
    for order in ["[\"each\", \"all\"]", "[\"all\", \"each\"]"] {
        let origin = Origin::ok("hello");
        let config = Config::to(&[origin.addr()])
            .limit("each", "header:x-who", "1/min", 1)
            .limit("all", "route", "3/min", 3)
            .route(&format!("limits = {order}"));
        let sluice = Sluice::start(config);
        let mut client = sluice.client();
        let mut ask = |who: &str| -> Response { client.ask("/a", &format!("X-Who: {who}\r\n")) };
        let asked = ["a", "a", "a", "a", "b", "c", "d"];
        let statuses = asked.map(|who| ask(who).status());
        assert_eq!(statuses, [200, 429, 429, 429, 200, 200, 429], "{order}");
    }
}

#[test]
fn connections_over_a_bound_are_turned_away_and_the_rest_served() {
    for bound in ["connections = 2", "connections_per_client = 2"] {
        let origin = Origin::ok("hello");
        let sluice = Sluice::start(Config::to(&[origin.addr()]).server(bound));
        let mut kept = [sluice.client(), sluice.client()];
        for client in &mut kept {
            assert_eq!(client.get("/a").status(), 200, "{bound}");
        }
        let mut third = sluice.client();
        third.try_send_get("/a");
        let said = third.read_to_close();
        assert!(said.is_empty() || said.starts_with("HTTP/1.1 503"), "{bound}: {said}");
        for client in &mut kept {
            assert_eq!(client.get("/a").status(), 200, "{bound}: nobody else is harmed");
        }
        drop(kept);
        eventually("a free place", || {
            let mut client = sluice.client();
            let sent = client.try_send_get("/a");
            let response = if sent { client.try_read_response() } else { None };
            response.filter(|response| response.status() == 200)
        });
    }
}

#[test]
fn what_was_spent_stays_spent_over_a_reload() {
    let origin = Origin::ok("hello");
    let config = |limit: &str, rate: &str, burst: u32| {
        Config::to(&[origin.addr()])
            .limit("other", "method", "9/min", 9)
            .limit(limit, "ip", rate, burst)
            .route(&format!("limits = [\"{limit}\"]"))
    };
    let sluice = Sluice::start(config("fair", "3/min", 3));
    let status = || sluice.client().get("/a").status();
    for _ in 0..3 {
        assert_eq!(status(), 200);
    }
    let reloads = [
        ("the same", config("fair", "3/min", 3).respond("new", "/new", "new"), 429),
        ("a lower rate", config("fair", "2/min", 2), 429),
        ("another rule", config("renamed", "3/min", 3), 200),
    ];
    for (what, config, expected) in reloads {
        assert_eq!(sluice.reload(config).code, Some(0), "{what}");
        assert_eq!(status(), expected, "{what}");
    }
}
