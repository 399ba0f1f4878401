//! Breakers, ejection and retries, as clients, servers and operators see them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use sluice_tests::origin::ok;
use sluice_tests::wait::moment;
use sluice_tests::{Config, Origin, Response, Sluice, eventually};

const ILL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 3\r\n\r\nill";

const HALF: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf";

/// Answers 503 for as long as the flag says so.
fn moody(ill: &Arc<AtomicBool>) -> Origin {
    let ill = Arc::clone(ill);
    Origin::answering(move |_| match ill.load(Ordering::SeqCst) {
        true => ILL.to_vec(),
        false => ok("well"),
    })
}

fn code(response: &Response) -> String {
    response.json()["code"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn a_breaker_opens_answers_by_itself_and_comes_back() {
    let ill = Arc::new(AtomicBool::new(true));
    let origin = moody(&ill);
    let breaker = "breaker = { consecutive = 5, open_for = \"1s\", probes = 2, ramp = \"20ms\" }";
    let sluice = Sluice::start(Config::to(&[origin.addr()]).upstream(breaker));
    let mut client = sluice.client();
    for _ in 0..5 {
        let passed = client.get("/a");
        assert_eq!((passed.status(), passed.text().as_str()), (503, "ill"));
    }
    for _ in 0..20 {
        let refused = client.get("/a");
        assert_eq!((refused.status(), code(&refused).as_str()), (503, "upstream.open"));
        assert_eq!(refused.field("retry-after"), Some("1"));
        assert_eq!(refused.field("content-type"), Some("application/problem+json"));
    }
    assert_eq!(origin.requests().len(), 5, "nothing passes an open breaker");
    let state =
        |state| format!("sluice_breaker_state{{upstream=\"app\",server=\"\",state=\"{state}\"}}");
    assert_eq!(sluice.metrics().get(&state("open")), Some(&1.0));
    let shown = sluice.admin("/v1/breakers").json();
    assert_eq!((&shown[0]["upstream"], &shown[0]["state"]), (&"app".into(), &"open".into()));
    let line = sluice.log_lines(25).pop().expect("a line");
    assert_eq!((&line["code"], &line["decided"]), (&"upstream.open".into(), &"breaker".into()));
    ill.store(false, Ordering::SeqCst);
    eventually("a closed breaker", || {
        client.get("/a");
        let closed = sluice.metrics().get(&state("closed")) == Some(&1.0);
        closed.then_some(())
    });
    assert!((0..20).all(|_| client.get("/a").status() == 200));
    let opened = "sluice_breaker_transitions_total{upstream=\"app\",server=\"\",to=\"open\"}";
    assert_eq!(sluice.metrics().get(opened), Some(&1.0));
}

#[test]
fn all_workers_count_together() {
    let origin = Origin::answering(|_| ILL.to_vec());
    let config = Config::to(&[origin.addr()])
        .workers(4)
        .upstream("breaker = { errors = \"50%\", min_requests = 20, open_for = \"60s\" }");
    let sluice = Sluice::start(config);
    let ask = || (0..10).filter(|_| code_or_ill(&sluice) == "upstream.open").count();
    let refused: usize = thread::scope(|scope| {
        let asking: Vec<_> = (0..8).map(|_| scope.spawn(ask)).collect();
        asking.into_iter().map(|client| client.join().expect("a count")).sum()
    });
    // Twenty, and what was under way when the last of them came back.
    let passed = origin.requests().len();
    assert!((20..28).contains(&passed), "{passed} passed");
    assert_eq!(refused + passed, 80);
}

fn code_or_ill(sluice: &Sluice) -> String {
    let response = sluice.client().get("/a");
    if response.text() == "ill" { "ill".to_owned() } else { code(&response) }
}

#[test]
fn the_operator_forces_a_breaker_and_takes_it_back() {
    let origin = Origin::ok("hello");
    let dir = std::env::temp_dir().join(format!("sluice-breaker-{}", std::process::id()));
    std::fs::write(&dir, "secret").expect("a file");
    let config = Config::to(&[origin.addr()])
        .admin(&format!("token = \"file:{}\"", dir.display()))
        .upstream("breaker = \"default\"");
    let sluice = Sluice::start(config);
    let force = |body: &str| {
        let mut admin = sluice.admin_client();
        admin.send(format!(
            "POST /v1/breakers HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer secret\r\n\
             X-Sluice: 1\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ));
        admin.read_head().line
    };
    let mut client = sluice.client();
    for (body, status, then) in [
        (r#"{"upstream":"app","state":"open","for":"1h"}"#, "204", 503),
        (r#"{"upstream":"app","state":"closed","for":"1h"}"#, "204", 200),
        (r#"{"upstream":"app","state":"open","for":"1h"}"#, "204", 503),
        (r#"{"upstream":"app","state":"open"}"#, "400", 503),
        (r#"{"upstream":"nobody","state":"auto"}"#, "404", 503),
        (r#"{"upstream":"app","state":"auto"}"#, "204", 200),
    ] {
        assert!(force(body).contains(status), "{body}: {}", force(body));
        assert_eq!(client.get("/a").status(), then, "{body}");
    }
    drop(std::fs::remove_file(dir));
}

#[test]
fn a_server_that_fails_is_taken_out_and_clients_see_nothing_of_it() {
    let dead = Origin::new(|connection| {
        connection.read_request()?;
        connection.reset()
    });
    let well = Origin::ok("well");
    let config = Config::to(&[dead.addr(), well.addr()])
        .upstream("eject = { breaker = { consecutive = 3, open_for = \"60s\" } }")
        .route("retries = { on = [\"reset\"] }");
    let sluice = Sluice::start(config);
    let mut client = sluice.client();
    for _ in 0..100 {
        let response = client.get("/a");
        assert_eq!((response.status(), response.text().as_str()), (200, "well"));
    }
    assert_eq!(dead.requests().len(), 3);
    let shown = sluice.admin("/v1/breakers").json();
    assert_eq!(shown[0]["server"], dead.addr().to_string());
    assert_eq!((&shown[0]["state"], &shown[1]["state"]), (&"open".into(), &"closed".into()));
}

#[test]
fn a_status_that_is_not_good_enough_is_tried_elsewhere_on_kept_connections() {
    let (ill, well) = (Origin::answering(|_| ILL.to_vec()), Origin::ok("well"));
    let config = Config::to(&[ill.addr(), well.addr()]).route("retries = { on = [\"5xx\"] }");
    let sluice = Sluice::start(config);
    let mut client = sluice.client();
    for _ in 0..40 {
        let response = client.get("/a");
        assert_eq!((response.status(), response.text().as_str()), (200, "well"));
    }
    assert_eq!((ill.requests().len(), ill.connections()), (20, 1));
    assert_eq!(well.requests().len(), 40);
    // What must not be repeated is not.
    client.send("POST /a HTTP/1.1\r\nHost: a.example\r\nContent-Length: 0\r\n\r\n");
    let first = client.read_response().status();
    client.send("POST /a HTTP/1.1\r\nHost: a.example\r\nContent-Length: 0\r\n\r\n");
    let mut statuses = [first, client.read_response().status()];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 503]);
    assert_eq!(ill.requests().len() + well.requests().len(), 62);
}

/// What servers are asked at most by so many requests: a fifth more, and ten more a second. A
/// budget looks back ten seconds, and begins with what those would have left.
fn budget(requests: usize, took: Duration) -> usize {
    let seconds = usize::try_from(took.as_secs()).expect("few") + 1;
    // Two workers may ask at the same instant.
    requests + requests / 5 + 10 * (10 + seconds) + 2
}

/// So many requests over eight connections, each answered as it should; how long they took.
fn storm(sluice: &Sluice, requests: usize, request: &str, body: &str) -> Duration {
    let began = Instant::now();
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut client = sluice.client();
                for _ in 0..requests / 8 {
                    client.send(request);
                    let response = client.read_response();
                    let code =
                        if response.text() == "ill" { "ill".to_owned() } else { code(&response) };
                    assert_eq!(code, body);
                }
            });
        }
    });
    began.elapsed()
}

#[test]
fn a_storm_of_retries_is_held_down_by_its_budget() {
    const REQUESTS: usize = 1000;
    let get = "GET /a HTTP/1.1\r\nHost: a.example\r\n\r\n";
    let put = "PUT /a HTTP/1.1\r\nHost: a.example\r\nContent-Length: 5\r\n\r\nhello";
    let chunks = "PUT /a HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
    for (answer, request, code) in [
        (ILL, get, "ill"),
        (ILL, put, "ill"),
        (b"", put, "upstream.broken"),
        (b"", chunks, "upstream.broken"),
        (b"220 mail.example ESMTP\r\n\r\n", get, "upstream.malformed"),
        (HALF, get, "upstream.cut"),
        (HALF, put, "upstream.cut"),
    ] {
        let origin = Origin::new(move |connection| {
            loop {
                connection.read_request()?;
                if answer.is_empty() {
                    return connection.reset();
                }
                connection.write(answer)?;
                if answer == HALF {
                    return Ok(());
                }
            }
        });
        let config = Config::to(&[origin.addr()])
            .workers(2)
            .route("retries = { max = 3, on = [\"5xx\", \"reset\"], budget = \"20%\" }");
        let sluice = Sluice::start(config);
        let took = storm(&sluice, REQUESTS, request, code);
        let (called, bound) = (origin.requests().len(), budget(REQUESTS, took));
        let what = format!("{request}: {called} of at most {bound} in {took:?}");
        assert!(called > REQUESTS + 90 && called <= bound, "{what}");
    }
}

#[test]
fn hedges_and_retries_of_a_storm_share_one_budget() {
    const REQUESTS: usize = 480;
    let ill = Arc::new(AtomicBool::new(false));
    // Well and quick at first, and then so late with its error that each call would be hedged.
    let server = || {
        let ill = Arc::clone(&ill);
        Origin::answering(move |_| match ill.load(Ordering::SeqCst) {
            true => {
                moment();
                ILL.to_vec()
            }
            false => ok("well"),
        })
    };
    let servers = [server(), server()];
    let config = Config::to(&[servers[0].addr(), servers[1].addr()])
        .workers(2)
        .upstream("connections = 200")
        .route("retries = { max = 3, on = [\"5xx\"], budget = \"20%\", hedge = true }");
    let sluice = Sluice::start(config);
    let mut client = sluice.client();
    let mut others: Vec<_> = (0..4).map(|_| sluice.client()).collect();
    for _ in 0..200 {
        assert_eq!(client.get("/a").status(), 200);
        others.iter_mut().for_each(|other| assert_eq!(other.get("/a").status(), 200));
    }
    ill.store(true, Ordering::SeqCst);
    let called = || servers.iter().map(|server| server.requests().len()).sum::<usize>();
    let before = called();
    let took = storm(&sluice, REQUESTS, "GET /a HTTP/1.1\r\nHost: a.example\r\n\r\n", "ill");
    // What came before the storm has left something, too.
    let (called, bound) = (called() - before, budget(REQUESTS, took) + 200);
    assert!(called <= bound, "{called} of at most {bound} in {took:?}");
    let metrics = sluice.metrics();
    let (hedges, again) = (metrics["sluice_hedges_total"], metrics["sluice_retries_total"]);
    assert!(hedges > 0.0 && again > 90.0, "{hedges} hedges, {again} retries");
}
